//! Completion of what a schema has: in shells, and in a session.

pub mod shell;

use std::collections::HashMap;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};

use crate::{
    fields::field_of,
    output,
    schema::{Schema, method_name, newest},
};

/// How deep fields of nested messages are resolved.
const MAX_DEPTH: usize = 32;

/// One completion of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The whole word.
    pub value: String,
    /// What it is.
    pub help: String,
}

impl Candidate {
    fn new(value: impl Into<String>, help: impl std::fmt::Display) -> Self {
        Candidate { value: value.into(), help: output::plain_line(help) }
    }
}

/// Methods that a word may become: `Service/Method` with the shortest name of the service that is unambiguous, the full
/// name if the word begins so, or a method alone.
pub fn methods(schema: &Schema, word: &str) -> Vec<Candidate> {
    let services: Vec<_> = schema.pool().services().collect();
    let all: Vec<_> = services.iter().flat_map(|service| service.methods()).collect();
    let (mut same_service, mut same_method) = (HashMap::<_, Vec<_>>::new(), HashMap::new());
    for service in &services {
        same_service.entry(service.name()).or_default().push(service.full_name());
    }
    for method in &all {
        *same_method.entry(method.name()).or_insert(0) += 1;
    }
    let mut found = Vec::new();
    for method in &all {
        let service = method.parent_service();
        let is_unique = same_method[method.name()] == 1;
        let names = [
            short_name(&same_service[service.name()], method),
            method_name(method),
            method.name().to_owned(),
        ];
        let fits = |(at, name): &(usize, &String)| {
            name.starts_with(word) && (*at < 2 || (!word.is_empty() && is_unique))
        };
        if let Some((_, name)) = names.iter().enumerate().find(fits) {
            found.push(Candidate::new(name, signature(method)));
        }
    }
    found.sort_by(|one, other| one.value.cmp(&other.value));
    found.dedup_by(|one, other| one.value == other.value);
    found
}

/// `Greeter/SayHello`, or with the service's full name where several services are called so that are not versions of
/// one.
fn short_name(services: &[&str], method: &MethodDescriptor) -> String {
    match services.len() == 1 || newest(services.iter().copied()).is_some() {
        true => format!("{}/{}", method.parent_service().name(), method.name()),
        false => method_name(method),
    }
}

fn signature(method: &MethodDescriptor) -> String {
    let stream = |is_stream| if is_stream { "stream " } else { "" };
    format!(
        "({}{}) → {}{}",
        stream(method.is_client_streaming()),
        method.input().name(),
        stream(method.is_server_streaming()),
        method.output().name()
    )
}

/// Services that a word may become, by their short or full names.
pub fn services(schema: &Schema, word: &str) -> Vec<Candidate> {
    let services = schema.pool().services();
    let names = services.map(|service| (service.name().to_owned(), service.full_name().to_owned()));
    with_prefix(names, word)
}

/// Services, methods and messages that a word may become.
pub fn symbols(schema: &Schema, word: &str) -> Vec<Candidate> {
    let mut found = services(schema, word);
    found.extend(methods(schema, word));
    let messages = schema.pool().all_messages().filter(|message| !message.is_map_entry());
    let names = messages.map(|message| (message.name().to_owned(), message.full_name().to_owned()));
    // Without a letter there are too many of them.
    found.extend(if word.is_empty() { Vec::new() } else { with_prefix(names, word) });
    found
}

/// Of short and full names those that a word may become; full ones where the short one does not fit.
fn with_prefix(names: impl Iterator<Item = (String, String)>, word: &str) -> Vec<Candidate> {
    let fit = |(short, full): (String, String)| {
        let name = if short.starts_with(word) { short } else { full.clone() };
        name.starts_with(word).then(|| Candidate::new(name, full))
    };
    let mut found: Vec<_> = names.filter_map(fit).collect();
    found.sort_by(|one, other| one.value.cmp(&other.value));
    found.dedup_by(|one, other| one.value == other.value);
    found
}

/// `name=value` arguments that a word may become: names of fields, also of nested messages, and values of enums.
pub fn fields(kind: &MessageDescriptor, word: &str) -> Vec<Candidate> {
    let (path, value) = match word.split_once('=') {
        Some((path, value)) => (path, Some(value)),
        None => (word, None),
    };
    let parents: Vec<&str> = path.split('.').collect();
    let (last, parents) = parents.split_last().expect("there is a part");
    let mut kind = kind.clone();
    for name in parents.iter().take(MAX_DEPTH) {
        match field_of(&kind, name).map(|field| (field.is_list() || field.is_map(), field.kind())) {
            Some((false, Kind::Message(inner))) => kind = inner,
            _ => return Vec::new(),
        }
    }
    let prefix = &path[..path.len() - last.len()];
    if let Some(value) = value {
        let Some(field) = field_of(&kind, last) else { return Vec::new() };
        let values = values(&field).into_iter().filter(|known| known.starts_with(value));
        return values.map(|value| Candidate::new(format!("{path}={value}"), "")).collect();
    }
    let fits = |field: &FieldDescriptor| field.name().starts_with(*last);
    kind.fields()
        .filter(fits)
        .map(|field| {
            let opens = match field.kind() {
                Kind::Message(inner) => {
                    !field.is_list() && (field.is_map() || !is_scalar_in_json(&inner))
                }
                _ => false,
            };
            let end = if opens { "." } else { "=" };
            Candidate::new(format!("{prefix}{}{end}", field.name()), type_name(&field))
        })
        .collect()
}

/// Whether a message is written as one value, such as a Duration.
fn is_scalar_in_json(kind: &MessageDescriptor) -> bool {
    kind.package_name() == "google.protobuf" && kind.name() != "Struct"
}

/// The values that a field may have, if they have names.
pub fn values(field: &FieldDescriptor) -> Vec<String> {
    match field.kind() {
        Kind::Bool => vec!["true".to_owned(), "false".to_owned()],
        Kind::Enum(kind) => kind.values().map(|value| value.name().to_owned()).collect(),
        _ => Vec::new(),
    }
}

/// A field's type as its .proto file has it.
pub fn type_name(field: &FieldDescriptor) -> String {
    let kind = |kind: &Kind| match kind {
        Kind::Message(message) => message.name().to_owned(),
        Kind::Enum(kind) => kind.name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            format!("map<{}, {}>", kind(&key.kind()), kind(&value.kind()))
        }
        of if field.is_list() => format!("repeated {}", kind(&of)),
        of => kind(&of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;

    fn values_of(candidates: Vec<Candidate>) -> Vec<String> {
        candidates.into_iter().map(|candidate| candidate.value).collect()
    }

    #[test]
    fn methods_complete_by_short_full_and_bare_names() {
        let of = |word| values_of(methods(builtin(), word));
        assert_eq!(of("Health/C"), ["Health/Check"]);
        assert_eq!(of("grpc.health.v1.Health/C"), ["grpc.health.v1.Health/Check"]);
        assert_eq!(of("PingS"), ["PingSandbox"]);
        // The service has two versions.
        assert_eq!(of("Task/Stat"), ["Task/State", "Task/Stats"]);
        assert_eq!(
            of("containerd.task.v3.Task/Stat"),
            ["containerd.task.v3.Task/State", "containerd.task.v3.Task/Stats"]
        );
        assert!(of("").len() > 50 && of("no.such").is_empty());
    }

    #[test]
    fn services_of_one_name_are_completed_by_their_full_names() {
        let folder = tempfile::tempdir().unwrap();
        let write = |(at, name): (u32, &str)| {
            let path = folder.path().join(format!("{at}.proto"));
            let text = format!(
                "syntax = \"proto3\"; package p{at}; message M {{}}
                 service {name} {{ rpc Do{at}(M) returns (M); }}"
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        let files: Vec<_> = [(1, "Same"), (2, "Same"), (3, "Other")].map(write).to_vec();
        let schema = crate::schema::files::compile(&files, &[]).unwrap();
        // Two packages that are no versions of one.
        assert_eq!(values_of(methods(&schema, "Same/D")), [""; 0]);
        assert_eq!(values_of(methods(&schema, "p1.Same/D")), ["p1.Same/Do1"]);
        assert_eq!(values_of(methods(&schema, "Other/D")), ["Other/Do3"]);
        assert_eq!(values_of(methods(&schema, "Do2")), ["Do2"]);
    }

    #[test]
    fn fields_complete_by_name_at_any_depth_and_enums_by_value() {
        let kind = |name: &str| builtin().pool().get_message_by_name(name).unwrap();
        let create = kind("containerd.task.v3.CreateTaskRequest");
        let of = |word| values_of(fields(&create, word));
        assert_eq!(of("std"), ["stdin=", "stdout=", "stderr="]);
        assert_eq!(of("terminal="), ["terminal=true", "terminal=false"]);
        assert_eq!(of("terminal=t"), ["terminal=true"]);
        assert!(of("rootfs.").is_empty(), "elements of a list are given as a whole");
        assert!(of("id.").is_empty() && of("no=").is_empty() && of("=").is_empty());
        let sandbox = kind("containerd.runtime.sandbox.v1.CreateSandboxRequest");
        assert!(values_of(fields(&sandbox, "")).contains(&"sandbox_id=".to_owned()));
    }

    #[test]
    fn services_and_messages_complete_by_either_name() {
        assert_eq!(values_of(services(builtin(), "Heal")), ["Health"]);
        assert_eq!(values_of(services(builtin(), "grpc.h")), ["grpc.health.v1.Health"]);
        let found = values_of(symbols(builtin(), "HealthC"));
        assert!(found.contains(&"HealthCheckRequest".to_owned()), "{found:?}");
    }
}
