//! Calls of one kind, for a count of what one of them costs: run it under `valgrind --tool=callgrind` with
//! two counts of calls, and divide the difference of instructions by that of calls.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use clap::{Parser, ValueEnum};
use tokio::{net::UnixStream, runtime::Builder, task::JoinSet};
use ttrpc::{
    Server, Status,
    client::ConnectOptions,
    observer::{CallEnd, CallInfo, Observer},
    server::{Routes, StreamReceiver, StreamSender},
};
use ttrpc_reflection::Debug;
use ttrpc_tests::harness::{Handmade, PassesThrough};

type Message = Vec<u8>;

/// Makes so many calls of one kind, to be counted by callgrind.
#[derive(Parser)]
struct Arguments {
    /// The kind of the calls.
    shape: Shape,
    /// Calls, or messages of a stream.
    calls: u32,
    /// Unary calls in flight.
    #[arg(default_value_t = 1)]
    in_flight: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// On two threads, instead of one for client and server.
    #[arg(long)]
    two_threads: bool,
    /// With an observer that counts, at the server and at the client.
    #[arg(long)]
    observed: bool,
    /// With the counters of the debug service, at the server.
    #[arg(long)]
    counters: bool,
    /// With an interceptor of the server that lets all calls pass.
    #[arg(long)]
    intercepted: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    /// Calls one after the other, or so many at a time.
    Unary,
    /// Messages of one stream of replies.
    Replies,
    /// Messages to and fro on one stream.
    PingPong,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut runtime = Builder::new_current_thread();
    // No time passes, so that the count does not depend on how fast the machine is.
    runtime.start_paused(true);
    if arguments.two_threads {
        runtime = Builder::new_multi_thread();
        runtime.worker_threads(2);
    }
    runtime.enable_all().build()?.block_on(run(arguments))?;
    Ok(())
}

async fn run(arguments: Arguments) -> Result<(), Status> {
    let Arguments { shape, calls, in_flight, size, observed, counters, intercepted, .. } =
        arguments;
    let (here, there) = UnixStream::pair()?;
    let mut server = Server::builder().add_service(Handmade(routes())).unix_stream(there);
    let mut options = ConnectOptions::new();
    if observed {
        server = server.observe(Counts::default());
        options = options.observe(Counts::default());
    }
    if counters {
        server = server.observe(Debug::with_counters().observer());
    }
    if intercepted {
        server = server.intercept(PassesThrough);
    }
    tokio::spawn(server.serve());
    let client = options.from_connection(here);
    let message = vec![7; size];
    match shape {
        Shape::Unary => {
            let mut callers = JoinSet::new();
            for _ in 0..in_flight {
                let (client, message) = (client.clone(), message.clone());
                callers.spawn(async move {
                    for _ in 0..calls / in_flight {
                        let _: Message = client.unary("Count", "Echo", message.clone()).await?;
                    }
                    Ok::<_, Status>(())
                });
            }
            callers.join_all().await.into_iter().collect()
        }
        Shape::Replies => {
            let request = [&calls.to_be_bytes()[..], &message].concat();
            let mut replies =
                client.server_streaming::<_, Message>("Count", "Send", request).await?;
            while replies.recv().await?.is_some() {}
            Ok(())
        }
        Shape::PingPong => {
            let (mut there, mut back) =
                client.bidi_streaming::<Message, Message>("Count", "Return").await?;
            for _ in 0..calls {
                there.send(message.clone()).await?;
                back.recv().await?;
            }
            Ok(())
        }
    }
}

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Observer for Counts {
    fn call_begun(&self, _: &CallInfo<'_>) {
        self.begun.fetch_add(1, Relaxed);
    }

    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.ended.fetch_add(1, Relaxed);
    }
}

fn routes() -> Routes {
    let service = Arc::new(());
    Routes::new("Count")
        .unary("Echo", &service, |_, _, message: Message| Box::pin(async { Ok(message) }))
        .server_streaming("Send", &service, |_, _, request: Message, mut replies| {
            Box::pin(async move {
                let (count, message) = request.split_first_chunk().expect("it has a count");
                for _ in 0..u32::from_be_bytes(*count) {
                    StreamSender::<Message>::send(&mut replies, message.to_vec()).await?;
                }
                Ok(())
            })
        })
        .bidi_streaming(
            "Return",
            &service,
            |_, _, mut requests: StreamReceiver<Message>, mut replies: StreamSender<Message>| {
                Box::pin(async move {
                    while let Some(message) = requests.recv().await? {
                        replies.send(message).await?;
                    }
                    Ok(())
                })
            },
        )
}
