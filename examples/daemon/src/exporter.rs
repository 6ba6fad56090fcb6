//! Metrics for Prometheus, over HTTP on a thread of its own.

use std::{net::SocketAddr, thread, time::Duration};

use tiny_http::{Header, Response, Server};

use crate::Error;

/// Answers each request with what `render` returns. A process that takes over from another one gets the address when
/// that one has ended, so it tries until then.
pub(crate) fn start(
    address: SocketAddr,
    is_successor: bool,
    render: impl Fn() -> String + Send + 'static,
) -> Result<(), Error> {
    let first = match Server::http(address) {
        Ok(server) => Some(server),
        Err(_) if is_successor => None,
        Err(error) => return Err(format!("metrics at {address}: {error}").into()),
    };
    thread::spawn(move || {
        let server = first.unwrap_or_else(|| wait_for(address));
        let text = "Content-Type: text/plain; version=0.0.4";
        let text: Header = text.parse().expect("it is a header");
        for request in server.incoming_requests() {
            // A client that has gone needs no answer.
            let _ = request.respond(Response::from_string(render()).with_header(text.clone()));
        }
    });
    Ok(())
}

fn wait_for(address: SocketAddr) -> Server {
    loop {
        match Server::http(address) {
            Ok(server) => return server,
            Err(_) => thread::sleep(Duration::from_millis(500)),
        }
    }
}
