//! Frames at the limit of 4 MiB, and beyond it.

use super::{FRAME_BYTES_MAX, echo, pattern, want_code};
use crate::{
    bare::read_header,
    connection::{Connection, Options},
    message::{Failure, codes},
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail, passed},
};

/// What a Request for Echo adds to its payload: service (2 + 32 bytes), method (2 + 4), and two
/// headers of 5 bytes, for the payload of the Request and for the payload of the EchoRequest therein.
const ECHO_REQUEST_OVERHEAD: usize = 50;

/// What a Response adds: two headers of 5 bytes, and 2 bytes for an empty status, which some servers
/// send.
const ECHO_RESPONSE_OVERHEAD: usize = 12;

pub(super) async fn large_unary(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    trial.step("a request of 4 MiB");
    echo(&connection, pattern(FRAME_BYTES_MAX - ECHO_REQUEST_OVERHEAD, 1)).await?;
    trial.step("a reply of 4 MiB");
    let size = FRAME_BYTES_MAX - ECHO_RESPONSE_OVERHEAD;
    match connection.echo(&Options::default(), Vec::new(), size as u32).await {
        Ok(payload) if payload.len() == size => passed(),
        Ok(payload) => fail(format!("a reply of {size} bytes came with {}", payload.len())),
        Err(failure) => Err(Verdict::from(failure).in_part(&format!("a reply of {size} bytes"))),
    }
}

async fn echo_too_long(connection: &dyn Connection) -> Result<Vec<u8>, Failure> {
    connection.echo(&Options::default(), vec![0; FRAME_BYTES_MAX], 0).await
}

/// Whether a request over the limit was refused. This library says RESOURCE_EXHAUSTED, as gRPC does.
fn want_refusal<T>(trial: &Trial, result: &Result<T, Failure>) -> Outcome<()> {
    match result {
        Ok(_) => fail("success"),
        Err(_) if trial.is_strict() => want_code(result, codes::RESOURCE_EXHAUSTED),
        Err(_) => Ok(()),
    }
}

/// Sends a request over the limit to a bare socket, to see whether any of it is written, then to the
/// server.
pub(super) async fn oversize_refused_locally(trial: Trial) -> Outcome {
    let (bare, mut socket) = trial.connect_bare().await?;
    trial.step("a request over 4 MiB towards a bare socket");
    let refused = tokio::select! {
        refused = echo_too_long(&*bare) => refused,
        begun = trial.within("the next frame", read_header(&mut socket)) => {
            let (len, remote) = (begun??.len, remote_refusal(&trial).await);
            return fail(format!("a frame of {len} bytes was begun; {remote}"));
        }
    };
    want_refusal(&trial, &refused)?;
    // The next frame on the wire shows that nothing of the refused one went before it.
    trial.step("the frame after the refused one");
    let options = Options::default();
    let next = tokio::select! {
        header = trial.within("the next frame", read_header(&mut socket)) => header??,
        result = bare.echo(&options, Vec::new(), 0) => {
            return fail(format!("nobody answers, and yet: {}", describe(&result)));
        }
    };
    let (len, id) = (next.len, next.stream_id);
    if len as usize > FRAME_BYTES_MAX || (trial.is_strict() && id != 1) {
        return fail(format!("the next frame has {len} bytes and the stream id {id}"));
    }
    trial.step("the same with the server");
    let connection = trial.connect().await?;
    want_refusal(&trial, &echo_too_long(&*connection).await)?;
    trial.alive(&connection, "after the refusal").await?;
    Ok(format!("{}; the next call has stream id {id}", describe(&refused)))
}

/// Tells what the server makes of a frame over the limit.
async fn remote_refusal(trial: &Trial) -> String {
    let outcome = async {
        let connection = trial.connect().await?;
        let answer = trial.within("Echo", echo_too_long(&*connection)).await?;
        trial.alive(&connection, "after that").await?;
        Ok(describe(&answer))
    };
    match outcome.await {
        Ok(answer) => format!("the server answered it with {answer}, and the connection lived on"),
        Err(Verdict::Fail(text) | Verdict::Unsupported(text)) => text,
    }
}

pub(super) async fn oversize_reply(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let options = Options::default();
    let observed =
        match trial.within("Echo", connection.echo(&options, Vec::new(), 5 << 20)).await? {
            Ok(payload) => return fail(format!("success, with {} bytes", payload.len())),
            Err(Failure::Status(status)) if status.code != codes::UNAVAILABLE => {
                Failure::Status(status).to_string()
            }
            Err(failure) => return fail(failure.to_string()),
        };
    match trial.alive(&connection, "after that").await {
        Ok(()) => Ok(observed),
        Err(Verdict::Fail(text) | Verdict::Unsupported(text)) => {
            fail(format!("{observed}; then {text}"))
        }
    }
}
