//! Code of the program's that panics where the library calls it: the call ends all the same, and
//! nobody else is harmed.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{DuplexStream, duplex},
    sync::Notify,
    task::JoinHandle,
};
use ttrpc::{
    Client, ClientConfig, Code, Error, Server, ServerConfig, Status,
    observer::{CallEnd, CallInfo, Observer},
    prost::{
        DecodeError, Message,
        bytes::{Buf, BufMut},
        encoding::{DecodeContext, WireType},
    },
    server::{Routes, ServerHandle},
    snapshot::ServerSnapshot,
};
use ttrpc_tests::{
    harness::{Handmade, PIPE_LEN, code::INTERNAL, eventually, settle},
    wire::{Frame, Peer},
};

const NAME: &str = "panics.v1.Panics";

/// A message that panics when it is what its variant says.
#[derive(Debug, Default)]
enum Panics {
    #[default]
    Decoded,
    Encoded,
    Dropped,
}

impl Message for Panics {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        assert!(!matches!(self, Panics::Encoded), "as asked");
        buf.put_slice(&[8, 1]);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        panic!("as asked")
    }

    fn encoded_len(&self) -> usize {
        2
    }

    fn clear(&mut self) {}
}

impl Drop for Panics {
    fn drop(&mut self) {
        assert!(!matches!(self, Panics::Dropped), "as asked");
    }
}

/// Each method, and what tells those that wait to go on.
fn routes(go_on: &Arc<Notify>) -> Routes {
    Routes::new(NAME)
        .unary("Fine", go_on, |_, _, ()| Box::pin(async { Ok(()) }))
        .unary("Undecodable", go_on, |_, _, _: Panics| Box::pin(async { Ok(()) }))
        .unary("Unencodable", go_on, |_, _, ()| Box::pin(async { Ok(Panics::Encoded) }))
        .unary("Undroppable", go_on, |_, _, ()| Box::pin(async { Ok(Panics::Dropped) }))
        .unary("UnencodableLater", go_on, |go_on: &Notify, _, ()| {
            Box::pin(async {
                go_on.notified().await;
                Ok(Panics::Encoded)
            })
        })
        .unary("UndroppableLater", go_on, |go_on: &Notify, _, ()| {
            Box::pin(async {
                go_on.notified().await;
                Ok(Panics::Dropped)
            })
        })
        .unary("Never", go_on, |_, _, ()| {
            Box::pin(async {
                let _guard = Panics::Dropped;
                pending::<Result<(), Status>>().await
            })
        })
        // Longer than the pipe, and short enough to take the room of short replies.
        .unary("Long", go_on, |_, _, ()| Box::pin(async { Ok("x".repeat(3 * PIPE_LEN / 2)) }))
        .unary("Fine", go_on, |_, _, ()| Box::pin(async { Ok(()) }))
}

/// Serves a connection whose queue holds one frame.
fn serve(there: DuplexStream) -> (ServerHandle, JoinHandle<Result<(), Error>>, Arc<Notify>) {
    let go_on = Arc::new(Notify::new());
    let server = Server::builder()
        .config(ServerConfig::default().send_queue_frames(1))
        .add_service(Handmade(routes(&go_on)))
        .io(there)
        .build()
        .unwrap();
    (server.handle(), tokio::spawn(server.serve()), go_on)
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_reply_has_to_wait_is_answered_once_when_that_panics() {
    // A reply is encoded when it has room, and dropped when it has been sent.
    for (method, code) in [("UnencodableLater", INTERNAL), ("UndroppableLater", 0)] {
        let (here, there) = duplex(PIPE_LEN);
        let (handle, _serving, go_on) = serve(there);
        let mut peer = Peer::new(here);
        peer.send(Frame::unary(1, NAME, method, &())).await;
        peer.send(Frame::unary(3, NAME, "Long", &())).await;
        let is_full = |snapshot: &ServerSnapshot| snapshot.connections[0].queue.frames.used == 1;
        eventually("the queue is full", || {
            handle.calls_in_flight() == 1 && is_full(&handle.snapshot())
        })
        .await;
        go_on.notify_one();
        settle().await;
        assert_eq!(peer.receive().await.id, 3);
        let reply = peer.receive().await;
        assert_eq!((reply.id, reply.code()), (1, code));
        peer.send(Frame::unary(5, NAME, "Fine", &())).await;
        assert_eq!(peer.receive().await.id, 5, "nothing was sent twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_panics_while_it_is_decoded_fails_and_no_other_call() {
    let (here, there) = duplex(PIPE_LEN);
    let (handle, serving, _go_on) = serve(there);
    let client = Client::from_io(here, ClientConfig::default());
    let beside: Vec<_> = (0..50)
        .map(|_| tokio::spawn(client.unary::<(), ()>(NAME, "Fine", ()).into_future()))
        .collect();
    let status = client.unary::<_, ()>(NAME, "Undecodable", Panics::Decoded).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    for call in beside {
        assert_eq!(call.await.unwrap(), Ok(()));
    }
    drop(client);
    serving.await.expect("the server does not panic").expect("it ends with its last connection");
    assert_eq!((handle.connections(), handle.calls_in_flight()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_reply_or_its_end_panics() {
    let (here, there) = duplex(PIPE_LEN);
    let (handle, _serving, _go_on) = serve(there);
    let client = Client::from_io(here, ClientConfig::default());

    let status = client.unary::<(), ()>(NAME, "Unencodable", ()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);

    assert_eq!(client.unary::<(), ()>(NAME, "Undroppable", ()).await, Ok(()), "it was sent before");

    let never = client.unary::<(), ()>(NAME, "Never", ()).timeout(Duration::from_secs(1));
    assert_eq!(never.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("no handler is left", || handle.calls_in_flight() == 0).await;

    assert_eq!(client.unary::<(), ()>(NAME, "Fine", ()).await, Ok(()));
}

/// Counts calls that begin and calls that end.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Observer for Counts {
    fn call_begun(&self, _: &CallInfo<'_>) {
        self.begun.fetch_add(1, SeqCst);
    }

    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.ended.fetch_add(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_read_with_a_request_that_panics_are_told_as_ended() {
    let (here, there) = duplex(PIPE_LEN);
    let (counts, go_on) = (Arc::new(Counts::default()), Arc::new(Notify::new()));
    let server = Server::builder().add_service(Handmade(routes(&go_on))).observe(counts.clone());
    let serving = tokio::spawn(server.io(there).serve());
    let mut peer = Peer::new(here);
    let mut frames = Frame::unary(1, NAME, "Fine", &()).to_bytes();
    frames.extend(Frame::unary(3, NAME, "Undecodable", &Panics::Decoded).to_bytes());
    frames.extend(Frame::unary(5, NAME, "Fine", &()).to_bytes());
    peer.send_bytes(&frames).await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        let reply = peer.receive().await;
        replies.push((reply.id, reply.code()));
    }
    replies.sort_unstable();
    assert_eq!(replies, [(1, 0), (3, INTERNAL), (5, 0)]);
    drop(peer);
    serving.await.unwrap().unwrap();
    assert_eq!((counts.begun.load(SeqCst), counts.ended.load(SeqCst)), (3, 3));
}
