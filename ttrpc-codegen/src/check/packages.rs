//! Packages whose modules have the names of messages' modules: package `p.foo`, and message `Foo`
//! of package `p`.
//!
//! A package's code may be included anywhere, as long as it does not name another package's
//! types. That it does by a relative path, and so their modules have to lie as the packages do.

use std::collections::{HashMap, HashSet};

use prost_types::{DescriptorProto, FileDescriptorProto};

use super::{Check, Definition, Probe, module_of, number, scope};
use crate::Error;

pub(super) fn check<'a>(
    files: &'a [FileDescriptorProto],
    is_one_tree: bool,
    check: &mut Check<'a>,
) -> Result<(), Error> {
    for file in files {
        let module = module_of(file);
        for length in 1..=module.len() {
            let (outer, name) = (&module[..length - 1], &module[length - 1]);
            let Some(scope) = check.modules.get(outer) else { continue };
            let Some((kind, definition)) = scope.get(name) else { continue };
            // Files without types become no module.
            let is_empty = file.message_type.is_empty()
                && file.enum_type.is_empty()
                && file.service.is_empty();
            if !is_empty
                && (is_one_tree || is_linked(files, outer, &module, &mut check.probe))
                && definition.is_generated(&mut check.probe)
            {
                let what = format!("package `{}`", file.package());
                let package = Definition::new(what, file, vec![number::FILE_PACKAGE]);
                return Err(scope::clash("", name, (kind, definition), ("module", &package)));
            }
        }
    }
    Ok(())
}

/// Whether two packages' modules have to lie as the packages do: one names the other's types, or both
/// are so bound to a third.
fn is_linked(
    files: &[FileDescriptorProto],
    one: &[String],
    other: &[String],
    probe: &mut Probe<'_>,
) -> bool {
    let mut modules = HashMap::<String, Vec<String>>::new();
    for file in files {
        for names in types_of(file) {
            // What is not generated is named by a path of its own.
            if probe.is_generated(file.package(), &names) {
                modules.insert(full_name(file.package(), &names), module_of(file));
            }
        }
    }
    let mut links = HashMap::<Vec<String>, Vec<Vec<String>>>::new();
    for file in files {
        let from = module_of(file);
        for to in references(file).filter_map(|name| modules.get(name)) {
            links.entry(from.clone()).or_default().push(to.clone());
            links.entry(to.clone()).or_default().push(from.clone());
        }
    }
    let mut seen = HashSet::new();
    let mut next = vec![one.to_vec()];
    while let Some(module) = next.pop() {
        if module == other {
            return true;
        }
        if seen.insert(module.clone()) {
            next.extend(links.get(&module).cloned().unwrap_or_default());
        }
    }
    false
}

/// A type's name as references have it.
fn full_name(package: &str, names: &[&str]) -> String {
    match package {
        "" => format!(".{}", names.join(".")),
        package => format!(".{package}.{}", names.join(".")),
    }
}

/// The names of a file's types, from the outermost on.
fn types_of(file: &FileDescriptorProto) -> Vec<Vec<&str>> {
    fn add<'a>(message: &'a DescriptorProto, outer: &[&'a str], types: &mut Vec<Vec<&'a str>>) {
        let names = [outer, &[message.name()]].concat();
        types.extend(message.enum_type.iter().map(|each| [&names[..], &[each.name()]].concat()));
        message.nested_type.iter().for_each(|nested| add(nested, &names, types));
        types.push(names);
    }
    let mut types: Vec<_> = file.enum_type.iter().map(|each| vec![each.name()]).collect();
    file.message_type.iter().for_each(|message| add(message, &[], &mut types));
    types
}

/// The full names of all types that a file names.
fn references(file: &FileDescriptorProto) -> impl Iterator<Item = &str> {
    fn add<'a>(message: &'a DescriptorProto, names: &mut Vec<&'a str>) {
        names.extend(message.field.iter().filter_map(|field| field.type_name.as_deref()));
        message.nested_type.iter().for_each(|nested| add(nested, names));
    }
    let methods = file.service.iter().flat_map(|service| &service.method);
    let mut names: Vec<&str> =
        methods.flat_map(|method| [method.input_type(), method.output_type()]).collect();
    file.message_type.iter().for_each(|message| add(message, &mut names));
    names.into_iter()
}
