//! The shapes of load, and what they have in common.

mod control;
mod deadlines;
mod drops;
mod fill;
mod restart;
mod streams;
mod unread;
mod wait_release;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::ValueEnum;
use tokio::time::timeout;
use ttrpc::{Client, ClientConfig, Status};
use ttrpc_tests::conformance::{ConformanceClient, EchoRequest};

use crate::{
    meter::{Figures, Meter, Metered},
    options::{LONG_STALL_TIMEOUT_MILLIS, Options},
    process::{ServerProcess, SocketPath},
    report::{Outcome, Verdict},
    socket,
    tally::Tally,
    watch::{Display, Scene, Stuck},
};

/// How long a server may take to report its figures.
const REPORT_PATIENCE: Duration = Duration::from_secs(120);

/// A shape of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Large requests and large replies through the smallest socket buffers.
    Fill,
    /// The same through a client that sends and receives in one task, which must deadlock.
    Control,
    /// Streams of requests, of replies, and both ways.
    Streams,
    /// Streams that nobody reads, beside unary calls.
    Unread,
    /// Handlers that wait for a later call, at the handler limit and over it.
    WaitRelease,
    /// Callers with short deadlines while the server is stopped.
    Deadlines,
    /// Callers that drop their calls at random.
    Drops,
    /// A server that is killed under load and started again.
    Restart,
}

impl Shape {
    /// All of them, in the order in which they run.
    pub const ALL: [Shape; 8] = [
        Shape::Fill,
        Shape::Control,
        Shape::Streams,
        Shape::Unread,
        Shape::WaitRelease,
        Shape::Deadlines,
        Shape::Drops,
        Shape::Restart,
    ];

    /// The name, as the option has it.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Fill => "fill",
            Shape::Control => "control",
            Shape::Streams => "streams",
            Shape::Unread => "unread",
            Shape::WaitRelease => "wait-release",
            Shape::Deadlines => "deadlines",
            Shape::Drops => "drops",
            Shape::Restart => "restart",
        }
    }

    /// The limits for this shape. Where nothing stands still by itself, only a machine that is busy could
    /// make it look so, and it is given a long time.
    fn limits(self, options: &Options) -> Options {
        let stall_timeout = match self {
            Shape::Unread | Shape::WaitRelease | Shape::Control => options.stall_timeout,
            _ => LONG_STALL_TIMEOUT_MILLIS,
        };
        Options { stall_timeout, ..options.clone() }
    }

    /// Fewer calls show nothing, however long a machine that is busy with other things takes for them.
    fn least_calls(self) -> u64 {
        match self {
            // Each is a round, of which there are three kinds.
            Shape::WaitRelease => 3,
            // It ends before, with its deadlock.
            Shape::Control => 10_000,
            // Some last longer than their callers wait.
            Shape::Drops => 600,
            // One alone is longer than the sockets' buffers.
            _ => 16,
        }
    }

    /// Its part of the run's duration, in relation to the others'.
    pub fn weight(self) -> u32 {
        match self {
            Shape::Fill => 5,
            Shape::Streams | Shape::WaitRelease => 3,
            _ => 2,
        }
    }
}

/// Runs a shape to its verdict.
pub async fn run(shape: Shape, options: &Options, display: &Display) -> Outcome {
    let outcome = match shape {
        Shape::Fill => fill::run(options, display).await,
        Shape::Control => control::run(options, display).await,
        Shape::Streams => streams::run(options, display).await,
        Shape::Unread => unread::run(options, display).await,
        Shape::WaitRelease => wait_release::run(options, display).await,
        Shape::Deadlines => deadlines::run(options, display).await,
        Shape::Drops => drops::run(options, display).await,
        Shape::Restart => restart::run(options, display).await,
    };
    outcome.unwrap_or_else(|error| {
        Outcome::without_run(shape, Verdict::Fail, format!("the harness failed: {error}"))
    })
}

/// A server, clients that are connected to it, and what is seen of both.
struct Stage {
    /// `None` when the server is somebody else's.
    server: Option<ServerProcess>,
    address: String,
    _socket: Option<SocketPath>,
    scene: Scene,
    options: Options,
}

impl Stage {
    /// A stage for a shape; with a server whose sockets are measured, or with one that binds its
    /// address as a user's does.
    async fn set(shape: Shape, options: &Options, is_measured: bool) -> io::Result<Self> {
        let options = &shape.limits(options);
        let (server, socket, address) = match &options.connect {
            Some(address) => (None, None, address.clone()),
            None => {
                let socket = SocketPath::fresh();
                let address = socket.address();
                let server = ServerProcess::start(options, &address, is_measured).await?;
                (Some(server), Some(socket), address)
            }
        };
        let scene = Scene {
            shape,
            tally: Arc::new(Tally::default()),
            meter: Arc::new(Meter::default()),
            server: server.as_ref().filter(|_| is_measured).map(ServerProcess::figures),
            clients: Arc::default(),
        };
        Ok(Stage { server, address, _socket: socket, scene, options: options.clone() })
    }

    /// A socket that is connected to the server.
    fn connect_socket(&self) -> io::Result<Metered> {
        let stream = socket::connect(&self.address, self.options.send_buffer)?;
        Ok(Metered::new(stream, self.scene.meter.clone()))
    }

    /// A client that is connected to the server.
    fn connect(&self) -> io::Result<Client> {
        let config = ClientConfig::default()
            .max_calls(self.options.in_flight)
            .send_queue_frames(self.options.queue_frames)
            .send_queue_bytes(self.options.queue_bytes)
            .stream_inbox_messages(self.options.queue_frames)
            .stream_inbox_bytes(self.options.queue_bytes)
            .stall_timeout(self.options.stall_timeout());
        let client = Client::from_io(self.connect_socket()?, config);
        self.scene.clients.lock().expect("no holder panics").push(client.clone());
        Ok(client)
    }

    /// As many clients as connections were asked for.
    fn connect_all(&self) -> io::Result<Vec<Client>> {
        (0..self.options.connections).map(|_| self.connect()).collect()
    }

    /// The server's figures, as of now.
    async fn fresh_server_figures(&self) -> Option<Figures> {
        let mut server = self.scene.server.clone()?;
        // The first report may be older than this call, the second is not.
        for _ in 0..2 {
            server.mark_unchanged();
            timeout(REPORT_PATIENCE, server.changed()).await.ok()?.ok()?;
        }
        Some(*server.borrow())
    }

    /// What there is to say of a run in which nothing moved any more.
    fn stuck(&self, stuck: &Stuck) -> Outcome {
        let Stuck { after, count, .. } = stuck;
        let evidence = format!(
            "deadlock: nothing moved after {} ms, with {} calls ended and {} pending; {}",
            after.as_millis(),
            count.ended,
            count.pending,
            if stuck.is_full_both_ways() {
                "both directions are full"
            } else {
                "not both are full"
            },
        );
        Outcome::new(&self.scene, *after, Verdict::Fail, evidence).counted(count.clone())
    }
}

/// Says when callers begin no more calls: after a time, or after a number of calls.
#[derive(Debug)]
struct End {
    at: Option<Instant>,
    calls_left: AtomicU64,
    begun: AtomicU64,
    /// So many calls are made even if there is no time for them.
    least: u64,
}

impl End {
    fn new(shape: Shape, options: &Options) -> Self {
        let at = options.calls.is_none().then(|| Instant::now() + options.share(shape));
        let calls_left = AtomicU64::new(options.calls.unwrap_or(u64::MAX));
        End { at, calls_left, begun: AtomicU64::new(0), least: shape.least_calls() }
    }

    /// Whether one more call may begin, which is counted.
    fn may_begin(&self) -> bool {
        let is_owed = self.begun.fetch_add(1, Relaxed) < self.least;
        if !is_owed && self.at.is_some_and(|at| Instant::now() >= at) {
            return false;
        }
        let one_less = |left: u64| left.checked_sub(1);
        self.calls_left.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }
}

/// Makes an echo call and checks its reply.
async fn echo(client: &ConformanceClient, options: &Options) -> Result<(), Status> {
    let request = EchoRequest {
        payload: vec![7; options.request_size as usize],
        response_size: options.reply_size,
    };
    let reply = client.echo(request).await?;
    let expected_bytes = match options.reply_size {
        0 => options.request_size,
        size => size,
    };
    if reply.payload.len() != expected_bytes as usize {
        return Err(Status::data_loss(format!("a reply has {} bytes", reply.payload.len())));
    }
    Ok(())
}
