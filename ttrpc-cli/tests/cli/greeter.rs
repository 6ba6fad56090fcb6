//! The greeter of the examples, and a shim, by hand.

use std::sync::Arc;

use prost::Message;
use ttrpc::{
    Context, Status,
    server::{Routes, Service, StreamReceiver, StreamSender},
};

#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CountdownRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    from: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(uint32, tag = "1")]
    people: u32,
    #[prost(string, tag = "2")]
    message: String,
}

pub struct Greeter;

fn hello(name: &str) -> Hello {
    Hello { text: format!("Hello, {name}!") }
}

impl Greeter {
    async fn say_hello(&self, ctx: &Context, request: Hello) -> Result<Hello, Status> {
        if request.text.is_empty() {
            return Err(Status::invalid_argument("whom shall I greet?"));
        }
        let greeting = ctx.metadata().get("greeting").unwrap_or("Hello");
        Ok(Hello { text: format!("{greeting}, {}!", request.text) })
    }

    async fn countdown(
        &self,
        request: CountdownRequest,
        mut replies: StreamSender<Hello>,
    ) -> Result<(), Status> {
        for left in (1..=request.from).rev() {
            replies.send(Hello { text: format!("{left}…") }).await?;
        }
        replies.send(hello(&request.name)).await
    }

    async fn greet_all(&self, mut requests: StreamReceiver<Hello>) -> Result<Summary, Status> {
        let mut names = Vec::new();
        while let Some(request) = requests.recv().await? {
            names.push(request.text);
        }
        let message = format!("Hello, {}!", names.join(" and "));
        Ok(Summary { people: names.len() as u32, message })
    }

    async fn chat(
        &self,
        mut requests: StreamReceiver<Hello>,
        mut replies: StreamSender<Hello>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.recv().await? {
            replies.send(hello(&request.text)).await?;
        }
        Ok(())
    }
}

impl Service for Greeter {
    fn into_routes(self) -> Routes {
        let greeter = Arc::new(self);
        Routes::new("greeter.v1.Greeter")
            .unary("SayHello", &greeter, |greeter, ctx, request: Hello| {
                Box::pin(greeter.say_hello(ctx, request))
            })
            .server_streaming("Countdown", &greeter, |greeter, _, request, replies| {
                Box::pin(greeter.countdown(request, replies))
            })
            .client_streaming("GreetAll", &greeter, |greeter, _, requests| {
                Box::pin(greeter.greet_all(requests))
            })
            .bidi_streaming("Chat", &greeter, |greeter, _, requests, replies| {
                Box::pin(greeter.chat(requests, replies))
            })
    }
}

#[derive(Clone, PartialEq, Message)]
struct ConnectResponse {
    #[prost(uint32, tag = "1")]
    shim_pid: u32,
}

#[derive(Clone, PartialEq, Message)]
struct StateResponse {
    #[prost(uint32, tag = "3")]
    pid: u32,
    #[prost(int32, tag = "4")]
    status: i32,
}

/// The two methods of the service Task that `ttrpc shims` calls. Its container runs.
pub struct Shim;

impl Service for Shim {
    fn into_routes(self) -> Routes {
        let shim = Arc::new(self);
        Routes::new("containerd.task.v3.Task")
            .unary("Connect", &shim, |_, _, (): ()| {
                let reply = ConnectResponse { shim_pid: std::process::id() };
                Box::pin(async { Ok(reply) })
            })
            .unary("State", &shim, |_, _, (): ()| {
                Box::pin(async { Ok(StateResponse { pid: 1, status: 2 }) })
            })
    }
}

/// The service in an older version, without methods.
pub struct OldShim;

impl Service for OldShim {
    fn into_routes(self) -> Routes {
        Routes::new("containerd.task.v2.Task")
    }
}
