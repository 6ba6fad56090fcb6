//! The only program of a virtual machine: its kernel starts it as `/init`. It loads the modules for vsock
//! and serves the conformance service to the host, which may also ask it to call back.

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs,
        sync::{Arc, OnceLock},
        time::Duration,
    };

    use rustix::system::finit_module;
    use ttrpc::{
        Server, Status,
        client::ConnectOptions,
        server::{Routes, ServerHandle},
    };
    use ttrpc_tests::{
        conformance::*,
        harness::{Handmade, echo_request},
        service::ConformanceService,
    };

    /// Where the host listens for calls of its guest.
    const HOST: &str = "vsock://host:5000";

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
                    Box::pin(async move { echoes_of("vsock://local:1024", calls).await })
                })
        }
    }

    /// Calls a server so often. Returns how many calls brought back what they sent.
    async fn echoes_of(address: &str, calls: u64) -> Result<u64, Status> {
        let options = ConnectOptions::new().retry_for(Duration::from_secs(10));
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

    pub(crate) fn main() {
        load_modules();
        let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
        let service = Arc::new(ConformanceService::default());
        let guest = Arc::new(Guest::default());
        let server = Server::builder()
            .add_service(ConformanceServer::from_arc(service.clone()))
            .add_service(Handmade(guest.routes()))
            .bind("vsock://any:1024")
            .and_then(|builder| builder.build())
            .expect("the guest listens");
        service.observe(server.handle());
        guest.server.get_or_init(|| server.handle());
        println!("listening");
        let ended = runtime.block_on(server.serve());
        panic!("serving ends only with the machine: {ended:?}");
    }
}

fn main() {
    #[cfg(target_os = "linux")]
    linux::main();
}
