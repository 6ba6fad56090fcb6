//! The snippets of `docs/guide/testing.md`, compiled and run, which a test compares with the page, block by block; and what else
//! `ttrpc::testing` has.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ttrpc::{
    Client, ClientConfig, Code, Context, Server, ServerConfig, Status, async_trait,
    client::ConnectOptions,
    observer::{CallEnd, CallInfo, Observer},
    server::{Credentials, Peer, Service, StreamReceiver, StreamSender},
    testing,
};

/// Generated with bodies for what a test leaves out.
mod greeter {
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
}

#[tokio::test]
async fn a_greeting_has_the_name_in_it() {
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(MyGreeter)));
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap();
    assert_eq!(reply.message, "Hello, Ann!");

    let status = greeter.say_hello(HelloRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_greeting_is_taken_from_the_metadata() {
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(MyGreeter)));
    let call = greeter.say_hello(HelloRequest { name: "Ann".into() });
    assert_eq!(
        call.metadata("greeting", "Good morning").await.unwrap().message,
        "Good morning, Ann!"
    );
}

#[tokio::test]
async fn a_countdown_ends_with_one() {
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(MyGreeter)));
    let mut replies =
        greeter.countdown(CountdownRequest { name: "Ann".into(), from: 2 }).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().message, "2…");
    assert_eq!(replies.recv().await.unwrap().unwrap().message, "1…");
    assert_eq!(replies.recv().await.unwrap(), None);
}

fn as_root(service: impl Service) -> Client {
    let server =
        Server::builder().add_service(service).config(ServerConfig::default().max_calls(10));
    let root = Peer::unix(Credentials { uid: 0, gid: 0, pid: None }).with_name("root");
    testing::Setup::new(server).peer(root).connect()
}

/// The codes with which calls have ended.
struct Ends(Arc<Mutex<Vec<Code>>>);

impl Observer for Ends {
    fn call_ended(&self, _: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.0.lock().unwrap().push(end.code);
    }
}

#[tokio::test]
async fn a_setup_has_the_clients_limits_and_observers() {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let config = ClientConfig::default().send_queue_frames(7);
    let options = ConnectOptions::new().config(config).observe(Ends(ended.clone()));
    let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
    let client = testing::Setup::new(server).client(options).connect();
    assert_eq!(client.snapshot().queue.frames.limit, 7);
    GreeterClient::new(client).say_hello(HelloRequest::default()).await.unwrap_err();
    assert_eq!(*ended.lock().unwrap(), [Code::InvalidArgument]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_too_late_is_given_up() {
    struct Slow;
    #[async_trait]
    impl Greeter for Slow {
        async fn say_hello(&self, _: &Context, _: HelloRequest) -> Result<HelloReply, Status> {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok(HelloReply::default())
        }
    }

    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(Slow)));
    let begin = tokio::time::Instant::now();
    let call = greeter.say_hello(HelloRequest::default()).timeout(Duration::from_secs(60));
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(begin.elapsed(), Duration::from_secs(60));
}

/// Greets everybody, in the given order. Those whom the service does not know are left out.
async fn greet_all_known(greeter: &GreeterClient, names: &[&str]) -> Result<Vec<String>, Status> {
    let mut greetings = Vec::new();
    for name in names {
        match greeter.say_hello(HelloRequest { name: (*name).into() }).await {
            Ok(reply) => greetings.push(reply.message),
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status),
        }
    }
    Ok(greetings)
}

#[derive(Default)]
struct Mock {
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Greeter for Mock {
    async fn say_hello(&self, _: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
        self.asked.lock().unwrap().push(request.name.clone());
        match request.name.as_str() {
            "nobody" => Err(Status::not_found("nobody")),
            "broken" => Err(Status::internal("out of order")),
            name => Ok(HelloReply { message: name.to_uppercase() }),
        }
    }
}

#[tokio::test]
async fn unknown_names_are_left_out_and_errors_end_it() {
    let mock = Arc::new(Mock::default());
    let greeter = GreeterClient::new(testing::connect(GreeterServer::from_arc(mock.clone())));
    let greetings = greet_all_known(&greeter, &["ann", "nobody", "ben"]).await.unwrap();
    assert_eq!(greetings, ["ANN", "BEN"]);

    let status = greet_all_known(&greeter, &["broken", "ann"]).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(*mock.asked.lock().unwrap(), ["ann", "nobody", "ben", "broken"]);
}

#[test]
fn a_blocking_client_is_greeted() {
    let client = testing::connect_blocking(GreeterServer::new(MyGreeter));
    let greeter = GreeterBlockingClient::new(client);
    let reply = greeter.say_hello(HelloRequest { name: "Ann".into() }).call().unwrap();
    assert_eq!(reply.message, "Hello, Ann!");
}

const PAGE: &str = include_str!("../../../docs/guide/testing.md");

/// Lines without their indentation, in whatever way they are broken.
fn words(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn every_snippet_of_the_page_is_compiled() {
    let compiled = words(include_str!("testing.rs"));
    let snippets = PAGE.split("```rust\n").skip(1);
    let snippets: Vec<_> = snippets.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(snippets.len() > 5);
    for snippet in snippets {
        assert!(compiled.contains(&words(snippet)), "not compiled by this test:\n{snippet}");
    }
}

struct WhoAmI;

#[async_trait]
impl Greeter for WhoAmI {
    async fn say_hello(&self, ctx: &Context, _: HelloRequest) -> Result<HelloReply, Status> {
        Ok(HelloReply { message: ctx.peer().to_string() })
    }

    async fn greet_all(
        &self,
        ctx: &Context,
        _requests: StreamReceiver<HelloRequest>,
    ) -> Result<Summary, Status> {
        ctx.cancelled().await;
        Ok(Summary::default())
    }
}

#[tokio::test]
async fn handlers_see_the_peer_that_the_setup_says() {
    let greeter = GreeterClient::new(as_root(GreeterServer::new(WhoAmI)));
    let reply = greeter.say_hello(HelloRequest::default()).await.unwrap();
    assert!(reply.message.contains("root") && reply.message.contains("uid 0"), "{reply:?}");
}

/// Else each test of many would leave a server behind.
#[tokio::test]
async fn nothing_is_left_of_server_and_connection_when_the_client_is_gone() {
    let tasks = ttrpc_tests::harness::alive_tasks();
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(WhoAmI)));
    let (requests, reply) = greeter.greet_all().await.unwrap();
    drop((requests, reply, greeter));
    ttrpc_tests::harness::tasks_are_back_at(tasks).await;
}
