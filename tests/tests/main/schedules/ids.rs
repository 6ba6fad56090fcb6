//! Ids that run out: a client may give them in any way, up to the last one.
//!
//! The client is played, and its ids are drawn at random, most of them near the end. A server takes an id that is odd
//! and higher than each one before it. It refuses every other Request, and goes on with the streams that are open.

use proptest::{collection::vec, prelude::*, sample::Index};
use ttrpc::ServerConfig;
use ttrpc_tests::{
    conformance::Chunk,
    harness::*,
    wire::{Frame, RESPONSE, Watchdog},
};

use super::in_virtual_time;

/// What the client does next. An index chooses one of the streams that are open.
#[derive(Clone, Debug)]
enum Step {
    Echo(u32),
    OpenStream(u32),
    /// A message on a stream, which is sent back.
    Message(Index),
    /// The id of an open stream once more, which ends that stream.
    Reuse(Index),
    Close(Index),
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => u32::MAX - 40..=u32::MAX,
        2 => Just(u32::MAX),
        2 => 0u32..20,
        1 => any::<u32>(),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => id().prop_map(Step::Echo),
        3 => id().prop_map(Step::OpenStream),
        2 => any::<Index>().prop_map(Step::Message),
        1 => any::<Index>().prop_map(Step::Reuse),
        1 => any::<Index>().prop_map(Step::Close),
    ];
    vec(step, 1..40)
}

async fn ids_are_taken_while_they_rise(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let _watchdog = Watchdog::default();
    let (server, mut peer) = played_client(ServerConfig::default());
    let (mut last, mut open) = (0, Vec::new());
    for step in steps {
        let chosen = |index: &Index| (!open.is_empty()).then(|| index.index(open.len()));
        match step {
            Step::Echo(id) | Step::OpenStream(id) => {
                let is_stream = matches!(step, Step::OpenStream(_));
                let request = match is_stream {
                    true => open_stream(id, "Exchange"),
                    false => call(id, "Echo", &echo_request([])),
                };
                let is_taken = id % 2 == 1 && id > last;
                peer.send(request).await;
                if is_taken {
                    last = id;
                    if is_stream {
                        open.push(id);
                        continue;
                    }
                }
                let answer = peer.receive().await;
                let code = if is_taken { 0 } else { code::INVALID_ARGUMENT };
                prop_assert_eq!((answer.id, answer.kind, answer.code()), (id, RESPONSE, code));
                open.retain(|open| *open != id);
            }
            Step::Message(index) => {
                let Some(at) = chosen(&index) else { continue };
                let message = Frame::message(open[at], &Chunk { sequence: 7, payload: vec![1; 9] });
                peer.send(message.clone()).await;
                prop_assert_eq!(peer.receive().await, message);
            }
            Step::Reuse(index) => {
                let Some(at) = chosen(&index) else { continue };
                let id = open.remove(at);
                peer.send(call(id, "Echo", &echo_request([]))).await;
                let answer = peer.receive().await;
                prop_assert_eq!((answer.id, answer.code()), (id, code::INVALID_ARGUMENT));
            }
            Step::Close(index) => {
                let Some(at) = chosen(&index) else { continue };
                let id = open.remove(at);
                peer.send(Frame::end(id)).await;
                prop_assert_eq!(peer.receive().await, Frame::end(id));
            }
        }
    }
    prop_assert!(peer.is_quiet().await, "every answer was expected");
    prop_assert_eq!(server.handle.calls_in_flight(), open.len());
    Ok(())
}

#[test]
fn a_server_takes_ids_that_rise_up_to_the_last_one() {
    in_virtual_time(steps(), ids_are_taken_while_they_rise);
}
