//! The process that is attacked, and what it may hold.

use std::{
    env, fmt, io,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{net::UnixStream, sync::Semaphore, time::sleep};
use ttrpc::{
    Client, ClientConfig, Server, ServerConfig,
    server::{Routes, blocking},
};
use ttrpc_tests::{
    conformance::*,
    harness::{Handmade, MAX_DATA_LEN},
    process::Process,
    service::ConformanceService,
};

/// What a connection costs that only sits there: its tasks, tables and buffers.
const IDLE_CONNECTION: u64 = 16 << 10;

/// What a call in flight costs beside its bytes: its task, its table entry, its handler's state.
const CALL: u64 = 4 << 10;

/// Threads of a victim's runtime, on every machine: each of them keeps buffers, and may hold a reply that it makes.
pub(crate) const THREADS: usize = 2;

/// What each of them keeps: a buffer in which frames are encoded, and boxes of calls.
const THREAD: u64 = (16 << 10) + 128 * 512;

/// Empty buffers that a process keeps.
const BUFFERS: u64 = 17 << 19;

/// What a message in an inbox costs beside its bytes.
const MESSAGE: usize = 64;

/// Arenas of glibc's allocator, which are eight for each CPU otherwise. What is free in one is of no use to another.
const ARENAS: &str = "16";

/// What allocation adds, in hundredths: room that buffers which grow have not used yet, size
/// classes, pages that are free and not given back.
const ALLOCATION_PERCENT: u64 = 200;

/// How many of each an attack has at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) connections: u64,
    /// Connections that have begun a long frame.
    pub(crate) arriving: u64,
    /// Connections whose short replies are not read: those of up to 128 KiB, and statuses.
    pub(crate) unread: u64,
    /// Connections whose long replies are not read.
    pub(crate) unread_long: u64,
    /// Calls in flight.
    pub(crate) calls: u64,
    /// Connections that send Requests which are not short.
    pub(crate) requesting: u64,
    /// Connections that send messages which no handler takes.
    pub(crate) streaming: u64,
    /// Connections of which as many replies wait for room as may: long ones, or those that handlers make together
    /// which have waited.
    pub(crate) replying: u64,
    /// Bytes of the longest reply.
    pub(crate) reply_len: u64,
    /// Handlers without `async` that run at a time, each with a reply of so many bytes.
    pub(crate) running: u64,
}

impl Load {
    /// The most that a server with default limits may hold under this load, in bytes, over what it
    /// holds at rest.
    pub(crate) fn server_bound(&self) -> u64 {
        let config = ServerConfig::default();
        let frame = MAX_DATA_LEN as u64;
        let upto =
            |all: usize, each: usize, connections: u64| (all as u64).min(connections * each as u64);
        // The last Request or message may go over the limit.
        let requests =
            upto(config.request_bytes, config.request_bytes_per_connection, self.requesting)
                + self.requesting * frame;
        let inboxes = upto(config.inbox_bytes, config.inbox_bytes_per_connection, self.streaming)
            + self.streaming * frame;
        // So may those that threads are making for a connection when its limit is reached.
        let replies = upto(config.reply_bytes, config.reply_bytes_per_connection, self.replying)
            + self.unread.max(self.unread_long) * THREADS as u64 * self.reply_len;
        let queues = (self.unread + self.unread_long) * config.send_queue_bytes as u64;
        let running = self.running * self.reply_len;
        let buffers = self.arriving * frame + queues + requests + inboxes + replies + running;
        let threads = THREADS as u64 * THREAD + BUFFERS;
        self.connections * IDLE_CONNECTION
            + self.calls * CALL
            + (buffers + threads) * ALLOCATION_PERCENT / 100
    }
}

/// The most that a client with default limits may hold for streams of which nothing is taken, in
/// bytes, over what it holds at rest.
pub(crate) fn client_bound(streams: u64) -> u64 {
    let config = ClientConfig::default();
    let inbox = config.stream_inbox_bytes + config.stream_inbox_messages * MESSAGE;
    let inboxes = streams * inbox as u64;
    let threads = THREADS as u64 * THREAD + BUFFERS;
    IDLE_CONNECTION + (inboxes + 2 * MAX_DATA_LEN as u64 + threads) * ALLOCATION_PERCENT / 100
}

/// Memory of a victim, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) at_rest: u64,
    pub(crate) peak: u64,
    /// When the attack is over.
    pub(crate) afterwards: u64,
    /// Over what it holds at rest.
    pub(crate) bound: u64,
}

impl Figures {
    pub(crate) fn is_within_bound(&self) -> bool {
        self.peak <= self.at_rest + self.bound
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [at_rest, peak, afterwards] = [self.at_rest, self.peak, self.afterwards].map(mebibytes);
        let bound = mebibytes(self.at_rest + self.bound);
        write!(f, "{at_rest:8.1} {peak:8.1} {bound:8.1} {afterwards:8.1}")
    }
}

/// A socket path that nobody else uses.
fn fresh_address() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let file = format!("ttrpc-memory-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Relaxed));
    env::temp_dir().join(file).to_string_lossy().into_owned()
}

/// This program, as one of its parts.
fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a running program has a path"));
    command.arg(name).env("MALLOC_ARENA_MAX", ARENAS);
    command
}

/// A server to be attacked.
#[derive(Debug)]
pub(crate) struct Victim {
    process: Process,
    address: String,
    at_rest: u64,
}

impl Victim {
    /// Starts a server that has served a call and a stream.
    pub(crate) async fn server() -> Result<Self, String> {
        let address = fresh_address();
        let process = Process::start_server(part("server").arg(&address))
            .map_err(|error| error.to_string())?;
        let mut victim = Victim { process, address, at_rest: 0 };
        victim.expect_service().await?;
        victim.at_rest = victim.process.usage().map_err(|error| error.to_string())?.memory;
        Ok(victim)
    }

    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(&self.address).await
    }

    /// Checks that others are served.
    pub(crate) async fn expect_service(&self) -> Result<(), String> {
        let client = Client::connect(&self.address).await.map_err(|error| error.to_string())?;
        let conformance = ConformanceClient::new(client);
        let echo = EchoRequest { payload: vec![1; 1000], response_size: 0 };
        let served = conformance.echo(echo).await;
        served.map(drop).map_err(|status| format!("somebody else is not served: {status}"))
    }

    /// Waits until so many calls wait, and has them go on together.
    pub(crate) async fn go_on(&self, calls: u64) -> Result<(), String> {
        let client = Client::connect(&self.address).await.map_err(|error| error.to_string())?;
        let conformance = ConformanceClient::new(client.clone());
        while conformance
            .stats(Empty {})
            .await
            .map_err(|status| status.to_string())?
            .calls_in_flight
            < calls
        {
            sleep(Duration::from_millis(10)).await;
        }
        client.unary::<(), ()>(REPLIES, "GoOn", ()).await.map_err(|status| status.to_string())
    }

    /// What the server has held at most since it was started, and what it holds when all who have
    /// attacked it are gone.
    pub(crate) async fn figures(&self, load: Load) -> Result<Figures, String> {
        self.is_alone().await?;
        let usage = self.process.usage().map_err(|error| format!("it is gone: {error}"))?;
        Ok(Figures {
            at_rest: self.at_rest,
            peak: usage.peak_memory,
            afterwards: usage.memory,
            bound: load.server_bound(),
        })
    }

    /// Waits until the server has no connection but the one that asks.
    async fn is_alone(&self) -> Result<(), String> {
        let client = Client::connect(&self.address).await.map_err(|error| error.to_string())?;
        let conformance = ConformanceClient::new(client);
        while conformance.stats(Empty {}).await.map_err(|status| status.to_string())?.connections
            > 1
        {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.process.kill();
        let _ = std::fs::remove_file(&self.address);
    }
}

/// The service of long replies. Their bytes are not 0: pages of zeros that nobody writes to are not resident.
pub(crate) const REPLIES: &str = "ttrpc.memory.v1.Replies";

/// Bytes of a reply of its handlers that wait first, or have no `async`.
pub(crate) const LATE_REPLY: usize = 1 << 20;

/// Serves until the process is killed.
pub(crate) async fn serve(address: &str) -> Result<(), String> {
    let late = Arc::new(Semaphore::new(0));
    let routes = Routes::new(REPLIES)
        .unary("Wait", &late, |late, _ctx, (): ()| {
            Box::pin(async {
                late.acquire().await.expect("it is never closed").forget();
                Ok(vec![1; LATE_REPLY])
            })
        })
        .unary("Reply", &late, |_, _ctx, len: u32| {
            Box::pin(async move { Ok(vec![1; len as usize]) })
        })
        .unary("Make", &late, |_, ctx, (): ()| {
            Box::pin(async move { blocking::run(ctx, |_| Ok(vec![1; LATE_REPLY])).await })
        })
        .unary("GoOn", &late, |late, _ctx, (): ()| {
            late.add_permits(1 << 20);
            Box::pin(async { Ok(()) })
        });
    let service = Arc::new(ConformanceService::default());
    let server = Server::builder()
        .add_service(ConformanceServer::from_arc(service.clone()))
        .add_service(Handmade(routes))
        .bind(address)
        .and_then(|builder| builder.build())
        .map_err(|error| error.to_string())?;
    service.observe(server.handle());
    println!("listening {address}");
    server.serve().await.map_err(|error| error.to_string())
}

/// A client process that takes nothing, and the listener that it connects to.
pub(crate) fn start_client(streams: u64) -> io::Result<(Process, tokio::net::UnixListener)> {
    let address = fresh_address();
    let listener = tokio::net::UnixListener::bind(&address)?;
    let streams = streams.to_string();
    let command = &mut part("client");
    let client = Process::start(command.args([&address, &streams]).stdout(Stdio::null()))?;
    Ok((client, listener))
}

/// Opens streams of replies and takes nothing of them until the connection ends.
pub(crate) async fn take_nothing(address: &str, streams: usize) -> Result<(), String> {
    let client = Client::connect(address).await.map_err(|error| error.to_string())?;
    // The listener has done its work.
    let _ = std::fs::remove_file(address);
    let conformance = ConformanceClient::new(client.clone());
    let mut replies = Vec::new();
    for _ in 0..streams {
        let stream = conformance.generate(GenerateRequest::default()).await;
        replies.push(stream.map_err(|status| status.to_string())?);
    }
    client.closed().await;
    Ok(())
}
