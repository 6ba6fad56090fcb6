//! `grpc.health.v1.Health`.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::watch;
use ttrpc::{
    Context, Status, async_trait,
    server::{Routes, Service, StreamSender},
};

use crate::proto::health::{
    HealthCheckRequest, HealthCheckResponse, HealthServer, health_check_response::ServingStatus,
};

/// The health of a server's services, as the program sees it. Clones share it.
///
/// The server as a whole, whose name is empty, is serving from the start. Of other services nothing
/// is known until [`Health::set_serving`].
///
/// ```
/// # use ttrpc::Server; use ttrpc_reflection::Health;
/// let health = Health::new();
/// let builder = Server::builder().add_service(health.service());
/// // When the database is away:
/// health.set_serving("greeter.v1.Greeter", false);
/// ```
#[derive(Clone, Debug)]
pub struct Health {
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug)]
struct State {
    services: HashMap<String, bool>,
    /// Nothing changes any more.
    is_over: bool,
}

impl Default for Health {
    fn default() -> Self {
        Health::new()
    }
}

impl Health {
    /// Returns a server that is serving.
    pub fn new() -> Self {
        let services = HashMap::from([(String::new(), true)]);
        Health { state: Arc::new(watch::Sender::new(State { services, is_over: false })) }
    }

    /// Returns the service that answers clients.
    pub fn service(&self) -> HealthService {
        HealthService { health: self.clone() }
    }

    /// Sets whether a service can do its work. It has no effect after [`Health::shut_down`].
    ///
    /// `service` is its full name, or empty for the server as a whole.
    pub fn set_serving(&self, service: &str, is_serving: bool) {
        self.state.send_if_modified(|state| {
            let is_new = state.services.get(service) != Some(&is_serving);
            if state.is_over || !is_new {
                return false;
            }
            state.services.insert(service.to_owned(), is_serving);
            true
        });
    }

    /// Reports all services as not serving, and ends every `Watch`. Call it before the server's
    /// shutdown, which would wait for open `Watch` calls otherwise.
    pub fn shut_down(&self) {
        self.state.send_modify(|state| {
            state.services.values_mut().for_each(|is_serving| *is_serving = false);
            state.is_over = true;
        });
    }
}

impl State {
    fn status(&self, service: &str) -> ServingStatus {
        match self.services.get(service) {
            Some(true) => ServingStatus::Serving,
            Some(false) => ServingStatus::NotServing,
            None => ServingStatus::ServiceUnknown,
        }
    }
}

/// The service that answers clients. Made by [`Health::service`].
#[derive(Debug)]
pub struct HealthService {
    health: Health,
}

#[async_trait]
impl crate::proto::health::Health for HealthService {
    async fn check(
        &self,
        _ctx: &Context,
        request: HealthCheckRequest,
    ) -> Result<HealthCheckResponse, Status> {
        let status = self.health.state.borrow().status(&request.service);
        match status {
            ServingStatus::ServiceUnknown => {
                Err(Status::not_found(format!("nothing is known of service `{}`", request.service)))
            }
            status => Ok(HealthCheckResponse { status: status.into() }),
        }
    }

    async fn watch(
        &self,
        _ctx: &Context,
        request: HealthCheckRequest,
        mut replies: StreamSender<HealthCheckResponse>,
    ) -> Result<(), Status> {
        let mut changes = self.health.state.subscribe();
        let mut told = None;
        loop {
            let (status, is_over) = {
                let state = changes.borrow_and_update();
                (state.status(&request.service), state.is_over)
            };
            if told != Some(status) {
                told = Some(status);
                replies.send(HealthCheckResponse { status: status.into() }).await?;
            }
            // The sender lives as long as this service.
            if is_over || changes.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

impl Service for HealthService {
    fn into_routes(self) -> Routes {
        HealthServer::new(self).into_routes()
    }
}
