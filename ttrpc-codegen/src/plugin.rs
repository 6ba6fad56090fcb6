//! The generator as protoc sees it: a `CodeGeneratorRequest` goes in, a `CodeGeneratorResponse`
//! comes out (`google/protobuf/compiler/plugin.proto`).
//!
//! The plugin `protoc-gen-ttrpc-rust` generates messages and services, one file for each package of
//! the files that protoc was asked for. A package's file is whole: what its files import from the
//! same package is in it. Parameters: `no_client`, `no_server`.

use std::{collections::HashSet, io};

use prost::Message;
use prost_build::Module;
use prost_types::{
    FileDescriptorProto,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse, code_generator_response},
};

use crate::{Error, ServiceGenerator, builder::default_config, check, comments};

/// `FEATURE_PROTO3_OPTIONAL`: the plugin knows optional fields.
const SUPPORTED_FEATURES: u64 = 1;

/// Answers an encoded request with an encoded response. What is wrong with the input is said in the
/// response, as protoc wants it.
///
/// # Errors
/// If the bytes are no `CodeGeneratorRequest`.
pub fn run(request: &[u8]) -> io::Result<Vec<u8>> {
    let request = CodeGeneratorRequest::decode(request)?;
    let mut response = CodeGeneratorResponse {
        supported_features: Some(SUPPORTED_FEATURES),
        ..CodeGeneratorResponse::default()
    };
    match generate(request) {
        Ok(files) => response.file = files,
        Err(error) => response.error = Some(error.to_string()),
    }
    Ok(response.encode_to_vec())
}

fn generate(request: CodeGeneratorRequest) -> Result<Vec<code_generator_response::File>, Error> {
    let generator = generator_from(request.parameter())?;
    check::check_names(&request.proto_file, &generator)?;
    let module = |file: &FileDescriptorProto| Module::from_protobuf_package_name(file.package());
    let wanted: HashSet<_> = (request.proto_file.iter())
        .filter(|file| request.file_to_generate.iter().any(|name| name == file.name()))
        .map(module)
        .collect();
    // prost has to see the imports too: what a message can derive depends on those in its fields.
    let requests = (request.proto_file.into_iter())
        .map(|mut file| {
            comments::sanitize_file(&mut file);
            (module(&file), file)
        })
        .collect();
    let mut config = default_config();
    config.service_generator(Box::new(generator));
    let modules = config.generate(requests).map_err(|error| Error::io("generating code", error))?;
    let mut files: Vec<_> = modules
        .into_iter()
        .filter(|(module, _)| wanted.contains(module))
        .map(|(module, content)| code_generator_response::File {
            name: Some(module.to_file_name_or("_")),
            content: Some(content),
            ..code_generator_response::File::default()
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn generator_from(parameters: &str) -> Result<ServiceGenerator, Error> {
    let mut parameters = parameters.split(',').map(str::trim).filter(|word| !word.is_empty());
    parameters.try_fold(ServiceGenerator::new(), |generator, word| match word {
        "no_client" => Ok(generator.client(false)),
        "no_server" => Ok(generator.server(false)),
        _ => Err(Error::new(format!(
            "unknown parameter `{word}`; there are `no_client` and `no_server`"
        ))),
    })
}
