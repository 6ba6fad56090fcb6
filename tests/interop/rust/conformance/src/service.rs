//! The behaviour of the service, for a peer to put behind its library's generated traits.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use ttrpc_conformance::{Chunk, Collected, Peer, Statistics};

/// Reads `--listen ADDRESS` from the command line.
///
/// # Panics
///
/// Panics when the command line is anything else, since a server without an address has nothing to do.
pub fn listen_address() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [flag, address] if flag == "--listen" => address.clone(),
        _ => panic!("usage: --listen unix:///path"),
    }
}

#[derive(Default)]
pub struct Service {
    waiting: Mutex<HashMap<String, Arc<Notify>>>,
    connections: AtomicU64,
    calls_in_flight: AtomicU64,
    calls_total: AtomicU64,
    calls_cancelled: AtomicU64,
}

impl Service {
    /// Counts a connection until the returned value is dropped.
    pub fn begin_connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counts a call until the returned future ends; one that is dropped before was cancelled.
    pub async fn call<T>(&self, handler: impl Future<Output = T>) -> T {
        let mut call = self.begin();
        let outcome = handler.await;
        call.finished = true;
        outcome
    }

    /// Counts a call of a library that can't cancel its handlers.
    pub fn call_blocking<T>(&self, handler: impl FnOnce() -> T) -> T {
        let mut call = self.begin();
        let outcome = handler();
        call.finished = true;
        outcome
    }

    /// Counts a call whose handler is a stream, until the returned value is dropped.
    pub fn begin_stream(self: &Arc<Self>) -> OpenStream {
        self.calls_total.fetch_add(1, Ordering::Relaxed);
        self.calls_in_flight.fetch_add(1, Ordering::Relaxed);
        OpenStream(Arc::clone(self))
    }

    fn begin(&self) -> Call<'_> {
        self.calls_total.fetch_add(1, Ordering::Relaxed);
        self.calls_in_flight.fetch_add(1, Ordering::Relaxed);
        Call { service: self, finished: false }
    }

    pub fn echo(&self, payload: Vec<u8>, response_size: u32) -> Vec<u8> {
        if response_size > 0 { vec![0; response_size as usize] } else { payload }
    }

    /// Waits for the next [`Service::release`] of the key; one that came before is not remembered.
    pub async fn wait(&self, key: &str) {
        let released = {
            let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
            Arc::clone(waiting.entry(key.to_owned()).or_default()).notified_owned()
        };
        released.await;
    }

    /// Does the same for a library without futures.
    pub fn wait_blocking(&self, key: &str) {
        futures::executor::block_on(self.wait(key));
    }

    pub fn release(&self, key: &str) {
        let released = self.waiting.lock().expect("no holder of this lock panics").remove(key);
        if let Some(released) = released {
            released.notify_waiters();
        }
    }

    pub fn stats(&self, tasks_alive: u64) -> Statistics {
        Statistics {
            connections: self.connections.load(Ordering::Relaxed),
            calls_in_flight: self.calls_in_flight.load(Ordering::Relaxed),
            tasks_alive,
            calls_total: self.calls_total.load(Ordering::Relaxed),
            calls_cancelled: self.calls_cancelled.load(Ordering::Relaxed),
        }
    }
}

struct Call<'a> {
    service: &'a Service,
    finished: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.service.calls_in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.finished && !std::thread::panicking() {
            self.service.calls_cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub struct OpenConnection(Arc<Service>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct OpenStream(Arc<Service>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.calls_in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the chunks of a stream.
pub struct Collecting(Collected);

impl Default for Collecting {
    fn default() -> Self {
        Collecting(Collected { chunks: 0, bytes: 0, in_order: true })
    }
}

impl Collecting {
    pub fn add(&mut self, chunk: &Chunk) {
        self.0.in_order &= chunk.sequence == self.0.chunks;
        self.0.chunks += 1;
        self.0.bytes += chunk.payload.len() as u64;
    }

    pub fn total(self) -> Collected {
        self.0
    }
}

/// The message of the status that a stream was asked to end with. It tells what its handler saw, because no streaming
/// method has a reply for that.
pub fn as_asked(timeout_nano: i64, metadata: &HashMap<String, Vec<String>>) -> String {
    let mut message = format!("as asked; timeout_nano={timeout_nano}");
    let mut keys: Vec<_> = metadata.iter().collect();
    keys.sort();
    for (key, values) in keys {
        for value in values {
            message += &format!("; {key}={value}");
        }
    }
    message
}

/// Asks the kernel who is at the other end of a Unix socket.
pub fn peer_of(socket: impl AsFd) -> Peer {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(credentials) => Peer {
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
            pid: credentials.pid.as_raw_nonzero().get(),
        },
        Err(_) => Peer::default(),
    }
}
