//! A connection and the schema of what is on its other side.

mod connect;

use std::time::Duration;

use prost_reflect::{MethodDescriptor, ServiceDescriptor};
use ttrpc::{Client, Code, Name, Raw, Status};

use crate::{
    failure::Failure,
    options::{SchemaOptions, SchemaSource},
    schema::{self, Candidates, Schema, Source, Symbol, Told},
};
pub use connect::{connect, connect_verbose, explain, open, unix_path, with_defaults};

/// A method that no service has.
const NO_METHOD: &str = "TtrpcListsServices";

/// A method by its names, which are known at run time only.
#[derive(Clone, Debug)]
pub struct Target {
    pub service: Name,
    pub method: Name,
}

impl From<&MethodDescriptor> for Target {
    fn from(method: &MethodDescriptor) -> Self {
        Target {
            service: method.parent_service().full_name().to_owned().into(),
            method: method.name().to_owned().into(),
        }
    }
}

/// The schema that the command line names, without a server. Files beside `--schema reflection` make
/// none: they add to what the server tells.
///
/// # Errors
/// [`Failure::Usage`] for files that make none.
pub fn named_schema(options: &SchemaOptions) -> Result<Option<Schema>, Failure> {
    match (options.schema, schema_of_files(options)?) {
        (Some(SchemaSource::Reflection), _) => Ok(None),
        (Some(SchemaSource::Builtin), Some(_)) => {
            Err(Failure::usage("--schema builtin uses nothing else, and no files"))
        }
        (Some(SchemaSource::Builtin), None) => Ok(Some(schema::builtin().clone())),
        (None, files) => Ok(files),
    }
}

fn schema_of_files(options: &SchemaOptions) -> Result<Option<Schema>, Failure> {
    if !options.proto.is_empty() {
        return schema::files::compile(&options.proto, &options.include).map(Some);
    }
    if !options.descriptor_set.is_empty() {
        return schema::files::read_sets(&options.descriptor_set).map(Some);
    }
    Ok(None)
}

/// The schema to use with a server.
///
/// # Errors
/// Those of [`named_schema`] and of [`schema::fetch_schema`].
pub async fn find_schema(
    client: &Client,
    options: &SchemaOptions,
    timeout: Option<Duration>,
) -> Result<Schema, Failure> {
    if let Some(schema) = named_schema(options)? {
        return Ok(schema);
    }
    let refusal = match schema::fetch_schema(client, timeout).await? {
        Told::Schema(schema) => {
            return match schema_of_files(options)? {
                Some(files) => schema.and(&files),
                None => Ok(schema),
            };
        }
        Told::Nothing => None,
        Told::Refused(status) => Some(status),
    };
    match (options.schema, refusal) {
        (Some(SchemaSource::Reflection), Some(status)) => Err(refused(&status)),
        (Some(SchemaSource::Reflection), None) => {
            Err(Failure::Other("the server has no reflection".to_owned()))
        }
        // A server may refuse reflection and allow a method that is built in.
        (_, refusal) => Ok(schema::builtin().clone().instead_of(refusal)),
    }
}

/// That a server has refused to tell its schema.
pub fn refused(status: &Status) -> Failure {
    let hint = "the server refused reflection; `--schema builtin`, --proto or \
                --descriptor-set do without, and the call itself may be refused as well";
    Failure::Call { status: status.clone(), hint: Some(hint.to_owned()), details: Vec::new() }
}

/// What is not found where the server has refused to tell what there is, is that refusal.
///
/// # Errors
/// That refusal, and those that there were.
pub fn or_refusal<T>(schema: &Schema, found: Result<T, Failure>) -> Result<T, Failure> {
    match (found, schema.refusal()) {
        (Err(Failure::Usage(_)), Some(status)) => Err(refused(status)),
        (found, _) => found,
    }
}

/// The one method that a name means, and the schema that it is from. One of which the server's reflection
/// does not tell may be built in: not every server lists its health service.
///
/// # Errors
/// Those of [`find_schema`] and of [`find_method`].
pub async fn find_schema_and_method(
    client: &Client,
    options: &SchemaOptions,
    name: &str,
    timeout: Option<Duration>,
) -> Result<(Schema, MethodDescriptor), Failure> {
    let schema = find_schema(client, options, timeout).await?;
    find_method_of(client, &schema, options, name, timeout).await
}

/// The same with a schema that is known.
///
/// # Errors
/// Those of [`find_method`].
pub async fn find_method_of(
    client: &Client,
    schema: &Schema,
    options: &SchemaOptions,
    name: &str,
    timeout: Option<Duration>,
) -> Result<(Schema, MethodDescriptor), Failure> {
    let failure = match find_method(client, schema, name, timeout).await {
        Err(failure) if schema.source() == Source::Reflection && options.schema.is_none() => {
            failure
        }
        found => return Ok((schema.clone(), found?)),
    };
    let built_in = schema::builtin();
    let Ok(found) = built_in.find_methods(name) else { return Err(failure) };
    match found.only_or_ask() {
        // The call itself tells whether the server has it.
        Ok(method) => Ok((built_in.clone(), method)),
        Err(found) => match find_one_of(client, built_in, found, timeout).await? {
            Some(method) => Ok((built_in.clone(), method)),
            None => Err(failure),
        },
    }
}

/// The one method that a name means. Of a service that the server has in several versions it is the
/// newest.
///
/// # Errors
/// [`Failure::Usage`] if there is none or more than one.
pub async fn find_method(
    client: &Client,
    schema: &Schema,
    name: &str,
    timeout: Option<Duration>,
) -> Result<MethodDescriptor, Failure> {
    let found = match (schema.find_methods(name), name.rsplit_once('/')) {
        // Of which version it is said what it has, the server decides.
        (Err(failure), Some((service, method))) => {
            let services = find_services(Some(client), schema, service, timeout).await;
            let Ok([service]) = services.as_deref() else {
                return or_refusal(schema, Err(failure));
            };
            schema.find_methods(&format!("{}/{method}", service.full_name()))
        }
        (found, _) => found,
    };
    match or_refusal(schema, found)?.only_or_ask() {
        Ok(method) => Ok(method),
        Err(found) => match find_one_of(client, schema, found.clone(), timeout).await? {
            Some(method) => Ok(method),
            None => found.only(),
        },
    }
}

/// The one of several methods whose service the server has; `None` if it has none of them.
async fn find_one_of(
    client: &Client,
    schema: &Schema,
    mut found: Candidates,
    timeout: Option<Duration>,
) -> Result<Option<MethodDescriptor>, Failure> {
    let services = found.methods.iter().map(|method| method.parent_service().clone()).collect();
    let services = served(client, schema, services, timeout).await?;
    found.methods.retain(|method| services.contains(method.parent_service()));
    if found.methods.is_empty() { Ok(None) } else { found.only().map(Some) }
}

/// The services that a name means. Of one that the server has in several versions it is the newest.
///
/// # Errors
/// [`Failure::Usage`] if there is none, or if the server has none of those that are built in.
pub async fn find_services(
    client: Option<&Client>,
    schema: &Schema,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Vec<ServiceDescriptor>, Failure> {
    let found = or_refusal(schema, schema.find_services(name))?;
    let Some(client) = client else { return Ok(found) };
    let names: Vec<_> = found.iter().map(|service| service.full_name().to_owned()).collect();
    match served(client, schema, found, timeout).await? {
        served if served.is_empty() => Err(Failure::Usage(format!(
            "the server has no service {}; `ttrpc list ADDRESS` prints what it has",
            names.join(", ")
        ))),
        served => Ok(served),
    }
}

/// Of the built-in messages and enums that a name may mean, those that belong to a service that the
/// server has.
///
/// # Errors
/// [`Failure::Call`] if there is no answer.
pub async fn find_served_types(
    client: &Client,
    schema: &Schema,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Vec<Symbol>, Failure> {
    let mut types = schema.find_types(name);
    let services = schema.pool().services();
    let services = services
        .filter(|service| types.iter().any(|(package, _)| package == service.package_name()));
    let served = served(client, schema, services.collect(), timeout).await?;
    types.retain(|(package, _)| served.iter().any(|service| service.package_name() == package));
    Ok(types.into_iter().map(|(_, symbol)| symbol).collect())
}

/// Those of the services that the server has; the newest of them, if they are versions of one. Of those in
/// its own schema it has all.
async fn served(
    client: &Client,
    schema: &Schema,
    services: Vec<ServiceDescriptor>,
    timeout: Option<Duration>,
) -> Result<Vec<ServiceDescriptor>, Failure> {
    let mut served = Vec::new();
    for service in &services {
        let is_served = schema.source() != Source::BuiltIn
            // What it refuses to say is for the call to find out.
            || has_service(client, service.full_name(), timeout).await?.unwrap_or(true);
        if is_served {
            served.push(service.clone());
        }
    }
    match schema::newest(served.iter().map(ServiceDescriptor::full_name)) {
        Some(newest) => Ok(vec![served.swap_remove(newest)]),
        None => Ok(served),
    }
}

/// Whether a server without reflection has a service: it says of which part of a name it knows
/// nothing. Services that say neither count as there; `None` if the server refuses to say.
///
/// # Errors
/// [`Failure::Call`] if there is no answer.
pub async fn has_service(
    client: &Client,
    service: &str,
    timeout: Option<Duration>,
) -> Result<Option<bool>, Failure> {
    let client = with_defaults(client.clone(), [], timeout);
    match client.unary::<Raw, Raw>(service.to_owned(), NO_METHOD, Raw::default()).await {
        Ok(_) => Ok(Some(true)),
        Err(status) => match status.code() {
            Code::DeadlineExceeded | Code::Unavailable => Err(Failure::call(status)),
            Code::PermissionDenied | Code::Unauthenticated => Ok(None),
            _ => Ok(Some(!is_about_the_service(&status))),
        },
    }
}

/// `service X` and the like, and not `method Y`.
fn is_about_the_service(status: &Status) -> bool {
    let message = status.message().to_lowercase();
    let is_not_there = matches!(status.code(), Code::Unimplemented | Code::NotFound);
    is_not_there && message.contains("service") && !message.contains("method")
}
