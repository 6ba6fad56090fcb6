//! Schemas from .proto files and descriptor sets, and back into files.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use prost_reflect::{DescriptorPool, FileDescriptor};

use super::{Schema, Source, names, print};
use crate::{failure::Failure, output};

/// Compiles .proto files, as the code generator does: with the protoc that `PROTOC` names, or without one. Without
/// folders for imports, each file's own folder is used.
///
/// # Errors
/// [`Failure::Usage`] with what is wrong in which line.
pub fn compile(files: &[PathBuf], includes: &[PathBuf]) -> Result<Schema, Failure> {
    if let Some(missing) = includes.iter().find(|folder| !folder.is_dir()) {
        return Err(Failure::Usage(format!("-I {}: there is no such folder", missing.display())));
    }
    let mut folders = includes.to_vec();
    for file in files {
        let folder = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let is_covered = folders.iter().any(|known| file.starts_with(known) || *known == folder);
        if !is_covered && (includes.is_empty() || file.exists()) {
            folders.push(folder);
        }
    }
    let set = ttrpc_codegen::configure()
        .parse(files, &folders)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let set = set.lowered().map_err(|error| Failure::Usage(error.to_string()))?;
    let pool = DescriptorPool::decode(set.encoded())
        .map_err(|error| Failure::Usage(format!("{error:?}")))?;
    Schema::new(pool, Source::Files)
}

/// Reads encoded descriptor sets. Later ones add to those before.
///
/// # Errors
/// [`Failure::Usage`] with the file's name.
pub fn read_sets(files: &[PathBuf]) -> Result<Schema, Failure> {
    let mut pool = DescriptorPool::new();
    for file in files {
        let usage =
            |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", file.display()));
        let bytes = fs::read(file).map_err(|error| usage(&error))?;
        add_set(&mut pool, &bytes).map_err(|error| {
            usage(&format_args!(
                "not a file descriptor set with its imports ({error}); `protoc -o FILE \
                 --include_imports` writes one"
            ))
        })?;
    }
    Schema::new(pool, Source::Files)
}

/// Adds the files of an encoded descriptor set, those of editions in terms of proto3: the pool panics at others.
///
/// # Errors
/// If it is none, its imports are missing, a name in it is none, or a feature of an edition has no form here.
pub fn add_set(pool: &mut DescriptorPool, set: &[u8]) -> Result<(), String> {
    let set =
        ttrpc_codegen::DescriptorSet::from(set).lowered().map_err(|error| error.to_string())?;
    names::check(set.encoded())?;
    pool.decode_file_descriptor_set(set.encoded()).map_err(|error| error.to_string())
}

/// Writes these files and all that they import as one descriptor set.
///
/// # Errors
/// If the file cannot be written.
pub fn write_set(path: &Path, files: &[FileDescriptor]) -> Result<(), Failure> {
    fs::write(path, encode_set(files)).map_err(|error| cannot_write(path, &error))
}

/// An encoded descriptor set, imports first, as compilers read it.
pub fn encode_set(files: &[FileDescriptor]) -> Vec<u8> {
    let (mut ordered, mut known) = (Vec::new(), HashSet::new());
    // Files, and whether their imports are before them. A chain of imports may be longer than a stack is deep.
    let mut open: Vec<_> = files.iter().rev().map(|file| (file.clone(), false)).collect();
    while let Some((file, is_behind_imports)) = open.pop() {
        if is_behind_imports {
            ordered.push(file);
        } else if known.insert(file.name().to_owned()) {
            let imports: Vec<_> = file.dependencies().collect();
            open.push((file, true));
            open.extend(imports.into_iter().rev().map(|import| (import, false)));
        }
    }
    let mut set = Vec::new();
    for file in ordered {
        prost::encoding::bytes::encode(1, &file.encode_to_vec(), &mut set);
    }
    set
}

/// Writes these files and all that they import as .proto files into a folder, under their own
/// names. Returns what was written.
///
/// # Errors
/// If a file cannot be written, or its name leads out of the folder.
pub fn write_protos(folder: &Path, files: &[FileDescriptor]) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for file in files {
        // The name is the server's to choose.
        let name = output::plain_line(file.name());
        let name = Path::new(&name);
        if !name.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            return Err(Failure::Other(format!("`{}` is no name to write to", file.name())));
        }
        let path = folder.join(name);
        if written.contains(&path) {
            return Err(Failure::Other(format!("two files are called {}", path.display())));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| cannot_write(parent, &error))?;
        }
        fs::write(&path, print::file(file)).map_err(|error| cannot_write(&path, &error))?;
        written.push(path);
    }
    Ok(written)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Other(format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto};

    use super::*;
    use crate::schema::builtin;

    #[test]
    fn a_set_that_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.bin");
        let task = builtin().pool().get_file_by_name("task.proto").unwrap();
        write_set(&path, &[task]).unwrap();
        let schema = read_sets(&[path]).unwrap();
        assert!(schema.pool().get_service_by_name("containerd.task.v3.Task").is_some());
        assert!(schema.pool().get_message_by_name("google.protobuf.Any").is_some());
    }

    #[test]
    fn printed_files_compile_to_what_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = builtin().files().collect();
        let written = write_protos(folder.path(), &files).unwrap();
        let schema = compile(&written, &[folder.path().to_owned()]).unwrap();
        for file in &files {
            let again = schema.pool().get_file_by_name(file.name()).unwrap();
            let strip = |file: &FileDescriptor| {
                let mut file = file.file_descriptor_proto().clone();
                file.source_code_info = None;
                file
            };
            assert_eq!(strip(file), strip(&again), "{}", print::file(file));
        }
    }

    #[test]
    fn what_a_float_option_can_be_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.proto");
        let proto = "syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\";
            extend google.protobuf.MessageOptions { float lower = 50001; }
            message A { option (lower) = -inf; }";
        fs::write(&path, proto).unwrap();
        assert!(compile(&[path], &[]).unwrap().pool().get_message_by_name("A").is_some());
    }

    #[test]
    fn files_of_an_edition_are_read_and_one_that_is_not_known_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (edition, message) in [(1000, None), (1001, None), (7777, Some("7777"))] {
            let file = FileDescriptorProto {
                name: Some("a.proto".to_owned()),
                syntax: Some("editions".to_owned()),
                message_type: vec![DescriptorProto {
                    name: Some("A".to_owned()),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let mut file = file.encode_to_vec();
            prost::encoding::int32::encode(14, &edition, &mut file);
            let mut set = Vec::new();
            prost::encoding::bytes::encode(1, &file, &mut set);
            let path = folder.path().join("set");
            fs::write(&path, &set).unwrap();
            match (read_sets(&[path]), message) {
                (Ok(schema), None) => assert!(schema.pool().get_message_by_name("A").is_some()),
                (Err(failure), Some(part)) => assert!(failure.to_string().contains(part)),
                (read, _) => panic!("{edition}: {}", read.is_ok()),
            }
        }
    }

    #[test]
    fn a_name_with_controls_is_spelled_out_as_a_files_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut pool = DescriptorPool::new();
        let name = "a\n\u{1b}]0;t\u{7}\u{202e}.proto";
        let file = FileDescriptorProto { name: Some(name.to_owned()), ..Default::default() };
        pool.add_file_descriptor_proto(file).unwrap();
        let files: Vec<_> = pool.files().collect();
        let [written] = &write_protos(folder.path(), &files).unwrap()[..] else {
            panic!("one file")
        };
        let name = written.file_name().unwrap().to_str().unwrap();
        assert_eq!(name, "a\\n\\u{1b}]0;t\\u{7}\\u{202e}.proto");
    }

    #[test]
    fn a_chain_of_imports_may_be_long() {
        let mut pool = DescriptorPool::new();
        for at in 0..20_000 {
            let dependency = (at > 0).then(|| format!("{}.proto", at - 1)).into_iter().collect();
            let name = Some(format!("{at}.proto"));
            let file = FileDescriptorProto { name, dependency, ..Default::default() };
            pool.add_file_descriptor_proto(file).unwrap();
        }
        let set = encode_set(&[pool.files().last().unwrap()]);
        assert_eq!(DescriptorPool::decode(&*set).unwrap().files().len(), 20_000);
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.proto");
        fs::write(&path, "syntax = \"proto3\";\nmessage A { strin b = 1; }\n").unwrap();
        let error = compile(&[path], &[]).unwrap_err().to_string();
        assert!(error.contains("a.proto:2"), "{error}");
    }
}
