//! From .proto files to descriptors.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use prost_types::FileDescriptorProto;
use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver},
};

use crate::Error;

/// What some editors write in front of a text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// What is said of files that are written in an edition of protobuf's language.
pub(crate) const NO_EDITIONS: &str = "editions are not supported; write `syntax = \"proto3\";` or \
                                      `syntax = \"proto2\";` instead of `edition`";

/// Parses the files and all that they import, and tells cargo which files those are.
pub(crate) fn parse(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<Compiler, Error> {
    let includes: Vec<&Path> = includes.iter().map(AsRef::as_ref).collect();
    let mut resolver = ChainFileResolver::new();
    includes.iter().for_each(|include| resolver.add(Folder::new(include)));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(true);
    for proto in protos {
        compiler.open_file(proto).map_err(|error| describe(error, &includes))?;
    }
    // Only in a build script is there somebody to be told.
    if env::var_os("OUT_DIR").is_some() {
        for path in compiler.files().filter_map(|file| find(file.name(), &includes)) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    Ok(compiler)
}

/// The files of which a compiler knows. Services are left in those alone that were asked for, and not in
/// their imports.
pub(crate) fn descriptors(compiler: &Compiler) -> Vec<FileDescriptorProto> {
    let mut files = compiler.file_descriptor_set().file;
    for (file, metadata) in files.iter_mut().zip(compiler.files()) {
        if metadata.is_import() {
            file.service.clear();
        }
    }
    files
}

/// A folder in which imports are looked up.
struct Folder {
    path: PathBuf,
    files: IncludeFileResolver,
}

impl Folder {
    fn new(path: &Path) -> Self {
        Folder { path: path.to_owned(), files: IncludeFileResolver::new(path.to_owned()) }
    }
}

impl FileResolver for Folder {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        self.files.resolve_path(path)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let source = fs::read_to_string(self.path.join(name)).unwrap_or_default();
        match source.strip_prefix(BYTE_ORDER_MARK) {
            Some(source) => File::from_source(name, source),
            None => self.files.open_file(name),
        }
    }
}

/// Where a file of this name is.
fn find(name: &str, includes: &[&Path]) -> Option<PathBuf> {
    includes.iter().map(|include| include.join(name)).find(|path| path.is_file())
}

fn read(name: &str, includes: &[&Path]) -> io::Result<String> {
    let path = find(name, includes).ok_or(io::ErrorKind::NotFound)?;
    let source = fs::read_to_string(path)?;
    Ok(source.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(source))
}

fn describe(error: protox::Error, includes: &[&Path]) -> Error {
    // Its `Debug` is a sentence with file, line and column; its `Display` leaves them out.
    let message = format!("{error:?}");
    if error.is_file_not_found() || error.is_io() {
        let searched: Vec<_> = includes.iter().map(|path| path.display().to_string()).collect();
        return Error::new(format!("{message} (looked in: {})", searched.join(", ")));
    }
    let Some(file) = error.file().filter(|_| error.is_parse()) else {
        return Error::new(message);
    };
    let source = read(file, includes).unwrap_or_default();
    if let Some(place) = edition_place(file, &source) {
        return Error::new(format!("{place}: {NO_EDITIONS}"));
    }
    // The parser knows no place for the end of a file and for a second package.
    if message != error.to_string() {
        return Error::new(message);
    }
    let line = line_without_place(&source, &message);
    let place = line.map_or(String::new(), |line| format!("{line}:"));
    Error::new(format!("{file}:{place} {message}"))
}

/// Where a file says its edition, if that is its first statement, as it has to be.
fn edition_place(file: &str, source: &str) -> Option<String> {
    let mut rest = source.trim_start();
    while let Some(comment) = rest.strip_prefix('/') {
        let end = if comment.starts_with('*') { "*/" } else { "\n" };
        rest = comment.split_once(end)?.1.trim_start();
    }
    let word = rest.split(|char: char| !char.is_alphanumeric() && char != '_').next();
    let before = &source[..source.len() - rest.len()];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
    (word == Some("edition")).then(|| format!("{file}:{line}:{column}"))
}

/// The line that an error is about for which the parser gives none: the last with a package if that
/// is what the error is about, the last with anything in it otherwise.
fn line_without_place(source: &str, message: &str) -> Option<usize> {
    let is_about_package = message.contains("package names");
    let is_wanted = |line: &str| match is_about_package {
        true => line.trim_start().starts_with("package"),
        false => !line.trim().is_empty(),
    };
    let lines: Vec<&str> = source.lines().collect();
    lines.iter().rposition(|line| is_wanted(line)).map(|index| index + 1)
}
