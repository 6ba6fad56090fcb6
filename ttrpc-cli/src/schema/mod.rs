//! Schemas: where they come from, and what is found in them.
//!
//! In this order, unless the command line says otherwise: what the server tells by reflection, files
//! that are named, what is built in. An `Any` may hold a type of any of them.

mod builtin;
pub mod files;
mod lookup;
mod names;
mod options;
pub mod print;
mod reflection;
pub mod template;

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use prost_reflect::{DescriptorPool, MessageDescriptor};
use ttrpc::{Client, Status};

use crate::{failure::Failure, output, placeholder, sync::lock};
pub use builtin::builtin;
pub use lookup::{Candidates, Symbol, method_name, newest};
use reflection::{Allowance, Untold};
pub use reflection::{Told, fetch_schema};

/// Types that a server is asked for at a time.
const MAX_WANTED: usize = 1000;

/// Where a schema comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server told it.
    Reflection,
    /// Files on the command line.
    Files,
    /// This program.
    BuiltIn,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Reflection => "the server's reflection",
            Source::Files => "the files on the command line",
            Source::BuiltIn => "the built-in schemas",
        })
    }
}

/// The types that a command knows.
#[derive(Clone, Debug)]
pub struct Schema {
    pool: DescriptorPool,
    source: Source,
    /// How the server has refused to tell its own.
    refusal: Option<Status>,
    /// What the server has told later, on demand.
    learned: Arc<Mutex<Learned>>,
    /// Who has it asks the server.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Types that no service names, but an `Any`.
#[derive(Debug, Default)]
struct Learned {
    /// The schema's own types, and these.
    pool: Option<DescriptorPool>,
    /// Types that were looked for in vain and can be asked for.
    wanted: Vec<String>,
    /// Those that were asked for, whether the server had them or not.
    answered: HashSet<String>,
    /// What the server may still tell.
    allowance: Allowance,
}

impl Schema {
    /// # Errors
    /// If the pool has a type of this program's own already.
    pub fn new(mut pool: DescriptorPool, source: Source) -> Result<Self, Failure> {
        if pool.get_message_by_name(placeholder::NAME).is_none() {
            pool.add_file_descriptor_proto(placeholder::file())
                .map_err(|error| Failure::Other(error.to_string()))?;
        }
        Ok(Schema { pool, source, refusal: None, learned: Arc::default(), turn: Arc::default() })
    }

    /// This schema in the place of the one that a server has refused to tell.
    pub fn instead_of(self, refusal: Option<Status>) -> Self {
        Schema { refusal, ..self }
    }

    /// How the server has refused to tell its own schema.
    pub fn refusal(&self) -> Option<&Status> {
        self.refusal.as_ref()
    }

    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// The type of an `Any`, from this schema or the built-in ones. containerd leaves out the part of
    /// the URL that ends with a slash.
    pub fn any_type(&self, type_url: &str) -> Option<MessageDescriptor> {
        let name = type_url.rsplit('/').next().unwrap_or(type_url);
        let known = self.pool.get_message_by_name(name);
        let known = known.or_else(|| builtin().pool.get_message_by_name(name));
        known.or_else(|| {
            let mut learned = lock(&self.learned);
            let found = learned.pool.as_ref().and_then(|pool| pool.get_message_by_name(name));
            let is_answered = name.is_empty() || learned.answered.contains(name);
            let is_open = learned.wanted.len() < MAX_WANTED
                && !learned.wanted.iter().any(|known| known == name);
            if found.is_none() && self.source == Source::Reflection && !is_answered && is_open {
                learned.wanted.push(name.to_owned());
            }
            found
        })
    }

    /// Asks the server for the types that [`Schema::any_type`] did not find. Returns whether more is known
    /// now. A server that does not answer in time leaves them unknown.
    pub async fn learn(&self, client: &Client, timeout: Option<Duration>) -> bool {
        if lock(&self.learned).wanted.is_empty() {
            return false;
        }
        let _turn = self.turn.lock().await;
        let (names, mut pool, mut allowance) = {
            let mut learned = lock(&self.learned);
            let mut names = mem::take(&mut learned.wanted);
            names.retain(|name| !learned.answered.contains(name));
            (
                names,
                learned.pool.clone().unwrap_or_else(|| self.pool.clone()),
                mem::take(&mut learned.allowance),
            )
        };
        if names.is_empty() {
            // Somebody else has asked meanwhile.
            return true;
        }
        // What came before an error is of use.
        let fetched = reflection::fetch_types(client, &names, timeout, &mut pool, &mut allowance);
        if let Err(Untold::TooMuch(limit)) = fetched.await {
            output::note(limit);
        }
        let is_more = names.iter().any(|name| pool.get_message_by_name(name).is_some());
        let mut learned = lock(&self.learned);
        learned.answered.extend(names);
        learned.allowance = allowance;
        learned.pool = Some(pool);
        is_more
    }

    /// This schema with what others add to it.
    ///
    /// # Errors
    /// [`Failure::Usage`] if both say different things of a name.
    pub fn and(self, other: &Schema) -> Result<Schema, Failure> {
        let mut pool = self.pool;
        let mut set = Vec::new();
        for file in other.pool.files().filter(|file| pool.get_file_by_name(file.name()).is_none()) {
            prost::encoding::bytes::encode(1, &file.encode_to_vec(), &mut set);
        }
        pool.decode_file_descriptor_set(&*set).map_err(|error| {
            Failure::Usage(format!("{} and {}: {error}", other.source, self.source))
        })?;
        Schema::new(pool, self.source)
    }

    /// The files, without those that belong to protobuf or to this program.
    pub fn files(&self) -> impl Iterator<Item = prost_reflect::FileDescriptor> + '_ {
        self.pool.files().filter(|file| {
            !file.name().starts_with("google/protobuf/")
                && file.package_name() != placeholder::PACKAGE
        })
    }
}
