//! Calls whose connection lives in another runtime than their callers, and ends with it.

use tokio::{runtime::Builder, time::timeout};
use ttrpc::{ClientConfig, Code, snapshot::ReceiverWait};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, REMOTE_CLOSED},
};

/// Messages for which an inbox has room.
const ROOM: u64 = 4;

/// The last message ends the stream, so its entry has left the table while it waits for room.
#[test]
fn a_stream_whose_last_message_waits_for_room_fails_when_its_connections_runtime_ends() {
    let of_connection = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, conformance, mut peer) = {
        let _entered = of_connection.enter();
        let stream_inbox_messages = ROOM as usize;
        played_server(ClientConfig { stream_inbox_messages, ..patient_client() })
    };
    let of_caller = Builder::new_current_thread().enable_all().build().unwrap();
    of_caller.block_on(async {
        let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
        let id = peer.receive().await.id;
        for sequence in 0..ROOM {
            peer.send(Frame::message(id, &chunk(sequence))).await;
        }
        let last = Frame::message(id, &chunk(ROOM));
        peer.send(Frame::new(id, DATA, REMOTE_CLOSED, last.data)).await;
        eventually("the last message waits", || {
            client.snapshot().receiver.is_some_and(|held_up| held_up.by == ReceiverWait::Stream(id))
        })
        .await;

        of_connection.shutdown_background();
        client.closed().await;
        for sequence in 0..ROOM {
            assert_eq!(replies.recv().await.unwrap(), Some(chunk(sequence)));
        }
        let end = timeout(PATIENCE, replies.recv()).await.expect("it is told");
        assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    });
}
