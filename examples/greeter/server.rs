//! The greeter's server: `greeter-server ADDRESS`, for example `unix:///tmp/greeter.sock`.

use std::{env, error::Error, process::ExitCode, time::Duration};

use tokio::signal::unix::{SignalKind, signal};
use ttrpc::{
    Context, Server, Status, async_trait,
    interceptors::{AccessLog, Authorize, ConcurrencyLimit, Deadlines},
    server::{PeerPolicy, StreamReceiver, StreamSender},
};
use ttrpc_reflection::{Debug, Health, Reflection, proto};

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{CountdownRequest, Greeter, GreeterServer, HelloReply, HelloRequest, Summary};

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
        replies.send(HelloReply { message: format!("Hello, {}!", request.name) }).await
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

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    // Registered before the socket exists: who sees the server listen can stop it.
    let mut asked = signal(SignalKind::user_defined1())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let address = env::args().nth(1).filter(|address| !address.starts_with('-'));
    let address =
        address.ok_or("usage: greeter-server ADDRESS, such as unix:///tmp/greeter.sock")?;
    // What the library and its access log say, from level INFO on.
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let (health, debug) = (Health::new(), Debug::new());
    health.set_serving("greeter.v1.Greeter", true);
    let reflection = Reflection::new(ttrpc_reflection::include_descriptor_set!("greeter"))?
        .and(proto::health::FILE_DESCRIPTOR_SET)?
        .and(proto::debug::FILE_DESCRIPTOR_SET)?;
    // One line a call; nobody but this user and root looks at the server's inside; no call takes for ever.
    let rules = Authorize::deny_all()
        .allow(PeerPolicy::anybody())
        .allow_service("ttrpc.debug.v1.Debug", PeerPolicy::same_user().or(PeerPolicy::root()));
    let server = Server::builder()
        .observe(AccessLog::default())
        .intercept(rules)
        .intercept(Deadlines::default().max_timeout(Duration::from_secs(600)))
        .intercept(ConcurrencyLimit::new(1000))
        .add_service(GreeterServer::new(MyGreeter))
        .add_service(reflection)
        .add_service(health.service())
        .add_service(debug.service())
        .bind(&address)?
        .build()?;
    debug.show(server.handle());
    println!("listening on {address}");
    // On SIGUSR1, say what is going on: who waits for what, and since when.
    let handle = server.handle();
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            eprintln!("{}", handle.snapshot());
        }
    });
    // On SIGTERM and Ctrl-C, open calls may finish within five seconds.
    let stopped = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        health.shut_down();
    };
    server.serve_until(stopped, Duration::from_secs(5)).await?;
    Ok(())
}
