//! From a service to a trait, a server and a client.
//!
//! What is generated is one line per method: everything that could need a mend lives in `ttrpc`.
//! All paths are absolute, so that a message called `Result` or `Context` does no harm.

use prost_build::{Comments, Method, Service};

use crate::comments::sanitize;

/// What generated items are allowed to do in crates with strict lints.
const ALLOWED: &str = "#[allow(dead_code, missing_docs, clippy::all, clippy::pedantic)]\n";

/// Generates ttrpc clients and servers; for use with [`prost_build::Config::service_generator`].
#[derive(Clone, Debug)]
pub struct ServiceGenerator {
    client: bool,
    server: bool,
}

impl Default for ServiceGenerator {
    fn default() -> Self {
        ServiceGenerator::new()
    }
}

impl ServiceGenerator {
    /// Generates clients and servers.
    pub fn new() -> Self {
        ServiceGenerator { client: true, server: true }
    }

    /// Whether clients are generated.
    #[must_use]
    pub fn client(mut self, is_wanted: bool) -> Self {
        self.client = is_wanted;
        self
    }

    /// Whether servers and the traits behind them are generated.
    #[must_use]
    pub fn server(mut self, is_wanted: bool) -> Self {
        self.server = is_wanted;
        self
    }
}

impl prost_build::ServiceGenerator for ServiceGenerator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        if self.server {
            push_trait(&service, buf);
            push_server(&service, buf);
        }
        if self.client {
            push_client(&service, buf);
        }
    }
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
    fn of(method: &Method) -> Self {
        let (input, output) = (&method.input_type, &method.output_type);
        let receiver = format!("requests: ::ttrpc::server::StreamReceiver<{input}>");
        let sender = format!("replies: ::ttrpc::server::StreamSender<{output}>");
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

fn push_trait(service: &Service, buf: &mut String) {
    let name = &service.name;
    let title = format!("What a server of `{}` does.", full_name(service));
    push_docs(0, &title, &service.comments, buf);
    buf.push_str(ALLOWED);
    buf.push_str("#[::ttrpc::async_trait]\n");
    buf.push_str(&format!("pub trait {name}: "));
    buf.push_str("::core::marker::Send + ::core::marker::Sync + 'static {\n");
    for method in &service.methods {
        let kind = Kind::of(method);
        push_docs(1, &format!("Serves `{}`.", method.proto_name), &method.comments, buf);
        buf.push_str(&format!(
            "    async fn {}(&self, ctx: &::ttrpc::Context, {}) \
             -> ::core::result::Result<{}, ::ttrpc::Status>;\n",
            method.name, kind.handler_parameters, kind.handler_result,
        ));
    }
    buf.push_str("}\n");
}

fn push_server(service: &Service, buf: &mut String) {
    let (name, full_name) = (&service.name, full_name(service));
    buf.push_str(&format!("/// Serves a [`{name}`]; for `ServerBuilder::add_service`.\n"));
    buf.push_str(ALLOWED);
    buf.push_str(&format!(
        "pub struct {name}Server<T> {{
    service: ::std::sync::Arc<T>,
}}
#[allow(dead_code, clippy::all, clippy::pedantic)]
impl<T: {name}> {name}Server<T> {{
    /// The service's full protobuf name.
    pub const NAME: &'static str = \"{full_name}\";
    /// Serves this implementation.
    pub fn new(service: T) -> Self {{
        Self::from_arc(::std::sync::Arc::new(service))
    }}
    /// Serves an implementation that the program shares.
    pub fn from_arc(service: ::std::sync::Arc<T>) -> Self {{
        Self {{ service }}
    }}
}}
impl<T> ::core::clone::Clone for {name}Server<T> {{
    fn clone(&self) -> Self {{
        Self {{ service: ::std::sync::Arc::clone(&self.service) }}
    }}
}}
impl<T> ::core::fmt::Debug for {name}Server<T> {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        f.write_str(\"{name}Server\")
    }}
}}
#[allow(unused_variables, clippy::all, clippy::pedantic)]
impl<T: {name}> ::ttrpc::server::Service for {name}Server<T> {{
    fn into_routes(self) -> ::ttrpc::server::Routes {{
        let service = self.service;
        ::ttrpc::server::Routes::new(Self::NAME)
"
    ));
    for method in &service.methods {
        let Kind { function, handler_arguments: arguments, .. } = Kind::of(method);
        buf.push_str(&format!(
            "            .{function}(\"{}\", &service, |service, ctx, {arguments}| \
             <T as {name}>::{}(service, ctx, {arguments}))\n",
            method.proto_name, method.name,
        ));
    }
    buf.push_str("    }\n}\n");
}

fn push_client(service: &Service, buf: &mut String) {
    let (name, full_name) = (&service.name, full_name(service));
    let title = format!("Calls the methods of `{full_name}`. Clones share the connection.");
    push_docs(0, &title, &service.comments, buf);
    buf.push_str(ALLOWED);
    buf.push_str(&format!(
        "#[derive(::core::clone::Clone, ::core::fmt::Debug)]
pub struct {name}Client {{
    client: ::ttrpc::Client,
}}
impl ::core::convert::From<::ttrpc::Client> for {name}Client {{
    fn from(client: ::ttrpc::Client) -> Self {{
        Self {{ client }}
    }}
}}
#[allow(dead_code, clippy::all, clippy::pedantic)]
impl {name}Client {{
    /// The service's full protobuf name.
    pub const NAME: &'static str = \"{full_name}\";
    /// Calls over this connection.
    pub fn new(client: ::ttrpc::Client) -> Self {{
        Self {{ client }}
    }}
"
    ));
    for method in &service.methods {
        push_client_method(method, buf);
    }
    buf.push_str("}\n");
}

fn push_client_method(method: &Method, buf: &mut String) {
    let Kind { function, call, .. } = Kind::of(method);
    // The constructor has the name `new`.
    let name = if method.name == "new" { "new_" } else { &method.name };
    let (parameter, argument) = match method.client_streaming {
        true => (String::new(), ""),
        false => (format!(", request: {}", method.input_type), ", request"),
    };
    push_docs(1, &format!("Calls `{}`.", method.proto_name), &method.comments, buf);
    buf.push_str(&format!(
        "    pub fn {name}(&self{parameter}) -> ::ttrpc::client::{call}<{}, {}> {{
        self.client.{function}(Self::NAME, \"{}\"{argument})
    }}\n",
        method.input_type, method.output_type, method.proto_name,
    ));
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
