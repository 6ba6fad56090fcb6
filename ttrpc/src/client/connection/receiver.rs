//! A client's receiver: reads frames and hands them to their calls.
//!
//! It stands rightmost in the order of waits (see [`transport`](crate::transport)): it waits for the socket, and for the
//! consumer of a full stream while that one makes progress. It never waits for the sender, nor for a lock that is held
//! longer than a few instructions.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;

use super::{
    ClientConnection,
    calls::{CallEntry, DataReceived, Messages},
    record::CallRecord,
};
use crate::{
    ConnectionError,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header, MAX_DATA_LEN},
        message::begins_with_status,
        payload,
    },
    snapshot::{ReceiverWait, Stall},
    transport::{
        io::ReadHalf,
        limiter::Load,
        messages::{RUN_LEN, fits},
        rarely,
        violations::Violations,
        wire::{FrameReader, ReadEnd, hung_up},
    },
};

/// Reads until the connection ends. Returns why it did.
pub(super) async fn run(connection: &ClientConnection, io: impl ReadHalf) -> ConnectionError {
    let mut reader = FrameReader::new(io);
    let mut violations = Violations::of("server");
    let write_error = &connection.write_error;
    let mut write_error = pin!(rarely(write_error.wait(), |_| write_error.initialized()));
    loop {
        let decoded = match reader.try_next() {
            Some(decoded) => decoded,
            // When the sender has failed, all that had arrived is read before that ends the connection.
            None => tokio::select! {
                biased;
                next = reader.next() => match next {
                    Ok(decoded) => decoded,
                    Err(ReadEnd::Eof) => return ConnectionError::ClosedByServer,
                    Err(ReadEnd::Truncated) => return ConnectionError::Truncated,
                    Err(ReadEnd::Failed(error)) => return ConnectionError::Read(Arc::new(error)),
                },
                error = write_error.as_mut() => return error.clone(),
            },
        };
        match decoded {
            Decoded::Frame(header) => match header.frame_type {
                FrameType::Response => {
                    let response = response_data(reader.decoder());
                    connection.answer(header.stream_id, response, || reader.read_at());
                }
                FrameType::Data => {
                    receive_data(connection, header, &mut reader, &mut violations).await;
                }
                FrameType::Request | FrameType::Unknown(_) => {}
            },
            Decoded::Oversized(header) => refuse_oversized(connection, header),
        }
    }
}

/// Acts on a Data frame, and on those after it that carry messages of the same stream. Only a message whose stream's inbox
/// is full is waited with.
async fn receive_data<R: ReadHalf>(
    connection: &ClientConnection,
    header: Header,
    reader: &mut FrameReader<R>,
    violations: &mut Violations,
) {
    let id = header.stream_id;
    match connection.queue.streams(|calls| calls.receive_message(header)) {
        DataReceived::Message { messages, record, event } => {
            let record = record.as_deref();
            if event.has_message {
                let bytes = reader.decoder().data().len();
                if !messages.has_capacity(bytes, limits(connection))
                    && !Box::pin(wait_for_consumer(connection, id, &messages, reader)).await
                {
                    return;
                }
                if let Some(record) = record {
                    record.received(bytes);
                }
                let decoder = reader.decoder();
                let long_data = decoder.take_long_data();
                messages.push(decoder.payload(&long_data), &connection.patience);
            }
            if event.remote_closed {
                connection
                    .queue
                    .streams(|calls| calls.change_call(id, CallEntry::close_remote))
                    .publish();
            } else {
                receive_run(connection, id, &messages, record, reader.decoder());
            }
        }
        DataReceived::Violation(violation, change) => {
            violations.note(id, violation);
            connection.observed.violated(violation);
            change.publish();
        }
        DataReceived::Ignore => {}
    }
}

/// Takes the messages of a stream that lie right after one that was received, up to the inbox's limits. They change nothing
/// in the table, and go into the inbox together.
fn receive_run(
    connection: &ClientConnection,
    stream_id: u32,
    messages: &Messages,
    record: Option<&CallRecord>,
    decoder: &mut Decoder,
) {
    loop {
        let (before, limits) = (messages.fill().0, limits(connection));
        let mut fill = before;
        let frames = decoder.take_run(RUN_LEN, |header| {
            let bytes = header.data_len as usize;
            let goes_on = header.stream_id == stream_id
                && header.frame_type == FrameType::Data
                && header.flags == Flags::NONE
                && fits(fill, bytes, limits);
            if goes_on {
                fill += Load::one(bytes);
                if let Some(record) = record {
                    record.received(bytes);
                }
            }
            goes_on
        });
        if frames.is_empty() {
            return;
        }
        let mut load = fill;
        load -= before;
        messages.push_frames(frames, load, &connection.patience);
    }
}

/// Returns the data of a Response, to be decoded by the caller. A stream that is not read may keep a status for long: it keeps
/// nothing else allocated.
fn response_data(decoder: &mut Decoder) -> Bytes {
    if begins_with_status(decoder.data()) {
        return Bytes::copy_from_slice(decoder.data());
    }
    decoder.take_long_data().unwrap_or_else(|| payload::copy(decoder.data()))
}

fn limits(connection: &ClientConnection) -> Load {
    let config = &connection.config;
    Load::limit(config.stream_inbox_messages, config.stream_inbox_bytes)
}

/// Waits until the inbox can take the message. `false` if its consumer makes no progress: it has lost its stream.
///
/// When the server has gone, there is no more to come than the socket holds. That may exceed the inbox's limits, so that
/// the end is seen, and pending calls end, at once.
async fn wait_for_consumer<R: ReadHalf>(
    connection: &ClientConnection,
    stream_id: u32,
    messages: &Messages,
    reader: &mut FrameReader<R>,
) -> bool {
    let report = |stall: &Stall| connection.observed.receiver_stalled(stall);
    let stall = connection.registry.stall(ReceiverWait::Stream(stream_id), report);
    let (decoder, io) = reader.parts();
    let (bytes, limits) = (decoder.data().len(), limits(connection));
    let has_capacity = tokio::select! {
        biased;
        () = hung_up(io) => true,
        _ = connection.write_error.wait() => true,
        has_capacity = messages.wait_for_capacity(bytes, limits, &connection.patience, &|| false) => has_capacity
    };
    drop(stall);
    if !has_capacity {
        let stalled = "the stream's messages were not taken in time and its inbox is full";
        connection.refuse(stream_id, stalled);
    }
    has_capacity
}

fn refuse_oversized(connection: &ClientConnection, header: Header) {
    if let FrameType::Data | FrameType::Response = header.frame_type {
        let len = header.data_len;
        let refusal =
            format!("the server sent {len} bytes in one frame, the limit is {MAX_DATA_LEN}");
        connection.refuse(header.stream_id, refusal);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::Pin,
        task::{Context, Poll, Wake},
        time::Duration,
    };

    use prost::Message;
    use tokio::{
        io::{AsyncWriteExt, DuplexStream, duplex},
        time::timeout,
    };

    use super::{
        super::{ConnectionTasks, Settings},
        *,
    };
    use crate::{
        Code, Connection, Raw, RawEnd, Status,
        client::{Client, RawReply, UnaryCall, reconnect::Link},
        observer::Observers,
        proto::message::{FrameData, Measured, ResponseParts, encode_status},
    };

    fn connect(observers: Observers) -> (Arc<ConnectionTasks>, DuplexStream) {
        let (here, there) = duplex(1 << 20);
        let settings = Settings { observers, ..Settings::default() };
        (ConnectionTasks::spawn(Connection::new(here), &settings), there)
    }

    async fn poll<T>(call: &mut UnaryCall<(), T>) -> Poll<Result<T, Status>>
    where
        T: prost::Message + Default,
    {
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *call).poll(cx))).await
    }

    fn response(stream_id: u32, data: &[u8]) -> Vec<u8> {
        let (data_len, frame_type) = (data.len() as u32, FrameType::Response);
        let header = Header { data_len, stream_id, frame_type, flags: Flags::NONE };
        [&header.to_bytes()[..], data].concat()
    }

    fn reply(stream_id: u32, payload: &str) -> Vec<u8> {
        let payload = payload.to_owned();
        response(stream_id, &ResponseParts(Measured::new(&payload)).to_vec())
    }

    #[tokio::test]
    async fn responses_that_are_read_together_go_to_their_calls() {
        const CALLS: u32 = 48;
        let (tasks, mut there) = connect(Observers::default());
        let client = Client::over(Link::Fixed(tasks));
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            let mut call = client.unary::<(), String>("S", "M", ());
            assert!(poll(&mut call).await.is_pending());
            calls.push(Some(call));
        }
        let id = |index: u32| 2 * index + 1;
        let payload = |index: u32| index.to_string().repeat(if index == 9 { 2000 } else { 1 });
        // Of a call that nobody has made, and twice of the last one.
        let mut responses = [response(id(CALLS), b""), reply(id(CALLS - 1), "first")].concat();
        for index in (0..CALLS).rev() {
            responses.extend(match index {
                5 => response(id(index), &encode_status(&Status::not_found("five"))),
                _ => reply(id(index), &payload(index)),
            });
        }
        calls[7] = None;
        there.write_all(&responses).await.unwrap();
        for (index, call) in (0..).zip(calls) {
            let Some(call) = call else { continue };
            match (index, call.await) {
                (5, result) => assert_eq!(result.unwrap_err().code(), Code::NotFound),
                (47, result) => assert_eq!(result.unwrap(), "first"),
                (_, result) => assert_eq!(result.unwrap(), payload(index)),
            }
        }
        assert_eq!(client.calls_in_flight(), 0);
    }

    #[tokio::test]
    async fn a_response_is_the_last_message_of_a_stream_unless_it_is_empty_and_the_reply_of_a_raw_call()
     {
        for (data, last) in [(reply(1, "last"), Some("last")), (response(1, b""), None)] {
            let (tasks, mut there) = connect(Observers::default());
            let client = Client::over(Link::Fixed(tasks));
            let call = client.server_streaming::<(), String>("S", "M", ());
            let mut replies = call.await.expect("it is queued");
            there.write_all(&data).await.unwrap();
            assert_eq!(replies.recv().await, Ok(last.map(str::to_owned)));
            assert_eq!(replies.recv().await, Ok(None));

            let (tasks, mut there) = connect(Observers::default());
            let client = Client::over(Link::Fixed(tasks));
            let call = client.raw("S", "M", Flags::REMOTE_CLOSED, Raw::default());
            let (_, mut replies) = call.await.expect("it is queued");
            there.write_all(&data).await.unwrap();
            let payload = last.unwrap_or_default().to_owned().encode_to_vec();
            let end = |end| Ok(RawReply::End(end));
            assert_eq!(replies.recv().await, end(RawEnd::Reply(payload.into())));
            assert_eq!(replies.recv().await, end(RawEnd::Closed));
        }
    }

    /// Panics when it is woken.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program's");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_ends_whichever_wakers_panic() {
        // The calls whose wakers panic, and those that are answered; without these the server goes away.
        for (panicking, answered) in
            [(&[1][..], 4), (&[1, 2], 4), (&[1, 4], 4), (&[1, 2, 4], 4), (&[1], 0), (&[0, 4], 0)]
        {
            let (tasks, mut there) = connect(Observers::default());
            let client = Client::over(Link::Fixed(tasks));
            let (mut calls, panics) = (Vec::new(), Arc::new(Panics).into());
            for index in 0..6 {
                let mut call = client.unary::<(), String>("S", "M", ());
                let polled = match panicking.contains(&index) {
                    true => Pin::new(&mut call).poll(&mut Context::from_waker(&panics)),
                    false => poll(&mut call).await,
                };
                assert!(polled.is_pending());
                calls.push(call);
            }
            let replies = (0..answered).flat_map(|index| reply(2 * index + 1, "reply"));
            there.write_all(&replies.collect::<Vec<_>>()).await.unwrap();
            drop(there);
            for (index, call) in calls.into_iter().enumerate() {
                let result = timeout(Duration::from_secs(1), call).await.expect("it ends");
                assert_eq!(
                    result.is_ok(),
                    index < answered as usize,
                    "{index} of {panicking:?}: {result:?}"
                );
            }
        }
    }

    #[test]
    fn a_status_is_kept_by_itself() {
        let status = encode_status(&Status::not_found("gone"));
        for (data, is_alone) in [(&status[..], true), (b"\x12\x04here", false)] {
            let mut decoder = Decoder::default();
            decoder.feed(&response(1, data));
            assert!(matches!(decoder.decode(), Some(Decoded::Frame(_))));
            let kept = response_data(&mut decoder);
            assert_eq!((&kept[..], kept.is_unique()), (data, is_alone));
        }
    }
}
