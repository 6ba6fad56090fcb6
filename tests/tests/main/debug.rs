//! `Debug` of what a program holds while it calls or serves says what that is, and prints nothing of what peers say.

use std::{fmt::Debug, sync::Mutex, time::Duration};

use tokio::{io::duplex, sync::mpsc};
use ttrpc::{
    Client, ClientConfig, Connection, Context, Metadata, Raw, RawEnd, Server, ServerConfig, Status,
    async_trait,
    client::{self, Answer, ConnectOptions, OutgoingCall},
    observer::Observer,
    proto::frame::Flags,
    server::{
        self, ConnectionHook, Fallback, FallbackCall, Listener, Service, StreamReceiver,
        StreamSender,
    },
    testing,
};

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{
    CountdownRequest, Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest, Summary,
};

/// Stands in every payload, and in the metadata.
const SECRET: &str = "correct horse battery staple";

#[track_caller]
fn assert_silent(value: &impl Debug) -> String {
    let text = format!("{value:?} {value:#?}");
    let as_numbers = format!("{:?}", SECRET.as_bytes());
    for secret in [SECRET, "x-password", as_numbers.trim_matches(['[', ']'])] {
        assert!(!text.contains(secret), "{text}");
    }
    text
}

/// Tells when it has been called, and then waits for ever.
struct Waiting(mpsc::UnboundedSender<Context>);

impl Waiting {
    async fn wait<T>(&self, ctx: &Context) -> Result<T, Status> {
        self.0.send(ctx.clone()).unwrap();
        std::future::pending().await
    }
}

#[async_trait]
impl Greeter for Waiting {
    async fn say_hello(&self, ctx: &Context, _request: HelloRequest) -> Result<HelloReply, Status> {
        self.wait(ctx).await
    }

    async fn countdown(
        &self,
        ctx: &Context,
        _request: CountdownRequest,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        replies.send(HelloReply { message: SECRET.to_owned() }).await?;
        assert_silent(&replies);
        self.wait(ctx).await
    }

    async fn greet_all(
        &self,
        ctx: &Context,
        requests: StreamReceiver<HelloRequest>,
    ) -> Result<Summary, Status> {
        assert_silent(&requests);
        self.wait(ctx).await
    }

    async fn chat(
        &self,
        ctx: &Context,
        _requests: StreamReceiver<HelloRequest>,
        _replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        self.wait(ctx).await
    }
}

fn request() -> HelloRequest {
    HelloRequest { name: SECRET.to_owned() }
}

#[tokio::test]
async fn debug_of_a_client_a_call_or_a_context_prints_no_payload_and_no_metadata() {
    let (here, there) = duplex(1 << 16);
    let (sender, mut contexts) = mpsc::unbounded_channel();
    let service = GreeterServer::new(Waiting(sender));
    let server = Server::builder().add_service(service).io(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    let greeter = GreeterClient::new(client.clone());
    let metadata = Metadata::from_iter([("x-password", SECRET)]);

    let call = greeter.say_hello(request()).with_metadata(metadata.clone());
    assert!(assert_silent(&call).starts_with("Call(greeter.v1.Greeter/SayHello)"));
    let mut future = call.into_future();
    let waiting = tokio::select! {
        biased;
        _ = &mut future => panic!("the handler waits for ever"),
        context = contexts.recv() => context.unwrap(),
    };
    assert_silent(&future);
    assert!(assert_silent(&waiting).contains("metadata_pairs: 1"), "{waiting:?}");

    let call = greeter.greet_all().with_metadata(metadata.clone());
    assert_silent(&call);
    let (mut requests, reply) = call.await.unwrap();
    requests.send(request()).await.unwrap();
    assert_silent(&requests);
    assert_silent(&reply);
    contexts.recv().await.unwrap();

    let down = CountdownRequest { name: SECRET.to_owned(), from: 1 };
    let replies = greeter.countdown(down).await.unwrap();
    contexts.recv().await.unwrap();
    assert_silent(&replies);

    let text = assert_silent(&client);
    assert!(text.contains("calls_in_flight: 3"), "{text}");
    assert_silent(&greeter);
    assert_silent(&handle);
    assert_silent(&client.snapshot());
    assert_silent(&handle.snapshot());
    client.close();
    assert!(assert_silent(&client).contains("ClosedLocally"));
}

#[tokio::test]
async fn debug_of_a_client_is_short_whatever_is_queued() {
    // Nobody reads.
    let (here, _there) = duplex(16);
    let client = Client::from_io(here, ClientConfig::default());
    let mut calls = Vec::new();
    for _ in 0..200 {
        let mut call = GreeterClient::new(client.clone()).say_hello(request()).into_future();
        assert!(
            std::future::poll_fn(|cx| {
                std::task::Poll::Ready(std::pin::Pin::new(&mut call).poll(cx).is_pending())
            })
            .await
        );
        calls.push(call);
    }
    assert!(format!("{client:?}").len() < 200, "{client:?}");
}

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// What was printed inside of calls.
#[derive(Clone, Default)]
struct Printed(std::sync::Arc<Mutex<Vec<String>>>);

impl Printed {
    fn print(&self, value: &impl Debug) {
        self.0.lock().unwrap().push(text(value));
    }

    #[track_caller]
    fn expect(&self, texts: &[&str]) {
        assert_eq!(*self.0.lock().unwrap(), texts);
    }
}

#[async_trait]
impl client::Interceptor for Printed {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        self.print(call);
        self.print(&next);
        let answer = next.run(call).await?;
        self.print(&answer);
        Ok(answer)
    }
}

#[async_trait]
impl server::Interceptor for Printed {
    async fn intercept(&self, ctx: &mut Context, next: server::Next<'_>) -> Result<(), Status> {
        self.print(&next);
        next.run(ctx).await
    }
}

#[async_trait]
impl Fallback for Printed {
    async fn call(&self, _: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
        self.print(&call);
        if let (Some(requests), Some(replies)) = (call.requests, call.replies) {
            self.print(&(&requests, &replies));
            self.print(&(
                server::blocking::StreamReceiver::from(requests),
                server::blocking::StreamSender::from(replies),
            ));
        }
        Ok(RawEnd::Closed)
    }
}

#[async_trait]
impl ConnectionHook for Printed {
    async fn connected(
        &self,
        _: &mut Connection,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

impl Observer for Printed {}

const CALL: &str = "Call(a.B/C)";
const SENDER: &str = "StreamSender { .. }";
const RECEIVER: &str = "StreamReceiver { is_done: false, .. }";

#[tokio::test]
async fn debug_of_what_a_call_is_made_and_served_with_says_what_it_is() {
    let (at_client, at_server) = (Printed::default(), Printed::default());
    let server = Server::builder().intercept(at_server.clone()).fallback(at_server.clone());
    let client = testing::Setup::new(server).connect().with_interceptor(at_client.clone());
    let call = client.raw("a.B", "C", Flags::REMOTE_OPEN, Raw::from(&b"abc"[..]));
    assert_eq!(text(&call), CALL);
    let (sender, mut receiver) = call.await.unwrap();
    assert_eq!(text(&sender), format!("Some({SENDER})"));
    assert_eq!(text(&receiver), "RawReceiver { .. }");
    let end = client::RawReply::End(RawEnd::Closed);
    assert_eq!(receiver.recv().await, Ok(end));
    at_client.expect(&["OutgoingCall(a.B/C)", "Next { interceptors: 0, .. }", "Answer { .. }"]);
    let call = "FallbackCall { flags: Flags(0x02), payload_len: 3, .. }";
    let streams = format!("({RECEIVER}, {SENDER})");
    at_server.expect(&["Next { interceptors: 0, .. }", call, &streams, &streams]);
}

#[tokio::test]
async fn debug_of_a_callers_streams_says_what_they_are() {
    let client = testing::Setup::new(Server::builder().fallback(Printed::default())).connect();
    let call = client.bidi_streaming::<Raw, Raw>("a.B", "C");
    let (sender, mut receiver) = call.await.unwrap();
    assert_eq!((text(&sender), text(&receiver)), (SENDER.to_owned(), RECEIVER.to_owned()));
    assert_eq!(receiver.recv().await, Ok(None));
    assert_eq!(text(&receiver), "StreamReceiver { is_done: true, .. }");
    let (_sender, reply) = client.client_streaming::<Raw, Raw>("a.B", "C").await.unwrap();
    assert_eq!(text(&reply), "Reply { .. }");
}

#[test]
fn debug_of_a_blocking_client_is_that_of_the_client() {
    let client = testing::Setup::new(Server::builder().fallback(Printed::default()));
    let client = client.connect_blocking();
    assert!(text(&client).starts_with("Client { calls_in_flight: 0, "), "{client:?}");
    let call = client.bidi_streaming::<Raw, Raw>("a.B", "C");
    assert_eq!(text(&call), CALL);
    let (sender, receiver) = call.call().unwrap();
    assert_eq!((text(&sender), text(&receiver)), (SENDER.to_owned(), RECEIVER.to_owned()));
    let (_sender, reply) = client.client_streaming::<Raw, Raw>("a.B", "C").call().unwrap();
    assert_eq!(text(&reply), "Reply { .. }");
}

#[tokio::test]
async fn debug_of_a_server_names_its_services_and_limits_and_how_far_it_has_come() {
    let service = || GreeterServer::new(Waiting(mpsc::unbounded_channel().0));
    let routes = text(&service().into_routes());
    assert!(routes.starts_with("Routes { service: \"greeter.v1.Greeter\", methods: ["), "{routes}");
    assert!(routes.contains("\"SayHello\""), "{routes}");

    let (_here, there) = duplex(1);
    let config = ServerConfig::default().max_calls(77);
    let builder = Server::builder().add_service(service()).config(config).io(there);
    let builder = builder.on_connection(Printed::default(), Duration::from_secs(3));
    let of_builder = text(&builder);
    for part in ["ServerBuilder", "{\"greeter.v1.Greeter\"}", "Connection { peer:", "77"] {
        assert!(of_builder.contains(part), "{of_builder}");
    }
    let server = builder.build().unwrap();
    let of_server = text(&server);
    for part in ["Hook { limit: 3s, .. }", "Idle", "AcceptControl { .. }"] {
        assert!(of_server.contains(part), "{of_server}");
    }
    let handle = server.handle();
    handle.begin_shutdown(Duration::ZERO);
    server.serve().await.unwrap();
    assert!(text(&handle).contains("Done"), "{handle:?}");
}

#[tokio::test]
async fn debug_of_what_connects_and_listens_says_to_what() {
    let options = ConnectOptions::new().observe(Printed::default());
    assert!(text(&options).contains("observers: 1 observers"), "{options:?}");

    let server = Server::builder().config(ServerConfig::default().max_calls(77));
    let setup = testing::Setup::new(server).client(ConnectOptions::new());
    for part in ["Setup { server: ServerBuilder {", "77", "peer: Peer", "client: ConnectOptions"] {
        assert!(text(&setup).contains(part), "{setup:?}");
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = Listener::bind(&format!("unix://{}", path.display())).unwrap();
    assert!(!text(&listener).is_empty());
    assert_eq!(text(&listener.start().unwrap()), "Acceptor { .. }");
}
