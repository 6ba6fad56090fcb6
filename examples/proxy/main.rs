//! A transparent proxy: `ttrpc-proxy --listen ADDRESS --upstream ADDRESS`. See the README beside this file.

use std::{error::Error, time::Duration};

use clap::Parser;
use ttrpc::{
    Client, Connection, Context, RawEnd, Server, Status, async_trait,
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
async fn serve(connection: Connection, upstream: String) -> Result<(), ttrpc::Error> {
    let upstream = Client::connect(&upstream).await?;
    let proxy = Proxy { upstream: upstream.clone() };
    let server = Server::builder().fallback(proxy).connection(connection).build()?;
    let gone = async { drop(upstream.closed().await) };
    let served = server.serve_until(gone, Duration::from_secs(1)).await;
    upstream.close();
    served
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { listen, upstream } = Arguments::parse();
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
            if let Err(error) = serve(connection, upstream).await {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}
