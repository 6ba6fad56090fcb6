//! What the decoded parts of a status cost a client. Counted on one thread, so that the figures do not
//! depend on the machine.

use allocation_counter::measure;
use ttrpc::{ClientConfig, Code, client::StreamReceiver};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, RESPONSE},
};

use crate::runtime;

const MIB: i64 = 1 << 20;

/// Details that a status keeps, at most.
const MAX_DETAILS: usize = 1024;

/// A field of two bytes: an empty detail of a status, tag 3.
const EMPTY_DETAIL: [u8; 2] = [0x1a, 0];

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A Response of almost 4 MiB: code 9, a message, and as many empty details as there is room for.
fn response(id: u32) -> Frame {
    let mut status = vec![8, 9, 0x12, 4];
    status.extend(b"what");
    let details = (MAX_DATA_LEN - status.len() - 8) / EMPTY_DETAIL.len();
    status.extend(EMPTY_DETAIL.repeat(details));
    let data = [vec![0x0a], varint(status.len()), status].concat();
    assert!((MAX_DATA_LEN - 8..=MAX_DATA_LEN).contains(&data.len()));
    Frame::new(id, RESPONSE, 0, data)
}

pub fn an_unread_stream_keeps_no_more_of_a_status_than_its_frame() {
    // The process keeps at most 8.5 MiB of empty buffers besides, half a MiB for each of so many.
    const STREAMS: usize = 16;
    let runtime = runtime();
    let (_client, conformance, mut peer) =
        runtime.block_on(async { played_server(ClientConfig::default()) });
    let open = async {
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let stream = conformance.generate(GenerateRequest::default()).await.unwrap();
            streams.push((stream, response(peer.receive().await.id).to_bytes()));
        }
        streams
    };
    let streams = runtime.block_on(open);
    let (mut unread, mut frames): (Vec<StreamReceiver<Chunk>>, Vec<_>) =
        streams.into_iter().unzip();
    let arriving = measure(|| {
        runtime.block_on(async {
            for frame in &frames {
                peer.send_bytes(frame).await;
            }
            settle().await;
        });
    });
    let each = arriving.bytes_current / STREAMS as i64;
    assert!(each <= 5 * MIB, "{} KiB are kept for each stream", each >> 10);
    assert!(arriving.bytes_max > MAX_DATA_LEN as u64, "they are not counted");
    frames.clear();

    let mut ends = Vec::new();
    let reading = measure(|| {
        runtime.block_on(async {
            for stream in &mut unread {
                ends.push(stream.recv().await.unwrap_err());
            }
        });
    });
    let added = reading.bytes_max;
    assert!(added <= 2 * MIB as u64, "{} KiB were added by reading", added >> 10);
    for end in ends {
        assert_eq!((end.code(), end.message()), (Code::FailedPrecondition, "what"));
        assert!(end.details().len() <= MAX_DETAILS, "{} details", end.details().len());
    }
}

pub fn a_callers_status_keeps_no_more_than_so_many_details() {
    let runtime = runtime();
    let (_client, conformance, mut peer) =
        runtime.block_on(async { played_server(ClientConfig::default()) });
    let mut end = None;
    let most = measure(|| {
        runtime.block_on(async {
            let call = tokio::spawn(conformance.echo(echo_request([])).into_future());
            let frame = response(peer.receive().await.id).to_bytes();
            peer.send_bytes(&frame).await;
            end = Some(call.await.unwrap().unwrap_err());
        });
    });
    let end = end.expect("the call ends");
    assert_eq!((end.code(), end.message()), (Code::FailedPrecondition, "what"));
    assert!(end.details().len() <= MAX_DETAILS, "{} details", end.details().len());
    // The frame, as the test makes it and as it arrives, each perhaps twice while it grows.
    let most = most.bytes_max >> 20;
    assert!(most <= 32, "{most} MiB at the most");
}

/// What is usual comes whole.
pub fn a_status_with_few_details_keeps_them_all() {
    let runtime = runtime();
    runtime.block_on(async {
        let (_client, conformance, mut peer) = played_server(ClientConfig::default());
        for count in [1, 10, MAX_DETAILS] {
            let call = tokio::spawn(conformance.echo(echo_request([])).into_future());
            let id = peer.receive().await.id;
            let mut frame = Frame::failure(id, 9, "what");
            let mut response = frame.as_response();
            let detail = |nth: usize| ttrpc::Any {
                type_url: format!("type.googleapis.com/test.Detail{nth}"),
                value: nth.to_be_bytes().to_vec(),
            };
            let details: Vec<_> = (0..count).map(detail).collect();
            response.status.as_mut().expect("a failure has one").details = details.clone();
            frame.data = ttrpc::prost::Message::encode_to_vec(&response);
            peer.send(frame).await;
            let end = call.await.unwrap().unwrap_err();
            assert_eq!((end.code(), end.message()), (Code::FailedPrecondition, "what"));
            assert_eq!(end.details(), details);
        }
    });
}
