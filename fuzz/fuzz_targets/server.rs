//! Bytes at a live server: it does not panic, its answers are frames that it may send, a call behind
//! whole frames is still answered, and when its client goes away nothing is left.
#![no_main]

use std::{collections::HashSet, sync::Arc, time::Duration};

use libfuzzer_sys::fuzz_target;
use tokio::{io::duplex, time::sleep};
use ttrpc::{
    Error, Server, ServerConfig, Status,
    prost::Message,
    proto::message::decode_response,
    server::{Routes, ServerHandle, Service, StreamReceiver},
};
use ttrpc_fuzz::{PATIENCE, Peer, Script, frame, frames, request, run};

/// An id that the fuzzer's frames get only by chance.
const LAST_ID: u32 = u32::MAX;

struct Fuzzed;

impl Service for Fuzzed {
    fn into_routes(self) -> Routes {
        let service = &Arc::new(self);
        unary_methods(Routes::new("f"), service)
            .server_streaming("g", service, |_, _, request: String, mut replies| {
                Box::pin(async move {
                    for _ in 0..request.len() % 40 {
                        replies.send(request.clone()).await?;
                    }
                    Ok(())
                })
            })
            .client_streaming("c", service, |_, _, mut requests: StreamReceiver<String>| {
                Box::pin(async move {
                    let mut all = String::new();
                    while let Some(request) = requests.recv().await? {
                        all.push_str(&request);
                    }
                    Ok(all)
                })
            })
            .bidi_streaming(
                "x",
                service,
                |_, _, mut requests: StreamReceiver<String>, mut replies| {
                    Box::pin(async move {
                        while let Some(request) = requests.recv().await? {
                            replies.send(request).await?;
                        }
                        Ok(())
                    })
                },
            )
            .client_streaming("h", service, |_, _, _requests: StreamReceiver<()>| {
                Box::pin(async {
                    sleep(Duration::from_secs(10)).await;
                    Ok(())
                })
            })
    }
}

fn unary_methods(routes: Routes, service: &Arc<Fuzzed>) -> Routes {
    routes
        .unary("e", service, |_, _, request: String| Box::pin(async { Ok(request) }))
        .unary("s", service, |_, _, request: String| {
            Box::pin(async move {
                sleep(Duration::from_millis(request.len() as u64 * 100)).await;
                Ok(())
            })
        })
        .unary("w", service, |_, _, _: ()| Box::pin(std::future::pending::<Result<(), Status>>()))
        .unary("t", service, |_, ctx, _: ()| {
            Box::pin(async move {
                ctx.cancelled().await;
                Err::<(), _>(Status::cancelled("as told"))
            })
        })
        // Does not run the panic hook, which ends the fuzzer.
        .unary("p", service, |_, _, _: ()| {
            Box::pin(async {
                std::panic::resume_unwind(Box::new("as asked")) as Result<(), Status>
            })
        })
}

/// Limits so small that a few frames reach them.
fn config() -> ServerConfig {
    ServerConfig::default()
        .max_calls_per_connection(6)
        .max_calls(6)
        .request_bytes_per_connection(300)
        .request_bytes(300)
        .inbox_bytes_per_connection(100)
        .inbox_bytes(100)
        .send_queue_frames(4)
        .send_queue_bytes(200)
        .stream_inbox_messages(3)
        .stream_inbox_bytes(60)
}

/// Checks that these are Responses and Data, and no Data behind a stream's end. Gives back which
/// ids got a Response.
///
/// The last frame may be cut off: the client has not waited for it.
fn check_replies(received: &[u8]) -> HashSet<u32> {
    let (frames, _cut_off) = frames(received);
    let (mut answered, mut ended_well) = (HashSet::new(), HashSet::new());
    for frame in &frames {
        // An id may be refused before a stream has it, and again when its stream has ended.
        match (frame.kind, frame.flags) {
            (2, 0) => {
                let response = decode_response(frame.data).expect("a Response decodes");
                assert!(response.is_err() || ended_well.insert(frame.id), "{frame:?}");
                answered.insert(frame.id);
            }
            (3, 0) => {
                assert!(!ended_well.contains(&frame.id), "Data behind the end: {frame:?}");
                String::decode(frame.data).expect("the reply decodes");
            }
            (3, 5) => assert!(frame.data.is_empty() && ended_well.insert(frame.id), "{frame:?}"),
            _ => panic!("not a server's frame: {frame:?}"),
        }
    }
    answered
}

fn nothing_is_in_flight(handle: &ServerHandle) {
    assert_eq!(handle.connections(), 0);
    assert_eq!(handle.calls_in_flight(), 0);
    assert_eq!(handle.calls_in_flight(), 0);
}

async fn serve(script: Script<'_>) {
    let (here, there) = duplex(script.pipe_len());
    let builder = Server::builder().config(config()).add_service(Fuzzed).io(there);
    let server = builder.build().expect("there is something to serve");
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    let last = frame(LAST_ID, 1, 0, &request("e", b"", 0));
    let is_written = peer.play(script, &last).await;
    assert!(is_written || script.reads_late(), "a peer that reads is read");
    let received = peer.end().await;
    let answered = check_replies(&received);
    let must_answer = script.is_framed() && is_written;
    assert!(!must_answer || answered.contains(&LAST_ID), "the last call is answered");
    let end = tokio::time::timeout(PATIENCE, serving).await.expect("the server ends");
    match end.expect("without a panic") {
        // The script's bytes may end within a frame.
        Ok(()) | Err(Error::ConnectionFailed { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    nothing_is_in_flight(&handle);
}

fuzz_target!(|input: &[u8]| {
    if let Some(script) = Script::new(input) {
        run(serve(script));
    }
});
