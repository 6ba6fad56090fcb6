//! The crate `ttrpc` of the containerd project, with threads instead of tasks and without streams.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use bench_load::BlockingContender;
use ttrpc::{
    context::Context,
    sync::{Client, Server, TtrpcContext},
};

mod generated {
    #![allow(clippy::all, unused)]
    include!(concat!(env!("OUT_DIR"), "/mod.rs"));
}
use generated::{
    unary::EchoMsg,
    unary_ttrpc::{Bench, BenchClient, create_bench},
};

struct Service;

impl Bench for Service {
    fn echo(&self, _ctx: &TtrpcContext, message: EchoMsg) -> ttrpc::Result<EchoMsg> {
        Ok(message)
    }
}

/// ttrpc-rust with threads.
#[derive(Debug)]
pub struct TtrpcRustSync;

impl BlockingContender for TtrpcRustSync {
    type Connection = BenchClient;

    fn serve(path: PathBuf) {
        let server = Server::new().bind(&format!("unix://{}", path.display()));
        let service = create_bench(Arc::new(Service));
        let mut server = server.expect("the path is free").register_service(service);
        server.start().expect("a fresh socket can be served");
        loop {
            thread::park();
        }
    }

    fn connect(path: &Path) -> BenchClient {
        let client = Client::connect(&format!("unix://{}", path.display()));
        BenchClient::new(client.expect("the server is up"))
    }

    fn echo(connection: &BenchClient, payload: Vec<u8>) -> Vec<u8> {
        let message = EchoMsg { payload, ..Default::default() };
        connection.echo(Context::default(), &message).expect("an echo succeeds").payload
    }
}
