//! A transparent proxy: `ttrpc-proxy --listen ADDRESS --upstream ADDRESS`. See the README beside this file.

use std::{error::Error, process::ExitCode, time::Duration};

use clap::Parser;
use ttrpc::{
    Client, ClientConfig, Connection, Context, RawEnd, Server, ServerConfig, Status, async_trait,
    client::ConnectOptions,
    server::{Fallback, FallbackCall, Listener},
};

/// Passes every ttrpc call on to another server.
#[derive(Parser)]
struct Arguments {
    /// Where clients connect: unix:///path, vsock://CID:PORT, hvsock:///path:PORT or tcp://HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// The server that answers them.
    #[arg(long, value_name = "ADDRESS")]
    upstream: String,
    /// How long a stream may make no progress, on either side, before it fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    stall_timeout: u64,
}

struct Proxy {
    upstream: Client,
}

#[async_trait]
impl Fallback for Proxy {
    async fn call(&self, ctx: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
        call.pass_on(ctx, &self.upstream).await
    }
}

/// Serves one client over a connection of its own to the server, so that each side sees the other one go.
async fn serve(
    connection: Connection,
    upstream: String,
    stall_timeout: Duration,
) -> Result<(), ttrpc::Error> {
    let config = ClientConfig::default().stall_timeout(stall_timeout);
    // A call that the client gives up is given up at the server.
    let options = ConnectOptions::new().config(config).cancel_at_server();
    let upstream = options.connect(&upstream).await?;
    let proxy = Proxy { upstream: upstream.clone() };
    let config = ServerConfig::default().stall_timeout(stall_timeout);
    let server = Server::builder().config(config).fallback(proxy).connection(connection).build()?;
    let gone = async { drop(upstream.closed().await) };
    let served = server.serve_until(gone, Duration::from_secs(1)).await;
    upstream.close();
    served
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ttrpc-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let Arguments { listen, upstream, stall_timeout } = Arguments::parse();
    let stall_timeout = Duration::from_secs(stall_timeout);
    let mut acceptor = Listener::bind(&listen)?.start()?;
    println!("listening {listen}");
    while let Some(connection) = acceptor.accept().await {
        let upstream = upstream.clone();
        let Ok(connection) = connection else {
            // There are too few descriptors, usually.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(async move {
            if let Err(error) = serve(connection, upstream, stall_timeout).await {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}
