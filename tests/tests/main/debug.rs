//! `Debug` of what a program holds while it calls or serves prints nothing of what peers say.

use std::fmt::Debug;

use tokio::{io::duplex, sync::mpsc};
use ttrpc::{
    Client, ClientConfig, Context, Metadata, Server, Status, async_trait,
    server::{StreamReceiver, StreamSender},
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
