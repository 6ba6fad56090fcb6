//! The crate `tarpc` with bincode over a Unix socket. It has no streams.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use bench_load::{Connection, Contender};
use bytes::Bytes;
use futures::StreamExt;
use tarpc::{
    client::Config,
    context::{self, Context},
    serde_transport::unix,
    server::{BaseChannel, Channel},
    tokio_serde::formats::Bincode,
};

mod service {
    #![allow(missing_docs)]
    use bytes::Bytes;

    #[tarpc::service]
    pub(crate) trait Bench {
        async fn echo(payload: Bytes) -> Bytes;
    }
}
use service::{Bench, BenchClient};

#[derive(Clone)]
struct Service;

impl Bench for Service {
    async fn echo(self, _ctx: Context, payload: Bytes) -> Bytes {
        payload
    }
}

/// tarpc.
#[derive(Debug)]
pub struct Tarpc;

impl Contender for Tarpc {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        let mut incoming = unix::listen(path, Bincode::default).await.expect("the path is free");
        while let Some(Ok(transport)) = incoming.next().await {
            let calls = BaseChannel::with_defaults(transport).execute(Service.serve());
            tokio::spawn(calls.for_each(|call| async {
                tokio::spawn(call);
            }));
        }
    }

    async fn connect(path: PathBuf) -> Caller {
        let transport = unix::connect(path, Bincode::default).await.expect("the server is up");
        Caller(BenchClient::new(Config::default(), transport).spawn())
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Caller(BenchClient);

impl Connection for Caller {
    const HAS_STREAMS: bool = false;

    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        // Its default is ten seconds; large calls in large numbers may take longer.
        let mut context = context::current();
        context.deadline = Instant::now() + Duration::from_secs(60);
        self.0.echo(context, payload.into()).await.expect("an echo succeeds").into()
    }
}
