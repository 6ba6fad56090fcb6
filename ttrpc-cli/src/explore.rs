//! `ttrpc list`, `ttrpc describe`, `ttrpc schema`.

mod arguments;

use std::time::Duration;

use prost_reflect::ServiceDescriptor;
use serde_json::{Value, json};
use ttrpc::Client;

use crate::{
    failure::Failure,
    options::{MetadataOption, SchemaOptions, SchemaSource},
    output::{self, DIM, paint},
    schema::{self, Schema, Source, Symbol, files, print},
    session,
};
pub use arguments::{Describe, List, WriteSchema};

/// Lists services, or the methods of one.
///
/// # Errors
/// Those of connecting, of finding a schema, and of names that are not there.
pub async fn list(arguments: &List, json: bool) -> Result<(), Failure> {
    let limit = arguments.timeout.limit();
    let (client, schema) =
        open(&arguments.address, &arguments.schema, &arguments.metadata, limit).await?;
    list_of(client, &schema, arguments.service.as_deref(), limit, json).await
}

/// Lists the services of a schema, or the methods of one.
///
/// # Errors
/// Those of asking the server, and of names that are not there.
pub async fn list_of(
    client: Option<Client>,
    schema: &Schema,
    name: Option<&str>,
    limit: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    if let Some(name) = name {
        let services = session::find_services(client.as_ref(), schema, name, limit).await?;
        return list_methods(&services, json);
    }
    let mut services: Vec<_> =
        schema.pool().services().map(|service| service.full_name().to_owned()).collect();
    let mut unknown = 0;
    if let Some(client) = client.filter(|_| schema.source() == Source::BuiltIn) {
        (services, unknown) = served(&client, services, limit).await?;
        if services.is_empty() && unknown == 0 && schema.refusal().is_none() {
            return Err(Failure::Other(
                "the server has no reflection and none of the built-in services; \
                 --proto FILE or --descriptor-set FILE describes its services"
                    .to_owned(),
            ));
        }
    }
    services.sort();
    match json {
        true => output::line(output::json(&json!(services)))?,
        false => {
            services.iter().try_for_each(|service| output::line(output::plain_line(service)))?
        }
    }
    if unknown > 0 {
        let count = output::count(unknown, "built-in service");
        output::note(format_args!("of {count} the server refuses to say whether it has them"));
    }
    // What it has beside those is not to be seen.
    schema.refusal().map_or(Ok(()), |status| Err(session::refused(status)))
}

/// Those of the services that the server has, and of how many it refuses to say.
async fn served(
    client: &Client,
    services: Vec<String>,
    timeout: Option<Duration>,
) -> Result<(Vec<String>, u64), Failure> {
    let (mut served, mut unknown) = (Vec::new(), 0);
    for service in services {
        match session::has_service(client, &service, timeout).await? {
            Some(true) => served.push(service),
            Some(false) => {}
            None => unknown += 1,
        }
    }
    Ok((served, unknown))
}

fn list_methods(services: &[ServiceDescriptor], json: bool) -> Result<(), Failure> {
    for service in services {
        for method in service.methods() {
            if json {
                output::line(json!({
                    "service": service.full_name(),
                    "method": method.name(),
                    "input": method.input().full_name(),
                    "output": method.output().full_name(),
                    "clientStreaming": method.is_client_streaming(),
                    "serverStreaming": method.is_server_streaming(),
                }))?;
            } else {
                let name = format_args!("{}/{}", service.full_name(), method.name());
                output::line(output::plain_line(name))?;
            }
        }
    }
    Ok(())
}

/// Shows what a name stands for.
///
/// # Errors
/// Those of connecting, of finding a schema, and of names that are not there.
pub async fn describe(arguments: &Describe, json: bool) -> Result<(), Failure> {
    let limit = arguments.timeout.limit();
    let (client, schema) =
        open(&arguments.address, &arguments.schema, &arguments.metadata, limit).await?;
    let shown = Shown {
        name: arguments.name.as_deref(),
        is_template: arguments.template,
        may_be_built_in: arguments.schema.schema.is_none(),
    };
    describe_of(client.as_ref(), &schema, shown, limit, json).await
}

/// What of a schema is described.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Every service without.
    pub name: Option<&'a str>,
    /// As a request to fill in.
    pub is_template: bool,
    /// Whether names that the server's reflection lacks are looked for in the built-in schemas.
    pub may_be_built_in: bool,
}

/// Shows what a name stands for in a schema.
///
/// # Errors
/// Those of asking the server, and of names that are not there.
pub async fn describe_of(
    client: Option<&Client>,
    schema: &Schema,
    shown: Shown<'_>,
    limit: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    let Some(name) = shown.name else {
        return describe_all(shown.is_template, client, schema, limit, json).await;
    };
    let found = match (schema.find_symbol(name), client) {
        (Err(failure), Some(client)) => {
            find_served(client, schema, name, limit).await.ok_or(failure)
        }
        (found, _) => found,
    };
    let is_told = schema.source() == Source::Reflection && shown.may_be_built_in;
    // As with calls: not every server lists its health service.
    let (symbol, source) = match (found, schema::builtin().find_symbol(name)) {
        (Err(_), Ok(symbol)) if is_told => (symbol, Source::BuiltIn),
        (found, _) => (session::or_refusal(schema, found)?, schema.source()),
    };
    if shown.is_template {
        let message = match &symbol {
            Symbol::Method(method) => method.input(),
            Symbol::Message(message) => message.clone(),
            Symbol::Service(_) | Symbol::Enum(_) => {
                return Err(Failure::usage("a template is made of a method or a message"));
            }
        };
        let template = schema::template::template(&message);
        return Ok(output::line(match json {
            true => output::json(&template),
            false => output::pretty_json(&template),
        })?);
    }
    write(&symbol, source, json)
}

/// Shows every service.
async fn describe_all(
    is_template: bool,
    client: Option<&Client>,
    schema: &Schema,
    limit: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    if is_template {
        return Err(Failure::usage("a template is made of a method or a message: name one"));
    }
    let mut services: Vec<_> = schema.pool().services().collect();
    if let Some(client) = client.filter(|_| schema.source() == Source::BuiltIn) {
        let names = services.iter().map(|service| service.full_name().to_owned()).collect();
        let (names, _) = served(client, names, limit).await?;
        services.retain(|service| names.iter().any(|name| name == service.full_name()));
    }
    services.sort_by(|one, other| one.full_name().cmp(other.full_name()));
    for (index, service) in services.into_iter().enumerate() {
        if index > 0 && !json {
            output::line("")?;
        }
        write(&Symbol::Service(service), schema.source(), json)?;
    }
    schema.refusal().map_or(Ok(()), |status| Err(session::refused(status)))
}

/// Writes what a name stands for.
fn write(symbol: &Symbol, source: Source, json: bool) -> Result<(), Failure> {
    if json {
        return Ok(output::line(to_json(symbol))?);
    }
    let (name, kind) = match symbol {
        Symbol::Service(service) => (service.full_name(), "a service"),
        Symbol::Method(method) => (method.full_name(), "a method"),
        Symbol::Message(message) => (message.full_name(), "a message"),
        Symbol::Enum(enumeration) => (enumeration.full_name(), "an enum"),
    };
    let name = output::plain_line(name);
    output::line(paint(DIM, format_args!("// {name} is {kind}, from {source}.")))?;
    // Comments are the server's, too.
    Ok(output::line(output::plain(print::symbol(symbol).trim_end()))?)
}

/// The one method, service or type of an ambiguous name that the server has.
async fn find_served(
    client: &Client,
    schema: &Schema,
    name: &str,
    timeout: Option<Duration>,
) -> Option<Symbol> {
    if name.contains('/') {
        let method = session::find_method(client, schema, name, timeout).await;
        return method.ok().map(Symbol::Method);
    }
    if let Ok(services) = session::find_services(Some(client), schema, name, timeout).await {
        return <[_; 1]>::try_from(services).ok().map(|[service]| Symbol::Service(service));
    }
    let types = session::find_served_types(client, schema, name, timeout).await.ok()?;
    <[_; 1]>::try_from(types).ok().map(|[only]| only)
}

fn to_json(symbol: &Symbol) -> Value {
    let (name, kind) = match symbol {
        Symbol::Service(service) => (service.full_name(), "service"),
        Symbol::Method(method) => (method.full_name(), "method"),
        Symbol::Message(message) => (message.full_name(), "message"),
        Symbol::Enum(enumeration) => (enumeration.full_name(), "enum"),
    };
    let members: Vec<Value> = match symbol {
        Symbol::Service(service) => service
            .methods()
            .map(|method| json!({ "name": method.name(), "text": print::signature(&method) }))
            .collect(),
        Symbol::Method(method) => vec![
            json!({ "name": "input", "type": method.input().full_name(), "stream": method.is_client_streaming() }),
            json!({ "name": "output", "type": method.output().full_name(), "stream": method.is_server_streaming() }),
        ],
        Symbol::Message(message) => message
            .fields()
            .map(|field| {
                json!({
                    "name": field.name(),
                    "jsonName": field.json_name(),
                    "number": field.number(),
                    "type": format!("{:?}", field.kind()),
                    "repeated": field.is_list(),
                })
            })
            .collect(),
        Symbol::Enum(enumeration) => enumeration
            .values()
            .map(|value| json!({ "name": value.name(), "number": value.number() }))
            .collect(),
    };
    json!({ "name": name, "kind": kind, "members": members, "text": print::symbol(symbol) })
}

/// Writes a schema as files, or to the standard output.
///
/// # Errors
/// Those of connecting, of finding a schema, and of writing.
pub async fn write_schema(arguments: &WriteSchema, json: bool) -> Result<(), Failure> {
    let address = arguments.address.as_deref().unwrap_or("-");
    let (metadata, limit) = (&arguments.metadata, arguments.timeout.limit());
    let (_, schema) = open(address, &arguments.schema, metadata, limit).await?;
    // What is built in is not what it has.
    if let Some(status) = schema.refusal() {
        return Err(session::refused(status));
    }
    let files: Vec<_> = schema.files().collect();
    let mut written = Vec::new();
    if let Some(folder) = &arguments.protos {
        written = files::write_protos(folder, &files)?;
    }
    if let Some(path) = &arguments.set {
        files::write_set(path, &files)?;
        written.push(path.clone());
    }
    for path in written {
        match json {
            true => output::line(json!({ "wrote": path.display().to_string() }))?,
            false => output::note(output::plain_line(format_args!("wrote {}", path.display()))),
        }
    }
    if arguments.protos.is_none() && arguments.set.is_none() {
        for (index, file) in files.iter().enumerate() {
            if json {
                output::line(json!({ "name": file.name(), "text": print::file(file) }))?;
                continue;
            }
            let gap = if index == 0 { "" } else { "\n" };
            output::line(format_args!(
                "{gap}{}\n{}",
                paint(DIM, format_args!("// {}", output::plain_line(file.name()))),
                output::plain(print::file(file).trim_end())
            ))?;
        }
    }
    Ok(())
}

/// A connection, unless the address is `-`, and the schema.
async fn open(
    address: &str,
    options: &SchemaOptions,
    metadata: &MetadataOption,
    timeout: Option<Duration>,
) -> Result<(Option<Client>, Schema), Failure> {
    if address == "-" {
        if options.schema == Some(SchemaSource::Reflection) {
            return Err(Failure::usage("--schema reflection needs the ADDRESS of a server to ask"));
        }
        let schema = session::named_schema(options)?;
        return Ok((None, schema.unwrap_or_else(|| schema::builtin().clone())));
    }
    // Files that are named tell all; nobody has to answer.
    if options.schema.is_none()
        && let Some(schema) = session::named_schema(options)?
    {
        return Ok((None, schema));
    }
    let client = session::connect(address, timeout).await?;
    let client = session::with_defaults(client, metadata.metadata.clone(), None);
    let schema = session::find_schema(&client, options, timeout).await?;
    Ok((Some(client), schema))
}
