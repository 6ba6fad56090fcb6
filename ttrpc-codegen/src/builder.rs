//! Generating with options.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
};

use prost_build::Config;

use crate::{Error, ServiceGenerator, check, comments, generator::ALLOWED};

/// Starts to generate with options; see [`compile_protos`](crate::compile_protos) for the short way.
///
/// ```no_run
/// # fn main() -> Result<(), ttrpc_codegen::Error> {
/// ttrpc_codegen::configure()
///     .server(false)
///     .prost(|config| {
///         config.btree_map(["."]);
///     })
///     .file_descriptor_set_path("greeter.bin")
///     .compile_protos(&["proto/greeter.proto"], &["proto"])
/// # }
/// ```
pub fn configure() -> Builder {
    Builder {
        config: default_config(),
        generator: ServiceGenerator::new(),
        out_dir: None,
        descriptors: None,
    }
}

/// prost's options for code that names `ttrpc` alone, warns nobody of what is not theirs to mend, and
/// whose messages can be details of a status (`google.protobuf.Any`).
pub(crate) fn default_config() -> Config {
    let mut config = Config::new();
    config
        .prost_path("::ttrpc::prost")
        .prost_types_path("::ttrpc::prost_types")
        .type_attribute(".", ALLOWED)
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com");
    config
}

/// Generates with options. Made by [`configure`].
#[must_use = "nothing is generated before `compile_protos`"]
pub struct Builder {
    config: Config,
    generator: ServiceGenerator,
    out_dir: Option<PathBuf>,
    descriptors: Option<PathBuf>,
}

impl Builder {
    /// Whether clients are generated; they are unless this says no.
    pub fn client(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.client(is_wanted);
        self
    }

    /// Whether servers and the traits behind them are generated; they are unless this says no.
    pub fn server(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.server(is_wanted);
        self
    }

    /// Changes prost's options.
    pub fn prost(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Uses prost's options as they are, instead of those that let generated code do without a
    /// dependency on prost.
    pub fn prost_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Writes into this folder instead of `OUT_DIR`.
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        self.config.out_dir(&folder);
        self.out_dir = Some(folder);
        self
    }

    /// Writes the file descriptor set, imports included, into this file too.
    pub fn file_descriptor_set_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.descriptors = Some(path.into());
        self
    }

    /// Generates, see [`compile_protos`](crate::compile_protos).
    ///
    /// # Errors
    /// Those of [`compile_protos`](crate::compile_protos).
    pub fn compile_protos(
        mut self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let compiler = parse(protos, includes)?;
        let mut files = compiler.file_descriptor_set();
        check::check_names(&files.file, &self.generator)?;
        if let Some(path) = &self.descriptors {
            // The compiler's own encoding has custom options, which prost's types leave out.
            fs::write(path, compiler.encode_file_descriptor_set())
                .map_err(|error| Error::io(format_args!("writing {}", path.display()), error))?;
        }
        files.file.iter_mut().for_each(comments::sanitize_file);
        self.config.service_generator(Box::new(self.generator));
        self.config.compile_fds(files).map_err(|error| match &self.out_dir {
            Some(folder) => Error::io(format_args!("writing into {}", folder.display()), error),
            None => Error::io("generating code", error),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("generator", &self.generator)
            .field("file_descriptor_set_path", &self.descriptors)
            .finish_non_exhaustive()
    }
}

/// Parses the files and all that they import, and tells cargo which files those are.
fn parse(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<protox::Compiler, Error> {
    let includes: Vec<&Path> = includes.iter().map(AsRef::as_ref).collect();
    let describe = |error| describe(error, &includes);
    let mut compiler = protox::Compiler::new(&includes).map_err(describe)?;
    compiler.include_imports(true).include_source_info(true);
    for proto in protos {
        compiler.open_file(proto).map_err(describe)?;
    }
    // Only in a build script is there somebody to be told.
    if env::var_os("OUT_DIR").is_some() {
        for path in compiler.files().filter_map(|file| file.path()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    Ok(compiler)
}

fn describe(error: protox::Error, includes: &[&Path]) -> Error {
    // Its `Debug` is a sentence with file, line and column; its `Display` leaves them out.
    let message = format!("{error:?}");
    if error.is_file_not_found() || error.is_io() {
        let searched: Vec<_> = includes.iter().map(|path| path.display().to_string()).collect();
        return Error::new(format!("{message} (looked in: {})", searched.join(", ")));
    }
    match error.file() {
        // The parser knows no place for the end of a file and for a second package.
        Some(file) if error.is_parse() && message == error.to_string() => {
            let source = includes.iter().find_map(|path| fs::read_to_string(path.join(file)).ok());
            let line = source.and_then(|source| line_without_place(&source, &message));
            let place = line.map_or(String::new(), |line| format!("{line}:"));
            Error::new(format!("{file}:{place} {message}"))
        }
        _ => Error::new(message),
    }
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
