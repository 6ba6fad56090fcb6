//! The files that are written.

use std::{
    collections::HashMap,
    env, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use prost_build::{Config, Module};
use prost_types::FileDescriptorSet;

use crate::{Error, format::format};

/// The stem of the file for what has no package. That is prost-build's default.
const NO_PACKAGE: &str = "_";

/// What this process has written, file by file.
static WRITTEN: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);

/// Generates the code for these files into this folder.
pub(crate) fn write(
    config: &mut Config,
    files: FileDescriptorSet,
    include_file: Option<&str>,
    folder: &Path,
) -> Result<(), Error> {
    let packages: Vec<String> = files.file.iter().map(|file| file.package().to_owned()).collect();
    if let Some(name) = include_file {
        check_include_file(name, &packages)?;
        config.include_file(name);
    }
    let staging = tempfile::tempdir().map_err(|error| Error::io("making a folder", error))?;
    config.out_dir(staging.path());
    config.compile_fds(files).map_err(|error| Error::io("generating code", error))?;

    let writing = |error| Error::io(format_args!("writing into {}", folder.display()), error);
    let mut names: Vec<_> = fs::read_dir(staging.path())
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
        .map_err(|error: io::Error| Error::io("reading generated code", error))?;
    names.sort();
    for name in &names {
        let code = fs::read_to_string(staging.path().join(name))
            .map_err(|error| Error::io("reading generated code", error))?;
        let code = format(allow_inception(&code), folder);
        write_file(folder, Path::new(name), code).map_err(writing)??;
    }
    // `include_proto!` knows the package's name alone, and the file may have another one.
    for package in packages.iter().filter(|package| !package.is_empty()) {
        let (file, alias) = (file_name(package), format!("{package}.rs"));
        let is_there = names.iter().any(|name| name.to_str() == Some(&file));
        if is_there && !is_same_file(folder, &file, &alias) {
            let code = format!("include!(\"{file}\");\n");
            write_file(folder, Path::new(&alias), code).map_err(writing)??;
        }
    }
    Ok(())
}

/// Allows each module to have the name of the one around it, which the program that includes the code may choose.
pub(crate) fn allow_inception(code: &str) -> String {
    let mut output = String::with_capacity(code.len());
    for line in code.split_inclusive('\n') {
        if line.trim_start().starts_with("pub mod ") {
            output.push_str("#[allow(clippy::module_inception)]\n");
        }
        output.push_str(line);
    }
    output
}

/// The name of the file for a package that becomes this module.
pub(crate) fn file_name_of(module: &Module) -> String {
    module.to_file_name_or(NO_PACKAGE)
}

fn file_name(package: &str) -> String {
    file_name_of(&Module::from_protobuf_package_name(package))
}

fn check_include_file(name: &str, packages: &[String]) -> Result<(), Error> {
    if Path::new(name).file_name() != Some(name.as_ref()) {
        return Err(Error::new(format!("the include file `{name}` is no plain file name")));
    }
    match packages.iter().find(|package| file_name(package) == name) {
        Some(package) => Err(Error::new(format!(
            "the include file `{name}` has the name of the file for package `{package}`"
        ))),
        None => Ok(()),
    }
}

/// Whether two names are those of one file, as in file systems that do not tell capitals.
fn is_same_file(folder: &Path, one: &str, other: &str) -> bool {
    let path = |name: &str| fs::canonicalize(folder.join(name)).ok();
    path(one).is_some_and(|path_of_one| path(other) == Some(path_of_one))
}

/// Writes a file, and leaves one alone that is the same already.
///
/// # Errors
/// The inner one if an earlier run of this build script wrote something else there.
fn write_file(folder: &Path, name: &Path, code: String) -> io::Result<Result<(), Error>> {
    let path = fs::canonicalize(folder)?.join(name);
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let written = written.get_or_insert_default();
    // Programs other than build scripts may well generate again what has changed meanwhile.
    let is_build_script = env::var_os("OUT_DIR").is_some();
    if is_build_script && written.get(&path).is_some_and(|earlier| *earlier != code) {
        return Ok(Err(Error::new(format!(
            "{} would be overwritten: this build script has generated other code for the same \
             package before; compile all files of a package in one call, or set another `out_dir` \
             for one of the calls",
            path.display()
        ))));
    }
    if !fs::read(&path).is_ok_and(|content| content == code.as_bytes()) {
        fs::write(&path, &code)?;
    }
    written.insert(path, code);
    Ok(Ok(()))
}
