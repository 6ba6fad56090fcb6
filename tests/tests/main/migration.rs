//! The snippets of `docs/guide/migration.md` that use this library, compiled and run. A test compares them with
//! the page, block by block.

use std::time::Duration;

use tokio::sync::oneshot;
use ttrpc::{
    Client, Code, Context, Metadata, Server, Status, async_trait,
    server::{Interceptor, Next, ServerBuilder, StreamReceiver, StreamSender},
    testing,
};
use ttrpc_tests::harness::PATIENCE;

mod build_script {
    #[allow(dead_code, reason = "a build script is run by cargo")]
    fn generate() -> Result<(), ttrpc_codegen::Error> {
        ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])
    }
}

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
/// The same with bodies for what a snippet leaves out.
mod default_bodies {
    include!(concat!(env!("OUT_DIR"), "/default_bodies/greeter.v1.rs"));
}
use greeter::{
    CountdownRequest, Greeter, GreeterBlockingClient, GreeterClient, GreeterServer, HelloReply,
    HelloRequest, Summary,
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
        let mut summary = Summary::default();
        while let Some(_request) = requests.recv().await? {
            summary.people += 1;
        }
        Ok(summary)
    }

    async fn chat(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<HelloRequest>,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.recv().await? {
            replies.send(HelloReply { message: request.name }).await?;
        }
        Ok(())
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Status {
    Status::internal(error.to_string()).with_source(error)
}

fn is_missing(status: &Status) -> bool {
    status.code() == Code::NotFound
}

async fn serve(address: &str, stop: impl Future<Output = ()>) -> Result<(), ttrpc::Error> {
    let service = GreeterServer::new(MyGreeter);
    let server = Server::builder().add_service(service).bind(address)?.build()?;
    server.serve_until(stop, Duration::from_secs(5)).await
}

fn with_listener(listener: std::os::unix::net::UnixListener) -> ServerBuilder {
    Server::builder().listener(listener)
}

/// Nobody may open a stream.
fn is_allowed(method: &str, metadata: &Metadata) -> Result<(), Status> {
    match method {
        "SayHello" if metadata.get("greeting") != Some("Go away") => Ok(()),
        _ => Err(Status::permission_denied(method)),
    }
}

struct Policy;

#[async_trait]
impl Interceptor for Policy {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        is_allowed(ctx.method(), ctx.metadata())?;
        next.run(ctx).await
    }
}

async fn call(address: &str) -> Result<String, Box<dyn std::error::Error>> {
    let greeter = GreeterClient::new(Client::connect(address).await?);
    let request = HelloRequest { name: "Ann".to_owned() };
    let call = greeter.say_hello(request).timeout(PATIENCE);
    Ok(call.metadata("greeting", "Good morning").await?.message)
}

async fn stream(greeter: &GreeterClient) -> Result<u32, Status> {
    let request = CountdownRequest { from: 3, ..CountdownRequest::default() };
    let mut replies = greeter.countdown(request).await?;
    while let Some(reply) = replies.recv().await? {
        println!("{}", reply.message);
    }

    let (mut requests, summary) = greeter.greet_all().await?;
    requests.send(HelloRequest::default()).await?;
    requests.finish();
    let summary = summary.await?;

    let (mut requests, mut replies) = greeter.chat().await?;
    requests.send(HelloRequest::default()).await?;
    println!("{}", replies.recv().await?.map_or(String::new(), |reply| reply.message));
    requests.finish();
    match replies.recv().await? {
        None => Ok(summary.people),
        Some(reply) => panic!("the stream goes on: {reply:?}"),
    }
}

fn call_and_wait(address: &str) -> Result<String, Box<dyn std::error::Error>> {
    let greeter = GreeterBlockingClient::new(ttrpc::blocking::Client::connect(address)?);
    let request = HelloRequest { name: "Ann".to_owned() };
    let call = greeter.say_hello(request).timeout(PATIENCE);
    Ok(call.metadata("greeting", "Good morning").call()?.message)
}

mod without_async {
    use super::default_bodies::{GreeterBlocking, HelloReply, HelloRequest};
    use ttrpc::{Context, Status};

    pub struct MyGreeter;

    impl GreeterBlocking for MyGreeter {
        fn say_hello(&self, _ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
            Ok(HelloReply { message: format!("Hello, {}!", request.name) })
        }
    }
}

#[tokio::test]
async fn the_snippet_of_a_handler_without_async_is_served() {
    let service = default_bodies::GreeterBlockingServer::new(without_async::MyGreeter);
    let greeter = default_bodies::GreeterClient::new(ttrpc::testing::connect(service));
    let request = default_bodies::HelloRequest { name: "Ann".to_owned() };
    assert_eq!(greeter.say_hello(request).await.unwrap().message, "Hello, Ann!");
}

#[tokio::test]
async fn a_greeting_has_the_name_in_it() {
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(MyGreeter)));
    let reply = greeter.say_hello(HelloRequest { name: "Ann".to_owned() }).await.unwrap();
    assert_eq!(reply.message, "Hello, Ann!");
}

#[tokio::test]
async fn the_snippets_of_a_listener_and_a_policy_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greeter.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let server =
        with_listener(listener).intercept(Policy).add_service(GreeterServer::new(MyGreeter));
    let serving = tokio::spawn(server.serve());
    assert_eq!(call(path.to_str().unwrap()).await.unwrap(), "Good morning, Ann!");
    let greeter = GreeterClient::new(Client::connect(path.to_str().unwrap()).await.unwrap());
    assert_eq!(stream(&greeter).await.unwrap_err().code(), Code::PermissionDenied);
    serving.abort();
}

const PAGE: &str = include_str!("../../../docs/guide/migration.md");

/// Lines without their indentation, so that a snippet may stand in a module.
fn lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn every_snippet_of_the_page_is_compiled() {
    let compiled = lines(include_str!("migration.rs"));
    let snippets = PAGE.split("```rust\n").skip(1);
    let snippets: Vec<_> = snippets.map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(snippets.len(), PAGE.matches("```rust,ignore\n").count(), "each has its other side");
    for snippet in snippets {
        // A minute would be too short for a machine that is busy with other things.
        let snippet = &snippet.replace(".timeout(Duration::from_secs(60))", ".timeout(PATIENCE)");
        assert!(compiled.contains(&lines(snippet)), "not compiled by this test:\n{snippet}");
    }
}

#[tokio::test]
async fn the_snippets_do_what_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("greeter.sock").display());
    let (stop, stopped) = oneshot::channel();
    let serving = serve(&address, async { stopped.await.unwrap() });
    let calling = async {
        assert_eq!(call(&address).await.unwrap(), "Good morning, Ann!");
        let waiting = address.clone();
        let waiting = tokio::task::spawn_blocking(move || call_and_wait(&waiting).unwrap());
        assert_eq!(waiting.await.unwrap(), "Good morning, Ann!");
        let greeter = GreeterClient::new(Client::connect(&address).await.unwrap());
        assert_eq!(stream(&greeter).await.unwrap(), 1);
        stop.send(()).unwrap();
    };
    // The server is polled first, and so listens when the client connects.
    let (served, ()) = tokio::join!(serving, calling);
    served.unwrap();
    let missing = failed("x".parse::<u32>().unwrap_err());
    assert!(!is_missing(&missing) && is_missing(&Status::not_found("")));
}
