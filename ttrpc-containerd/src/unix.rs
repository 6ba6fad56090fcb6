//! Connections to Unix sockets, which is all that containerd and shims listen on.

use std::io;

use tokio::net::UnixStream;
use ttrpc::{Client, ClientConfig};

/// Connects to a socket: a path, `unix:///path`, or `@name` for an abstract name.
///
/// A program that makes all of its connections with this has no code of other kinds of addresses in it.
///
/// # Errors
/// Those of connecting, with the address.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn connect(address: &str) -> io::Result<Client> {
    let path = address.strip_prefix("unix://").unwrap_or(address);
    // The kernel's way to write an abstract name.
    let name = path.strip_prefix('@').map(|name| format!("\0{name}"));
    let stream = UnixStream::connect(name.as_deref().unwrap_or(path)).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot connect to {address}: {error}"))
    })?;
    Ok(Client::from_unix_stream(stream, ClientConfig::default()))
}

#[cfg(test)]
mod tests {
    use ttrpc::Server;

    use super::*;

    #[tokio::test]
    async fn all_ways_to_write_a_unix_socket_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s").to_str().unwrap().to_owned();
        let name = format!("@{path}");
        for (bound, addresses) in [
            (path.clone(), vec![path.clone(), format!("unix://{path}")]),
            (name.clone(), vec![name.clone(), format!("unix://{name}")]),
        ] {
            let server = Server::builder().bind(&format!("unix://{bound}")).unwrap();
            let serving = tokio::spawn(server.serve());
            for address in addresses {
                connect(&address).await.unwrap();
            }
            serving.abort();
        }
        let error = connect("/nowhere").await.unwrap_err();
        assert!(error.to_string().starts_with("cannot connect to /nowhere: "), "{error}");
    }
}
