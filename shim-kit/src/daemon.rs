//! The daemon: serves the Task service on the listener that `start` handed over, on one thread,
//! until containerd wants it no more.

use std::{env, error::Error, path::Path, time::Duration};

use rustix::process::Pid;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use ttrpc::{
    Server, ServerConfig,
    server::{PeerPolicy, ServerHandle, Service},
};

use crate::{
    address::Socket,
    args::Args,
    descriptors, log,
    proto::{sandbox, v2, v3},
    reaper::Reaper,
    runtime::Runtime,
    service::TaskService,
    shim::Shim,
    tasks::{self, contain},
};

/// How long the last answers may take to leave, and the last events to be taken, when containerd ends the shim.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long events that wait already may take when a signal ends it: a machine that shuts down waits for each shim.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// How long a thread that has waited for a file system is kept for the next.
const IDLE: Duration = Duration::from_millis(100);

/// Waiting calls are no burden: there is one for every process that runs. Connections neither:
/// containerd 1.6 opens one for every container of a group.
fn limits() -> ServerConfig {
    let calls = 1 << 20;
    ServerConfig {
        max_connections: usize::MAX,
        max_calls_per_connection: calls,
        max_calls: calls,
        ..ServerConfig::default()
    }
}

/// Serves until the end.
///
/// # Errors
/// If the listener is not there, or what the kernel has to give is not to be had.
pub fn serve<R: Runtime>(args: &Args) -> Result<(), Box<dyn Error>> {
    let listener = descriptors::take_listener()?;
    let address = listener.local_addr()?;
    // Without containerd there may be nobody to read it.
    let _ = log::open(Path::new("log"), &args.id, args.debug);
    // The folder is the bundle of the group's first container, which others outlive.
    env::set_current_dir("/")?;
    // A session of its own: what ends containerd's does not end the shim.
    if let Err(error) = rustix::process::setsid() {
        log::debug(format_args!("already leads a session: {error}"));
    }
    rustix::process::set_child_subreaper(Some(Pid::INIT))?;
    descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(IDLE)
        .build()?;
    // The bundle that names it may be gone at the end: that of the first container of a group.
    let socket = address.as_pathname().map(Socket::at).transpose()?;
    let result = runtime.block_on(run::<R>(args, listener, socket));
    // A thread may hang in a file system that does not answer.
    runtime.shutdown_background();
    result
}

async fn run<R: Runtime>(
    args: &Args,
    listener: std::os::unix::net::UnixListener,
    socket: Option<Socket>,
) -> Result<(), Box<dyn Error>> {
    let shim = Shim::new(&args.namespace, R::PATIENCE);
    let shutdown = CancellationToken::new();
    let service = TaskService::<R>::new(shim.clone(), shutdown.clone());
    // Version 3 has the methods of version 2.
    let tasks = || v2::TaskServer::new(service.clone()).into_routes();
    let builder = Server::builder()
        .config(limits())
        .allow_peers(PeerPolicy::same_user())
        .add_service(tasks())
        .add_service(tasks().renamed(v3::TaskClient::NAME))
        .add_service(sandbox::SandboxServer::new(service.clone()))
        .listener(listener);
    let builder = R::serve(builder, &shim.outbox);
    #[cfg(feature = "debug")]
    let (builder, inspection) = crate::inspection::Inspection::add_to(builder)?;
    let server = builder.build()?;
    #[cfg(feature = "debug")]
    inspection.show(&server);
    let signals = Signals::new()?;
    match env::var("TTRPC_ADDRESS") {
        Ok(address) => drop(tasks::spawn(shim.outbox.clone().deliver(address))),
        Err(_) => log::warn("TTRPC_ADDRESS is not set: events stay here"),
    }
    let quit = CancellationToken::new();
    let handling =
        tasks::spawn(signals.handle(shim.reaper.clone(), service, server.handle(), quit.clone()));
    log::debug("serving");
    let ending = async {
        shutdown.cancelled().await;
        remove(socket.clone()).await;
    };
    tokio::select! {
        biased;
        () = quit.cancelled() => {
            // What becomes of the containers now is for containerd to say, which cleans up after the shim.
            shim.outbox.close();
            remove(socket).await;
            // Without an answer containerd may get them twice, so the connection goes last.
            if timeout(LAST_EVENTS, shim.outbox.emptied()).await.is_err() {
                shim.outbox.give_up();
            }
            handling.abort();
            return Ok(());
        }
        served = server.serve_until(ending, FAREWELL) => served?,
    }

    let hook = contain(async {
        R::at_end().await;
        Ok(())
    });
    if timeout(FAREWELL, hook).await.is_err() {
        log::warn("the runtime's hook at the end takes too long");
    }

    // What processes have written and what became of them shall not be lost with the shim.
    shim.copies.tasks.close();
    let delivered = async {
        shim.copies.tasks.wait().await;
        shim.outbox.emptied().await;
    };
    if timeout(R::PATIENCE.max(FAREWELL), delivered).await.is_err() {
        log::warn("the shim ends before all output and events are taken");
        shim.outbox.give_up();
        // Nobody is left who would see them off.
        shim.loggers.kill_family(libc::SIGTERM.unsigned_abs());
    }
    handling.abort();
    Ok(())
}

/// Removes the daemon's socket while it still listens: nobody takes it for that of a dead daemon.
async fn remove(socket: Option<Socket>) {
    let Some(socket) = socket else { return };
    if let Err(error) = tasks::blocking(move || socket.remove()).await {
        log::warn(format_args!("cannot remove the socket: {error}"));
    }
}

/// The signals that mean something to the daemon.
struct Signals {
    child: Signal,
    snapshot: Signal,
    interrupt: Signal,
    terminate: Signal,
    /// Ignored, as whoever is left by its terminal must.
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            child: signal(SignalKind::child())?,
            snapshot: signal(SignalKind::user_defined1())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn handle(
        mut self,
        reaper: Reaper,
        service: TaskService<impl Runtime>,
        server: ServerHandle,
        quit: CancellationToken,
    ) {
        loop {
            tokio::select! {
                _ = self.child.recv() => reaper.collect(),
                _ = self.snapshot.recv() => log_snapshot(&service, &server),
                _ = self.hangup.recv() => {}
                _ = self.interrupt.recv() => quit.cancel(),
                _ = self.terminate.recv() => quit.cancel(),
            }
        }
    }
}

/// Writes what is going on to the log, line by line: what the library's server is waiting for, then
/// the shim's own.
fn log_snapshot(service: &TaskService<impl Runtime>, server: &ServerHandle) {
    log::info("snapshot begins");
    server.snapshot().to_string().lines().for_each(log::info);
    service.to_string().lines().for_each(log::info);
    log::info("snapshot ends");
}

#[cfg(test)]
mod tests {
    use std::{
        fmt::Debug,
        sync::{Arc, Mutex},
    };

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
    };
    use ttrpc::Client;

    use super::*;
    use crate::{
        proto::{task::ConnectRequest, v2::TaskClient},
        service::tests::Shell,
    };

    /// Far more than anything here takes, on a machine that is busy with other things.
    const LONG: Duration = Duration::from_secs(600);

    /// A daemon's server, and where it listens.
    fn server(config: ServerConfig) -> (Server, String, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("s").to_str().unwrap().to_owned();
        let shim = Shim::new("default", Duration::ZERO);
        let service = TaskService::<Shell>::new(shim, CancellationToken::new());
        let server = Server::builder().config(config).add_service(v2::TaskServer::new(service));
        (server.bind(&address).unwrap().build().unwrap(), address, folder)
    }

    async fn answers(client: &TaskClient) -> bool {
        client.connect(ConnectRequest::default()).await.is_ok()
    }

    /// The 65th container of a group waited for ever: containerd opens a connection for each.
    #[tokio::test(flavor = "current_thread")]
    async fn a_group_of_many_containers_has_a_connection_for_each() {
        let (server, address, _folder) = server(limits());
        let serving = tokio::spawn(server.serve());
        let mut clients = Vec::new();
        for _ in 0..200 {
            let client = TaskClient::new(Client::connect(&address).await.unwrap());
            assert!(timeout(LONG, answers(&client)).await.unwrap());
            clients.push(client);
        }
        serving.abort();
    }

    /// A limit that was met was not said anywhere.
    #[tokio::test(flavor = "current_thread")]
    async fn the_library_says_that_connections_wait() {
        let said = Said::default();
        let _scope = tracing::subscriber::set_default(said.clone());
        let config = ServerConfig { max_connections: 1, ..limits() };
        let (server, address, _folder) = server(config);
        let serving = tokio::spawn(server.serve());
        let first = TaskClient::new(Client::connect(&address).await.unwrap());
        assert!(answers(&first).await);
        let _second = Client::connect(&address).await.unwrap();
        timeout(LONG, async {
            while !said.0.lock().unwrap().contains("new connections wait") {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        serving.abort();
    }

    /// Keeps what is said at level WARN.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<String>>);

    impl Subscriber for Said {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }
        fn event(&self, event: &Event<'_>) {
            event.record(&mut &*self);
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    impl Visit for &Said {
        fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
            self.0.lock().unwrap().push_str(&format!("{value:?} "));
        }
    }
}
