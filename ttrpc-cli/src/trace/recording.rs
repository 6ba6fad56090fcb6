//! Reading a recording, whoever has written it.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use bytes::Bytes;
use prost::Message;
use prost_reflect::DescriptorPool;

use super::record::{Entry, MAGIC, MAX_ENTRY_LEN};
use crate::{
    failure::Failure,
    schema::{Schema, Source, files},
};

/// Reads a recording.
#[derive(Debug)]
pub struct Recording {
    file: BufReader<File>,
    next: Option<Entry>,
    /// The schema that it holds.
    pub schema: Option<Schema>,
}

impl Recording {
    /// # Errors
    /// If the file cannot be read or is no recording.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(|error| cannot(&error))?;
        let mut file = BufReader::new(file);
        let mut magic = vec![0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != MAGIC.as_bytes() {
            return Err(cannot(&"not written by `ttrpc trace --record`"));
        }
        let mut recording = Recording { file, next: None, schema: None };
        let first = recording.read()?;
        match first {
            Some(entry) if !entry.schema.is_empty() => {
                let mut pool = DescriptorPool::new();
                files::add_set(&mut pool, &entry.schema).map_err(|error| cannot(&error))?;
                recording.schema = Some(Schema::new(pool, Source::Files)?);
            }
            first => recording.next = first,
        }
        Ok(recording)
    }

    /// The next entry. A file that ends within one ends before it: its writer was ended so.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn read(&mut self) -> Result<Option<Entry>, Failure> {
        if let Some(entry) = self.next.take() {
            return Ok(Some(entry));
        }
        let damaged = || Failure::Other("the recording is damaged".to_owned());
        let mut len = 0_usize;
        for shift in (0..).step_by(7) {
            let buffer = self.file.fill_buf().map_err(|_| damaged())?;
            let Some(&byte) = buffer.first() else { return Ok(None) };
            self.file.consume(1);
            len |= usize::from(byte & 0x7f) << shift;
            if len > MAX_ENTRY_LEN {
                return Err(damaged());
            }
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                return Err(damaged());
            }
        }
        let mut bytes = vec![0; len];
        if self.file.read_exact(&mut bytes).is_err() {
            return Ok(None);
        }
        Entry::decode(Bytes::from(bytes)).map(Some).map_err(|_| damaged())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_in_a_recording_is_taken_as_a_servers_is() {
        use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        let open = |syntax: &str, edition: i32, name: &str| {
            let message = DescriptorProto { name: Some(name.to_owned()), ..Default::default() };
            let (message_type, syntax) = (vec![message], Some(syntax.to_owned()));
            let file = FileDescriptorProto { message_type, syntax, ..Default::default() };
            let mut file = file.encode_to_vec();
            prost::encoding::int32::encode(14, &edition, &mut file);
            let mut schema = Vec::new();
            prost::encoding::bytes::encode(1, &file, &mut schema);
            let entry = Entry::of_schema(schema.into());
            let entry = entry.encode_length_delimited_to_vec();
            std::fs::write(&path, [MAGIC.as_bytes(), &entry].concat()).unwrap();
            Recording::open(&path)
        };
        // The pool panics at this if it gets it as it is.
        let schema = open("editions", 1000, "A").unwrap().schema.unwrap();
        assert!(schema.pool().get_message_by_name("A").is_some());
        assert!(open("editions", 7777, "A").is_err());
        assert!(open("proto3", 0, "A\n\u{1b}[2J").is_err());
    }
}
