//! From a service to a trait, a server and a client.
//!
//! What is generated is one line per method: everything that could need a mend lives in `ttrpc`.
//! All paths are absolute, so that a message called `Result` or `Context` does no harm.

use prost_build::{Comments, Method, Service};
use prost_types::method_options::IdempotencyLevel;

use crate::{
    comments::sanitize,
    flavor::{Flavor, Form},
};

/// What generated items are allowed to do in crates with strict lints.
pub(crate) const ALLOWED: &str = "#[allow(dead_code, missing_docs, non_camel_case_types, clippy::all, clippy::pedantic, rustdoc::all)]";

/// The client's own functions, and those of traits in the prelude that would be called instead of it, or
/// it instead of them. A method of the same name gets an underscore behind it.
const CLIENT_FUNCTIONS: [&str; 6] = ["new", "client", "clone", "from", "into", "try_into"];

/// Options that change the code.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    /// Where the crate `ttrpc` is.
    pub(crate) runtime_path: String,
    /// Whether the trait's methods have bodies.
    pub(crate) default_bodies: bool,
}

/// The words in which the four kinds of methods differ.
struct Kind {
    /// The function that adds the method to the routes, and the one that calls it.
    function: &'static str,
    call: &'static str,
    /// The handler's parameters behind the context.
    handler_parameters: String,
    handler_arguments: &'static str,
    handler_result: String,
}

impl Kind {
    fn of(method: &Method, ttrpc: &str, flavor: Flavor) -> Self {
        let (input, output) = (&method.input_type, &method.output_type);
        let server = match flavor {
            Flavor::Async => format!("{ttrpc}::server"),
            Flavor::Blocking => format!("{ttrpc}::server::blocking"),
        };
        let receiver = format!("requests: {server}::StreamReceiver<{input}>");
        let sender = format!("replies: {server}::StreamSender<{output}>");
        match (method.client_streaming, method.server_streaming) {
            (false, false) => Kind {
                function: "unary",
                call: "UnaryCall",
                handler_parameters: format!("request: {input}"),
                handler_arguments: "request",
                handler_result: output.clone(),
            },
            (false, true) => Kind {
                function: "server_streaming",
                call: "ServerStreamingCall",
                handler_parameters: format!("request: {input}, {sender}"),
                handler_arguments: "request, replies",
                handler_result: "()".to_owned(),
            },
            (true, false) => Kind {
                function: "client_streaming",
                call: "ClientStreamingCall",
                handler_parameters: receiver,
                handler_arguments: "requests",
                handler_result: output.clone(),
            },
            (true, true) => Kind {
                function: "bidi_streaming",
                call: "BidiStreamingCall",
                handler_parameters: format!("{receiver}, {sender}"),
                handler_arguments: "requests, replies",
                handler_result: "()".to_owned(),
            },
        }
    }
}

impl Style {
    pub(crate) fn trait_of(&self, service: &Service, form: Form) -> String {
        let mut buf = String::new();
        let title = match form {
            Form::Blocking => "What a server of `{}` does, each call on a thread of its own.",
            Form::Macro | Form::Expanded | Form::InTrait => "What a server of `{}` does.",
        };
        push_docs(0, &title.replace("{}", &full_name(service)), &service.comments, &mut buf);
        buf.push_str(&format!("{ALLOWED}\n"));
        if form == Form::Macro {
            buf.push_str(&format!("#[{}::async_trait]\n", self.runtime_path));
        }
        buf.push_str(&format!("pub trait {}: ", form.flavor().trait_name(&service.name)));
        buf.push_str("::core::marker::Send + ::core::marker::Sync + 'static {\n");
        for method in &service.methods {
            push_docs(1, &format!("Serves `{}`.", method.proto_name), &method.comments, &mut buf);
            buf.push_str(&self.handler(method, form));
        }
        buf.push_str("}\n");
        buf
    }

    fn handler(&self, method: &Method, form: Form) -> String {
        let ttrpc = &self.runtime_path;
        let Kind { handler_parameters, handler_arguments, handler_result, .. } =
            Kind::of(method, ttrpc, form.flavor());
        let name = &method.name;
        let result = format!("::core::result::Result<{handler_result}, {ttrpc}::Status>");
        let signature = match form {
            Form::Macro => format!(
                "    async fn {name}(&self, ctx: &{ttrpc}::Context, {handler_parameters}) -> {result}"
            ),
            Form::Blocking => format!(
                "    fn {name}(&self, ctx: &{ttrpc}::Context, {handler_parameters}) -> {result}"
            ),
            Form::InTrait => format!(
                "    fn {name}(&self, ctx: &{ttrpc}::Context, {handler_parameters}) \
                 -> impl ::core::future::Future<Output = {result}> + ::core::marker::Send"
            ),
            Form::Expanded => format!(
                "    fn {name}<'life0, 'life1, 'async_trait>(&'life0 self, \
                 ctx: &'life1 {ttrpc}::Context, {handler_parameters}) \
                 -> ::core::pin::Pin<::std::boxed::Box<\
                 dyn ::core::future::Future<Output = {result}> \
                 + ::core::marker::Send + 'async_trait>> \
                 where 'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait"
            ),
        };
        let body = format!(
            "let _ = (ctx, {handler_arguments});
        ::core::result::Result::Err({ttrpc}::Status::unimplemented(\"method {}\"))",
            method.proto_name
        );
        match form {
            _ if !self.default_bodies => format!("{signature};\n"),
            Form::Macro | Form::Blocking => format!("{signature} {{\n        {body}\n    }}\n"),
            Form::InTrait => format!("{signature} {{\n        async move {{ {body} }}\n    }}\n"),
            Form::Expanded => {
                format!(
                    "{signature} {{\n        ::std::boxed::Box::pin(async move {{ {body} }})\n    }}\n"
                )
            }
        }
    }

    pub(crate) fn push_server(&self, service: &Service, form: Form, buf: &mut String) {
        let flavor = form.flavor();
        let name = flavor.trait_name(&service.name);
        let (server, full_name) = (flavor.server_name(&service.name), full_name(service));
        let ttrpc = &self.runtime_path;
        // The functions of a blocking service run on other threads, and so take a share of it with them.
        let shared = match flavor {
            Flavor::Async => "self.service",
            Flavor::Blocking => "::std::sync::Arc::new(self.service)",
        };
        // A service called `T` would be hidden behind a type parameter of that name.
        let parameter = if name == "T" { "S" } else { "T" };
        buf.push_str(&format!("/// Serves a [`{name}`]; for `ServerBuilder::add_service`.\n"));
        buf.push_str(&format!(
            "{ALLOWED}
pub struct {server}<{parameter}> {{
    service: ::std::sync::Arc<{parameter}>,
}}
{ALLOWED}
impl<{parameter}: {name}> {server}<{parameter}> {{
    /// The service's full protobuf name.
    pub const NAME: &'static str = \"{full_name}\";
    /// Serves this implementation.
    pub fn new(service: {parameter}) -> Self {{
        Self::from_arc(::std::sync::Arc::new(service))
    }}
    /// Serves an implementation that the program shares.
    pub fn from_arc(service: ::std::sync::Arc<{parameter}>) -> Self {{
        Self {{ service }}
    }}
}}
impl<{parameter}> ::core::clone::Clone for {server}<{parameter}> {{
    fn clone(&self) -> Self {{
        Self {{ service: ::std::sync::Arc::clone(&self.service) }}
    }}
}}
impl<{parameter}> ::core::fmt::Debug for {server}<{parameter}> {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        f.write_str(\"{server}\")
    }}
}}
#[allow(unused_variables, clippy::all, clippy::pedantic)]
impl<{parameter}: {name}> {ttrpc}::server::Service for {server}<{parameter}> {{
    fn into_routes(self) -> {ttrpc}::server::Routes {{
        let service = {shared};
        {ttrpc}::server::Routes::new(Self::NAME)
"
        ));
        for method in &service.methods {
            let Kind { function, handler_arguments: arguments, .. } =
                Kind::of(method, ttrpc, flavor);
            let method_path = format!("<{parameter} as {name}>::{}", method.name);
            let (function, handler) = match form {
                Form::Macro | Form::Expanded => {
                    (function, format!("{method_path}(service, ctx, {arguments})"))
                }
                Form::InTrait if function == "unary" => (
                    "unary_unboxed",
                    format!("async move {{ {method_path}(&service, &ctx, {arguments}).await }}"),
                ),
                Form::InTrait => {
                    let future = format!("{method_path}(service, ctx, {arguments})");
                    (function, format!("::std::boxed::Box::pin({future})"))
                }
                Form::Blocking => {
                    let ends = [
                        ("requests", method.client_streaming),
                        ("replies", method.server_streaming),
                    ];
                    let ends = ends.iter().filter(|(_, is_there)| *is_there);
                    let ends: String = ends
                        .map(|(end, _)| {
                            format!("let {end} = ::core::convert::From::from({end});\n")
                        })
                        .collect();
                    let handler = format!(
                        "{{
                let service = ::std::sync::Arc::clone(service);
                {ends}{ttrpc}::server::blocking::run(ctx, move |ctx| {method_path}(&service, ctx, {arguments}))
            }}"
                    );
                    (function, handler)
                }
            };
            buf.push_str(&format!(
                "            .{function}(\"{}\", &service, |service, ctx, {arguments}| {handler})\n",
                method.proto_name,
            ));
        }
        buf.push_str("    }\n}\n");
    }

    pub(crate) fn push_client(&self, service: &Service, flavor: Flavor, buf: &mut String) {
        let (name, full_name) = (flavor.client_name(&service.name), full_name(service));
        let ttrpc = &self.runtime_path;
        let (client, waits) = match flavor {
            Flavor::Async => (format!("{ttrpc}::Client"), ""),
            Flavor::Blocking => (format!("{ttrpc}::blocking::Client"), " and waits for them"),
        };
        let title =
            format!("Calls the methods of `{full_name}`{waits}. Clones share the connection.");
        push_docs(0, &title, &service.comments, buf);
        buf.push_str(&format!(
            "{ALLOWED}
#[derive(::core::clone::Clone, ::core::fmt::Debug)]
pub struct {name} {{
    client: {client},
}}
impl ::core::convert::From<{client}> for {name} {{
    fn from(client: {client}) -> Self {{
        Self {{ client }}
    }}
}}
{ALLOWED}
impl {name} {{
    /// The service's full protobuf name.
    pub const NAME: &'static str = \"{full_name}\";
    /// Calls over this connection.
    pub fn new(client: {client}) -> Self {{
        Self {{ client }}
    }}
    /// Returns the connection over which the calls go.
    pub fn client(&self) -> &{client} {{
        &self.client
    }}
"
        ));
        for method in &service.methods {
            self.push_client_method(method, flavor, buf);
        }
        buf.push_str("}\n");
    }

    fn push_client_method(&self, method: &Method, flavor: Flavor, buf: &mut String) {
        let ttrpc = &self.runtime_path;
        let module = match flavor {
            Flavor::Async => "client",
            Flavor::Blocking => "blocking",
        };
        let Kind { function, call, .. } = Kind::of(method, ttrpc, flavor);
        let underscore = if CLIENT_FUNCTIONS.contains(&method.name.as_str()) { "_" } else { "" };
        let (parameter, argument) = match method.client_streaming {
            true => (String::new(), ""),
            false => (format!(", request: {}", method.input_type), ", request"),
        };
        let idempotent = if is_idempotent(method) { ".declared_idempotent()" } else { "" };
        push_docs(1, &format!("Calls `{}`.", method.proto_name), &method.comments, buf);
        buf.push_str(&format!(
            "    pub fn {}{underscore}(&self{parameter}) -> {ttrpc}::{module}::{call}<{}, {}> {{
        self.client.{function}(Self::NAME, \"{}\"{argument}){idempotent}
    }}\n",
            method.name, method.input_type, method.output_type, method.proto_name,
        ));
    }
}

/// Returns whether the .proto says that a unary call may be executed more than once. Streams are never made again.
fn is_idempotent(method: &Method) -> bool {
    let is_said = match method.options.idempotency_level() {
        IdempotencyLevel::NoSideEffects | IdempotencyLevel::Idempotent => true,
        IdempotencyLevel::IdempotencyUnknown => false,
    };
    is_said && !method.client_streaming && !method.server_streaming
}

fn full_name(service: &Service) -> String {
    match service.package.as_str() {
        "" => service.proto_name.clone(),
        package => format!("{package}.{}", service.proto_name),
    }
}

/// The comments of the .proto, or a title where there are none.
fn push_docs(indent: u8, title: &str, comments: &Comments, buf: &mut String) {
    let sanitized = |lines: &[String]| -> Vec<String> {
        let comment: String = lines.iter().map(|line| format!("{line}\n")).collect();
        sanitize(&comment).lines().map(str::to_owned).collect()
    };
    let leading = sanitized(&comments.leading);
    let comments = Comments {
        leading_detached: Vec::new(),
        leading: if leading.is_empty() { vec![format!(" {title}")] } else { leading },
        trailing: sanitized(&comments.trailing),
    };
    comments.append_with_indent(indent, buf);
}
