//! The queues between the logical connections and the trunk's tasks: all state of a multiplexer, behind one lock.
//!
//! `logical` reads and writes them, `trunk` fills and empties them. No waker is called under the lock.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::BytesMut;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    ConnId, LogicalSnapshot, MAX_PAYLOAD, MuxConfig, MuxError,
    layout::{self, Piece},
};

/// What the trunk writer takes at a time, if there is as much.
const BATCH: usize = 64 << 10;
/// A buffer of unread bytes is given up when it is empty and larger than this.
const KEPT: usize = 64 << 10;

/// The queues of one multiplexer.
#[derive(Debug)]
pub(super) struct Queues {
    config: MuxConfig,
    state: Mutex<State>,
    /// Notifies the trunk writer: there is something to write, or nothing will be any more.
    to_write: Notify,
    ended: CancellationToken,
}

#[derive(Debug)]
struct State {
    logicals: BTreeMap<ConnId, LogicalState>,
    /// The logical connection whose frames were taken last.
    last: ConnId,
    /// The trunk is to be closed when all is written.
    is_finishing: bool,
    end: Option<MuxError>,
}

#[derive(Debug, Default)]
struct LogicalState {
    is_closed: bool,
    unread: VecDeque<u8>,
    received: u64,
    reader: Option<Waker>,
    unsent: VecDeque<BytesMut>,
    /// Bytes in `unsent`, and those that the trunk writer has taken and not written.
    unsent_bytes: usize,
    sent_frames: u64,
    writer: Option<Waker>,
}

/// Whole mux frames for the trunk writer, and how many bytes of each logical connection they are.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) frames: Vec<BytesMut>,
    written: Vec<(ConnId, usize)>,
}

/// What the trunk writer does next.
pub(super) enum Work {
    Write(Batch),
    /// All is written, and the trunk is to be closed.
    Finish,
}

impl Queues {
    pub(super) fn new(mut config: MuxConfig, ids: &[ConnId]) -> Self {
        config.unread_bytes = config.unread_bytes.max(MAX_PAYLOAD);
        let logicals: BTreeMap<_, _> =
            ids.iter().map(|&id| (id, LogicalState::default())).collect();
        assert_eq!(logicals.len(), ids.len(), "a logical connection is named twice");
        let state = State { logicals, last: ConnId(0), is_finishing: false, end: None };
        let (to_write, ended) = (Notify::new(), CancellationToken::new());
        Queues { config, state: Mutex::new(state), to_write, ended }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends what the trunk reader has read. Never waits.
    ///
    /// # Errors
    /// If more is unread than may be.
    pub(super) fn deliver(&self, connection: ConnId, bytes: &[u8]) -> Result<(), MuxError> {
        let mut state = self.lock();
        let Some(logical) = state.logicals.get_mut(&connection).filter(|it| !it.is_closed) else {
            return Ok(());
        };
        let limit = self.config.unread_bytes;
        if logical.unread.len() + bytes.len() > limit {
            return Err(MuxError::Unread { connection, limit });
        }
        logical.unread.extend(bytes);
        logical.received += bytes.len() as u64;
        let waker = logical.reader.take();
        drop(state);
        wake(waker);
        Ok(())
    }

    /// Reads up to `room` bytes into `put`. Nothing at the end.
    ///
    /// # Errors
    /// If the trunk has failed and all that arrived before has been read.
    pub(super) fn poll_read(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        room: usize,
        put: impl FnOnce(&[u8]),
    ) -> Poll<Result<(), MuxError>> {
        let mut state = self.lock();
        let State { logicals, end, .. } = &mut *state;
        let logical = logicals.get_mut(&id).expect("it was opened");
        if !logical.unread.is_empty() {
            let (bytes, _) = logical.unread.as_slices();
            let len = room.min(bytes.len());
            put(&bytes[..len]);
            logical.unread.drain(..len);
            if logical.unread.is_empty() && logical.unread.capacity() > KEPT {
                logical.unread = VecDeque::new();
            }
            return Poll::Ready(Ok(()));
        }
        match end {
            Some(MuxError::Closed) => Poll::Ready(Ok(())),
            Some(error) => Poll::Ready(Err(error.clone())),
            None => {
                set_waker(&mut logical.reader, cx);
                Poll::Pending
            }
        }
    }

    /// Waits until less than the limit waits to be written.
    ///
    /// # Errors
    /// If the trunk has ended.
    pub(super) fn poll_room(&self, id: ConnId, cx: &mut Context<'_>) -> Poll<Result<(), MuxError>> {
        self.poll_unsent(id, cx, self.config.unsent_bytes.max(1) - 1)
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// If the trunk has ended.
    pub(super) fn poll_flush(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), MuxError>> {
        self.poll_unsent(id, cx, 0)
    }

    fn poll_unsent(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<(), MuxError>> {
        let mut state = self.lock();
        if let Some(error) = &state.end {
            return Poll::Ready(Err(error.clone()));
        }
        let logical = state.logical(id);
        if logical.unsent_bytes <= most {
            return Poll::Ready(Ok(()));
        }
        set_waker(&mut logical.writer, cx);
        Poll::Pending
    }

    /// Queues a ttrpc frame for the trunk writer. Returns whether there is room for more.
    pub(super) fn send(&self, id: ConnId, piece: &mut Option<Piece>) -> bool {
        let Some(piece) = piece.take() else { return true };
        let mut state = self.lock();
        if state.end.is_some() {
            return false;
        }
        let logical = state.logical(id);
        match piece {
            Piece::Short(bytes) => logical.append(id, &bytes),
            Piece::Long(header, frame) => {
                logical.append(id, &header);
                logical.unsent_bytes += frame.len();
                logical.unsent.push_back(frame);
            }
        }
        let has_room = logical.unsent_bytes < self.config.unsent_bytes;
        drop(state);
        self.to_write.notify_one();
        has_room
    }

    /// Waits until there are mux frames to write, and takes some, in turns of each logical connection.
    pub(super) async fn next_work(&self) -> Work {
        loop {
            if let Some(work) = self.lock().work() {
                return work;
            }
            self.to_write.notified().await;
        }
    }

    /// The batch is written: what it took is free.
    pub(super) fn written(&self, batch: Batch) {
        let mut state = self.lock();
        let mut wakers = Vec::new();
        for (id, bytes) in batch.written {
            let logical = state.logical(id);
            logical.unsent_bytes -= bytes;
            logical.sent_frames += 1;
            wakers.extend(logical.writer.take());
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends everything. The first reason counts.
    pub(super) fn end(&self, error: MuxError) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(error);
        let mut wakers = Vec::new();
        for logical in state.logicals.values_mut() {
            logical.unsent.clear();
            wakers.extend([logical.reader.take(), logical.writer.take()].into_iter().flatten());
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.ended.cancel();
    }

    /// Has the trunk writer close the trunk when all is written.
    pub(super) fn finish(&self) {
        self.lock().is_finishing = true;
        self.to_write.notify_one();
    }

    /// Waits for the end.
    pub(super) async fn ended(&self) -> MuxError {
        self.ended.cancelled().await;
        self.lock().end.clone().expect("it has ended")
    }

    pub(super) fn end_reason(&self) -> Option<MuxError> {
        self.lock().end.clone()
    }

    /// A logical connection was dropped: its peer does not notice, and what arrives for it is dropped.
    pub(super) fn close(&self, id: ConnId) {
        let mut state = self.lock();
        let logical = state.logical(id);
        logical.is_closed = true;
        logical.unread = VecDeque::new();
    }

    pub(super) fn snapshot(&self) -> Vec<LogicalSnapshot> {
        let state = self.lock();
        let logicals = state.logicals.iter().map(|(&id, logical)| LogicalSnapshot {
            id,
            is_open: !logical.is_closed,
            unread_bytes: logical.unread.len(),
            unsent_bytes: logical.unsent_bytes,
            received_bytes: logical.received,
            sent_frames: logical.sent_frames,
        });
        logicals.collect()
    }
}

impl State {
    fn logical(&mut self, id: ConnId) -> &mut LogicalState {
        self.logicals.get_mut(&id).expect("it was opened")
    }

    /// What the trunk writer does next, if anything: one frame of each logical connection in turn.
    fn work(&mut self) -> Option<Work> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while bytes < BATCH {
            let after = (std::ops::Bound::Excluded(self.last), std::ops::Bound::Unbounded);
            let has_frames = |(id, logical): (&ConnId, &LogicalState)| {
                (!logical.unsent.is_empty()).then_some(*id)
            };
            let next = self.logicals.range(after).find_map(has_frames);
            let Some(id) = next.or_else(|| self.logicals.iter().find_map(has_frames)) else {
                break;
            };
            self.last = id;
            if let Some(frame) = self.logical(id).unsent.pop_front() {
                bytes += frame.len();
                batch.written.push((id, frame.len()));
                batch.frames.push(frame);
            }
        }
        match batch.frames.is_empty() {
            false => Some(Work::Write(batch)),
            true => self.is_finishing.then_some(Work::Finish),
        }
    }
}

impl LogicalState {
    /// Queues bytes in a short mux frame, the last one if they fit.
    fn append(&mut self, id: ConnId, bytes: &[u8]) {
        if let Some(last) = self.unsent.back_mut()
            && layout::append(last, bytes)
        {
            self.unsent_bytes += bytes.len();
            return;
        }
        let frame = layout::frame(id, bytes);
        self.unsent_bytes += frame.len();
        self.unsent.push_back(frame);
    }
}

fn set_waker(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
