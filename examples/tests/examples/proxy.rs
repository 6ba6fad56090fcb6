//! Runs the proxy between the conformance suite and its server.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinSet;
use ttrpc::{Client, Code, Server, ServerConfig, client::ConnectOptions};
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{all_cases, run_case, trial},
    harness::{PATIENCE, echo_request, eventually, key},
    service::ConformanceService,
};

/// How long a case may take. Reached only where something hangs.
const CASE_LIMIT: Duration = Duration::from_secs(1200);

/// A conformance server in this process, and the proxy in one of its own.
struct Proxied {
    service: Arc<ConformanceService>,
    serving: JoinSet<()>,
    proxy: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Proxied {
    /// That the machine does not run a handler for a while is nobody's failure.
    fn start() -> Self {
        Proxied::start_with(PATIENCE)
    }

    fn start_with(stall_timeout: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| format!("unix://{}", folder.path().join(name).display());
        let (address, upstream) = (path("proxy.sock"), path("server.sock"));
        let service = Arc::new(ConformanceService::default());
        let config = ServerConfig::default().stall_timeout(stall_timeout);
        let routes = ConformanceServer::from_arc(service.clone());
        let server = Server::builder().config(config).add_service(routes).bind(&upstream).unwrap();
        let server = server.build().unwrap();
        service.observe(server.handle());
        let mut serving = JoinSet::new();
        serving.spawn(async move { server.serve().await.expect("the server serves") });
        let mut proxy = Command::new(env!("CARGO_BIN_EXE_ttrpc-proxy"))
            .args(["--listen", &address, "--upstream", &upstream])
            .args(["--stall-timeout", &stall_timeout.as_secs().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening {address}\n"));
        Proxied { service, serving, proxy, address, _folder: folder }
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_passes_every_conformance_case() {
    let (patient, impatient) = (Proxied::start(), Proxied::start_with(Duration::from_secs(1)));
    let mut failures = Vec::new();
    // The kernel tells the server who has connected, and that is the proxy.
    for case in all_cases().iter().filter(|case| case.name != "peer_credentials") {
        // Its call goes on when the handler that stands still is waited for no more.
        let proxied = if case.name == "unread_stream_on_server" { &impatient } else { &patient };
        let row = run_case(case, &trial(&proxied.address, true), CASE_LIMIT).await;
        if !row.has_passed() {
            failures.push(row.to_string());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_cancels_the_calls_of_a_client_that_goes_away() {
    let proxied = Proxied::start();
    let client = Client::connect(&proxied.address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    let waiting = tokio::spawn(conformance.wait(key("never")));
    let (_requests, _reply) = conformance.hold().await.unwrap();
    let service = &proxied.service;
    eventually("the calls begin", || service.calls_total() == 2).await;
    client.close();
    eventually("they are cancelled", || service.calls_cancelled() == 2).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_cancels_a_call_that_its_client_gives_up() {
    let proxied = Proxied::start();
    let options = ConnectOptions::new().cancel_at_server();
    let conformance = ConformanceClient::new(options.connect(&proxied.address).await.unwrap());
    let service = &proxied.service;
    let waiting = tokio::spawn(conformance.wait(key("never")).into_future());
    let (requests, reply) = conformance.hold().await.unwrap();
    eventually("the calls begin", || service.calls_total() == 2).await;
    waiting.abort();
    drop((requests, reply));
    eventually("they are cancelled", || service.calls_cancelled() == 2).await;
    conformance.echo(echo_request([])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_closes_a_clients_connection_when_the_server_goes_away() {
    let mut proxied = Proxied::start();
    let client = Client::connect(&proxied.address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    let waiting = tokio::spawn(conformance.wait(key("never")));
    eventually("the call begins", || proxied.service.calls_total() == 1).await;
    proxied.serving.shutdown().await;
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
    client.closed().await;
}
