//! Who has which name, where each may be had once.

use std::collections::{HashMap, hash_map::Entry};

use prost_types::FileDescriptorProto;

use super::Probe;
use crate::Error;

/// Something with a name, and where it stands.
#[derive(Clone)]
pub(super) struct Definition<'a> {
    /// What it is called in an error.
    what: String,
    file: &'a FileDescriptorProto,
    path: Vec<i32>,
    /// The names, from the outermost on, of the type without which it is not generated.
    owner: Vec<&'a str>,
}

impl<'a> Definition<'a> {
    pub(super) fn new(what: String, file: &'a FileDescriptorProto, path: Vec<i32>) -> Self {
        Definition { what, file, path, owner: Vec::new() }
    }

    /// Says which type has to be generated for the name to be taken.
    pub(super) fn owned_by(self, owner: &[&'a str]) -> Self {
        Definition { owner: owner.to_vec(), ..self }
    }

    /// The path of the part with this index in a field of the definition.
    pub(super) fn path_to(&self, field: i32, index: i32) -> Vec<i32> {
        [&self.path[..], &[field, index]].concat()
    }

    pub(super) fn no_name(&self) -> Error {
        self.error(&format!(
            "{} has no letter or digit of which a Rust name could be made",
            self.what
        ))
    }

    pub(super) fn is_generated(&self, probe: &mut Probe<'_>) -> bool {
        probe.is_generated(self.file.package(), &self.owner)
    }

    pub(super) fn error(&self, message: &str) -> Error {
        let info = self.file.source_code_info.as_ref();
        let location = info.and_then(|info| info.location.iter().find(|at| at.path == self.path));
        Error::at(self.file.name(), location, message)
    }
}

/// Names in one namespace of Rust, and who has them.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// What all definitions are part of, in the words of an error.
    whole: String,
    names: HashMap<String, (&'static str, Definition<'a>)>,
}

impl<'a> Scope<'a> {
    pub(super) fn of(whole: String) -> Self {
        Scope { whole, names: HashMap::new() }
    }

    /// Takes a name for a definition, which becomes what `kind` says in Rust.
    pub(super) fn insert(
        &mut self,
        kind: &'static str,
        rust_name: String,
        definition: Definition<'a>,
        probe: &mut Probe<'_>,
    ) -> Result<(), Error> {
        match self.names.entry(rust_name) {
            Entry::Vacant(entry) => {
                entry.insert((kind, definition));
            }
            Entry::Occupied(mut entry) => {
                // Types that are not generated take no names. There are next to none, so that it
                // suffices to ask now.
                let (other_kind, other) = entry.get();
                if !other.is_generated(probe) {
                    entry.insert((kind, definition));
                } else if definition.is_generated(probe) {
                    let name = entry.key();
                    return Err(clash(&self.whole, name, (kind, &definition), (other_kind, other)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, rust_name: &str) -> Option<(&'static str, &Definition<'a>)> {
        self.names.get(rust_name).map(|(kind, definition)| (*kind, definition))
    }

    pub(super) fn no_name(&self, definition: &Definition<'_>) -> Error {
        Definition { what: format!("{}{}", definition.what, self.whole), ..definition.clone() }
            .no_name()
    }
}

/// An error at `this` that names both, with what they are part of and what they both become.
pub(super) fn clash(
    whole: &str,
    name: &str,
    (kind, this): (&str, &Definition<'_>),
    (other_kind, other): (&str, &Definition<'_>),
) -> Error {
    if std::ptr::eq(this.file, other.file) && this.path == other.path {
        return this.error(&format!(
            "{}{whole} becomes both the Rust {other_kind} `{name}` and the Rust {kind} `{name}`",
            this.what
        ));
    }
    let place = match std::ptr::eq(this.file, other.file) {
        true => String::new(),
        false => format!(" of {}", other.file.name()),
    };
    let kind = if kind == other_kind { kind } else { "name" };
    this.error(&format!(
        "{} and {}{whole}{place} both become the Rust {kind} `{name}`",
        this.what, other.what,
    ))
}
