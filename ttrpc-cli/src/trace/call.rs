//! Calls as they pass: who said how much, how they ended, and what is kept of all of them together.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use ttrpc::{Code, Status, proto::frame::Header};

/// Messages longer than this are counted and not kept. In bytes.
pub(super) const KEPT_LEN: usize = 64 << 10;

/// What all calls that are under way may hold, in bytes: those of some 90,000 that say little.
pub(super) const MAX_KEPT: usize = 64 << 20;

/// What a call holds beside its names, its metadata and its messages.
pub(super) const CALL_LEN: usize = 600;

/// What a key and a value of metadata hold beside their text.
pub(super) const PAIR_LEN: usize = 48;

/// What is held of the calls under way on all connections of a trace.
#[derive(Debug, Default)]
pub struct Kept {
    bytes: AtomicUsize,
    not_followed: AtomicU64,
}

impl Kept {
    /// Whether there is room for so much more below a limit; then it is taken.
    pub(super) fn take(&self, len: usize, limit: usize) -> bool {
        let add = |kept: usize| kept.checked_add(len).filter(|kept| *kept <= limit);
        self.bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    pub(super) fn release(&self, len: usize) {
        self.bytes.fetch_sub(len, Relaxed);
    }

    /// The bytes that are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Counts a call of which nothing is known.
    pub(super) fn leave_out(&self) {
        self.not_followed.fetch_add(1, Relaxed);
    }

    /// Calls of which nothing is known, since so many others were not answered.
    pub fn not_followed(&self) -> u64 {
        self.not_followed.load(Relaxed)
    }
}

/// Who sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// What one side said in a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pub messages: u64,
    /// Of messages, without frames around them.
    pub bytes: u64,
    /// The first message, if it is not too long.
    pub first: Option<Bytes>,
}

/// A call, as far as it has come.
#[derive(Clone, Debug)]
pub struct Call {
    pub connection: u32,
    pub stream: u32,
    pub service: String,
    pub method: String,
    pub metadata: Vec<(String, String)>,
    pub timeout: Option<Duration>,
    pub begun: Duration,
    pub client: Traffic,
    pub server: Traffic,
    /// What it has of [`Kept`].
    pub kept: usize,
}

impl Call {
    /// `Service/Method`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.service, self.method)
    }

    /// What is known of it beside what was said.
    pub fn without_messages(&self) -> Self {
        Call {
            connection: self.connection,
            stream: self.stream,
            service: self.service.clone(),
            method: self.method.clone(),
            metadata: Vec::new(),
            timeout: self.timeout,
            begun: self.begun,
            client: Traffic::default(),
            server: Traffic::default(),
            kept: 0,
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum End {
    /// With the server's word; `None` for a success.
    Answered(Option<Status>),
    /// With its connection.
    Closed,
    /// With another call on its stream, which no client should make.
    Replaced,
}

impl End {
    /// `OK`, a code's name, `CLOSED` or `REPLACED`.
    pub fn name(&self) -> &'static str {
        match self {
            End::Answered(None) => Code::Ok.name(),
            End::Answered(Some(status)) => status.code().name(),
            End::Closed => "CLOSED",
            End::Replaced => "REPLACED",
        }
    }
}

/// A call that is over.
#[derive(Clone, Debug)]
pub struct Ended {
    pub call: Call,
    pub end: End,
    pub ended: Duration,
}

impl Ended {
    pub fn duration(&self) -> Duration {
        self.ended.saturating_sub(self.call.begun)
    }
}

/// A frame that passed.
#[derive(Clone, Debug)]
pub struct Frame {
    pub side: Side,
    pub header: Header,
    /// Empty if it is longer than a frame may be.
    pub data: Bytes,
}

impl Traffic {
    /// Counts a message. Returns how much is kept of it.
    pub(super) fn add(&mut self, message: &Bytes, kept: &Kept) -> usize {
        // Messages leave room for further calls.
        let is_kept = self.messages == 0
            && message.len() <= KEPT_LEN
            && kept.take(message.len(), MAX_KEPT / 2);
        self.messages += 1;
        self.bytes += message.len() as u64;
        if !is_kept {
            return 0;
        }
        // A copy, so that it does not keep the frame.
        self.first = Some(Bytes::copy_from_slice(message));
        message.len()
    }
}
