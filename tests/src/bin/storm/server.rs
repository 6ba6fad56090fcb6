//! This library's server of the storm.

use std::{
    fs::{File, OpenOptions},
    future::pending,
    io::Write,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};
use ttrpc::{
    Context, Server, Status,
    server::{Routes, Service},
};
use ttrpc_tests::{
    conformance::*,
    harness::{SERVICE, patient_server},
};

/// Notes the id with which the payload begins, in one write, so that a kill does not tear it.
struct Executed {
    file: File,
    /// How often a call is executed.
    times: usize,
}

impl Executed {
    async fn echo(&self, _: &Context, request: EchoRequest) -> Result<EchoResponse, Status> {
        if let Some(id) = request.payload.first_chunk::<8>() {
            let written = (&self.file).write_all(&id.repeat(self.times));
            written.map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(EchoResponse { payload: request.payload })
    }
}

impl Service for Executed {
    fn into_routes(self) -> Routes {
        let service = Arc::new(self);
        Routes::new(SERVICE)
            .unary("Echo", &service, |service: &Executed, ctx, request: EchoRequest| {
                Box::pin(service.echo(ctx, request))
            })
            .unary("Wait", &service, |_, _, _: KeyRequest| {
                Box::pin(pending::<Result<Empty, Status>>())
            })
    }
}

/// Serves until SIGTERM.
pub async fn run(address: &str, executed: &Path, times: usize) -> Result<(), String> {
    let file = OpenOptions::new().append(true).create(true).open(executed);
    let file = file.map_err(|error| format!("{}: {error}", executed.display()))?;
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    // That the machine does not run a client for a while is nobody's failure.
    let server = Server::builder().config(patient_server());
    let server = server.add_service(Executed { file, times }).bind(address);
    let server = server.and_then(|server| server.build()).map_err(|error| error.to_string())?;
    println!("listening {address}");
    let stopped = async move {
        terminated.recv().await;
    };
    let served = server.serve_until(stopped, Duration::from_millis(200)).await;
    served.map_err(|error| error.to_string())
}
