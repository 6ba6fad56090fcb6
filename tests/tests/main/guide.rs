//! The snippets of the guide's first pages, compiled and run. A test compares them with the pages, block by block.

mod build_script {
    #[allow(dead_code, reason = "a build script is run by cargo")]
    fn main() -> Result<(), ttrpc_codegen::Error> {
        ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])
    }
}

use std::os::fd::AsFd;

use tokio::signal::unix::{SignalKind, signal};
use ttrpc::{ServerConfig, server::PeerPolicy};
use ttrpc_reflection::{Health, Reflection};

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}

use greeter::{CountdownRequest, Greeter, GreeterServer, HelloReply, HelloRequest, Summary};
use ttrpc::{
    Client, Context, Server, Status, async_trait,
    server::{StreamReceiver, StreamSender},
};

struct MyGreeter;

#[async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(&self, ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("whom shall I greet?"));
        }
        let greeting = ctx.metadata().get("greeting").unwrap_or("Hello");
        Ok(HelloReply { message: format!("{greeting}, {}!", request.name) })
    }

    async fn countdown(
        &self,
        _ctx: &Context,
        request: CountdownRequest,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        for left in (1..=request.from).rev() {
            replies.send(HelloReply { message: format!("{left}…") }).await?;
        }
        Ok(())
    }

    async fn greet_all(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<HelloRequest>,
    ) -> Result<Summary, Status> {
        let mut names = Vec::new();
        while let Some(request) = requests.recv().await? {
            names.push(request.name);
        }
        let message = format!("Hello, {}!", names.join(" and "));
        Ok(Summary { people: names.len() as u32, message })
    }

    async fn chat(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<HelloRequest>,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.recv().await? {
            replies.send(HelloReply { message: format!("Hello, {}!", request.name) }).await?;
        }
        Ok(())
    }
}

async fn serve(address: &str) -> Result<(), ttrpc::Error> {
    Server::builder().add_service(GreeterServer::new(MyGreeter)).bind(address)?.serve().await
}

async fn call(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let greeter = greeter::GreeterClient::new(Client::connect(address).await?);
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await?;
    println!("{}", reply.message);
    Ok(())
}

#[allow(dead_code, reason = "not every machine has vsock; the agent of `tests/vm` does this")]
async fn serve_agent(socket: &str) -> Result<(), ttrpc::Error> {
    Server::builder()
        .add_service(GreeterServer::new(MyGreeter))
        .bind("vsock://any:1024")?
        .bind(socket)?
        // Machine 2 is the host. A policy holds for every listener.
        .allow_peers(PeerPolicy::machine(2).or(PeerPolicy::same_user()))
        .serve()
        .await
}

async fn hand_over(
    server: &ttrpc::server::ServerHandle,
    stream: tokio::net::UnixStream,
) -> Result<(), ttrpc::Error> {
    let connection = ttrpc::Connection::from(stream);
    // Handlers see it with `ctx.peer()`, and snapshots show it.
    let peer = connection.peer().clone().with_name("plugin 7");
    server.serve_connection(connection.with_peer(peer)).await
}

async fn replace_by(
    mut successor: std::process::Command,
    socket: std::os::fd::OwnedFd,
    server: &ttrpc::server::ServerHandle,
) -> std::io::Result<std::process::Child> {
    // New clients wait in the socket's backlog until the successor accepts them.
    server.pause_accepting().await;
    // It serves `.listener(std::io::stdin().as_fd().try_clone_to_owned()?)`.
    let successor = successor.stdin(socket).spawn().inspect_err(|_| server.resume_accepting())?;
    // Calls in flight continue here, for at most 30 s.
    server.shutdown(std::time::Duration::from_secs(30)).await;
    Ok(successor)
}

fn over_inherited_socket(stream: std::os::unix::net::UnixStream) -> std::io::Result<Client> {
    let connection = ttrpc::Connection::try_from(stream)?;
    Ok(Client::from_connection(connection, ttrpc::ClientConfig::default()))
}

fn over_pipe(stream: tokio::io::DuplexStream) -> Client {
    Client::from_io(stream, ttrpc::ClientConfig::default())
}

async fn wait_for_agent(address: &str) -> Result<Client, ttrpc::Error> {
    ttrpc::client::ConnectOptions::new()
        .retry_for(std::time::Duration::from_secs(30))
        .handshake_timeout(std::time::Duration::from_secs(1))
        .connect(address)
        .await
}

async fn client_of_a_daemon(address: &str) -> Result<Client, ttrpc::Error> {
    use ttrpc::client::{Backoff, ConnectOptions};
    let backoff = Backoff::new().longest(std::time::Duration::from_secs(5));
    let client = ConnectOptions::new().reconnect(backoff).connect(address).await?;
    Ok(client.with_wait_for_ready(true))
}

async fn client_of_a_guest(address: &str) -> Result<Client, ttrpc::Error> {
    use std::time::Duration;
    use ttrpc::client::{Backoff, ConnectOptions, Keepalive};
    let keepalive = Keepalive::new(Duration::from_secs(10), Duration::from_secs(3));
    let options = ConnectOptions::new().reconnect(Backoff::new()).keepalive(keepalive);
    options.connect(address).await
}

fn persistent(client: Client) -> greeter::GreeterClient {
    use ttrpc::client::Retry;
    greeter::GreeterClient::new(client.with_retry(Retry::new().max_attempts(4)))
}

fn with_defaults(client: Client) -> Client {
    use ttrpc::client::{CallDefaults, MethodDefaults, Retry};
    let seconds = std::time::Duration::from_secs;
    let defaults = MethodDefaults::new()
        .all(CallDefaults::new().timeout(seconds(10)))
        .service("greeter.v1.Greeter", CallDefaults::new().metadata("greeting", "Good morning"))
        .method("greeter.v1.Greeter", "SayHello", CallDefaults::new().retry(Retry::new()))
        .method("greeter.v1.Greeter", "Chat", CallDefaults::new().no_timeout());
    client.with_method_defaults(defaults)
}

fn with_configured_defaults(
    client: Client,
    text: &str,
) -> Result<Client, ttrpc::client::DefaultsError> {
    Ok(client.with_method_defaults(text.parse()?))
}

async fn serve_with_reflection(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let health = Health::new();
    let server = Server::builder()
        .add_service(GreeterServer::new(MyGreeter))
        .add_service(Reflection::new(ttrpc_reflection::include_descriptor_set!("greeter"))?)
        .add_service(health.service())
        .bind(address)?;
    health.set_serving("greeter.v1.Greeter", true);
    Ok(server.serve().await?)
}

fn call_and_wait(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = ttrpc::blocking::Client::connect(address)?;
    let greeter = greeter::GreeterBlockingClient::new(client);
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).call()?;
    println!("{}", reply.message);

    for reply in greeter.countdown(CountdownRequest { name: "Ben".into(), from: 3 }).call()? {
        println!("{}", reply?.message);
    }
    Ok(())
}

#[tokio::test]
async fn a_greeting_contains_the_name() {
    let client = ttrpc::testing::connect(GreeterServer::new(MyGreeter));
    let greeter = greeter::GreeterClient::new(client);
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap();
    assert_eq!(reply.message, "Hello, Ann!");
}

async fn stream(greeter: &greeter::GreeterClient) -> Result<(), Status> {
    // One request, many replies. The receiver is also a `futures` stream.
    let mut replies = greeter.countdown(CountdownRequest { name: "Ben".into(), from: 3 }).await?;
    while let Some(reply) = replies.recv().await? {
        println!("{}", reply.message);
    }

    // Many requests, one reply.
    let (mut people, summary) = greeter.greet_all().await?;
    people.send(HelloRequest { name: "Cleo".into() }).await?;
    people.finish();
    println!("{}", summary.await?.message);

    // Many requests, many replies; the two ends may go to different tasks.
    let (mut requests, mut replies) = greeter.chat().await?;
    requests.send(HelloRequest { name: "Dan".into() }).await?;
    println!("{:?}", replies.recv().await?);
    requests.finish();
    Ok(())
}

async fn in_time(greeter: &greeter::GreeterClient) -> Result<HelloReply, Status> {
    greeter
        .say_hello(HelloRequest { name: "Eve".into() })
        .timeout(std::time::Duration::from_millis(300))
        .metadata("greeting", "Good morning")
        .await
}

#[allow(dead_code, reason = "part of a handler")]
async fn until_cancelled(ctx: &Context) -> Result<HelloReply, Status> {
    tokio::select! {
        () = ctx.cancelled() => Err(Status::cancelled("nobody waits any more")),
        reply = async { Ok(HelloReply { message: "done".into() }) } => reply,
    }
}

#[allow(dead_code, reason = "part of a handler")]
async fn call_on(backend: &greeter::GreeterClient, ctx: &Context) -> Result<HelloReply, Status> {
    backend.say_hello(HelloRequest { name: "Fay".into() }).within(ctx).await
}

use prost_reflect::{DynamicMessage, MethodDescriptor, Value};
use ttrpc::prost::Message;

async fn call_by_name(
    client: &Client,
    method: MethodDescriptor,
    name: &str,
) -> Result<DynamicMessage, Box<dyn std::error::Error>> {
    let mut request = DynamicMessage::new(method.input());
    request.set_field_by_name("name", Value::String(name.to_owned()));
    let request = ttrpc::Raw::from(request.encode_to_vec());
    let service = method.parent_service().full_name().to_owned();
    let reply: ttrpc::Raw = client.unary(service, method.name().to_owned(), request).await?;
    Ok(DynamicMessage::decode(method.output(), reply.0)?)
}

async fn serve_until_stopped(address: &str) -> Result<(), ttrpc::Error> {
    // A supervisor sends SIGTERM, a terminal SIGINT.
    let mut sigterm = signal(SignalKind::terminate()).expect("signals can be handled");
    let server =
        Server::builder().add_service(GreeterServer::new(MyGreeter)).bind(address)?.build()?;
    let stopped = async move {
        tokio::select! {
            _ = sigterm.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    // Stops accepting, lets calls finish and their replies leave for up to five seconds, then aborts.
    server.serve_until(stopped, std::time::Duration::from_secs(5)).await
}

async fn with_limits(address: &str) -> Result<Client, ttrpc::Error> {
    Client::connect_with(address, ttrpc::ClientConfig::default().max_calls(100)).await
}

fn for_peers_that_are_not_trusted() -> ServerConfig {
    ServerConfig::default()
        .max_connections(64) // 48 MiB each, 3 GiB together
        .max_calls_per_connection(32)
        .max_calls(1024)
        .max_blocking_calls(32)
        .request_bytes_per_connection(4 << 20)
        .request_bytes(64 << 20)
        .inbox_bytes(64 << 20)
}

fn for_a_small_agent() -> ServerConfig {
    ServerConfig::default()
        .max_connections(1)
        .max_calls_per_connection(64)
        .max_calls(64)
        .max_blocking_calls(1)
        .request_bytes(4 << 20)
        .inbox_bytes(4 << 20)
        .send_queue_bytes(512 << 10)
        .reply_bytes(2 << 20)
}

const PAGES: [&str; 5] = [
    include_str!("../../../docs/guide/start.md"),
    include_str!("../../../docs/guide/serving.md"),
    include_str!("../../../docs/guide/calling.md"),
    include_str!("../../../docs/guide/blocking.md"),
    include_str!("../../../docs/operate/limits.md"),
];

/// Blocks of one language in the pages.
pub(crate) fn blocks<'a>(pages: &[&'a str], language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = pages.iter().flat_map(|page| page.split(fence.as_str()).skip(1));
    blocks.map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The text without white space, so that a snippet may stand in a module, however that is broken into lines.
pub(crate) fn words(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn every_snippet_of_the_pages_is_compiled() {
    let compiled = words(include_str!("guide.rs"));
    for page in PAGES {
        let snippets = blocks(&[page], "rust");
        assert!(!snippets.is_empty());
        for snippet in snippets {
            assert!(compiled.contains(&words(snippet)), "not compiled by this test:\n{snippet}");
        }
    }
    assert_eq!(blocks(&PAGES, "proto"), [include_str!("../../proto/greeter.proto")]);
}

#[test]
fn the_recipes_bound_what_connections_hold_together() {
    let config = for_peers_that_are_not_trusted();
    assert!(config.max_calls_per_connection * 2 <= config.max_calls);
    // What the page says, in MiB.
    let bound = |config: ServerConfig| config.memory_bound() >> 20;
    assert_eq!(bound(ServerConfig::default()) >> 10, 771);
    assert_eq!(bound(config), 3_734);
    assert_eq!(bound(for_a_small_agent()), 93);
}

#[tokio::test]
async fn the_snippets_do_what_the_pages_say() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("greeter.sock").display());
    let (serving, stoppable) = (serve(&address), serve_until_stopped("unix://"));
    assert!(serve_with_reflection("unix://").await.is_err(), "the address is empty");
    tokio::select! {
        // The server is polled first, and so listens when the client connects.
        biased;
        result = serving => panic!("the server ended: {result:?}"),
        () = call_everything(&address) => {}
    }
    assert!(stoppable.await.is_err(), "the address is empty");
}

#[tokio::test]
async fn the_snippets_with_streams_of_the_program_call() {
    let serve = |connection: ttrpc::Connection| {
        let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
        tokio::spawn(server.connection(connection).serve());
    };
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    serve(there.try_into().unwrap());
    let (pipe_here, pipe_there) = tokio::io::duplex(1000);
    serve(ttrpc::Connection::new(pipe_there));
    for client in [over_inherited_socket(here).unwrap(), over_pipe(pipe_here)] {
        let greeter = greeter::GreeterClient::new(client);
        let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap();
        assert_eq!(reply.message, "Hello, Ann!");
    }
}

async fn call_everything(address: &str) {
    call(address).await.unwrap();
    let waiting = address.to_owned();
    let waiting = tokio::task::spawn_blocking(move || call_and_wait(&waiting).unwrap());
    waiting.await.unwrap();
    let greeter = greeter::GreeterClient::new(with_limits(address).await.unwrap());
    stream(&greeter).await.unwrap();
    let descriptors = ttrpc_reflection::include_descriptor_set!("greeter");
    let pool = prost_reflect::DescriptorPool::decode(descriptors).unwrap();
    let service = pool.get_service_by_name("greeter.v1.Greeter").unwrap();
    let method = service.methods().find(|method| method.name() == "SayHello").unwrap();
    let client = persistent(with_defaults(greeter.client().clone())).client().clone();
    let mut tables = blocks(&PAGES, "text").into_iter().filter(|text| text.contains("retry="));
    let table = tables.next().expect("the page has one");
    for client in [client, with_configured_defaults(greeter.client().clone(), table).unwrap()] {
        let greeter = greeter::GreeterClient::new(client);
        let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap();
        assert_eq!(reply.message, "Good morning, Ann!");
    }
    let reply = call_by_name(greeter.client(), method.clone(), "Ann").await.unwrap();
    assert_eq!(reply.to_string(), r#"message:"Hello, Ann!""#);
    let refused = call_by_name(greeter.client(), method, "").await.unwrap_err();
    assert_eq!(refused.downcast::<Status>().unwrap().message(), "whom shall I greet?");
}

/// On a clock that stands while there is something to do: how long the machine takes is not the matter.
#[tokio::test(start_paused = true)]
async fn the_snippet_with_a_deadline_is_answered_in_time() {
    let (here, there) = tokio::io::duplex(1000);
    let server = Server::builder().add_service(GreeterServer::new(MyGreeter)).io(there);
    let serving = tokio::spawn(server.serve());
    let client = Client::from_io(here, ttrpc::ClientConfig::default());
    let greeter = greeter::GreeterClient::new(client);
    assert_eq!(in_time(&greeter).await.unwrap().message, "Good morning, Eve!");
    serving.abort();
}

/// The test's own program is the successor, in a process of its own.
#[tokio::test]
async fn a_socket_is_handed_on_as_the_page_says() {
    let builder = Server::builder().add_service(GreeterServer::new(MyGreeter));
    if std::env::var_os("TTRPC_IS_SUCCESSOR").is_some() {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        // It is killed, unless the test fails.
        let life = std::time::Duration::from_secs(600);
        return drop(tokio::time::timeout(life, builder.listener(socket).serve()).await);
    }
    let mut successor = std::process::Command::new(std::env::current_exe().unwrap());
    successor.arg("guide::a_socket_is_handed_on_as_the_page_says").env("TTRPC_IS_SUCCESSOR", "1");
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("greeter.sock").to_str().unwrap().to_owned();
    let socket = ttrpc::server::Listener::bind(&address).unwrap().into_fd().unwrap();
    let server = builder.listener(socket.try_clone().unwrap()).build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());

    let old = greeter::GreeterClient::new(client_of_a_daemon(&address).await.unwrap());
    let (mut requests, mut replies) = old.chat().await.unwrap();
    requests.send(HelloRequest { name: "Ann".into() }).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().message, "Hello, Ann!");
    let new_client = async {
        client_of_a_guest(&address).await.unwrap().close();
        let new = greeter::GreeterClient::new(wait_for_agent(&address).await.unwrap());
        let reply = new.say_hello(HelloRequest { name: "Ben".into() }).await.unwrap();
        assert_eq!(reply.message, "Hello, Ben!");
        assert_eq!(handle.connections(), 1, "the successor has the other one");
        requests.send(HelloRequest { name: "Cleo".into() }).await.unwrap();
        assert_eq!(replies.recv().await.unwrap().unwrap().message, "Hello, Cleo!");
        requests.finish();
        assert_eq!(replies.recv().await.unwrap(), None);
    };
    // It is polled first, so accepting is paused when the new client connects.
    let replacing = replace_by(successor, socket, &handle);
    let (successor, ()) = tokio::join!(biased; replacing, new_client);
    serving.await.unwrap().unwrap();
    let mut successor = successor.unwrap();
    successor.kill().unwrap();
    successor.wait().unwrap();
}

#[tokio::test]
async fn a_connection_is_handed_over_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("greeter.sock").to_str().unwrap().to_owned();
    let builder = Server::builder().add_service(GreeterServer::new(MyGreeter)).keep_open();
    let server = builder.build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let listener = tokio::net::UnixListener::bind(&address).unwrap();
    let accepting = async { hand_over(&handle, listener.accept().await.unwrap().0).await };
    let (client, handed_over) = tokio::join!(wait_for_agent(&address), accepting);
    handed_over.unwrap();
    let greeter = greeter::GreeterClient::new(client.unwrap());
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap();
    assert_eq!(reply.message, "Hello, Ann!");
    assert!(handle.snapshot().to_string().contains(" of plugin 7 (uid "));
    handle.close().await;
    serving.await.unwrap().unwrap();
}
