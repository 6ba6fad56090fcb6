//! Options of what is generated for services, and prost-build's side of it.

use prost_build::Service;

use crate::{
    flavor::{Flavor, Form},
    service::Style,
};

/// Generates ttrpc clients and servers; for use with [`prost_build::Config::service_generator`].
#[derive(Clone, Debug)]
pub struct ServiceGenerator {
    client: bool,
    server: bool,
    blocking_client: bool,
    blocking_server: bool,
    async_fn_in_trait: bool,
    style: Style,
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
        let style = Style { runtime_path: "::ttrpc".to_owned(), default_bodies: false };
        ServiceGenerator {
            client: true,
            server: true,
            blocking_client: false,
            blocking_server: false,
            async_fn_in_trait: false,
            style,
            services: Vec::new(),
        }
    }

    /// Sets whether clients are generated. Default: yes.
    #[must_use]
    pub fn client(mut self, is_wanted: bool) -> Self {
        self.client = is_wanted;
        self
    }

    /// Sets whether servers and their traits are generated. Default: yes.
    #[must_use]
    pub fn server(mut self, is_wanted: bool) -> Self {
        self.server = is_wanted;
        self
    }

    /// Also generates clients without `async`: `GreeterBlockingClient`. Default: no.
    #[must_use]
    pub fn blocking_client(mut self, is_wanted: bool) -> Self {
        self.blocking_client = is_wanted;
        self
    }

    /// Also generates traits without `async`, and servers that run each call on a thread. Default: no.
    ///
    /// They are called `GreeterBlocking` and `GreeterBlockingServer`.
    #[must_use]
    pub fn blocking_server(mut self, is_wanted: bool) -> Self {
        self.blocking_server = is_wanted;
        self
    }

    /// Lets implementations of servers' traits write plain `async fn`, without the attribute `async_trait`. Default:
    /// no.
    ///
    /// The methods then return `impl Future + Send`, and a unary call allocates once less. But such a trait is not
    /// an object: there is no `dyn Greeter`.
    #[must_use]
    pub fn async_fn_in_trait(mut self, is_wanted: bool) -> Self {
        self.async_fn_in_trait = is_wanted;
        self
    }

    /// Adds bodies to the methods of servers' traits, which answer UNIMPLEMENTED. Default: no, so that the compiler
    /// names what is missing.
    ///
    /// A method that is added to the service later then breaks no implementation of the trait.
    #[must_use]
    pub fn default_bodies(mut self, is_wanted: bool) -> Self {
        self.style.default_bodies = is_wanted;
        self
    }

    /// Sets the path of the crate `ttrpc` in generated code, for programs that have renamed or
    /// re-exported it. Default: `::ttrpc`.
    #[must_use]
    pub fn runtime_path(mut self, path: impl Into<String>) -> Self {
        self.style.runtime_path = path.into();
        self
    }

    /// The names of the types that a service of this name becomes.
    pub(crate) fn type_names(&self, rust_name: &str) -> Vec<String> {
        let servers = self.servers();
        let servers = servers
            .iter()
            .flat_map(|flavor| [flavor.trait_name(rust_name), flavor.server_name(rust_name)]);
        let clients = self.clients();
        let clients = clients.iter().map(|flavor| flavor.client_name(rust_name));
        servers.chain(clients).collect()
    }

    fn servers(&self) -> Vec<Flavor> {
        flavors(self.server, self.blocking_server)
    }

    fn clients(&self) -> Vec<Flavor> {
        flavors(self.client, self.blocking_client)
    }
}

fn flavors(is_async: bool, is_blocking: bool) -> Vec<Flavor> {
    let flavors = [(Flavor::Async, is_async), (Flavor::Blocking, is_blocking)];
    flavors.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(flavor, _)| flavor).collect()
}

impl prost_build::ServiceGenerator for ServiceGenerator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        for flavor in self.servers() {
            let form = match flavor {
                Flavor::Async if self.async_fn_in_trait => Form::InTrait,
                Flavor::Async => Form::Macro,
                Flavor::Blocking => Form::Blocking,
            };
            buf.push_str(&self.style.trait_of(&service, form));
            self.style.push_server(&service, form, buf);
        }
        for flavor in self.clients() {
            self.style.push_client(&service, flavor, buf);
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
            let expanded = self.style.trait_of(service, Form::Expanded);
            *buf = buf.replace(&self.style.trait_of(service, Form::Macro), &expanded);
        }
    }
}

/// Whether a message, an enum or a service of the package is called `Box`. Types that are not nested
/// start in the first column.
fn has_type_box(code: &str) -> bool {
    let definitions = ["pub struct Box ", "pub enum Box ", "pub trait Box:"];
    code.lines().any(|line| definitions.iter().any(|start| line.starts_with(start)))
}
