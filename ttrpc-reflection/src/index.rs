//! The files of descriptor sets, found by name and by what they declare.

use std::collections::{BTreeMap, HashMap};

use ttrpc::{
    prost::{self, Message, bytes::Bytes},
    prost_types::{
        DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    },
};

/// A descriptor set that a server cannot answer from.
#[derive(Debug)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The bytes are not an encoded `google.protobuf.FileDescriptorSet`.
    Decode(prost::DecodeError),
    /// A file imports another that is in none of the sets: they were written without imports.
    MissingImport {
        /// The file.
        file: String,
        /// What it imports.
        import: String,
    },
    /// Two sets have files of one name that declare different things.
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

/// A file, and what is asked of it.
#[derive(Debug)]
pub(crate) struct File {
    name: String,
    pub(crate) encoded: Bytes,
    imports: Vec<String>,
    declares: Declared,
}

/// What a file declares, by full names without a leading dot.
#[derive(Debug, Default, PartialEq)]
struct Declared {
    symbols: Vec<String>,
    services: Vec<String>,
    /// The message that is extended, and the number.
    extensions: Vec<(String, i32)>,
}

/// All files.
#[derive(Debug, Default)]
pub(crate) struct Index {
    files: Vec<File>,
    by_name: HashMap<String, usize>,
    by_symbol: HashMap<String, usize>,
    extensions: HashMap<String, BTreeMap<i32, usize>>,
}

impl Index {
    /// Adds the files of a set. One that is there already is kept as it is.
    pub(crate) fn add(&mut self, descriptor_set: &[u8]) -> Result<(), DescriptorError> {
        let set = EncodedSet::decode(descriptor_set).map_err(DescriptorError::Decode)?;
        let first_new = self.files.len();
        for encoded in set.files {
            let file = FileDescriptorProto::decode(&*encoded).map_err(DescriptorError::Decode)?;
            self.add_file(encoded, &file)?;
        }
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

    fn add_file(
        &mut self,
        encoded: Bytes,
        file: &FileDescriptorProto,
    ) -> Result<(), DescriptorError> {
        let name = file.name().to_owned();
        let declares = Declared::by(file);
        if let Some(&known) = self.by_name.get(&name) {
            if self.files[known].declares == declares {
                return Ok(());
            }
            return Err(DescriptorError::Conflict { file: name });
        }
        let index = self.files.len();
        for symbol in &declares.symbols {
            self.by_symbol.entry(symbol.clone()).or_insert(index);
        }
        for (message, number) in &declares.extensions {
            self.extensions.entry(message.clone()).or_default().entry(*number).or_insert(index);
        }
        self.by_name.insert(name.clone(), index);
        self.files.push(File { name, encoded, imports: file.dependency.clone(), declares });
        Ok(())
    }

    /// The full names of all services, in order, without repetition.
    pub(crate) fn services(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.files.iter().flat_map(|file| &file.declares.services).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    pub(crate) fn file_by_name(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn file_by_symbol(&self, symbol: &str) -> Option<usize> {
        self.by_symbol.get(symbol.strip_prefix('.').unwrap_or(symbol)).copied()
    }

    pub(crate) fn file_by_extension(&self, message: &str, number: i32) -> Option<usize> {
        self.extensions.get(message)?.get(&number).copied()
    }

    /// The numbers of a message's extensions; `None` if there is no such message.
    pub(crate) fn extension_numbers(&self, message: &str) -> Option<Vec<i32>> {
        self.file_by_symbol(message)?;
        let numbers = self.extensions.get(message);
        Some(numbers.map_or(Vec::new(), |numbers| numbers.keys().copied().collect()))
    }

    pub(crate) fn file(&self, index: usize) -> &File {
        &self.files[index]
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

impl Declared {
    fn by(file: &FileDescriptorProto) -> Self {
        let mut declared = Declared::default();
        let package = file.package();
        for message in &file.message_type {
            declared.add_message(package, message);
        }
        for enumeration in &file.enum_type {
            declared.add_enum(package, enumeration);
        }
        declared.add_extensions(package, &file.extension);
        for service in &file.service {
            let name = join(package, service.name());
            for method in &service.method {
                declared.symbols.push(join(&name, method.name()));
            }
            declared.symbols.push(name.clone());
            declared.services.push(name);
        }
        declared
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto) {
        let name = join(scope, message.name());
        for field in &message.field {
            self.symbols.push(join(&name, field.name()));
        }
        for oneof in &message.oneof_decl {
            self.symbols.push(join(&name, oneof.name()));
        }
        for nested in &message.nested_type {
            self.add_message(&name, nested);
        }
        for enumeration in &message.enum_type {
            self.add_enum(&name, enumeration);
        }
        self.add_extensions(&name, &message.extension);
        self.symbols.push(name);
    }

    /// An enum's values are declared beside it, not in it.
    fn add_enum(&mut self, scope: &str, enumeration: &EnumDescriptorProto) {
        for value in &enumeration.value {
            self.symbols.push(join(scope, value.name()));
        }
        self.symbols.push(join(scope, enumeration.name()));
    }

    fn add_extensions(&mut self, scope: &str, extensions: &[FieldDescriptorProto]) {
        for extension in extensions {
            let message = extension.extendee().trim_start_matches('.').to_owned();
            self.extensions.push((message, extension.number()));
            self.symbols.push(join(scope, extension.name()));
        }
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

#[cfg(test)]
mod tests {
    use ttrpc::prost_types::FileDescriptorSet;

    use super::*;

    fn set(files: Vec<FileDescriptorProto>) -> Vec<u8> {
        FileDescriptorSet { file: files }.encode_to_vec()
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
        index.add(&set(files)).unwrap();
        assert_eq!(index.with_imports(0), [0, 1, 2]);
        assert_eq!(index.file_by_symbol(".p.B"), Some(1));
    }

    #[test]
    fn a_set_without_its_imports_is_refused() {
        let error = Index::default().add(&set(vec![file("a", "A", &["b"])])).unwrap_err();
        assert!(error.to_string().contains("`a` imports `b`"), "{error}");
    }

    #[test]
    fn one_file_may_be_in_two_sets_and_two_of_one_name_may_not() {
        let mut index = Index::default();
        index.add(&set(vec![file("a", "A", &[])])).unwrap();
        index.add(&set(vec![file("a", "A", &[])])).unwrap();
        let error = index.add(&set(vec![file("a", "Other", &[])])).unwrap_err();
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
        index.add(&set(vec![base])).unwrap();
        assert_eq!(index.extension_numbers("p.A"), Some(vec![100]));
        assert_eq!(index.extension_numbers("p.B"), None);
        assert_eq!(index.file_by_extension("p.A", 100), Some(0));
        assert_eq!(index.file_by_extension("p.A", 101), None);
    }

    #[test]
    fn rubbish_is_refused() {
        assert!(matches!(Index::default().add(&[0xff; 9]), Err(DescriptorError::Decode(_))));
    }
}
