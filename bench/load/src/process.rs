//! The two processes of a contender with tasks.

use std::{
    future::Future,
    io::Read,
    path::{Path, PathBuf},
    process::exit,
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    Connection, Contender, Options, Role, Runtime, Workload,
    meter::{Meter, allocations},
    open_loop,
};

/// Is the server or the client of a contender, as the options say.
pub fn run<C: Contender>(options: Options) {
    let runtime = build_runtime(options.runtime);
    match options.role {
        Role::Server => {
            exit_with_standard_input();
            block_on_worker(&runtime, C::serve(options.path));
        }
        Role::Client => {
            wait_for_socket(&options.path);
            block_on_worker(&runtime, run_client::<C>(options));
        }
    }
}

/// Is a server and nothing else, on the path that is the first argument: what size and memory are
/// measured of.
pub fn serve_alone<F>(serve: impl FnOnce(PathBuf) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    raise_descriptor_limit();
    let path = std::env::args().nth(1).expect("the argument is the socket's path");
    block_on_worker(&build_runtime(Runtime::MultiThread), serve(path.into()));
}

fn build_runtime(kind: Runtime) -> tokio::runtime::Runtime {
    let mut builder = match kind {
        Runtime::MultiThread => tokio::runtime::Builder::new_multi_thread(),
        Runtime::CurrentThread => tokio::runtime::Builder::new_current_thread(),
    };
    if kind == Runtime::MultiThread {
        builder.worker_threads(2);
    }
    builder.enable_all().build().expect("a runtime can be made")
}

/// Runs the future as a task, as a program's real work does: the thread of `block_on` is no worker.
fn block_on_worker<F>(runtime: &tokio::runtime::Runtime, future: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async { tokio::spawn(future).await.expect("a contender does not panic") });
}

async fn run_client<C: Contender>(options: Options) {
    if options.workload == Workload::Idle {
        return hold_idle_connections::<C>(&options).await;
    }
    let mut connections = Vec::new();
    for _ in 0..options.connections {
        connections.push(C::connect(options.path.clone()).await);
    }
    let payload: Vec<u8> = (0..options.size).map(|index| index as u8).collect();
    for connection in &connections {
        assert!(connection.echo(payload.clone()).await == payload, "an echo differs");
    }
    let first = &connections[0];
    let calls = options.calls as u64;
    match options.workload {
        Workload::Stream | Workload::PingPong if !C::Connection::HAS_STREAMS => println!("skip=1"),
        Workload::Stream => {
            let size = options.size as u32;
            first.count(calls / 10, size).await;
            let meter = Meter::start(&options);
            let (messages, bytes) = first.count(calls, size).await;
            meter.report(&options, options.calls, Vec::new());
            assert_eq!((messages, bytes), (calls, calls * u64::from(size)), "messages are missing");
        }
        Workload::PingPong => {
            first.ping_pong(calls / 10, &payload, &mut Vec::new()).await;
            let mut nanos = Vec::new();
            let meter = Meter::start(&options);
            first.ping_pong(calls, &payload, &mut nanos).await;
            meter.report(&options, options.calls, nanos);
        }
        Workload::OpenLoop => {
            let warm_up = Stop::AtTime(Instant::now() + options.warm_up);
            make_calls(&connections, &options, warm_up).await;
            let meter = Meter::start(&options);
            let nanos = open_loop::make_calls(first, &options).await;
            meter.report(&options, nanos.len(), nanos);
        }
        Workload::BesideLarge => {
            let small = Options { size: 64, ..options.clone() };
            let stop = Stop::AtTime(Instant::now() + options.warm_up + options.duration);
            let connection = connections.clone();
            let beside = tokio::spawn(async move { make_calls(&connection, &options, stop).await });
            tokio::time::sleep(small.warm_up).await;
            let meter = Meter::start(&small);
            let nanos = call_repeatedly(first.clone(), vec![7; small.size], stop).await;
            assert!(
                !beside.await.expect("a call does not panic").is_empty(),
                "no large call ended"
            );
            meter.report(&small, nanos.len(), nanos);
        }
        Workload::Unary | Workload::Idle => {
            if !options.warm_up.is_zero() {
                let warm_up = Stop::AtTime(Instant::now() + options.warm_up);
                make_calls(&connections, &options, warm_up).await;
            }
            let meter = Meter::start(&options);
            let nanos = make_calls(&connections, &options, Stop::of(&options)).await;
            meter.report(&options, nanos.len(), nanos);
        }
    }
    // What the contender would still do to end its tasks is not waited for.
    exit(0);
}

/// When a caller makes no further call.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    AtTime(Instant),
    AfterCalls(usize),
}

impl Stop {
    /// What the options say, for each of the callers.
    pub(crate) fn of(options: &Options) -> Self {
        match options.calls {
            0 => Stop::AtTime(Instant::now() + options.duration),
            calls => Stop::AfterCalls(calls.div_ceil(options.in_flight)),
        }
    }

    pub(crate) fn is_now(self, now: Instant, calls: usize) -> bool {
        match self {
            Stop::AtTime(time) => now >= time,
            Stop::AfterCalls(limit) => calls >= limit,
        }
    }
}

/// As many callers as calls are to be in flight, each making one call after the other. Gives back
/// how long each call took.
async fn make_calls<C: Connection>(connections: &[C], options: &Options, stop: Stop) -> Vec<u32> {
    let payload = vec![7; options.size];
    if C::IN_BATCHES && options.in_flight > 1 {
        return make_batches(&connections[0], options.in_flight, &payload, stop).await;
    }
    let callers: Vec<_> = (0..options.in_flight)
        .map(|index| {
            let connection = connections[index % connections.len()].clone();
            tokio::spawn(call_repeatedly(connection, payload.clone(), stop))
        })
        .collect();
    let mut nanos = Vec::new();
    for caller in callers {
        nanos.append(&mut caller.await.expect("a call does not panic"));
    }
    nanos
}

async fn call_repeatedly<C: Connection>(connection: C, payload: Vec<u8>, stop: Stop) -> Vec<u32> {
    let mut nanos = Vec::with_capacity(4096);
    loop {
        let start = Instant::now();
        let reply = connection.echo(payload.clone()).await;
        let end = Instant::now();
        assert_eq!(reply.len(), payload.len());
        nanos.push((end - start).as_nanos() as u32);
        if stop.is_now(end, nanos.len()) {
            return nanos;
        }
    }
}

async fn make_batches<C: Connection>(
    connection: &C,
    calls: usize,
    payload: &[u8],
    stop: Stop,
) -> Vec<u32> {
    let mut nanos = Vec::new();
    let mut batches = 0;
    loop {
        let start = Instant::now();
        connection.echo_batch(calls, payload).await;
        let end = Instant::now();
        batches += 1;
        nanos.extend(std::iter::repeat_n((end - start).as_nanos() as u32, calls));
        if stop.is_now(end, batches) {
            return nanos;
        }
    }
}

/// Opens connections, makes one call on each, and keeps them until standard input is closed.
async fn hold_idle_connections<C: Contender>(options: &Options) {
    raise_descriptor_limit();
    let mut connections = Vec::new();
    for _ in 0..options.in_flight {
        let connection = C::connect(options.path.clone()).await;
        assert_eq!(connection.echo(vec![1; options.size]).await.len(), options.size);
        connections.push(connection);
    }
    println!("ready=1");
    tokio::task::spawn_blocking(wait_for_end_of_input).await.expect("reading does not panic");
    exit(0);
}

pub(crate) fn wait_for_end_of_input() {
    // Whether it was closed or failed, nobody is left to be served.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Ends the process when its standard input is closed, and prints what it has allocated.
pub(crate) fn exit_with_standard_input() {
    raise_descriptor_limit();
    thread::spawn(|| {
        wait_for_end_of_input();
        let (count, bytes) = allocations();
        println!("server_allocations={count} server_allocated_bytes={bytes}");
        exit(0);
    });
}

/// Waits until a server has bound its socket.
pub(crate) fn wait_for_socket(path: &Path) {
    raise_descriptor_limit();
    for _ in 0..500 {
        if path.exists() {
            // It listens a moment after it has bound.
            return thread::sleep(Duration::from_millis(30));
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("no server has bound {} within five seconds", path.display());
}

/// Lets the process open as many descriptors as it is allowed to.
pub(crate) fn raise_descriptor_limit() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit can be read");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("the limit can be raised");
}
