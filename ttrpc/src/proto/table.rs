//! All streams of one connection: a frame goes in, an event comes out.
//!
//! The table decides. For each stream it stores a handle of the driver's (`T`), which it returns with each event. A
//! stream is in the table from its Request to its end, and removing it ends it: so a stream ends exactly once, on every
//! path. The client of this crate keeps a stream that has ended until its caller has taken the end.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::frame::{Flags, FrameType, Header};
use super::stream::{DataEvent, Kind, Stream, Violation};

/// Streams that a server ended before the client did, at most this many, oldest forgotten first.
/// Later frames of the client on them are dropped without an answer.
const MAX_ENDED_EARLY: usize = 1024;

/// The capacity that a table keeps when its last stream has ended, some 12 KiB: bursts of 256 calls need not allocate it
/// for each burst.
const IDLE_CAPACITY: usize = 448;

/// Streams by id.
type Streams<T> = HashMap<u32, (Stream, T), FxBuildHasher>;

/// Removes a stream, and the table's memory with the last one of many.
fn take<T>(streams: &mut Streams<T>, id: u32) -> Option<(Stream, T)> {
    let taken = streams.remove(&id)?;
    if streams.is_empty() && streams.capacity() > IDLE_CAPACITY {
        *streams = Streams::default();
    }
    Some(taken)
}

/// The streams of a client's connection.
#[derive(Debug)]
pub struct ClientTable<T> {
    /// `None` when all 2³¹ ids have been given.
    next_id: Option<u32>,
    streams: Streams<T>,
    /// Streams that have not ended.
    open: usize,
}

/// The action of a client for a frame.
#[derive(Debug, PartialEq)]
pub enum ClientEvent<T> {
    /// A Data frame for a stream that goes on or ends with it.
    Data(T, DataEvent),
    /// A Response: the stream has ended, its data says how.
    Response(T),
    /// The server broke the protocol on this stream; the stream has ended.
    Violation(T, Violation),
    /// Nothing: a frame for a stream that is over, or of a type that this side has no use for.
    Ignore,
}

impl<T> Default for ClientTable<T> {
    fn default() -> Self {
        ClientTable { next_id: Some(1), streams: Streams::default(), open: 0 }
    }
}

impl<T> ClientTable<T> {
    /// A table whose next stream gets this id; for tests of what happens near 2³².
    pub fn starting_at(id: u32) -> Self {
        ClientTable { next_id: Some(id), ..ClientTable::default() }
    }

    /// Gives a stream its id. Called in the order in which Requests enter the socket, since a
    /// server refuses an id that does not rise.
    ///
    /// `None` when the connection has used up its ids.
    pub fn open(&mut self, kind: Kind, handle: T) -> Option<u32> {
        let id = self.next_id?;
        self.next_id = id.checked_add(2);
        self.streams.insert(id, (Stream::opened_by_us(kind), handle));
        self.open += 1;
        Some(id)
    }

    /// Returns the action for a frame.
    pub fn receive(&mut self, header: Header) -> ClientEvent<T>
    where
        T: Clone,
    {
        let event = match header.frame_type {
            FrameType::Response => {
                self.answer(header.stream_id).map_or(ClientEvent::Ignore, ClientEvent::Response)
            }
            FrameType::Data => match self.receive_data(header.stream_id, header.flags) {
                Some((handle, Ok(event))) => ClientEvent::Data(handle.clone(), event),
                Some((handle, Err(violation))) => ClientEvent::Violation(handle.clone(), violation),
                None => ClientEvent::Ignore,
            },
            FrameType::Request | FrameType::Unknown(_) => ClientEvent::Ignore,
        };
        self.remove_ended(header.stream_id);
        event
    }

    /// Acts on a Data frame; `None` if it is to be ignored. A stream that ends with it stays in the table until
    /// [`ClientTable::remove`].
    pub(crate) fn receive_data(
        &mut self,
        id: u32,
        flags: Flags,
    ) -> Option<(&mut T, Result<DataEvent, Violation>)> {
        let (handle, received) =
            self.change(id, |stream| match stream.is_repeated_close(flags) {
                true => None,
                false => Some(stream.receive_data(flags).inspect_err(|_| stream.end())),
            })?;
        Some((handle, received?))
    }

    /// Changes a stream that has not ended. If it ends with that, it stays in the table until [`ClientTable::remove`].
    fn change<R>(&mut self, id: u32, change: impl FnOnce(&mut Stream) -> R) -> Option<(&mut T, R)> {
        let (stream, handle) = self.streams.get_mut(&id)?;
        if stream.is_closed() {
            return None;
        }
        let changed = change(stream);
        self.open -= usize::from(stream.is_closed());
        Some((handle, changed))
    }

    /// The server has answered this stream with a Response, which ends it.
    pub fn answer(&mut self, id: u32) -> Option<T> {
        self.end(id)?;
        self.remove(id)
    }

    /// Ends a stream that has not ended. It stays in the table until [`ClientTable::remove`].
    pub(crate) fn end(&mut self, id: u32) -> Option<&mut T> {
        self.change(id, Stream::end).map(|(handle, ())| handle)
    }

    /// Ends all streams, which stay in the table. Returns all that are there.
    pub(crate) fn end_all(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.open = 0;
        self.streams.iter_mut().map(|(id, (stream, handle))| {
            stream.end();
            (*id, handle)
        })
    }

    /// The client is done sending on this stream.
    pub fn close_local(&mut self, id: u32) {
        self.end_requests(id);
        self.remove_ended(id);
    }

    /// Notes that the client is done sending. A stream that ends with that stays in the table.
    pub(crate) fn end_requests(&mut self, id: u32) {
        self.change(id, Stream::close_local);
    }

    /// Removes a stream, which ends with that: its call was given up or failed here.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let (stream, handle) = take(&mut self.streams, id)?;
        self.open -= usize::from(!stream.is_closed());
        Some(handle)
    }

    fn remove_ended(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(|(stream, _)| stream.is_closed()) {
            take(&mut self.streams, id);
        }
    }

    /// The handle of a stream that is in the table, ended or not.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.streams.get(&id).map(|(_, handle)| handle)
    }

    /// The handle of a stream that is in the table, ended or not, to be changed.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.streams.get_mut(&id).map(|(_, handle)| handle)
    }

    /// Returns whether a stream has not ended.
    pub fn contains(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|(stream, _)| !stream.is_closed())
    }

    /// Returns whether all ids have been given.
    pub fn is_spent(&self) -> bool {
        self.next_id.is_none()
    }

    /// The ids and handles of all streams that have not ended, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let open = self.streams.iter().filter(|(_, (stream, _))| !stream.is_closed());
        open.map(|(id, (_, handle))| (*id, handle))
    }

    /// Ends all streams: the handles of those that had not ended.
    pub fn into_handles(self) -> impl Iterator<Item = T> {
        let open = self.streams.into_values().filter(|(stream, _)| !stream.is_closed());
        open.map(|(_, handle)| handle)
    }

    /// Streams that have not ended.
    pub fn len(&self) -> usize {
        self.open
    }

    /// Returns whether every stream has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The ids that a client's Requests came with.
#[derive(Debug, Default)]
pub struct RequestIds {
    highest: u32,
}

impl RequestIds {
    /// Uses an id for a stream.
    ///
    /// # Errors
    /// If it is none that may follow those before it.
    pub fn use_id(&mut self, id: u32) -> Result<(), Violation> {
        if id.is_multiple_of(2) {
            return Err(Violation("a client's stream id must be odd"));
        }
        if id <= self.highest {
            return Err(Violation("a stream id must be higher than every one before it"));
        }
        self.highest = id;
        Ok(())
    }

    /// Keeps up with a receiver that has [`RequestIds`] of its own.
    fn note(&mut self, id: u32) {
        self.highest = self.highest.max(id);
    }
}

/// The streams of a server's connection.
#[derive(Debug)]
pub struct ServerTable<T> {
    ids: RequestIds,
    streams: Streams<T>,
    /// Ids of streams that the server ended while the client's side was open, rising.
    ended_early: Vec<u32>,
}

/// The action of a server for a frame.
#[derive(Debug, PartialEq)]
pub enum ServerEvent<T> {
    /// A Request with a fresh id: [`ServerTable::open`] it, or refuse it.
    Open,
    /// A Data frame for a stream that is open.
    Data(T, DataEvent),
    /// Answer with a Response of code INVALID_ARGUMENT. If the frame broke the rules of a stream
    /// that was open, that stream has ended, and this is its handle.
    Refuse(Violation, Option<T>),
    /// Nothing.
    Ignore,
}

impl<T> Default for ServerTable<T> {
    fn default() -> Self {
        ServerTable {
            ids: RequestIds::default(),
            streams: Streams::default(),
            ended_early: Vec::new(),
        }
    }
}

impl<T: Clone> ServerTable<T> {
    /// Returns the action for a frame.
    pub fn receive(&mut self, header: Header) -> ServerEvent<T> {
        match header.frame_type {
            // Unknown types are ignored whatever their id; a Response is none of a client's.
            FrameType::Response | FrameType::Unknown(_) => ServerEvent::Ignore,
            FrameType::Request => match self.ids.use_id(header.stream_id) {
                Ok(()) => ServerEvent::Open,
                // A peer that reuses the id of a live stream takes the refusal for that stream's end.
                Err(violation) => ServerEvent::Refuse(violation, self.remove(header.stream_id)),
            },
            FrameType::Data if header.stream_id.is_multiple_of(2) => {
                ServerEvent::Refuse(Violation("a client's stream id must be odd"), None)
            }
            FrameType::Data => self.receive_data(header.stream_id, header.flags),
        }
    }

    fn receive_data(&mut self, id: u32, flags: Flags) -> ServerEvent<T> {
        let Some((stream, handle)) = self.streams.get_mut(&id) else {
            return self.receive_data_without_stream(id, flags);
        };
        if stream.is_repeated_close(flags) {
            // It harms nobody, and containerd's implementation ignores it.
            return ServerEvent::Ignore;
        }
        match stream.receive_data(flags) {
            Ok(event) => ServerEvent::Data(handle.clone(), event),
            Err(violation) => ServerEvent::Refuse(violation, self.remove(id)),
        }
    }

    fn receive_data_without_stream(&mut self, id: u32, flags: Flags) -> ServerEvent<T> {
        let Ok(index) = self.ended_early.binary_search(&id) else {
            return ServerEvent::Refuse(Violation("no stream with this id is open"), None);
        };
        if flags.contains(Flags::REMOTE_CLOSED) {
            self.ended_early.remove(index);
        }
        ServerEvent::Ignore
    }

    /// Puts a stream into the table, after [`ServerEvent::Open`] or [`RequestIds::use_id`].
    pub fn open(&mut self, id: u32, flags: Flags, handle: T) {
        self.ids.note(id);
        self.streams.insert(id, (Stream::opened_by_remote(flags), handle));
    }

    /// Notes that a Request was refused instead of opened. What a client that takes the stream
    /// for open still sends on it is dropped.
    pub fn refuse(&mut self, id: u32, flags: Flags) {
        self.ids.note(id);
        if flags.contains(Flags::REMOTE_OPEN) {
            self.note_ended_early(id);
        }
    }

    /// Ends a stream. The caller that gets the handle sends the last frame; `None` if it has ended before.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let (stream, handle) = take(&mut self.streams, id)?;
        if stream.is_remote_open() {
            self.note_ended_early(id);
        }
        Some(handle)
    }

    fn note_ended_early(&mut self, id: u32) {
        if self.ended_early.len() == MAX_ENDED_EARLY {
            self.ended_early.remove(0);
        }
        let index = self.ended_early.partition_point(|&other| other < id);
        self.ended_early.insert(index, id);
    }

    /// Returns whether a stream has not ended.
    pub fn contains(&self, id: u32) -> bool {
        self.streams.contains_key(&id)
    }

    /// The handles of all streams.
    pub fn handles(&self) -> impl Iterator<Item = &T> {
        self.streams.values().map(|(_, handle)| handle)
    }

    /// Ends all streams: the handles of those that had not ended.
    pub fn into_handles(self) -> impl Iterator<Item = T> {
        self.streams.into_values().map(|(_, handle)| handle)
    }

    /// Streams that have not ended.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether every stream has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(stream_id: u32) -> Header {
        Header { data_len: 0, stream_id, frame_type: FrameType::Request, flags: Flags::NONE }
    }

    #[test]
    fn a_client_has_given_all_ids_behind_the_last_one() {
        let mut table = ClientTable::starting_at(u32::MAX - 2);
        for id in [u32::MAX - 2, u32::MAX] {
            assert!(!table.is_spent());
            assert_eq!(table.open(Kind::Unary, ()), Some(id));
        }
        assert!(table.is_spent());
        assert_eq!(table.open(Kind::Unary, ()), None);
    }

    #[test]
    fn a_server_knows_which_streams_have_not_ended() {
        let mut table = ServerTable::default();
        assert!(table.is_empty() && !table.contains(1));
        for id in [1, 3] {
            assert_eq!(table.receive(request(id)), ServerEvent::Open);
            table.open(id, Flags::NONE, ());
        }
        assert!(table.contains(1) && !table.contains(2) && !table.is_empty());
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_table_that_had_many_streams_keeps_little_memory_and_one_that_had_few_keeps_theirs() {
        for (streams, is_kept) in [(200, true), (1000, false)] {
            let mut table = ClientTable::default();
            let ids: Vec<_> =
                (0..streams).map(|_| table.open(Kind::Unary, ()).expect("ids are left")).collect();
            assert_eq!((table.len(), table.iter().count()), (streams, streams));
            for id in ids {
                assert_eq!(table.remove(id), Some(()));
                assert_eq!(table.remove(id), None);
            }
            let capacity = table.streams.capacity();
            assert!(table.is_empty() && (capacity > 0) == is_kept && capacity <= IDLE_CAPACITY);
        }
    }
}
