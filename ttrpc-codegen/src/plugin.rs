//! The generator as protoc sees it: a `CodeGeneratorRequest` goes in, a `CodeGeneratorResponse`
//! comes out (`google/protobuf/compiler/plugin.proto`).
//!
//! The plugin `protoc-gen-ttrpc-rust` generates one file for each package of the files that protoc
//! was asked for. It has services of these files, and messages of all files of the package that they import.
//! Parameters, of [`Builder`](crate::Builder)'s names: `no_client`, `no_server`, `blocking_client`,
//! `blocking_server`, `async_fn_in_trait`, `default_bodies`, `runtime_path=PATH`.

use std::{collections::HashSet, env, io};

use prost::{Message, bytes::Bytes, encoding::int32};
use prost_build::{Config, Module};
use prost_types::{
    FileDescriptorProto,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse, code_generator_response},
};

use crate::{
    Error, ServiceGenerator,
    builder::{default_config, set_runtime_path},
    check,
    check::Input,
    comments, defaults,
    descriptors::decode_file,
    editions::{EDITION_2023, EDITION_2024},
    format::format,
    output,
};

/// `FEATURE_PROTO3_OPTIONAL` and `FEATURE_SUPPORTS_EDITIONS`.
const SUPPORTED_FEATURES: u64 = 1 | 2;

/// Numbers in `CodeGeneratorResponse` that prost's types leave out.
const MINIMUM_EDITION: u32 = 3;
const MAXIMUM_EDITION: u32 = 4;

/// The files of a request, each encoded: decoded ones lose the features of editions.
#[derive(Clone, PartialEq, Message)]
struct EncodedFiles {
    #[prost(bytes = "bytes", repeated, tag = "15")]
    proto_file: Vec<Bytes>,
}

/// Answers an encoded request with an encoded response. What is wrong with the input is said in the
/// response, as protoc wants it.
///
/// # Errors
/// If the bytes are no `CodeGeneratorRequest`.
pub fn run(request: &[u8]) -> io::Result<Vec<u8>> {
    let files = EncodedFiles::decode(request)?;
    let request = CodeGeneratorRequest::decode(request)?;
    let mut response = CodeGeneratorResponse {
        supported_features: Some(SUPPORTED_FEATURES),
        ..CodeGeneratorResponse::default()
    };
    match generate(request, &files) {
        Ok(files) => response.file = files,
        Err(error) => response.error = Some(error.to_string()),
    }
    let mut response = response.encode_to_vec();
    int32::encode(MINIMUM_EDITION, &EDITION_2023, &mut response);
    int32::encode(MAXIMUM_EDITION, &EDITION_2024, &mut response);
    Ok(response)
}

fn generate(
    mut request: CodeGeneratorRequest,
    files: &EncodedFiles,
) -> Result<Vec<code_generator_response::File>, Error> {
    let Parameters { generator, mut config } = Parameters::parse(request.parameter())?;
    request.proto_file = files.proto_file.iter().map(decode_file).collect::<Result<_, _>>()?;
    for file in &mut request.proto_file {
        if !request.file_to_generate.iter().any(|name| name == file.name()) {
            file.service.clear();
        }
    }
    check::check_names(Input {
        files: &request.proto_file,
        generator: &generator,
        config: &mut config,
        is_one_tree: false,
    })?;
    let module = |file: &FileDescriptorProto| Module::from_protobuf_package_name(file.package());
    let wanted: HashSet<_> = (request.proto_file.iter())
        .filter(|file| request.file_to_generate.iter().any(|name| name == file.name()))
        .map(module)
        .collect();
    // prost has to see the imports too: what a message can derive depends on those in its fields.
    defaults::resolve_aliases(&mut request.proto_file);
    let requests = (request.proto_file.into_iter())
        .map(|mut file| {
            comments::sanitize_file(&mut file);
            (module(&file), file)
        })
        .collect();
    config.service_generator(Box::new(generator));
    let modules = config.generate(requests).map_err(|error| Error::io("generating code", error))?;
    let folder = env::current_dir().unwrap_or_default();
    let mut files: Vec<_> = modules
        .into_iter()
        .filter(|(module, _)| wanted.contains(module))
        .map(|(module, code)| code_generator_response::File {
            name: Some(output::file_name_of(&module)),
            content: Some(format(output::allow_inception(&code), &folder)),
            ..code_generator_response::File::default()
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

struct Parameters {
    generator: ServiceGenerator,
    config: Config,
}

impl Parameters {
    fn parse(parameters: &str) -> Result<Self, Error> {
        let (mut generator, mut config) = (ServiceGenerator::new(), default_config());
        for word in parameters.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            generator = match word.split_once('=').unwrap_or((word, "")) {
                ("no_client", "") => generator.client(false),
                ("no_server", "") => generator.server(false),
                ("blocking_client", "") => generator.blocking_client(true),
                ("blocking_server", "") => generator.blocking_server(true),
                ("async_fn_in_trait", "") => generator.async_fn_in_trait(true),
                ("default_bodies", "") => generator.default_bodies(true),
                ("runtime_path", path) if !path.is_empty() => {
                    set_runtime_path(&mut config, path);
                    generator.runtime_path(path)
                }
                _ => {
                    return Err(Error::new(format!(
                        "unknown parameter `{word}`; there are `no_client`, `no_server`, \
                         `blocking_client`, `blocking_server`, `async_fn_in_trait`, `default_bodies` and `runtime_path=PATH`"
                    )));
                }
            };
        }
        Ok(Parameters { generator, config })
    }
}
