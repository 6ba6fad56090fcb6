//! From .proto files to descriptors.

use std::{
    cell::RefCell,
    collections::HashMap,
    env, fs, io,
    path::{Path, PathBuf},
    rc::Rc,
};

use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver},
};

use crate::{
    Error,
    dialect::{Rewritten, rewrite},
};

/// What some editors write in front of a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What is said of files that are written in an edition of protobuf's language.
const NO_EDITIONS: &str = "editions are not parsed here; write `syntax = \"proto3\";` or \
                           `syntax = \"proto2\";` instead of `edition`";

/// What each error of the parser ends with.
pub(crate) const WAYS_OUT: &str = "(where protoc takes the file: set PROTOC to protoc's path, or in build.rs call \
                                   `configure().protoc(path)`, or generate from a descriptor set with \
                                   `configure().compile_fds(set)`)";

/// The texts of files that were rewritten, by name.
type Texts = Rc<RefCell<HashMap<String, Rewritten>>>;

/// Parses the files and all that they import; an encoded descriptor set.
pub(crate) fn parse(protos: &[impl AsRef<Path>], includes: &[&Path]) -> Result<Vec<u8>, Error> {
    let texts = Texts::default();
    let mut resolver = ChainFileResolver::new();
    includes.iter().for_each(|include| resolver.add(Folder::new(include, &texts)));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(true);
    for proto in protos {
        check_shadow(proto.as_ref(), includes)?;
        compiler.open_file(proto).map_err(|error| describe(error, includes, &texts.borrow()))?;
    }
    // The compiler's own encoding has custom options, which prost's types leave out.
    Ok(compiler.encode_file_descriptor_set())
}

/// The name by which the language knows a file; its path if it is in none of the folders.
pub(crate) fn name_of(proto: &Path, includes: &[&Path]) -> String {
    let folders = includes.iter().map(|include| IncludeFileResolver::new(include.to_path_buf()));
    let name = folders.into_iter().find_map(|folder| folder.resolve_path(proto));
    name.unwrap_or_else(|| proto.to_string_lossy().into_owned())
}

/// Tells cargo which files were read. Only in a build script is there somebody to be told.
pub(crate) fn rerun_if_changed<'a>(names: impl Iterator<Item = &'a str>, includes: &[&Path]) {
    if env::var_os("OUT_DIR").is_some() {
        for path in names.filter_map(|name| find(name, includes)) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}

/// # Errors
/// If a file was meant that has the name of another one in an earlier folder.
fn check_shadow(proto: &Path, includes: &[&Path]) -> Result<(), Error> {
    let meant = fs::canonicalize(proto).ok();
    let found = find(&name_of(proto, includes), includes);
    let is_in_a_folder = includes.iter().any(|include| proto.starts_with(include));
    match (meant, found) {
        (Some(meant), Some(found))
            if is_in_a_folder && fs::canonicalize(&found).is_ok_and(|path| path != meant) =>
        {
            Err(Error::new(format!(
                "{} is shadowed by {}, which has its name in an earlier folder",
                proto.display(),
                found.display()
            )))
        }
        _ => Ok(()),
    }
}

/// A folder in which imports are looked up.
struct Folder {
    path: PathBuf,
    files: IncludeFileResolver,
    texts: Texts,
}

impl Folder {
    fn new(path: &Path, texts: &Texts) -> Self {
        let files = IncludeFileResolver::new(path.to_owned());
        Folder { path: path.to_owned(), files, texts: Rc::clone(texts) }
    }
}

impl FileResolver for Folder {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        self.files.resolve_path(path)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let Some(rewritten) = fs::read(self.path.join(name))
            .ok()
            .and_then(|source| rewrite(source.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&source)))
        else {
            // It says what is wrong.
            return self.files.open_file(name);
        };
        let parsed = match File::from_source(name, &rewritten.text) {
            Ok(file) => {
                let mut descriptor = file.file_descriptor_proto().clone();
                rewritten.restore(&mut descriptor);
                // With its text, errors about its imports have a place.
                let is_same = descriptor == *file.file_descriptor_proto();
                Ok(if is_same { file } else { File::from_file_descriptor_proto(descriptor) })
            }
            // protobuf's own files may be newer than this parser. There are copies that it knows.
            Err(_) if GoogleFileResolver::new().open_file(name).is_ok() => {
                Err(protox::Error::file_not_found(name))
            }
            Err(error) => Err(error),
        };
        self.texts.borrow_mut().insert(name.to_owned(), rewritten);
        parsed
    }
}

/// Where a file of this name is.
fn find(name: &str, includes: &[&Path]) -> Option<PathBuf> {
    includes.iter().map(|include| include.join(name)).find(|path| path.is_file())
}

fn read(name: &str, includes: &[&Path]) -> io::Result<String> {
    let path = find(name, includes).ok_or(io::ErrorKind::NotFound)?;
    let source = fs::read(path)?;
    let source = source.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&source);
    Ok(String::from_utf8_lossy(source).into_owned())
}

fn describe(error: protox::Error, includes: &[&Path], texts: &HashMap<String, Rewritten>) -> Error {
    // Its `Debug` is a sentence with file, line and column; its `Display` leaves them out.
    let message = format!("{error:?}");
    if error.is_file_not_found() || error.is_io() {
        let searched: Vec<_> = includes.iter().map(|path| path.display().to_string()).collect();
        let message = with_place_of_import(message, error.file(), includes);
        return Error::new(format!("{message} (looked in: {})", searched.join(", ")));
    }
    let Some(file) = error.file().filter(|_| error.is_parse()) else {
        return Error::new(format!("{message} {WAYS_OUT}"));
    };
    let source = read(file, includes).unwrap_or_default();
    if let Some(place) = edition_place(file, &source) {
        return Error::new(format!("{place}: {NO_EDITIONS} {WAYS_OUT}"));
    }
    // The parser knows no place for the end of a file and for a second package.
    let sentence = error.to_string();
    let place = if message == sentence {
        line_without_place(&source, &message).map(|line| format!("{line}:"))
    } else {
        place_in_file(&message, file, texts)
    };
    Error::new(format!("{file}:{} {sentence} {WAYS_OUT}", place.unwrap_or_default()))
}

/// Adds the place of an import, which the parser does not know where a text was rewritten.
fn with_place_of_import(message: String, file: Option<&str>, includes: &[&Path]) -> String {
    let place = || {
        let (file, sentence) = (file?, message.strip_prefix(file?)?.strip_prefix(":import '")?);
        let (name, _) = sentence.split_once('\'')?;
        let source = read(file, includes).ok()?;
        let mut lines = source.lines().zip(1..);
        let (text, line) =
            lines.find(|(text, _)| text.contains("import") && text.contains(name))?;
        Some(format!("{file}:{line}:{}: import '{sentence}", text.find("import")? + 1))
    };
    place().unwrap_or(message)
}

/// The line and column that a message of the parser begins with, as the file has them.
fn place_in_file(message: &str, file: &str, texts: &HashMap<String, Rewritten>) -> Option<String> {
    let mut numbers = message.strip_prefix(file)?.strip_prefix(':')?.split(':');
    let (line, column): (i32, i32) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let (line, column) = match texts.get(file) {
        Some(text) => text.place(line - 1, column - 1),
        None => (line - 1, column - 1),
    };
    Some(format!("{}:{}:", line + 1, column + 1))
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
