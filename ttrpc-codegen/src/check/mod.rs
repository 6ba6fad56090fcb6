//! Names that are different in protobuf and the same in Rust, and names that are none in Rust.
//!
//! They would end in an error of the Rust compiler in generated code, far from its cause, or in a
//! panic of prost-build; so they are looked for here, where file and line are known.

mod message;
mod packages;
mod probe;
mod scope;

use std::collections::HashMap;

use prost_build::{Config, Module};
use prost_types::{FileDescriptorProto, ServiceDescriptorProto};
use protox::file::{FileResolver, GoogleFileResolver};

use crate::{Error, ServiceGenerator, names};
use probe::Probe;
use scope::{Definition, Scope};

/// Field numbers in descriptor.proto, of which the paths of `SourceCodeInfo` are made.
mod number {
    pub(super) const FILE_PACKAGE: i32 = 2;
    pub(super) const FILE_MESSAGE: i32 = 4;
    pub(super) const FILE_ENUM: i32 = 5;
    pub(super) const FILE_SERVICE: i32 = 6;
    pub(super) const SERVICE_METHOD: i32 = 2;
    pub(super) const MESSAGE_FIELD: i32 = 2;
    pub(super) const MESSAGE_MESSAGE: i32 = 3;
    pub(super) const MESSAGE_ENUM: i32 = 4;
    pub(super) const MESSAGE_ONEOF: i32 = 8;
    pub(super) const ENUM_VALUE: i32 = 2;
}

/// What is to be generated.
pub(crate) struct Input<'a> {
    pub(crate) files: &'a [FileDescriptorProto],
    pub(crate) generator: &'a ServiceGenerator,
    pub(crate) config: &'a mut Config,
    /// Whether the packages' modules are to lie as the packages do.
    pub(crate) is_one_tree: bool,
}

/// # Errors
/// At the second of two names that become the same in Rust, and at a name that becomes none.
pub(crate) fn check_names(input: Input<'_>) -> Result<(), Error> {
    let mut check = Check {
        generator: input.generator,
        probe: Probe::new(input.config),
        modules: HashMap::new(),
    };
    for file in input.files {
        check.file(file)?;
    }
    packages::check(input.files, input.is_one_tree, &mut check)
}

struct Check<'a> {
    generator: &'a ServiceGenerator,
    probe: Probe<'a>,
    /// The types and modules in each module of the generated code.
    modules: HashMap<Vec<String>, Scope<'a>>,
}

/// The module that a file's package becomes.
fn module_of(file: &FileDescriptorProto) -> Vec<String> {
    let module = Module::from_protobuf_package_name(file.package());
    module.parts().map(str::to_owned).collect()
}

impl<'a> Check<'a> {
    fn file(&mut self, file: &'a FileDescriptorProto) -> Result<(), Error> {
        let package = file.package();
        if !package.is_empty() && !package.split('.').all(names::is_usable) {
            let what = format!("package `{package}`");
            let definition = Definition::new(what, file, vec![number::FILE_PACKAGE]);
            return Err(definition.no_name());
        }
        self.standard_types(file)?;
        let module = module_of(file);
        for (index, message) in (0..).zip(&file.message_type) {
            self.message(file, message, vec![number::FILE_MESSAGE, index], &[], &module)?;
        }
        for (index, each) in (0..).zip(&file.enum_type) {
            self.enumeration(file, each, vec![number::FILE_ENUM, index], &[], &module)?;
        }
        for (index, service) in (0..).zip(&file.service) {
            self.service(file, service, vec![number::FILE_SERVICE, index], &module)?;
        }
        Ok(())
    }

    /// prost generates no type of the package `google.protobuf`, since the crate `prost_types` has them. It
    /// has those of protobuf's own files.
    fn standard_types(&mut self, file: &'a FileDescriptorProto) -> Result<(), Error> {
        let package = file.package();
        let is_standard = package == "google.protobuf" || package.starts_with("google.protobuf.");
        if !is_standard || GoogleFileResolver::new().open_file(file.name()).is_ok() {
            return Ok(());
        }
        let messages = (0..)
            .zip(&file.message_type)
            .map(|(index, message)| ("message", message.name(), vec![number::FILE_MESSAGE, index]));
        let enums = (0..).zip(&file.enum_type);
        let enums =
            enums.map(|(index, each)| ("enum", each.name(), vec![number::FILE_ENUM, index]));
        for (kind, name, path) in messages.chain(enums) {
            if self.probe.is_taken_for_standard(package, name) {
                return Err(Definition::new(String::new(), file, path).error(&format!(
                    "{kind} `{name}` is of package `{package}`, of which prost generates nothing but with its \
                     option `compile_well_known_types`"
                )));
            }
        }
        Ok(())
    }

    /// Takes a name in a module.
    fn insert_item(
        &mut self,
        module: &[String],
        kind: &'static str,
        rust_name: String,
        definition: Definition<'a>,
    ) -> Result<(), Error> {
        let scope = self.modules.entry(module.to_vec()).or_default();
        scope.insert(kind, rust_name, definition, &mut self.probe)
    }

    fn service(
        &mut self,
        file: &'a FileDescriptorProto,
        service: &'a ServiceDescriptorProto,
        path: Vec<i32>,
        module: &[String],
    ) -> Result<(), Error> {
        let name = service.name();
        let definition = Definition::new(format!("service `{name}`"), file, path);
        if !names::is_usable(name) {
            return Err(definition.no_name());
        }
        for rust_name in self.generator.type_names(&names::upper_camel(name)) {
            self.insert_item(module, "type", rust_name, definition.clone())?;
        }
        let mut methods = Scope::of(format!(" of service `{name}`"));
        for (index, method) in (0..).zip(&service.method) {
            let what = format!("method `{}`", method.name());
            let method_definition =
                Definition::new(what, file, definition.path_to(number::SERVICE_METHOD, index));
            if !names::is_usable(method.name()) {
                return Err(methods.no_name(&method_definition));
            }
            // The client's methods clash where the trait's do: no name ends in an underscore
            // but for those that have to.
            let rust_name = names::snake(method.name());
            methods.insert("method", rust_name, method_definition, &mut self.probe)?;
        }
        Ok(())
    }
}
