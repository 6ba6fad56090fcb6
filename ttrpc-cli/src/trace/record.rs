//! Frames in a file.
//!
//! A line that names the format, then entries: protobuf messages, each behind its length. The first may
//! hold the schema, so that the file can be read without the server.

use std::{
    collections::HashMap,
    fs::{File, Permissions},
    io::{BufWriter, ErrorKind, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use rustix::{fs::OFlags, io::Errno};
use ttrpc::{
    Metadata, Raw,
    proto::{
        frame::{Flags, FrameType, Header, MAX_DATA_LEN},
        message::{self, FrameData, Measured, RequestParts, ResponseParts},
    },
};

use super::{
    call::{Frame, Side},
    messages::Messages,
};
use crate::{
    failure::Failure,
    schema::{Source, files},
};

/// Of a recording: its owner reads and writes it.
const MODE: u32 = 0o600;

/// Calls whose streams are redacted. Data of further ones is left out.
const MAX_REDACTED: usize = 64 << 10;

pub(super) const MAGIC: &str = "ttrpc-trace 1\n";

/// Longer than any entry with a frame; a longer schema is not written.
pub(super) const MAX_ENTRY_LEN: usize = 4 * MAX_DATA_LEN;

/// A frame, the end of a connection, the schema, or with a time alone the end of the trace. Recordings that were not
/// ended, and older ones, lack the last.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Since the trace began.
    #[prost(uint64, tag = "1")]
    nanos: u64,
    #[prost(uint32, tag = "2")]
    pub connection: u32,
    #[prost(bool, tag = "3")]
    is_from_server: bool,
    #[prost(uint32, tag = "4")]
    stream: u32,
    #[prost(uint32, tag = "5")]
    frame_type: u32,
    #[prost(uint32, tag = "6")]
    flags: u32,
    /// As it was on the wire.
    #[prost(uint32, tag = "7")]
    data_len: u32,
    #[prost(bytes = "bytes", tag = "8")]
    data: Bytes,
    #[prost(bool, tag = "9")]
    pub is_closed: bool,
    /// An encoded `google.protobuf.FileDescriptorSet`.
    #[prost(bytes = "bytes", tag = "10")]
    pub(super) schema: Bytes,
}

impl Entry {
    /// The schema, an encoded set.
    pub fn of_schema(schema: Bytes) -> Self {
        Entry { schema, ..Entry::default() }
    }

    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// The frame; `None` for other entries.
    pub fn frame(&self) -> Option<Frame> {
        let header = Header {
            data_len: self.data_len,
            stream_id: self.stream,
            frame_type: FrameType::from_byte(u8::try_from(self.frame_type).ok()?),
            flags: Flags(u8::try_from(self.flags).ok()?),
        };
        let side = if self.is_from_server { Side::Server } else { Side::Client };
        let is_frame = self.frame_type > 0 && !self.is_closed;
        is_frame.then(|| Frame { side, header, data: self.data.clone() })
    }
}

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<File>,
    messages: Arc<Messages>,
    /// What streams carry, where something is left out.
    methods: HashMap<(u32, u32), (String, String)>,
    error: Option<std::io::Error>,
    is_finished: bool,
}

impl Recorder {
    /// A file that nobody else may read: it holds all that passes. One that is there is overwritten only if that is
    /// said, and a link is not followed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path, overwrites: bool, messages: Arc<Messages>) -> Result<Self, Failure> {
        let cannot = |error: std::io::Error| {
            let hint = match error.kind() {
                ErrorKind::AlreadyExists => "; --overwrite replaces it",
                _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                    "; a symbolic link is not followed"
                }
                _ => "",
            };
            Failure::Other(format!("cannot write {}: {error}{hint}", path.display()))
        };
        let mut options = File::options();
        options.write(true).mode(MODE).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = match overwrites {
            false => options.create_new(true).open(path),
            true => options.create(true).open(path).and_then(|file| {
                // Before anything is in it.
                file.set_permissions(Permissions::from_mode(MODE))?;
                file.set_len(0)?;
                Ok(file)
            }),
        };
        let mut file = BufWriter::new(file.map_err(cannot)?);
        file.write_all(MAGIC.as_bytes()).map_err(cannot)?;
        let methods = HashMap::new();
        let mut recorder = Recorder { file, messages, methods, error: None, is_finished: false };
        let schema = recorder.messages.schema();
        if schema.source() != Source::BuiltIn {
            let files: Vec<_> = schema.files().collect();
            let schema = Bytes::from(files::encode_set(&files));
            recorder.write(&Entry::of_schema(schema));
        }
        Ok(recorder)
    }

    /// Writes a frame. What goes wrong is told by [`Recorder::finish`].
    pub fn frame(&mut self, connection: u32, frame: &Frame, now: Duration) {
        let data = match self.messages.is_redacting() {
            true => self.redact(connection, frame),
            false => frame.data.clone(),
        };
        let header = frame.header;
        self.write(&Entry {
            nanos: to_nanos(now),
            connection,
            is_from_server: frame.side == Side::Server,
            stream: header.stream_id,
            frame_type: header.frame_type.to_byte().into(),
            flags: header.flags.0.into(),
            data_len: header.data_len,
            data,
            ..Entry::default()
        });
    }

    pub fn closed(&mut self, connection: u32, now: Duration) {
        self.methods.retain(|(known, _), _| *known != connection);
        let nanos = to_nanos(now);
        self.write(&Entry { nanos, connection, is_closed: true, ..Entry::default() });
    }

    fn write(&mut self, entry: &Entry) {
        if self.is_finished {
            return;
        }
        let bytes = entry.encode_length_delimited_to_vec();
        if self.error.is_none() && bytes.len() <= MAX_ENTRY_LEN {
            self.error = self.file.write_all(&bytes).err();
        }
    }

    /// Keeps no later frames, and the time: calls without an end were pending until then.
    pub fn close(&mut self, now: Duration) {
        self.write(&Entry { nanos: to_nanos(now), ..Entry::default() });
        self.is_finished = true;
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// The first that there was.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let flushed = self.file.flush();
        let result = self.error.take().map_or(flushed, Err);
        result.map_err(|error| Failure::Other(format!("the recording is not whole: {error}")))
    }

    /// A frame's data without what is to be left out.
    fn redact(&mut self, connection: u32, frame: &Frame) -> Bytes {
        let key = (connection, frame.header.stream_id);
        match (frame.side, frame.header.frame_type) {
            (Side::Client, FrameType::Request) => {
                let Ok(request) = message::Request::decode(&frame.data) else {
                    return Bytes::new();
                };
                let Ok((service, method)) = request.names() else { return Bytes::new() };
                let payload = frame.data.slice_ref(request.payload);
                let payload = Raw(self.messages.redact(service, method, Side::Client, &payload));
                let Ok(metadata) = request.metadata.decode() else { return Bytes::new() };
                let metadata: Metadata = metadata
                    .iter()
                    .map(|(key, value)| (key, self.messages.metadata(key, value)))
                    .collect();
                let parts = RequestParts {
                    service,
                    method,
                    payload: Some(Measured::new(&payload)),
                    timeout_nano: request.timeout_nano,
                    metadata: &metadata,
                };
                let data = parts.to_vec().into();
                // What no schema knows is left out in any case.
                if self.messages.knows(service, method) && self.methods.len() < MAX_REDACTED {
                    self.methods.insert(key, (service.to_owned(), method.to_owned()));
                } else {
                    self.methods.remove(&key);
                }
                data
            }
            (side, FrameType::Data) => {
                let is_end = side == Side::Server && frame.header.flags.contains(Flags::END);
                let data = match self.methods.get(&key) {
                    Some((service, method)) => {
                        self.messages.redact(service, method, side, &frame.data)
                    }
                    None => Bytes::new(),
                };
                if is_end {
                    self.methods.remove(&key);
                }
                data
            }
            (Side::Server, FrameType::Response) => {
                let known = self.methods.remove(&key);
                match message::decode_response(&frame.data) {
                    Ok(Ok(payload)) => {
                        let payload = frame.data.slice_ref(payload);
                        let payload = known.map_or(Bytes::new(), |(service, method)| {
                            self.messages.redact(&service, &method, Side::Server, &payload)
                        });
                        ResponseParts(Measured::new(&Raw(payload))).to_vec().into()
                    }
                    Ok(Err(status)) => {
                        message::encode_status(&self.messages.redact_status(&status)).into()
                    }
                    Err(_) => Bytes::new(),
                }
            }
            _ => Bytes::new(),
        }
    }
}

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{schema::builtin, trace::recording::Recording};

    #[test]
    fn what_was_written_is_read_and_a_torn_end_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        let messages = Arc::new(Messages::new(builtin().clone(), &[]));
        let mut recorder = Recorder::create(&path, false, messages).unwrap();
        let header = Header {
            data_len: 3,
            stream_id: 5,
            frame_type: FrameType::Data,
            flags: Flags::REMOTE_CLOSED,
        };
        let frame = Frame { side: Side::Server, header, data: Bytes::from_static(b"abc") };
        recorder.frame(7, &frame, Duration::from_millis(1));
        recorder.closed(7, Duration::from_millis(2));
        recorder.close(Duration::from_millis(3));
        recorder.closed(8, Duration::from_millis(4));
        recorder.finish().unwrap();

        let read = || {
            let mut recording = Recording::open(&path)?;
            let mut entries = Vec::new();
            while let Some(entry) = recording.read()? {
                entries.push(entry);
            }
            Ok::<_, Failure>(entries)
        };
        let entries = read().unwrap();
        assert_eq!((entries.len(), entries[0].connection), (3, 7));
        let again = entries[0].frame().unwrap();
        assert_eq!((again.side, again.header, again.data), (frame.side, header, frame.data));
        assert!(entries[1].is_closed && entries[1].frame().is_none());
        assert!(!entries[2].is_closed && entries[2].frame().is_none());
        assert_eq!(entries[2].time(), Duration::from_millis(3));

        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read().unwrap().len(), 2);
        std::fs::write(&path, "something else").unwrap();
        assert!(read().unwrap_err().to_string().contains("ttrpc trace --record"));
        std::fs::write(&path, [MAGIC.as_bytes(), &[0xff; 12]].concat()).unwrap();
        assert!(read().is_err());
    }

    #[test]
    fn a_recording_is_its_owners_alone_and_takes_no_others_place() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name| folder.path().join(name);
        let create = |path: &Path, overwrites| {
            let messages = Arc::new(Messages::new(builtin().clone(), &[]));
            let created = Recorder::create(path, overwrites, messages);
            created.map(drop).map_err(|error| error.to_string())
        };
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let path = path_of("a.trace");
        create(&path, false).unwrap();
        assert_eq!(mode(&path), 0o600);
        let error = create(&path, false).unwrap_err();
        assert!(error.contains("--overwrite"), "{error}");
        std::fs::write(&path, "x".repeat(1000)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        create(&path, true).unwrap();
        assert_eq!((mode(&path), path.metadata().unwrap().len()), (0o600, MAGIC.len() as u64));
        let (link, target) = (path_of("link"), path_of("target"));
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        for overwrites in [false, true] {
            create(&link, overwrites).unwrap_err();
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        }
    }
}
