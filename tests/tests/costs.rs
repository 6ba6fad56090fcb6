//! What is counted of metadata and of messages in inboxes is no less than what they take of a process's memory, and so are
//! the details of a status by what the documentation says. Each figure is measured in a process of its own, since an
//! allocator uses again what it has had before.

#![cfg(target_os = "linux")]

use std::{env, process::Command};

use tokio::{io::duplex, runtime::Builder};
use ttrpc::{
    Any, ServerConfig, Status,
    proto::message::{decode_response, encode_status},
};
use ttrpc_tests::{
    harness::{eventually, *},
    process::Usage,
    service::ConformanceService,
    wire::{Frame, KeyValue, Peer, REQUEST, Request},
};

/// What these lengths of a string or a message cost is what an allocator rounds up.
const LENGTHS: [usize; 7] = [0, 1, 15, 16, 17, 31, 33];

/// Tells a child which figure is to be measured, and for which length.
const MEASURED: &str = "TTRPC_TESTS_MEASURED";

/// Memory that a process takes for other things meanwhile, and by which pages are rounded up.
const ROOM: usize = 2 << 20;

const CONNECTIONS: usize = 20;

/// Pairs of a Request, and details of a status.
const MANY: usize = 1024;

fn resident() -> usize {
    Usage::of_this_process().unwrap().memory as usize
}

/// Measures one figure, if this is a child that is to do so.
fn measured(name: &str, measure: impl Fn(usize) -> (usize, usize)) {
    if let Ok(asked) = env::var(MEASURED) {
        if let Some(len) = asked.strip_prefix(&format!("{name} ")) {
            let (counted, taken) = measure(len.parse().unwrap());
            let most = counted + counted / 20 + ROOM;
            assert!(
                taken <= most,
                "{name} of {len} bytes: {taken} bytes are taken and {counted} counted"
            );
            assert!(taken >= counted / 8, "{taken} bytes are no measurement of {counted}");
        }
        return;
    }
    for len in LENGTHS {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MEASURED, format!("{name} {len}"))
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    }
}

/// Sends frames on each connection to a server that keeps them, and returns what is counted and what is taken.
fn kept(
    frames: impl Fn(usize) -> Vec<Frame>,
    calls: usize,
    counted: impl Fn(&ttrpc::snapshot::ServerSnapshot) -> usize,
    is_kept: impl Fn(&ttrpc::snapshot::ServerSnapshot) -> bool,
) -> (usize, usize) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = ServerConfig { inbox_bytes_per_connection: 64 << 20, ..patient_server() };
        let server = ConformanceService::builder().config(config).keep_open().build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        let mut peers = Vec::new();
        // The first connection warms up what all have in common.
        for _ in 0..=CONNECTIONS {
            let (here, there) = duplex(1 << 20);
            handle.serve_connection(ttrpc::Connection::new(there)).await.unwrap();
            peers.push(Peer::new(here));
        }
        let bytes: Vec<_> = frames(calls).iter().map(Frame::to_bytes).collect();
        for bytes in &bytes {
            peers[0].send_bytes(bytes).await;
        }
        eventually("the first connection's are kept", || counted(&handle.snapshot()) > 0).await;
        settle().await;
        let before = (counted(&handle.snapshot()), resident());
        for peer in &mut peers[1..] {
            for bytes in &bytes {
                peer.send_bytes(bytes).await;
            }
        }
        eventually("all are kept", || is_kept(&handle.snapshot())).await;
        let after = (counted(&handle.snapshot()), resident());
        serving.abort();
        (after.0 - before.0, after.1.saturating_sub(before.1))
    })
}

#[test]
fn metadata_take_no_more_memory_than_is_counted() {
    measured("metadata_take_no_more_memory_than_is_counted", |len| {
        const CALLS: usize = 20;
        let pair = KeyValue { key: "k".repeat(len), value: "v".repeat(len) };
        let frames = |calls: usize| {
            let request = Request {
                service: SERVICE.to_owned(),
                method: "Wait".to_owned(),
                payload: ttrpc::prost::Message::encode_to_vec(&key("never")),
                metadata: vec![pair.clone(); MANY],
                ..Request::default()
            };
            let data = ttrpc::prost::Message::encode_to_vec(&request);
            (0..calls as u32).map(|nth| Frame::new(2 * nth + 1, REQUEST, 0, data.clone())).collect()
        };
        let counted = |snapshot: &ttrpc::snapshot::ServerSnapshot| snapshot.request_bytes.used;
        kept(frames, CALLS, counted, |snapshot| snapshot.calls.used == CALLS * (CONNECTIONS + 1))
    });
}

#[test]
fn messages_in_inboxes_take_no_more_memory_than_is_counted() {
    measured("messages_in_inboxes_take_no_more_memory_than_is_counted", |len| {
        const STREAMS: usize = 3;
        const MESSAGES: usize = 4000;
        let frames = |streams: usize| {
            let ids = (1..).step_by(2).take(streams);
            let message = |id: u32| Frame::new(id, ttrpc_tests::wire::DATA, 0, vec![0; len]);
            ids.flat_map(|id| {
                let open = open_stream(id, "Hold");
                std::iter::once(open).chain((0..MESSAGES).map(move |_| message(id)))
            })
            .collect()
        };
        let counted = |snapshot: &ttrpc::snapshot::ServerSnapshot| snapshot.inbox_bytes.used;
        let all = STREAMS * MESSAGES * (CONNECTIONS + 1) * (len + 64);
        kept(frames, STREAMS, counted, |snapshot| snapshot.inbox_bytes.used >= all)
    });
}

/// Nothing counts them: they are decoded for the caller who has asked for them.
#[test]
fn details_of_a_status_take_no_more_memory_than_the_documentation_says() {
    measured("details_of_a_status_take_no_more_memory_than_the_documentation_says", |len| {
        const STATUSES: usize = 300;
        let detail = Any { type_url: "t".repeat(len), value: vec![7; len] };
        let status = (0..MANY)
            .fold(Status::internal("it fails"), |status, _| status.with_detail(detail.clone()));
        let data = encode_status(&status);
        let decode = || decode_response(&data).unwrap().unwrap_err();
        let mut kept = Vec::with_capacity(STATUSES + 1);
        kept.push(decode());
        let before = resident();
        kept.extend((0..STATUSES).map(|_| decode()));
        let taken = resident() - before;
        assert!(kept.iter().all(|status| status.details().len() == MANY));
        // An entry of 48 bytes, and a block for each part that is not empty: 16 bytes more than it has, and 32 at least.
        let block = if len == 0 { 0 } else { (len + 16).max(32) };
        (STATUSES * MANY * (48 + 2 * block), taken)
    });
}
