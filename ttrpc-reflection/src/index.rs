//! The files of descriptor sets, found by name and by what they declare.

use std::{collections::BTreeMap, sync::OnceLock};

use ttrpc::prost::{self, Message, bytes::Bytes};

use crate::declarations::{
    FieldDeclaration, FileDeclarations, MembersDeclaration, MessageDeclaration,
};
use crate::in_order;

/// A descriptor set that a server cannot answer from.
#[derive(Debug)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The bytes are not an encoded `google.protobuf.FileDescriptorSet`.
    Decode(prost::DecodeError),
    /// A file imports another that is in none of the sets: they were written without imports.
    #[non_exhaustive]
    MissingImport {
        /// The file.
        file: String,
        /// The missing import.
        import: String,
    },
    /// Two sets have files of one name that declare different things.
    #[non_exhaustive]
    Conflict {
        /// The files' name.
        file: String,
    },
}

impl std::fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DescriptorError::Decode(error) => write!(f, "not a file descriptor set: {error}"),
            DescriptorError::MissingImport { file, import } => {
                write!(f, "`{file}` imports `{import}`, which the descriptor set lacks")
            }
            DescriptorError::Conflict { file } => {
                write!(f, "two different files are called `{file}`")
            }
        }
    }
}

impl std::error::Error for DescriptorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DescriptorError::Decode(error) => Some(error),
            _ => None,
        }
    }
}

/// A descriptor set whose files stay encoded: custom options survive, which decoded ones lose.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
struct EncodedSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

/// A file, encoded, and what has to be known of it before anybody asks.
#[derive(Debug)]
struct File {
    name: String,
    encoded: Bytes,
    imports: Vec<String>,
}

/// All files. What they declare is looked up when the first client asks, since most servers are
/// never asked.
#[derive(Debug, Default)]
pub(crate) struct Index {
    files: Vec<File>,
    by_name: BTreeMap<String, usize>,
    symbols: OnceLock<Symbols>,
}

/// What the files declare, and in which of them it is.
#[derive(Debug, Default)]
struct Symbols {
    services: Vec<String>,
    by_symbol: BTreeMap<String, usize>,
    /// Few files have any.
    extensions: Vec<Extension>,
}

#[derive(Debug)]
struct Extension {
    /// The message that is extended.
    message: String,
    number: i32,
    file: usize,
}

impl Index {
    /// Adds the files of a set. One that is there already is kept as it is.
    pub(crate) fn add(&mut self, descriptor_set: Bytes) -> Result<(), DescriptorError> {
        let set = EncodedSet::decode(descriptor_set).map_err(DescriptorError::Decode)?;
        let first_new = self.files.len();
        for encoded in set.files {
            self.add_file(encoded)?;
        }
        self.symbols = OnceLock::new();
        for file in &self.files[first_new..] {
            if let Some(import) =
                file.imports.iter().find(|import| !self.by_name.contains_key(*import))
            {
                let (file, import) = (file.name.clone(), import.clone());
                return Err(DescriptorError::MissingImport { file, import });
            }
        }
        Ok(())
    }

    fn add_file(&mut self, encoded: Bytes) -> Result<(), DescriptorError> {
        let file = FileDeclarations::decode(encoded.clone()).map_err(DescriptorError::Decode)?;
        if let Some(&known) = self.by_name.get(&file.name) {
            // What one set says with comments, another may say without.
            if self.files[known].declarations() == file {
                return Ok(());
            }
            return Err(DescriptorError::Conflict { file: file.name });
        }
        self.by_name.insert(file.name.clone(), self.files.len());
        self.files.push(File { name: file.name, encoded, imports: file.imports });
        Ok(())
    }

    fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| {
            let mut symbols = Symbols::default();
            for (index, file) in self.files.iter().enumerate() {
                symbols.add_file(index, &file.declarations());
            }
            symbols
        })
    }

    /// The full names of all services, in order, without repetition.
    pub(crate) fn services(&self) -> Vec<String> {
        in_order(self.symbols().services.iter().cloned(), Ord::cmp)
    }

    pub(crate) fn file_by_name(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn file_by_symbol(&self, symbol: &str) -> Option<usize> {
        let name = symbol.strip_prefix('.').unwrap_or(symbol);
        self.symbols().by_symbol.get(name).copied()
    }

    pub(crate) fn file_by_extension(&self, message: &str, number: i32) -> Option<usize> {
        let mut extensions = self.extensions_of(message);
        extensions.find(|extension| extension.number == number).map(|extension| extension.file)
    }

    /// The numbers of a message's extensions; `None` if there is no such message.
    pub(crate) fn extension_numbers(&self, message: &str) -> Option<Vec<i32>> {
        self.file_by_symbol(message)?;
        let numbers = self.extensions_of(message).map(|extension| extension.number);
        Some(in_order(numbers, Ord::cmp))
    }

    fn extensions_of(&self, message: &str) -> impl Iterator<Item = &Extension> {
        self.symbols().extensions.iter().filter(move |extension| extension.message == message)
    }

    pub(crate) fn encoded(&self, file: usize) -> &[u8] {
        &self.files[file].encoded
    }

    /// The files that this one imports, directly or not, it first.
    pub(crate) fn with_imports(&self, file: usize) -> Vec<usize> {
        let mut found = vec![file];
        let mut next = 0;
        while let Some(&index) = found.get(next) {
            for import in &self.files[index].imports {
                if let Some(import) = self.file_by_name(import)
                    && !found.contains(&import)
                {
                    found.push(import);
                }
            }
            next += 1;
        }
        found
    }
}

impl File {
    fn declarations(&self) -> FileDeclarations {
        // It was decoded when it was added.
        FileDeclarations::decode(self.encoded.clone()).unwrap_or_default()
    }
}

impl Symbols {
    fn add_file(&mut self, index: usize, file: &FileDeclarations) {
        let package = &file.package;
        for message in &file.messages {
            self.add_message(index, package, message);
        }
        for enumeration in &file.enums {
            self.add_enum(index, package, enumeration);
        }
        self.add_extensions(index, package, &file.extensions);
        for service in &file.services {
            let name = join(package, &service.name);
            for method in &service.members {
                self.add(index, &name, &method.name);
            }
            self.add(index, package, &service.name);
            self.services.push(name);
        }
    }

    fn add(&mut self, index: usize, scope: &str, name: &str) {
        self.by_symbol.entry(join(scope, name)).or_insert(index);
    }

    fn add_message(&mut self, index: usize, scope: &str, message: &MessageDeclaration) {
        self.add(index, scope, &message.name);
        let name = join(scope, &message.name);
        for field in &message.fields {
            self.add(index, &name, &field.name);
        }
        for oneof in &message.oneofs {
            self.add(index, &name, &oneof.name);
        }
        for nested in &message.messages {
            self.add_message(index, &name, nested);
        }
        for enumeration in &message.enums {
            self.add_enum(index, &name, enumeration);
        }
        self.add_extensions(index, &name, &message.extensions);
    }

    /// An enum's values are declared beside it, not in it.
    fn add_enum(&mut self, index: usize, scope: &str, enumeration: &MembersDeclaration) {
        for value in &enumeration.members {
            self.add(index, scope, &value.name);
        }
        self.add(index, scope, &enumeration.name);
    }

    fn add_extensions(&mut self, index: usize, scope: &str, extensions: &[FieldDeclaration]) {
        for extension in extensions {
            let message = extension.extendee.trim_start_matches('.').to_owned();
            self.extensions.push(Extension { message, number: extension.number, file: index });
            self.add(index, scope, &extension.name);
        }
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

#[cfg(test)]
mod tests {
    use ttrpc::prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    };

    use super::*;

    fn set(files: Vec<FileDescriptorProto>) -> Bytes {
        FileDescriptorSet { file: files }.encode_to_vec().into()
    }

    fn file(name: &str, message: &str, imports: &[&str]) -> FileDescriptorProto {
        let message =
            DescriptorProto { name: Some(message.to_owned()), ..DescriptorProto::default() };
        FileDescriptorProto {
            name: Some(name.to_owned()),
            package: Some("p".to_owned()),
            dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
            message_type: vec![message],
            ..FileDescriptorProto::default()
        }
    }

    #[test]
    fn imports_of_imports_are_found_once() {
        let mut index = Index::default();
        let files = vec![
            file("a", "A", &["b", "c"]),
            file("b", "B", &["c"]),
            file("c", "C", &[]),
            file("d", "D", &[]),
        ];
        index.add(set(files)).unwrap();
        assert_eq!(index.with_imports(0), [0, 1, 2]);
        assert_eq!(index.file_by_symbol(".p.B"), Some(1));
    }

    #[test]
    fn a_set_without_its_imports_is_refused() {
        let error = Index::default().add(set(vec![file("a", "A", &["b"])])).unwrap_err();
        assert!(error.to_string().contains("`a` imports `b`"), "{error}");
    }

    #[test]
    fn one_file_may_be_in_two_sets_and_two_of_one_name_may_not() {
        let mut index = Index::default();
        index.add(set(vec![file("a", "A", &[])])).unwrap();
        index.add(set(vec![file("a", "A", &[])])).unwrap();
        let error = index.add(set(vec![file("a", "Other", &[])])).unwrap_err();
        assert!(matches!(error, DescriptorError::Conflict { .. }), "{error}");
    }

    #[test]
    fn extensions_are_found_by_number() {
        let mut base = file("a", "A", &[]);
        base.extension = vec![FieldDescriptorProto {
            name: Some("more".to_owned()),
            extendee: Some(".p.A".to_owned()),
            number: Some(100),
            ..FieldDescriptorProto::default()
        }];
        let mut index = Index::default();
        index.add(set(vec![base])).unwrap();
        assert_eq!(index.extension_numbers("p.A"), Some(vec![100]));
        assert_eq!(index.extension_numbers("p.B"), None);
        assert_eq!(index.file_by_extension("p.A", 100), Some(0));
        assert_eq!(index.file_by_extension("p.A", 101), None);
    }

    #[test]
    fn rubbish_is_refused() {
        assert!(matches!(
            Index::default().add(Bytes::from_static(&[0xff; 9])),
            Err(DescriptorError::Decode(_))
        ));
    }
}
