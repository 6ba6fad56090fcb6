//! What calls with long messages allocate. The process keeps long buffers for all its threads, so what is counted here is
//! counted in a process of its own, by one test after the other, and with a clock that stands.

mod metadata;
mod status;
mod unread_replies;

use std::{sync::Arc, time::Duration};

use allocation_counter::measure;
use tokio::{
    io::duplex,
    runtime::{Builder, Runtime},
    time::advance,
};
use ttrpc::{
    Client, ClientConfig, Raw, Server,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
    },
    server::{Routes, Service},
};
use ttrpc_tests::harness::PIPE_LEN;

const LEN: usize = 1 << 20;

/// Bytes of empty buffers that the library keeps for the process.
const POOL: usize = 17 << 19;

struct Echo;

impl Service for Echo {
    fn into_routes(self) -> Routes {
        let echo = Arc::new(self);
        Routes::new("Echo")
            .unary("Raw", &echo, |_, _, request: Raw| Box::pin(async { Ok(request) }))
            .unary("Decoded", &echo, |_, _, request: Vec<u8>| Box::pin(async { Ok(request) }))
    }
}

fn connection() -> (Runtime, Client) {
    let runtime = runtime();
    let client = runtime.block_on(async {
        let (here, there) = duplex(PIPE_LEN);
        tokio::spawn(Server::builder().add_service(Echo).io(there).serve());
        Client::from_io(here, ClientConfig::default())
    });
    (runtime, client)
}

async fn echo_raw(client: &Client, len: usize) {
    let reply: Raw = client.unary("Echo", "Raw", Raw::from(vec![7; len])).await.unwrap();
    assert_eq!(reply.0.len(), len);
}

async fn echo_decoded(client: &Client, len: usize) {
    let reply: Vec<u8> = client.unary("Echo", "Decoded", vec![7; len]).await.unwrap();
    assert_eq!(reply.len(), len);
}

/// One after the other: they share the process's buffers.
#[test]
fn long_messages() {
    raw_messages_are_copied_once_less_on_each_side_than_decoded_ones();
    calls_with_long_messages_allocate_no_buffers();
    buffers_that_nobody_has_used_for_a_while_are_given_up();
    a_decoder_keeps_little_of_a_long_frame_however_much_room_that_left();
    metadata::metadata_of_too_many_pairs_are_refused_and_not_kept();
    metadata::metadata_of_too_many_pairs_are_refused_where_they_open_a_stream();
    metadata::metadata_of_1024_pairs_are_served_and_one_more_is_not();
    metadata::metadata_count_as_request_bytes_by_what_they_cost_to_keep();
    metadata::metadata_of_unknown_methods_cost_no_allocation_each();
    status::an_unread_stream_keeps_no_more_of_a_status_than_its_frame();
    status::a_callers_status_keeps_no_more_than_so_many_details();
    status::a_status_with_few_details_keeps_them_all();
    runtime().block_on(async {
        unread_replies::calls_for_replies_that_nobody_reads_wait_for_room_before_they_begin().await;
        unread_replies::calls_for_long_replies_that_nobody_reads_wait_for_room_before_they_begin()
            .await;
        unread_replies::calls_that_were_read_while_there_was_room_wait_for_it_all_the_same().await;
    });
    unread_replies::connections_that_read_no_replies_cost_a_bounded_amount_each();
    unread_replies::connections_that_read_neither_short_nor_long_replies_cost_a_bounded_amount_each(
    );
}

/// On one thread, which is what is counted.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn raw_messages_are_copied_once_less_on_each_side_than_decoded_ones() {
    let (runtime, client) = connection();
    let raw = || runtime.block_on(echo_raw(&client, LEN));
    let decoded = || runtime.block_on(echo_decoded(&client, LEN));
    raw();
    decoded();
    let (raw, decoded) = (measure(raw).bytes_total, measure(decoded).bytes_total);
    // The encoded message is a few bytes longer than its only field, and a call's future as large as its types.
    assert!(raw + 2 * LEN as u64 <= decoded + 100, "{raw} bytes raw, {decoded} decoded");
}

/// The buffers of their frames are those of the call before; the fields are allocated.
fn calls_with_long_messages_allocate_no_buffers() {
    let (runtime, client) = connection();
    let call = || runtime.block_on(echo_decoded(&client, LEN));
    call();
    let allocated = measure(call).bytes_total as usize;
    // The request's payload is the caller's; a field each for the server and the client.
    assert!((3 * LEN..4 * LEN).contains(&allocated), "{allocated} bytes are allocated");
}

fn buffers_that_nobody_has_used_for_a_while_are_given_up() {
    let (runtime, client) = connection();
    runtime.block_on(echo_decoded(&client, LEN));
    let kept = |pause| {
        let calls = measure(|| {
            runtime.block_on(async {
                advance(pause).await;
                echo_decoded(&client, 1).await;
            });
        });
        calls.bytes_current
    };
    let soon = kept(Duration::from_millis(900));
    assert!(soon.unsigned_abs() < LEN as u64 / 2, "{soon} bytes changed hands too soon");
    // Of each kind at least one.
    let late = kept(Duration::from_millis(100));
    assert!(late < -2 * LEN as i64, "{late} bytes are given up");
}

/// What a frame leaves of the buffer that it filled may be little, and keep all of it allocated.
fn a_decoder_keeps_little_of_a_long_frame_however_much_room_that_left() {
    let mut all_kept = 0;
    for slack in [0, 10, 500, 2 << 10, 10 << 10, 60 << 10, 100 << 10] {
        let data_len = MAX_DATA_LEN - HEADER_LEN - slack;
        let header = Header {
            data_len: data_len as u32,
            stream_id: 1,
            frame_type: FrameType::Data,
            flags: Flags::NONE,
        };
        let mut wire = header.to_bytes().to_vec();
        wire.resize(HEADER_LEN + data_len, 7);
        let mut decoder = Decoder::default();
        let kept = measure(|| {
            wire.chunks(64 << 10).for_each(|part| decoder.feed(part));
            assert_eq!(decoder.decode(), Some(Decoded::Frame(header)));
            assert_eq!(decoder.take_data().len(), data_len);
            assert_eq!(decoder.decode(), None);
            decoder.release_idle_memory();
        });
        assert!(kept.bytes_max > data_len as u64, "they are not counted");
        all_kept += kept.bytes_current;
    }
    // The pool may have what is left of one.
    assert!(all_kept < POOL as i64 + (64 << 10), "{all_kept} bytes are kept");
}
