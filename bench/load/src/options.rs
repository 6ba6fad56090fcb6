//! What a process is told on its command line: `server|client --name value …`.

use std::{collections::HashMap, path::PathBuf, str::FromStr, time::Duration};

/// Which side a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves until its standard input is closed.
    Server,
    /// Puts load on a server and prints what it measured.
    Client,
}

/// Which runtime a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The multi-threaded one, with two workers.
    MultiThread,
    /// The current-thread one.
    CurrentThread,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Unary calls.
    Unary,
    /// One stream of replies.
    Stream,
    /// One message there and one back, on one stream.
    PingPong,
    /// Connections that have made one call each and are idle then.
    Idle,
    /// Unary calls that come at a rate of their own, however long others take.
    OpenLoop,
    /// One unary call of 64 bytes after the other, on a connection that carries calls of `size` bytes as well.
    BesideLarge,
}

/// A process's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which side this is.
    pub role: Role,
    /// Name of the contender.
    pub contender: String,
    /// The server's socket.
    pub path: PathBuf,
    /// Which runtime.
    pub runtime: Runtime,
    /// What the client does.
    pub workload: Workload,
    /// Calls in flight, or idle connections.
    pub in_flight: usize,
    /// Connections over which the calls in flight are spread.
    pub connections: usize,
    /// Bytes of payload, each way.
    pub size: usize,
    /// How long the load lasts, if `calls` is 0.
    pub duration: Duration,
    /// How long the same load runs before, unmeasured.
    pub warm_up: Duration,
    /// Calls or messages in total; 0 for as many as fit into the time.
    pub calls: usize,
    /// Calls per second of the open loop.
    pub rate: f64,
    /// The server's process, whose CPU time is measured too.
    pub server_pid: Option<i32>,
}

impl Options {
    /// Parses the command line.
    ///
    /// # Panics
    /// If it is wrong: it was written by the driver.
    pub fn from_command_line() -> Self {
        let mut words = std::env::args().skip(1);
        let role = match words.next().as_deref() {
            Some("server") => Role::Server,
            Some("client") => Role::Client,
            other => panic!("`server` or `client` is wanted, not {other:?}"),
        };
        let pairs = std::iter::from_fn(|| Some((words.next()?, words.next()?)));
        let values = Values(pairs.collect());
        Options {
            role,
            contender: values.get("contender", String::new()),
            path: values.get("path", PathBuf::new()),
            runtime: match values.get("runtime", String::new()).as_str() {
                "current-thread" => Runtime::CurrentThread,
                _ => Runtime::MultiThread,
            },
            workload: match values.get("workload", String::new()).as_str() {
                "stream" => Workload::Stream,
                "ping-pong" => Workload::PingPong,
                "idle" => Workload::Idle,
                "open-loop" => Workload::OpenLoop,
                "beside-large" => Workload::BesideLarge,
                _ => Workload::Unary,
            },
            in_flight: values.get("in-flight", 1),
            connections: values.get("connections", 1),
            size: values.get("size", 64),
            duration: Duration::from_millis(values.get("millis", 1000)),
            warm_up: Duration::from_millis(values.get("warm-up-millis", 200)),
            calls: values.get("calls", 0),
            rate: values.get("rate", 0.0),
            server_pid: values.get("server-pid", 0).ne(&0).then(|| values.get("server-pid", 0)),
        }
    }
}

/// The `--name value` pairs.
struct Values(HashMap<String, String>);

impl Values {
    fn get<T: FromStr>(&self, name: &str, default: T) -> T {
        let Some(value) = self.0.get(&format!("--{name}")) else { return default };
        value.parse().unwrap_or_else(|_| panic!("--{name} {value} makes no sense"))
    }
}
