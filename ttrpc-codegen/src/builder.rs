//! Generating with options.

use std::{
    collections::HashSet,
    env, fmt, fs,
    path::{Path, PathBuf},
};

use prost_build::Config;
use prost_types::FileDescriptorSet;

use crate::{
    DescriptorSet, Error, ServiceGenerator, check, check::Input, comments, defaults, output, parse,
    protoc, service::ALLOWED,
};

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
        is_config_given: false,
        generator: ServiceGenerator::new(),
        protoc: None,
        out_dir: None,
        include_file: None,
        descriptors: None,
        has_source_info: true,
    }
}

/// prost's options for code that names `ttrpc` alone, warns nobody of what is not theirs to mend, and
/// whose messages can be details of a status (`google.protobuf.Any`).
pub(crate) fn default_config() -> Config {
    let mut config = Config::new();
    set_runtime_path(&mut config, "::ttrpc");
    config
        .type_attribute(".", ALLOWED)
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com");
    config
}

/// Has messages named by the path at which the crate `ttrpc` re-exports prost.
pub(crate) fn set_runtime_path(config: &mut Config, path: &str) {
    config.prost_path(format!("{path}::prost")).prost_types_path(format!("{path}::prost_types"));
}

/// Generates with options. Made by [`configure`].
#[must_use = "nothing is generated before `compile_protos` or `compile_fds`"]
pub struct Builder {
    config: Config,
    /// Whether `config` is the caller's, as a whole.
    is_config_given: bool,
    generator: ServiceGenerator,
    protoc: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    include_file: Option<String>,
    descriptors: Option<PathBuf>,
    has_source_info: bool,
}

impl Builder {
    /// Sets whether clients are generated. Default: yes.
    pub fn client(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.client(is_wanted);
        self
    }

    /// Sets whether servers and their traits are generated. Default: yes.
    pub fn server(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.server(is_wanted);
        self
    }

    /// Also generates clients without `async`: `GreeterBlockingClient`, which wraps `ttrpc::blocking::Client`.
    /// Default: no.
    pub fn blocking_client(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.blocking_client(is_wanted);
        self
    }

    /// Also generates traits without `async`, and servers that run each call on a thread. Default: no.
    ///
    /// They are called `GreeterBlocking` and `GreeterBlockingServer`, see `ttrpc::server::blocking`.
    pub fn blocking_server(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.blocking_server(is_wanted);
        self
    }

    /// Lets implementations of servers' traits write plain `async fn`, without the attribute `async_trait`. Default:
    /// no.
    ///
    /// The methods then return `impl Future + Send`, and a unary call allocates once less. But such a trait is not
    /// an object: there is no `dyn Greeter`.
    pub fn async_fn_in_trait(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.async_fn_in_trait(is_wanted);
        self
    }

    /// Adds bodies to the methods of servers' traits, which answer UNIMPLEMENTED. Default: no, so that the compiler
    /// names what is missing.
    ///
    /// A method that is added to the service later then breaks no implementation of the trait.
    pub fn default_bodies(mut self, is_wanted: bool) -> Self {
        self.generator = self.generator.default_bodies(is_wanted);
        self
    }

    /// Sets the path of the crate `ttrpc` in generated code, for programs that have renamed or
    /// re-exported it: `crate::rpc`, `::my_framework::ttrpc`. Default: `::ttrpc`.
    ///
    /// Messages name prost by this path too, unless [`Builder::prost_config`] says something else.
    pub fn runtime_path(mut self, path: impl Into<String>) -> Self {
        let path = path.into();
        if !self.is_config_given {
            set_runtime_path(&mut self.config, &path);
        }
        self.generator = self.generator.runtime_path(path);
        self
    }

    /// Changes prost's options. The folder is none of them: it is set by [`Builder::out_dir`].
    ///
    /// Long fields of `bytes` had better be `Bytes`. They share the memory of the frame in which they came, where vectors
    /// are copied out of it: a server that echoes 1 MiB takes a fifth less processor time.
    ///
    /// ```
    /// ttrpc_codegen::configure().prost(|config| {
    ///     config.bytes(["."]);
    /// });
    /// ```
    pub fn prost(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Uses prost's options as they are, instead of those that let generated code do without a
    /// dependency on prost. The folder is none of them: it is set by [`Builder::out_dir`].
    pub fn prost_config(mut self, config: Config) -> Self {
        self.config = config;
        self.is_config_given = true;
        self
    }

    /// Parses with this protoc instead of the built-in parser. The environment variable `PROTOC` does the same;
    /// this option counts more. Files of the editions 2023 and 2024 need it, see [Language](crate#language).
    pub fn protoc(mut self, path: impl Into<PathBuf>) -> Self {
        self.protoc = Some(path.into());
        self
    }

    /// Writes into this folder instead of `OUT_DIR`.
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(folder.into());
        self
    }

    /// Also writes a file of this name that includes all packages, in modules nested as the packages are: see
    /// [Packages](crate#packages).
    pub fn include_file(mut self, name: impl Into<String>) -> Self {
        self.include_file = Some(name.into());
        self
    }

    /// Writes the file descriptor set, imports included, into this file too.
    pub fn file_descriptor_set_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.descriptors = Some(path.into());
        self
    }

    /// Sets whether the file descriptor set has the files' comments and positions, often more than half of its
    /// bytes. Default: yes. Code has comments either way.
    pub fn file_descriptor_set_source_info(mut self, is_wanted: bool) -> Self {
        self.has_source_info = is_wanted;
        self
    }

    /// Generates, see [`compile_protos`](crate::compile_protos).
    ///
    /// # Errors
    /// Those of [`compile_protos`](crate::compile_protos).
    pub fn compile_protos(
        self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let folder = self.folder()?;
        let set = self.parse(protos, includes)?;
        let includes = paths(includes);
        let names = protos.iter().map(|proto| parse::name_of(proto.as_ref(), &includes)).collect();
        self.generate(&set, Some(&names), &folder)
    }

    /// Generates from a descriptor set that was made elsewhere, imports included: all services in it, and all
    /// messages. `protoc --include_imports --include_source_info --descriptor_set_out=FILE` writes one.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// ttrpc_codegen::configure().compile_fds(std::fs::read("greeter.bin")?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If it is no descriptor set, if a file of an edition has a feature that prost has no form for, and those of
    /// [`compile_protos`](crate::compile_protos) about names.
    pub fn compile_fds(self, set: impl Into<DescriptorSet>) -> Result<(), Error> {
        let folder = self.folder()?;
        self.generate(&set.into(), None, &folder)
    }

    /// Parses the files and all that they import, and generates nothing. The options of generated code do not count.
    ///
    /// # Errors
    /// If a file is missing or not valid.
    pub fn parse(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<DescriptorSet, Error> {
        let includes = paths(includes);
        let set = match self.protoc.clone().or_else(protoc::from_environment) {
            Some(protoc) => protoc::parse(&protoc, protos, &includes),
            None => parse::parse(protos, &includes),
        };
        let set = DescriptorSet::from(set?);
        parse::rerun_if_changed(set.names()?.iter().map(String::as_str), &includes);
        Ok(set)
    }

    /// Generates services of the files with these names, or of all, and messages.
    fn generate(
        mut self,
        set: &DescriptorSet,
        names: Option<&HashSet<String>>,
        folder: &Path,
    ) -> Result<(), Error> {
        let mut files = set.files()?;
        for file in &mut files {
            if names.is_some_and(|names| !names.contains(file.name())) {
                file.service.clear();
            }
        }
        check::check_names(Input {
            files: &files,
            generator: &self.generator,
            config: &mut self.config,
            is_one_tree: self.include_file.is_some(),
        })?;
        if let Some(path) = &self.descriptors {
            let stripped =
                (!self.has_source_info).then(|| set.without_source_info()).transpose()?;
            fs::write(path, stripped.as_deref().unwrap_or(set.encoded()))
                .map_err(|error| Error::io(format_args!("writing {}", path.display()), error))?;
        }
        files.iter_mut().for_each(comments::sanitize_file);
        defaults::resolve_aliases(&mut files);
        self.config.service_generator(Box::new(self.generator));
        let files = FileDescriptorSet { file: files };
        output::write(&mut self.config, files, self.include_file.as_deref(), folder)
    }

    /// Where code is written.
    fn folder(&self) -> Result<PathBuf, Error> {
        // prost's options cannot be asked, but printed; what goes unseen is written elsewhere.
        if format!("{:?}", self.config).contains("out_dir: Some") {
            return Err(Error::new(
                "the folder is set by `Builder::out_dir`, not in prost's options",
            ));
        }
        let out_dir = self.out_dir.clone().or_else(|| env::var_os("OUT_DIR").map(PathBuf::from));
        out_dir.ok_or_else(|| {
            Error::new("OUT_DIR is not set, as it is in build scripts: set `out_dir`")
        })
    }
}

fn paths(paths: &[impl AsRef<Path>]) -> Vec<&Path> {
    paths.iter().map(AsRef::as_ref).collect()
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("generator", &self.generator)
            .field("protoc", &self.protoc)
            .field("out_dir", &self.out_dir)
            .field("include_file", &self.include_file)
            .field("file_descriptor_set_path", &self.descriptors)
            .field("file_descriptor_set_source_info", &self.has_source_info)
            .finish_non_exhaustive()
    }
}
