//! The server process: the conformance service, with the limits that the harness asks for.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, stdin},
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::interval,
};
use ttrpc::{Server, ServerConfig, server::ServerHandle};
use ttrpc_reflection::{Debug, Health, Reflection, proto};
use ttrpc_tests::{
    conformance::{ConformanceServer, FILE_DESCRIPTOR_SET},
    service::ConformanceService,
};

use crate::{
    meter::{Meter, Metered},
    options::Options,
    socket,
};

/// What a server says when it listens.
pub const READY: &str = "ready";

/// How often a server reports its figures.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// How long calls in flight may go on when the server is interrupted.
const GRACE: Duration = Duration::from_secs(5);

/// Why a server cannot serve.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves at this address, as a user would, until interrupted.
pub async fn serve(options: &Options, address: &str) -> Result<(), Error> {
    let service = Arc::new(ConformanceService::default());
    let (health, debug) = (Health::new(), Debug::new());
    let reflection = Reflection::new(FILE_DESCRIPTOR_SET)?
        .and(proto::health::FILE_DESCRIPTOR_SET)?
        .and(proto::debug::FILE_DESCRIPTOR_SET)?;
    let server = Server::builder()
        .add_service(ConformanceServer::from_arc(service.clone()))
        .add_service(reflection)
        .add_service(health.service())
        .add_service(debug.service())
        .config(config(options))
        .bind(address)?
        .build()?;
    service.observe(server.handle());
    debug.show(server.handle());
    let handle = server.handle();
    let mut asked_to_tell = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while asked_to_tell.recv().await.is_some() {
            tell(std::slice::from_ref(&handle));
        }
    });
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let asked_to_end = async {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
            () = harness_gone(options.supervised) => {}
        }
        health.shut_down();
    };
    println!("{READY}");
    Ok(server.serve_until(asked_to_end, GRACE).await?)
}

/// Serves at this address with every socket measured, until standard input ends.
pub async fn serve_measured(options: &Options, address: &str) -> Result<(), Error> {
    let listener = socket::listen(address)?;
    let meter = Arc::new(Meter::default());
    let service = Arc::new(ConformanceService::default());
    let mut connections = JoinSet::new();
    let mut handles = Vec::new();
    let mut report = interval(REPORT_INTERVAL);
    let mut asked_to_tell = signal(SignalKind::user_defined1())?;
    println!("{READY}");
    let mut ended = std::pin::pin!(harness_gone(true));
    loop {
        tokio::select! {
            () = &mut ended => return Ok(()),
            _ = asked_to_tell.recv() => tell(&handles),
            _ = report.tick() => {
                sample(&handles, &meter);
                println!("{}", meter.figures().to_line());
            }
            accepted = socket::accept(&listener, options.send_buffer) => {
                let server = Server::builder()
                    .add_service(ConformanceServer::from_arc(service.clone()))
                    .config(config(options))
                    .io(Metered::new(accepted?, meter.clone()))
                    .build()?;
                handles.push(server.handle());
                connections.spawn(server.serve());
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Says what is going on, as SIGUSR1 asks.
fn tell(handles: &[ServerHandle]) {
    for handle in handles {
        eprintln!("{}", handle.snapshot());
    }
}

/// Looks at the queues of all connections.
fn sample(handles: &[ServerHandle], meter: &Meter) {
    for handle in handles {
        for connection in &handle.snapshot().connections {
            meter.note_queue(&connection.queue);
        }
    }
}

/// Small and bounded buffers: the server stops reading as soon as its outgoing queue is full.
fn config(options: &Options) -> ServerConfig {
    ServerConfig::default()
        .max_calls_per_connection(options.handlers)
        .send_queue_frames(options.queue_frames)
        .send_queue_bytes(options.queue_bytes)
        .stream_inbox_messages(options.queue_frames)
        .stream_inbox_bytes(options.queue_bytes)
        .stall_timeout(options.stall_timeout())
}

/// Waits for the end of the harness, whose end of our standard input closes however it ends.
async fn harness_gone(is_supervised: bool) {
    if !is_supervised {
        return std::future::pending().await;
    }
    let mut ignored = [0; 64];
    while let Ok(1..) = stdin().read(&mut ignored).await {}
}
