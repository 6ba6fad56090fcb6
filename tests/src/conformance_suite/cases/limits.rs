//! Frames at the limit of 4 MiB, and beyond it.

use std::future::IntoFuture;

use tokio::{io::AsyncReadExt, net::UnixStream};
use ttrpc::{Client, ClientConfig, Code, Status};

use super::{FRAME_BYTES_MAX, echo, pattern, want_code};
use crate::{
    conformance::*,
    conformance_suite::{
        Outcome, Trial, Verdict, fail, passed,
        verdict::{describe, describe_status},
    },
};

/// What a Request for Echo adds to its payload: service (2 + 32 bytes), method (2 + 4), and two
/// headers of 5 bytes, for the payload of the Request and for the payload of the EchoRequest therein.
const ECHO_REQUEST_OVERHEAD: usize = 50;

/// What a Response adds: two headers of 5 bytes, and 2 bytes for an empty status, which some servers
/// send.
const ECHO_RESPONSE_OVERHEAD: usize = 12;

pub(super) async fn large_unary(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    trial.step("a request of 4 MiB");
    echo(&conformance, pattern(FRAME_BYTES_MAX - ECHO_REQUEST_OVERHEAD, 1)).await?;
    trial.step("a reply of 4 MiB");
    let size = FRAME_BYTES_MAX - ECHO_RESPONSE_OVERHEAD;
    let request = EchoRequest { payload: Vec::new(), response_size: size as u32 };
    match conformance.echo(request).await {
        Ok(reply) if reply.payload.len() == size => passed(),
        Ok(reply) => fail(format!("a reply of {size} bytes came with {}", reply.payload.len())),
        Err(status) => Err(Verdict::from(status).in_part(&format!("a reply of {size} bytes"))),
    }
}

fn too_long() -> EchoRequest {
    EchoRequest { payload: vec![0; FRAME_BYTES_MAX], response_size: 0 }
}

async fn read_header(trial: &Trial, socket: &mut UnixStream) -> Outcome<(u32, u32)> {
    let mut header = [0; 10];
    let reading = trial.within("the next frame", socket.read_exact(&mut header)).await?;
    reading.or_else(|error| fail(format!("the next frame: {error}")))?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    Ok((word(0), word(4)))
}

/// Sends a request over the limit to a bare socket, to see whether any of it is written, then to the
/// server.
pub(super) async fn oversize_refused_locally(trial: Trial) -> Outcome {
    let (here, mut there) = UnixStream::pair().map_err(|error| error.to_string())?;
    let bare = ConformanceClient::new(Client::from_unix_stream(here, ClientConfig::default()));
    trial.step("a request over 4 MiB towards a bare socket");
    let refused = tokio::select! {
        refused = bare.echo(too_long()).into_future() => refused,
        begun = read_header(&trial, &mut there) => {
            return fail(format!("a frame of {} bytes was begun", begun?.0));
        }
    };
    want_code(&refused, Code::ResourceExhausted)?;
    // The next frame on the wire shows that nothing of the refused one went before it.
    let (len, id) = tokio::select! {
        header = read_header(&trial, &mut there) => header?,
        result = bare.echo(EchoRequest::default()).into_future() => {
            return fail(format!("nobody answers, and yet: {}", describe(&result)));
        }
    };
    if len as usize > FRAME_BYTES_MAX || id != 1 {
        return fail(format!("the next frame has {len} bytes and the stream id {id}"));
    }
    trial.step("the same with the server");
    let conformance = trial.connect().await?;
    want_code(&conformance.echo(too_long()).await, Code::ResourceExhausted)?;
    trial.alive(&conformance, "after the refusal").await?;
    Ok(describe(&refused))
}

pub(super) async fn oversize_reply(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let request = EchoRequest { payload: Vec::new(), response_size: 5 << 20 };
    let result: Result<_, Status> = trial.within("Echo", conformance.echo(request)).await?;
    let Err(status) = result else { return fail("success") };
    let observed = describe_status(&status);
    trial.alive(&conformance, "after that").await.map_err(|verdict| verdict.in_part(&observed))?;
    if status.code() == Code::Unavailable { fail(observed) } else { Ok(observed) }
}
