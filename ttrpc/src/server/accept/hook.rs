//! What a program does with a connection before its first frame.

use std::{error::Error as StdError, future::poll_fn, task::Poll, time::Duration};

use async_trait::async_trait;
use tokio::time::timeout;

use crate::{
    Connection,
    contain::{Contained, Panicked, contain},
    transport::BoxFuture,
};

/// Checks each connection of a server before its first frame, such as by a handshake of the program's own.
///
/// [`ServerBuilder::on_connection`](crate::server::ServerBuilder::on_connection) adds one.
///
/// ```
/// use ttrpc::{Connection, async_trait, server::ConnectionHook};
/// use tokio::io::AsyncReadExt;
///
/// struct Token([u8; 16]);
///
/// #[async_trait]
/// impl ConnectionHook for Token {
///     async fn connected(
///         &self,
///         connection: &mut Connection,
///     ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///         let mut token = [0; 16];
///         connection.read_exact(&mut token).await?;
///         if token == self.0 { Ok(()) } else { Err("the token is wrong".into()) }
///     }
/// }
/// ```
#[async_trait]
pub trait ConnectionHook: Send + Sync + 'static {
    /// Looks at a connection, which is served if this returns `Ok` and closed otherwise.
    ///
    /// The connection can be read and written. What is read does not come to the server: read no more than
    /// the handshake. What the hook learns of the peer goes into [`Connection::set_peer`], for
    /// [`Context::peer`](crate::Context::peer) and snapshots; [`Connection::wrap`] puts another stream (TLS) in the
    /// place of the connection's. What is added to [`Connection::extensions`] is seen by handlers and interceptors, see
    /// [`Context::connection_extensions`](crate::Context::connection_extensions).
    ///
    /// It runs beside others, and counts for [`max_connections`](crate::ServerConfig::max_connections).
    ///
    /// # Errors
    /// Why the connection is refused, for the log and for observers.
    async fn connected(
        &self,
        connection: &mut Connection,
    ) -> Result<(), Box<dyn StdError + Send + Sync>>;
}

/// A server's hook, and the time that it has.
pub(in crate::server) struct Hook {
    pub(in crate::server) hook: Contained<Box<dyn ConnectionHook>>,
    pub(in crate::server) limit: Duration,
}

impl Hook {
    /// # Errors
    /// Why the connection is refused.
    pub(super) async fn run(&self, connection: &mut Connection) -> Result<(), String> {
        // Asked when it is first polled.
        let connected: BoxFuture<'_, Result<(), Box<dyn StdError + Send + Sync>>> =
            Box::pin(async { self.hook.connected(connection).await });
        let mut connected = Contained::new(connected);
        let caught = poll_fn(|cx| {
            // Its error is the program's as well, and is printed and dropped here.
            let polled = contain(|| connected.as_mut().poll(cx).map_err(|error| error.to_string()));
            polled.unwrap_or_else(|Panicked| Poll::Ready(Err("the hook panicked".to_owned())))
        });
        match timeout(self.limit, caught).await {
            Ok(result) => result,
            Err(_) => Err(format!("the hook took longer than {:?}", self.limit)),
        }
    }
}

debug_in_short!(Hook, limit);
