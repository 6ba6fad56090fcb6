//! From a service to a trait, a server and a client.
//!
//! What is generated is one line per method: everything that could need a mend lives in `ttrpc`.
//! All paths are absolute, so that a message called `Result` or `Context` does no harm.

use prost_build::{Comments, Method, Service};

use crate::comments::sanitize;

/// What generated items are allowed to do in crates with strict lints.
pub(crate) const ALLOWED: &str =
    "#[allow(dead_code, missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]";

/// Generates ttrpc clients and servers; for use with [`prost_build::Config::service_generator`].
#[derive(Clone, Debug)]
pub struct ServiceGenerator {
    client: bool,
    server: bool,
    /// The services whose traits were written.
    services: Vec<Service>,
}

impl Default for ServiceGenerator {
    fn default() -> Self {
        ServiceGenerator::new()
    }
}

impl ServiceGenerator {
    /// Generates clients and servers.
    pub fn new() -> Self {
        ServiceGenerator { client: true, server: true, services: Vec::new() }
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

    /// What is put behind a service's name to name the types that are generated for it.
    pub(crate) fn type_suffixes(&self) -> impl Iterator<Item = &'static str> {
        let server = ["", "Server"].into_iter().filter(|_| self.server);
        server.chain(self.client.then_some("Client"))
    }
}

impl prost_build::ServiceGenerator for ServiceGenerator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        if self.server {
            buf.push_str(&trait_of(&service, Form::Macro));
            push_server(&service, buf);
        }
        if self.client {
            push_client(&service, buf);
        }
        if self.server {
            self.services.push(service);
        }
    }

    /// The macro `async_trait` writes `Box` without a path. Only now, with all files of the package
    /// written, is it known whether that is a type of the package.
    fn finalize_package(&mut self, _package: &str, buf: &mut String) {
        if !has_type_box(buf) {
            return;
        }
        for service in &self.services {
            let expanded = trait_of(service, Form::Expanded);
            *buf = buf.replace(&trait_of(service, Form::Macro), &expanded);
        }
    }
}

/// Whether a message, an enum or a service of the package is called `Box`. Types that are not nested
/// start in the first column.
fn has_type_box(code: &str) -> bool {
    let definitions = ["pub struct Box ", "pub enum Box ", "pub trait Box:"];
    code.lines().any(|line| definitions.iter().any(|start| line.starts_with(start)))
}

/// How a trait says that its methods are asynchronous.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// With `async fn`, and the macro above the trait.
    Macro,
    /// As the macro would expand it, but with a path before `Box`.
    Expanded,
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

fn trait_of(service: &Service, form: Form) -> String {
    let mut buf = String::new();
    let title = format!("What a server of `{}` does.", full_name(service));
    push_docs(0, &title, &service.comments, &mut buf);
    buf.push_str(&format!("{ALLOWED}\n"));
    if form == Form::Macro {
        buf.push_str("#[::ttrpc::async_trait]\n");
    }
    buf.push_str(&format!("pub trait {}: ", service.name));
    buf.push_str("::core::marker::Send + ::core::marker::Sync + 'static {\n");
    for method in &service.methods {
        push_docs(1, &format!("Serves `{}`.", method.proto_name), &method.comments, &mut buf);
        buf.push_str(&signature(method, form));
    }
    buf.push_str("}\n");
    buf
}

fn signature(method: &Method, form: Form) -> String {
    let Kind { handler_parameters: parameters, handler_result: result, .. } = Kind::of(method);
    let name = &method.name;
    let result = format!("::core::result::Result<{result}, ::ttrpc::Status>");
    match form {
        Form::Macro => format!(
            "    async fn {name}(&self, ctx: &::ttrpc::Context, {parameters}) -> {result};\n"
        ),
        Form::Expanded => format!(
            "    fn {name}<'life0, 'life1, 'async_trait>(&'life0 self, \
             ctx: &'life1 ::ttrpc::Context, {parameters}) \
             -> ::core::pin::Pin<::std::boxed::Box<dyn ::core::future::Future<Output = {result}> \
             + ::core::marker::Send + 'async_trait>> \
             where 'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait;\n"
        ),
    }
}

/// The start of the names of a service's server and client. A service named by a keyword has an
/// underscore behind its name, which there is no need for in front of more letters.
fn stem(service: &Service) -> &str {
    service.name.trim_end_matches('_')
}

fn push_server(service: &Service, buf: &mut String) {
    let (name, stem, full_name) = (&service.name, stem(service), full_name(service));
    // A service called `T` would be hidden behind a type parameter of that name.
    let parameter = if name == "T" { "S" } else { "T" };
    buf.push_str(&format!("/// Serves a [`{name}`]; for `ServerBuilder::add_service`.\n"));
    buf.push_str(&format!(
        "{ALLOWED}
pub struct {stem}Server<{parameter}> {{
    service: ::std::sync::Arc<{parameter}>,
}}
{ALLOWED}
impl<{parameter}: {name}> {stem}Server<{parameter}> {{
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
impl<{parameter}> ::core::clone::Clone for {stem}Server<{parameter}> {{
    fn clone(&self) -> Self {{
        Self {{ service: ::std::sync::Arc::clone(&self.service) }}
    }}
}}
impl<{parameter}> ::core::fmt::Debug for {stem}Server<{parameter}> {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        f.write_str(\"{stem}Server\")
    }}
}}
#[allow(unused_variables, clippy::all, clippy::pedantic)]
impl<{parameter}: {name}> ::ttrpc::server::Service for {stem}Server<{parameter}> {{
    fn into_routes(self) -> ::ttrpc::server::Routes {{
        let service = self.service;
        ::ttrpc::server::Routes::new(Self::NAME)
"
    ));
    for method in &service.methods {
        let Kind { function, handler_arguments: arguments, .. } = Kind::of(method);
        buf.push_str(&format!(
            "            .{function}(\"{}\", &service, |service, ctx, {arguments}| \
             <{parameter} as {name}>::{}(service, ctx, {arguments}))\n",
            method.proto_name, method.name,
        ));
    }
    buf.push_str("    }\n}\n");
}

fn push_client(service: &Service, buf: &mut String) {
    let (stem, full_name) = (stem(service), full_name(service));
    let title = format!("Calls the methods of `{full_name}`. Clones share the connection.");
    push_docs(0, &title, &service.comments, buf);
    buf.push_str(&format!(
        "{ALLOWED}
#[derive(::core::clone::Clone, ::core::fmt::Debug)]
pub struct {stem}Client {{
    client: ::ttrpc::Client,
}}
impl ::core::convert::From<::ttrpc::Client> for {stem}Client {{
    fn from(client: ::ttrpc::Client) -> Self {{
        Self {{ client }}
    }}
}}
{ALLOWED}
impl {stem}Client {{
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
