//! Observers, interceptors and hooks: what they are told, what they may do, and that calls end as they do
//! without them.

mod causes;
mod client_calls;
mod ends;
mod hooks;
mod interceptors;
mod late;
mod messages;
mod observers;
mod page;
mod promises;
mod values;

use std::sync::{Arc, Mutex};

use tokio::io::{DuplexStream, duplex};
use ttrpc::{
    Client, ClientConfig, Code, ServerConfig,
    client::ConnectOptions,
    observer::{
        CallEnd, CallInfo, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause, Observer,
        Traffic,
    },
    server::ServerBuilder,
};
use ttrpc_tests::{conformance::*, harness::*};

/// The end of one call, as an observer was told.
#[derive(Clone, Debug, PartialEq)]
struct End {
    method: String,
    code: Code,
    cause: EndCause,
    traffic: Traffic,
    message: String,
}

/// What an observer was told.
#[derive(Debug, Default)]
struct Told {
    begun: Vec<String>,
    ends: Vec<End>,
    opened: usize,
    refused: Vec<String>,
    closed: Vec<ConnectionEndCause>,
    violations: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Told>>);

impl Recorder {
    fn told<R>(&self, look: impl FnOnce(&Told) -> R) -> R {
        look(&self.0.lock().unwrap())
    }

    /// The only end that was told, of as many begins.
    async fn only_end(&self) -> End {
        eventually("a call's end is told", || self.told(|told| !told.ends.is_empty())).await;
        settle().await;
        self.told(|told| {
            assert_eq!((told.begun.len(), told.ends.len()), (1, 1), "{told:?}");
            assert_eq!(told.begun[0], told.ends[0].method);
            told.ends[0].clone()
        })
    }

    async fn expect(&self, method: &str, code: Code, cause: EndCause) {
        let end = self.only_end().await;
        assert_eq!((&*end.method, end.code, end.cause), (method, code, cause), "{end:?}");
    }
}

impl Observer for Recorder {
    fn connection_opened(&self, _: &ConnectionInfo<'_>) {
        self.0.lock().unwrap().opened += 1;
    }

    fn connection_refused(&self, _: &ConnectionInfo<'_>, reason: &str) {
        self.0.lock().unwrap().refused.push(reason.to_owned());
    }

    fn connection_closed(&self, _: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {
        self.0.lock().unwrap().closed.push(end.cause);
    }

    fn protocol_violation(&self, _: &ConnectionInfo<'_>, rule: &str) {
        self.0.lock().unwrap().violations.push(rule.to_owned());
    }

    fn call_begun(&self, call: &CallInfo<'_>) {
        self.0.lock().unwrap().begun.push(call.method.to_owned());
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let CallEnd { code, cause, traffic, message, .. } = *end;
        let end = End {
            method: call.method.to_owned(),
            code,
            cause,
            traffic,
            message: message.to_owned(),
        };
        self.0.lock().unwrap().ends.push(end);
    }
}

/// A server and a client, both observed.
struct Observed {
    server: TestServer,
    at_server: Recorder,
    client: Client,
    conformance: ConformanceClient,
    at_client: Recorder,
}

fn observed() -> Observed {
    observed_with(ServerConfig::default(), ClientConfig::default(), |builder| builder)
}

fn observed_with(
    server_config: ServerConfig,
    client_config: ClientConfig,
    build: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> Observed {
    let (here, there) = duplex(PIPE_LEN);
    let (at_server, at_client) = (Recorder::default(), Recorder::default());
    let server = TestServer::start_with(server_config, |builder| {
        build(builder.observe(at_server.clone())).io(there)
    });
    let client = observed_client(here, client_config, &at_client);
    let conformance = ConformanceClient::new(client.clone());
    Observed { server, at_server, client, conformance, at_client }
}

fn observed_client(io: DuplexStream, config: ClientConfig, recorder: &Recorder) -> Client {
    let options = ConnectOptions::new().config(config).observe(recorder.clone());
    options.from_connection(ttrpc::Connection::new(io))
}
