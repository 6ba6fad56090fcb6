//! The multiplexer's server.

use std::{
    future::poll_fn,
    path::PathBuf,
    sync::{Arc, Mutex},
    task::Poll,
};

use tokio::net::{UnixListener, UnixStream};

use super::pump::{AboutToSend, Outgoing, Pump};
use crate::wire::{CLOSED, COUNT, Frame, Kind, parse_count};

/// Bytes to be written above which a stream waits.
const STREAM_QUEUE_LEN: usize = 128 << 10;

pub(super) async fn serve(path: PathBuf, spawns: bool, defers: bool) {
    let listener = UnixListener::bind(path).expect("the path is free");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection is accepted");
        tokio::spawn(serve_connection(stream, spawns, defers));
    }
}

async fn serve_connection(stream: UnixStream, spawns: bool, defers: bool) {
    let outgoing = Arc::new(Mutex::new(Outgoing::default()));
    let about_to_send = AboutToSend::new(defers);
    let (reader, _writer) = stream.into_split();
    let pump = Pump::new(reader, outgoing.clone(), about_to_send.clone());
    let act = |mut arrived: &[u8]| {
        let mut replies = Vec::new();
        while let Some(frame) = Frame::take(&mut arrived) {
            let payload = frame.payload.to_vec();
            if frame.flags & COUNT != 0 {
                let (messages, size) = parse_count(&payload);
                tokio::spawn(stream_replies(outgoing.clone(), frame.id, messages, size));
            } else if spawns {
                about_to_send.add(1);
                tokio::spawn(answer(outgoing.clone(), about_to_send.clone(), frame.id, payload));
            } else {
                Frame::response(frame.id, &payload).put(&mut replies);
            }
        }
        outgoing.lock().expect("nobody panics").bytes.append(&mut replies);
        arrived.len()
    };
    // Whether the client closed the connection or it failed, there is nobody left.
    let _ = pump.run(act).await;
}

async fn answer(
    outgoing: Arc<Mutex<Outgoing>>,
    about_to_send: AboutToSend,
    id: u32,
    payload: Vec<u8>,
) {
    let mut outgoing = outgoing.lock().expect("nobody panics");
    about_to_send.subtract_one();
    Frame::response(id, &payload).put(&mut outgoing.bytes);
    outgoing.wake_pump();
}

async fn stream_replies(outgoing: Arc<Mutex<Outgoing>>, id: u32, messages: u64, size: usize) {
    for index in 0..messages {
        let payload = vec![7; size];
        let flags = if index + 1 == messages { CLOSED } else { 0 };
        poll_fn(|cx| {
            let mut outgoing = outgoing.lock().expect("nobody panics");
            if outgoing.bytes.len() > STREAM_QUEUE_LEN {
                outgoing.parked.push(cx.waker().clone());
                return Poll::Pending;
            }
            Frame { id, kind: Kind::Data, flags, payload: &payload }.put(&mut outgoing.bytes);
            outgoing.wake_pump();
            Poll::Ready(())
        })
        .await;
    }
}
