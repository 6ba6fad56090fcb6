//! The multiplexer's client.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem::take,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
    time::Instant,
};

use bench_load::Connection;
use tokio::net::{UnixStream, unix::OwnedWriteHalf};

use super::pump::{AboutToSend, Outgoing, Pump};
use crate::wire::{CLOSED, COUNT, Frame, Kind, count_payload};

pub(super) async fn connect(path: PathBuf, defers: bool) -> Caller {
    let stream = UnixStream::connect(path).await.expect("the server is up");
    let (reader, writer) = stream.into_split();
    let shared = Arc::new(Shared {
        outgoing: Arc::default(),
        calls: Mutex::default(),
        about_to_send: AboutToSend::new(defers),
        writer,
    });
    let pump = Pump::new(reader, shared.outgoing.clone(), shared.about_to_send.clone());
    let receiving = shared.clone();
    tokio::spawn(async move {
        let mut woken = Vec::new();
        pump.run(|arrived| receiving.receive(arrived, &mut woken)).await
    });
    Caller(shared)
}

/// What has arrived for one call.
#[derive(Default)]
struct Call {
    messages: VecDeque<Vec<u8>>,
    is_over: bool,
    caller: Option<Waker>,
}

/// Calls under way, oldest first. Ids rise by two, so a call's index follows from its id.
#[derive(Default)]
struct Calls {
    /// The index that the first of `calls` would have if none had been removed.
    first: u32,
    calls: VecDeque<Option<Call>>,
    open: usize,
}

impl Calls {
    fn add(&mut self) -> u32 {
        self.calls.push_back(Some(Call::default()));
        self.open += 1;
        (self.first + self.calls.len() as u32 - 1) * 2 + 1
    }

    fn get(&mut self, id: u32) -> Option<&mut Call> {
        self.calls.get_mut((id / 2 - self.first) as usize)?.as_mut()
    }

    fn remove(&mut self, id: u32) {
        self.calls[(id / 2 - self.first) as usize] = None;
        self.open -= 1;
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.first += 1;
        }
    }
}

struct Shared {
    outgoing: Arc<Mutex<Outgoing>>,
    calls: Mutex<Calls>,
    about_to_send: AboutToSend,
    writer: OwnedWriteHalf,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("nobody panics")
    }

    /// Hands out what has arrived. Gives back how many bytes at its end are no whole frame.
    fn receive(&self, mut arrived: &[u8], woken: &mut Vec<Waker>) -> usize {
        let mut calls = self.calls();
        let mut callers = 0;
        while let Some(frame) = Frame::take(&mut arrived) {
            let Some(call) = calls.get(frame.id) else { continue };
            call.messages.push_back(frame.payload.to_vec());
            call.is_over = frame.kind == Kind::Response || frame.flags & CLOSED != 0;
            callers += usize::from(frame.kind == Kind::Response);
            woken.extend(call.caller.take());
        }
        self.about_to_send.add(callers);
        drop(calls);
        take(woken).into_iter().for_each(Waker::wake);
        arrived.len()
    }

    fn send(&self, id: u32, flags: u8, payload: &[u8], is_alone: bool) {
        let mut outgoing = self.outgoing.lock().expect("nobody panics");
        let may_write = is_alone && !outgoing.is_writing && outgoing.bytes.is_empty();
        Frame { id, kind: Kind::Request, flags, payload }.put(&mut outgoing.bytes);
        if may_write {
            // Nothing else is under way: written from here, it spares a change of tasks.
            let written = self.writer.try_write(&outgoing.bytes).unwrap_or(0);
            outgoing.bytes.drain(..written);
            if outgoing.bytes.is_empty() {
                return;
            }
        }
        outgoing.wake_pump();
    }

    /// The next message of a call; `None` at its end.
    async fn next(&self, id: u32) -> Option<Vec<u8>> {
        poll_fn(|cx| {
            let mut calls = self.calls();
            let call = calls.get(id).expect("it is removed at its end");
            if let Some(message) = call.messages.pop_front() {
                return Poll::Ready(Some(message));
            }
            if call.is_over {
                return Poll::Ready(None);
            }
            call.caller = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A connection.
#[derive(Clone)]
pub struct Caller(Arc<Shared>);

impl Connection for Caller {
    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        let shared = &self.0;
        let (id, is_alone) = {
            let mut calls = shared.calls();
            (calls.add(), calls.open == 1)
        };
        shared.send(id, 0, &payload, is_alone);
        let reply = shared.next(id).await.expect("a reply comes");
        shared.about_to_send.subtract_one();
        shared.calls().remove(id);
        reply
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let id = self.0.calls().add();
        self.0.send(id, COUNT, &count_payload(messages, size), true);
        let mut received = (0, 0);
        while let Some(message) = self.0.next(id).await {
            received = (received.0 + 1, received.1 + message.len() as u64);
        }
        self.0.calls().remove(id);
        received
    }

    /// Its rounds are unary calls, whose frames are a little longer than a stream's.
    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        for _ in 0..rounds {
            let start = Instant::now();
            assert_eq!(self.echo(payload.to_vec()).await.len(), payload.len());
            nanos.push(start.elapsed().as_nanos() as u32);
        }
    }
}
