//! `ttrpc list`, `ttrpc describe`, `ttrpc schema`.

use std::time::Duration;

use prost_reflect::ServiceDescriptor;
use serde_json::{Value, json};
use ttrpc::Client;

use crate::{
    args::{Describe, List, SchemaOptions, SchemaSource, WriteSchema},
    failure::Failure,
    output::{self, DIM, paint},
    schema::{self, Schema, Source, Symbol, files, print},
    session,
};

/// Lists services, or the methods of one.
///
/// # Errors
/// Those of connecting, of finding a schema, and of names that are not there.
pub async fn list(arguments: &List, json: bool) -> Result<(), Failure> {
    let (client, schema) =
        open(&arguments.address, &arguments.schema, arguments.timeout.limit()).await?;
    if let Some(name) = &arguments.service {
        let limit = arguments.timeout.limit();
        let services = session::find_services(client.as_ref(), &schema, name, limit).await?;
        return list_methods(&services, json);
    }
    let mut services: Vec<_> =
        schema.pool().services().map(|service| service.full_name().to_owned()).collect();
    if let Some(client) = client.filter(|_| schema.source() == Source::BuiltIn) {
        services = served(&client, services, arguments.timeout.limit()).await?;
        if services.is_empty() {
            return Err(Failure::Other(
                "the server has no reflection and none of the built-in services; \
                 --proto FILE or --descriptor-set FILE tells what it has"
                    .to_owned(),
            ));
        }
    }
    services.sort();
    if json {
        return Ok(output::line(json!(services))?);
    }
    for service in services {
        output::line(output::plain_line(service))?;
    }
    Ok(())
}

/// Those of the services that the server has.
async fn served(
    client: &Client,
    services: Vec<String>,
    timeout: Option<Duration>,
) -> Result<Vec<String>, Failure> {
    let mut served = Vec::new();
    for service in services {
        if session::has_service(client, &service, timeout).await? {
            served.push(service);
        }
    }
    Ok(served)
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
    let (client, schema) = open(&arguments.address, &arguments.schema, limit).await?;
    let name = &arguments.name;
    let found = match (schema.find_symbol(name), &client) {
        (Err(failure), Some(client)) => {
            find_served(client, &schema, name, limit).await.ok_or(failure)
        }
        (found, _) => found,
    };
    let is_told = schema.source() == Source::Reflection && arguments.schema.schema.is_none();
    // As with calls: not every server lists its health service.
    let (symbol, source) = match (found, schema::builtin().find_symbol(name)) {
        (Err(_), Ok(symbol)) if is_told => (symbol, Source::BuiltIn),
        (found, _) => (found?, schema.source()),
    };
    if arguments.template {
        let message = match &symbol {
            Symbol::Method(method) => method.input(),
            Symbol::Message(message) => message.clone(),
            Symbol::Service(_) | Symbol::Enum(_) => {
                return Err(Failure::usage("a template is made of a method or a message"));
            }
        };
        let template = schema::template::template(&message);
        return Ok(output::line(match json {
            true => template.to_string(),
            false => format!("{template:#}"),
        })?);
    }
    if json {
        return Ok(output::line(to_json(&symbol))?);
    }
    let (name, kind) = match &symbol {
        Symbol::Service(service) => (service.full_name(), "a service"),
        Symbol::Method(method) => (method.full_name(), "a method"),
        Symbol::Message(message) => (message.full_name(), "a message"),
        Symbol::Enum(enumeration) => (enumeration.full_name(), "an enum"),
    };
    let name = output::plain_line(name);
    output::line(paint(DIM, format_args!("// {name} is {kind}, from {source}.")))?;
    // Comments are the server's, too.
    Ok(output::line(output::plain(print::symbol(&symbol).trim_end()))?)
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
    let (_, schema) = open(address, &arguments.schema, arguments.timeout.limit()).await?;
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
            false => output::note(format_args!("wrote {}", path.display())),
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
    timeout: Option<Duration>,
) -> Result<(Option<Client>, Schema), Failure> {
    if address == "-" {
        if options.schema == Some(SchemaSource::Reflection) {
            return Err(Failure::usage("--schema reflection needs the ADDRESS of a server to ask"));
        }
        let schema = session::named_schema(options)?;
        return Ok((None, schema.unwrap_or_else(|| schema::builtin().clone())));
    }
    let client = session::connect(address, timeout).await?;
    let schema = session::find_schema(&client, options, timeout).await?;
    Ok((Some(client), schema))
}
