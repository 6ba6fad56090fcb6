//! Services whose traits are generated with `async_fn_in_trait`: implemented without a macro, served and called.

use ttrpc::{
    Client, Context, Server, Status,
    server::{StreamReceiver, StreamSender},
    testing,
};

/// Without bodies.
mod greeter {
    include!(concat!(env!("OUT_DIR"), "/async_fn_in_trait/greeter.v1.rs"));
}

/// With bodies: a package with a message `Box`, and services and methods called like keywords.
mod odd {
    include!(concat!(env!("OUT_DIR"), "/async_fn_in_trait/Names.type.V1.rs"));
}

/// With bodies, and without a package.
mod none {
    include!(concat!(env!("OUT_DIR"), "/async_fn_in_trait/_.rs"));
}

use greeter::{
    CountdownRequest, Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest, Summary,
};
use none::{Lonely, LonelyClient, LonelyServer};
use odd::{Fields, Methods, MethodsClient, MethodsServer};

struct Everything;

fn hello(name: &str) -> HelloReply {
    HelloReply { message: format!("Hello, {name}!") }
}

impl Greeter for Everything {
    async fn say_hello(&self, ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
        // The handler has had to wait.
        tokio::task::yield_now().await;
        assert_eq!(ctx.method(), "SayHello");
        Ok(hello(&request.name))
    }

    async fn countdown(
        &self,
        _ctx: &Context,
        request: CountdownRequest,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        for _ in 0..request.from {
            replies.send(hello(&request.name)).await?;
        }
        Ok(())
    }

    async fn greet_all(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<HelloRequest>,
    ) -> Result<Summary, Status> {
        let mut summary = Summary::default();
        while let Some(request) = requests.recv().await? {
            summary.people += 1;
            summary.message += &request.name;
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
            replies.send(hello(&request.name)).await?;
        }
        Ok(())
    }
}

impl Methods for Everything {
    async fn client(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<Fields>,
    ) -> Result<Fields, Status> {
        let request = requests.recv().await?.unwrap_or_default();
        Ok(Fields { r#type: request.self_, ..Fields::default() })
    }
}

impl Lonely for Everything {
    async fn client(&self, _ctx: &Context, request: none::Self_) -> Result<none::Self_, Status> {
        Ok(request)
    }
}

fn request(name: &str) -> HelloRequest {
    HelloRequest { name: name.to_owned() }
}

#[tokio::test]
async fn every_kind_of_method_is_served() {
    let greeter = GreeterClient::new(testing::connect(GreeterServer::new(Everything)));
    assert_eq!(greeter.say_hello(request("Ann")).await.unwrap(), hello("Ann"));

    let countdown = CountdownRequest { name: "Ann".to_owned(), from: 2 };
    let mut replies = greeter.countdown(countdown).await.unwrap();
    for _ in 0..2 {
        assert_eq!(replies.recv().await.unwrap(), Some(hello("Ann")));
    }
    assert_eq!(replies.recv().await.unwrap(), None);

    let (mut requests, reply) = greeter.greet_all().await.unwrap();
    requests.send(request("Ann")).await.unwrap();
    requests.send(request("Bo")).await.unwrap();
    requests.finish();
    assert_eq!(reply.await.unwrap(), Summary { people: 2, message: "AnnBo".to_owned() });

    let (mut requests, mut replies) = greeter.chat().await.unwrap();
    requests.send(request("Bo")).await.unwrap();
    assert_eq!(replies.recv().await.unwrap(), Some(hello("Bo")));
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
}

fn connected() -> Client {
    let server = Server::builder()
        .add_service(MethodsServer::new(Everything))
        .add_service(LonelyServer::new(Everything));
    testing::Setup::new(server).connect()
}

#[tokio::test]
async fn odd_names_are_served_and_methods_that_are_not_implemented_answer_by_their_bodies() {
    let client = connected();
    let lonely = LonelyClient::new(client.clone());
    let request = none::Self_ { self_: "alone".to_owned() };
    assert_eq!(lonely.client_(request.clone()).await.unwrap(), request);
    let expected = |method: &str| Status::unimplemented(format!("method {method}"));
    assert_eq!(lonely.new_(request).await.unwrap_err(), expected("New"));

    let methods = MethodsClient::new(client);
    let (mut requests, reply) = methods.client_().await.unwrap();
    requests.send(Fields { self_: "me".to_owned(), ..Fields::default() }).await.unwrap();
    requests.finish();
    assert_eq!(reply.await.unwrap().r#type, "me");
    assert_eq!(methods.from_(Fields::default()).await.unwrap_err(), expected("From"));
    let mut replies = methods.into_(Fields::default()).await.unwrap();
    assert_eq!(replies.recv().await.unwrap_err(), expected("Into"));
    let (_requests, reply) = methods.default().await.unwrap();
    assert_eq!(reply.await.unwrap_err(), expected("default"));
    let (_requests, mut replies) = methods.drop().await.unwrap();
    assert_eq!(replies.recv().await.unwrap_err(), expected("Drop"));
}
