//! The only program of a virtual machine: its kernel starts it as `/init`. It loads the modules for vsock
//! and serves the conformance service to the host and, over a Unix socket, to itself. The host may ask it
//! to call back, to call itself, and to run the conformance suite over its kernel's own vsock.

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs,
        os::fd::OwnedFd,
        sync::{Arc, OnceLock},
        thread,
        time::Duration,
    };

    use rustix::{net::accept, system::finit_module};
    use tokio::runtime::Runtime;
    use ttrpc::{
        Connection, Server, Status,
        client::ConnectOptions,
        server::{Listener, PeerPolicy, Routes, ServerBuilder, ServerHandle},
    };
    use ttrpc_tests::{
        conformance::*,
        conformance_suite::{Report, all_cases, matches, run_case, trial},
        harness::{Handmade, echo_request},
        service::ConformanceService,
    };

    /// Where the guest listens: for the host, and for itself.
    const ADDRESSES: [&str; 2] = ["vsock://any:1024", "unix:///agent.sock"];

    /// Where the server has the descriptor of a listener.
    const BY_LISTENER: &str = "vsock://any:1026";

    /// Where the guest accepts by itself, and hands descriptors over.
    const BY_CONNECTION: &str = "vsock://any:1027";

    /// The guest, for itself.
    const ITSELF: [&str; 2] = ["vsock://local:1024", ADDRESSES[1]];

    /// Where the host listens for calls of its guest.
    const HOST: &str = "vsock://host:5000";

    /// How long a case may take in a machine that is played by another one.
    const PATIENCE: Duration = Duration::from_secs(900);

    /// What the host may ask besides the conformance service.
    #[derive(Default)]
    struct Guest {
        server: OnceLock<ServerHandle>,
    }

    impl Guest {
        fn routes(self: &Arc<Self>) -> Routes {
            let service = self;
            Routes::new("ttrpc.vm.Guest")
                .unary("Snapshot", service, |guest, _ctx, (): ()| {
                    let snapshot = guest.server.get().map(ServerHandle::snapshot);
                    Box::pin(
                        async move { Ok(snapshot.map_or_else(String::new, |s| s.to_string())) },
                    )
                })
                .unary("Peer", service, |_, ctx, (): ()| {
                    Box::pin(async move { Ok(ctx.peer().to_string()) })
                })
                .unary("CallBack", service, |_, _ctx, calls: u64| {
                    Box::pin(async move { echoes_of(HOST, calls).await })
                })
                .unary("CallItself", service, |_, _ctx, calls: u64| {
                    Box::pin(async move {
                        let mut echoes = 0;
                        for address in ITSELF {
                            echoes += echoes_of(address, calls).await?;
                        }
                        Ok(echoes)
                    })
                })
                .unary("Conform", service, |_, _ctx, chosen: String| {
                    Box::pin(async move { conform(&chosen).await })
                })
        }
    }

    /// Runs these cases, which go through the library's API, over the kernel's vsock. Returns the report, or
    /// fails with it. The server is one of their own: they wait until it has no calls.
    async fn conform(chosen: &str) -> Result<String, Status> {
        let service = Arc::new(ConformanceService::default());
        let server = Server::builder()
            .add_service(ConformanceServer::from_arc(service.clone()))
            .bind("vsock://local:2048")
            .and_then(ServerBuilder::build)
            .map_err(|error| Status::internal(error.to_string()))?;
        let handle = server.handle();
        service.observe(server.handle());
        let serving = tokio::spawn(server.serve());
        let mut lines = Vec::new();
        let mut report = Report::new(None::<fs::File>);
        for case in all_cases().iter().filter(|case| matches(chosen, &case.name)) {
            let row = run_case(case, &trial("vsock://local:2048", true), PATIENCE).await;
            report.add(&row, &mut lines)?;
        }
        handle.close().await;
        let ended = serving.await.map_err(|error| Status::internal(error.to_string()))?;
        ended.map_err(|error| Status::internal(error.to_string()))?;
        let is_well = report.finish(&mut lines)?;
        let lines = String::from_utf8_lossy(&lines).into_owned();
        if is_well { Ok(lines) } else { Err(Status::failed_precondition(lines)) }
    }

    /// Calls a server so often. Returns how many calls brought back what they sent.
    async fn echoes_of(address: &str, calls: u64) -> Result<u64, Status> {
        let options = ConnectOptions::new().retry_for(PATIENCE);
        let client = options.connect(address).await;
        let client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        let server = ConformanceClient::new(client);
        let mut echoes = 0;
        for call in 0..calls {
            let payload = call.to_be_bytes();
            echoes += u64::from(server.echo(echo_request(payload)).await?.payload == payload);
        }
        Ok(echoes)
    }

    /// Loads the kernel's modules in the order of their list.
    fn load_modules() {
        let list = fs::read_to_string("/modules.list").expect("the image has a list of modules");
        for name in list.lines() {
            let file =
                fs::File::open(format!("/modules/{name}")).expect("the image has the module");
            finit_module(file, c"", 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// A socket that listens, as a program has it that did not use ttrpc to make it.
    fn descriptor(address: &str) -> OwnedFd {
        let socket = Listener::bind(address).expect("the guest has vsock").into_fd();
        socket.expect("it is a socket")
    }

    /// Accepts connections, and hands each to the server.
    fn hand_over(runtime: &Runtime, socket: OwnedFd, server: ServerHandle) {
        let runtime = runtime.handle().clone();
        thread::spawn(move || {
            let _context = runtime.enter();
            while let Ok(connected) = accept(&socket) {
                let connection = Connection::from_fd(connected).expect("it is connected");
                let served = runtime.block_on(server.serve_connection(connection));
                served.expect("the server runs");
            }
        });
    }

    pub(crate) fn main() {
        load_modules();
        let runtime = Runtime::new().expect("the runtime starts");
        let service = Arc::new(ConformanceService::default());
        let guest = Arc::new(Guest::default());
        let builder = Server::builder()
            .add_service(ConformanceServer::from_arc(service.clone()))
            .add_service(Handmade(guest.routes()))
            .listener(descriptor(BY_LISTENER))
            // The host alone over vsock, and itself.
            .allow_peers(
                PeerPolicy::machine(2).or(PeerPolicy::machine(1)).or(PeerPolicy::same_user()),
            );
        let bound = ADDRESSES.into_iter().try_fold(builder, ServerBuilder::bind);
        let server = bound.and_then(ServerBuilder::build).expect("the guest listens");
        service.observe(server.handle());
        guest.server.get_or_init(|| server.handle());
        hand_over(&runtime, descriptor(BY_CONNECTION), server.handle());
        println!("listening");
        let ended = runtime.block_on(server.serve());
        panic!("serving ends only with the machine: {ended:?}");
    }
}

fn main() {
    #[cfg(target_os = "linux")]
    linux::main();
}
