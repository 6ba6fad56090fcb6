//! The handshake of hybrid vsock: a virtual machine's ports behind its hypervisor's Unix socket.
//!
//! Firecracker, Cloud Hypervisor and Dragonball offer a guest's vsock to the host as a Unix socket. A
//! client sends `CONNECT <port>` and a line feed in one write, and the hypervisor answers `OK <number>`
//! and a line feed once the guest has accepted; if nobody listens there it closes the connection. What
//! follows the line belongs to the guest, so it is not read here.
//! The other way, from the guest to port N of the host, the hypervisor connects to the Unix socket
//! `<path>_N`.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{Instant, timeout},
};

use crate::Error;

/// Bytes of the hypervisor's answer, its line feed included. `OK 4294967295` has 14. An error's text
/// names the number.
const MAX_ANSWER_LEN: usize = 32;

/// Where a server on the host listens for what a guest sends to a port of the host.
pub(crate) fn listening_path(path: &Path, port: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("_{port}"));
    name.into()
}

/// Connects to a port of a guest. The handshake may take `limit`, and ends at `end` at the latest.
///
/// # Errors
/// [`Error::Connect`], [`Error::HandshakeRefused`], [`Error::HandshakeAnswer`] and
/// [`Error::HandshakeTimeout`].
pub(crate) async fn connect(
    address: &str,
    path: &Path,
    port: u32,
    limit: Duration,
    end: Option<Instant>,
) -> Result<UnixStream, Error> {
    let address = || address.to_owned();
    let failed = |source| Error::Connect { address: address(), source };
    let mut stream = UnixStream::connect(path).await.map_err(failed)?;
    let limit = end.map_or(limit, |end| limit.min(whole_millis_until(end)));
    let mut line = Vec::new();
    let handshake = timeout(limit, shake_hands(&mut stream, port, &mut line)).await;
    let answer = line.escape_ascii().to_string();
    match handshake {
        Ok(Ok(Answer::Accepted)) => Ok(stream),
        Ok(Ok(Answer::Nothing)) => Err(Error::HandshakeRefused { address: address() }),
        Ok(Ok(Answer::Wrong(reason))) => {
            Err(Error::HandshakeAnswer { address: address(), answer, reason })
        }
        Ok(Err(source)) => Err(failed(source)),
        Err(_) => Err(Error::HandshakeTimeout { address: address(), limit, answer }),
    }
}

/// Returns the time that is left, without the fractions, which nobody wants to read in an error.
fn whole_millis_until(end: Instant) -> Duration {
    let left = end.saturating_duration_since(Instant::now());
    Duration::new(left.as_secs(), left.subsec_millis() * 1_000_000)
}

enum Answer {
    Accepted,
    /// The connection was closed instead of answered.
    Nothing,
    /// For this reason it means nothing.
    Wrong(&'static str),
}

/// Leaves in `line` what has come of the answer, without its line feed.
async fn shake_hands(stream: &mut UnixStream, port: u32, line: &mut Vec<u8>) -> io::Result<Answer> {
    // A new socket takes so few bytes at once, so this is one write.
    if let Err(error) = stream.write_all(format!("CONNECT {port}\n").as_bytes()).await {
        return if is_closed(&error) { Ok(Answer::Nothing) } else { Err(error) };
    }
    while line.len() < MAX_ANSWER_LEN {
        // A byte at a time: the next one might be the guest's.
        match stream.read_u8().await {
            Ok(b'\n') if is_ok(line) => return Ok(Answer::Accepted),
            Ok(b'\n') => return Ok(Answer::Wrong("this is not `OK <number of 32 bits>`")),
            Ok(byte) => line.push(byte),
            Err(error) if is_closed(&error) && line.is_empty() => return Ok(Answer::Nothing),
            Err(error) if is_closed(&error) => {
                return Ok(Answer::Wrong("the connection ended before the line feed"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Answer::Wrong("no line feed is among its first 32 bytes"))
}

fn is_ok(line: &[u8]) -> bool {
    // It is a port: 32 bits. `parse` takes a sign as well.
    let number = line.strip_prefix(b"OK ").filter(|number| number.iter().all(u8::is_ascii_digit));
    let number = number.and_then(|number| std::str::from_utf8(number).ok());
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Returns whether an error says that the other side has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_ok_and_a_number() {
        for line in [&b"OK 1073741824"[..], b"OK 0", b"OK 4294967295", b"OK 0000000000042"] {
            assert!(is_ok(line), "{}", line.escape_ascii());
        }
        for line in [
            &b""[..],
            b"OK",
            b"OK ",
            b"OK 1a",
            b"1",
            b"ok 1",
            b"OK +1",
            b"OK -1",
            b"OK 1 ",
            b"OK  1",
            b"OK 4294967296",
            b"OK 99999999999999999999",
        ] {
            assert!(!is_ok(line), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn only_some_errors_say_that_the_other_side_has_closed_the_connection() {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, PermissionDenied, UnexpectedEof};
        assert!(
            [BrokenPipe, ConnectionReset, UnexpectedEof]
                .iter()
                .all(|kind| is_closed(&(*kind).into()))
        );
        assert!(!is_closed(&PermissionDenied.into()));
    }
}
