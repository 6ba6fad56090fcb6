//! What metadata cost a server, by its default limits: pairs are counted, bounded, and charged by what it
//! costs to keep them. Counted on one thread, so that the figures do not depend on the machine.

use allocation_counter::{AllocationInfo, measure};
use tokio::runtime::Runtime;
use ttrpc::ServerConfig;
use ttrpc_tests::{
    harness::{
        code::{RESOURCE_EXHAUSTED, UNIMPLEMENTED},
        *,
    },
    wire::{Frame, REMOTE_OPEN},
};

use crate::{POOL, runtime};

const MIB: i64 = 1 << 20;

/// Bytes that may be kept of several Requests of 4 MiB that were refused: the process may have the buffer of one for the next
/// long frame.
const MOST_KEPT: i64 = POOL as i64 + MIB;

/// Pairs that a Request may carry by default.
const MAX_PAIRS: usize = 1024;

/// A field of two bytes: an empty pair of a Request's metadata, tag 5.
const EMPTY_PAIR: [u8; 2] = [0x2a, 0];

/// What a pair costs to keep, at least: two strings without bytes of their own.
const PAIR_COST: usize = 2 * size_of::<String>();

/// Adds so many empty pairs.
fn with_pairs(mut request: Frame, pairs: usize) -> Frame {
    request.data.extend(EMPTY_PAIR.repeat(pairs));
    request
}

/// As many pairs as a frame has room for.
fn full(request: Frame) -> Frame {
    let pairs = (MAX_DATA_LEN - request.data.len()) / EMPTY_PAIR.len();
    with_pairs(request, pairs)
}

struct Setup {
    runtime: Runtime,
    server: TestServer,
    peer: Played,
}

fn set_up() -> Setup {
    let runtime = runtime();
    let (server, peer) = runtime.block_on(async { played_client(ServerConfig::default()) });
    Setup { runtime, server, peer }
}

impl Setup {
    /// What the server allocates for these frames, and the codes of its answers.
    fn send(&mut self, frames: &[Frame]) -> (AllocationInfo, Vec<i32>) {
        let bytes: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let mut codes = Vec::with_capacity(1024);
        let allocated = measure(|| {
            self.runtime.block_on(async {
                for bytes in &bytes {
                    self.peer.send_bytes(bytes).await;
                }
                settle().await;
                while self.server.handle.calls_in_flight() < frames.len() - codes.len() {
                    codes.push(self.peer.receive().await.code());
                }
            });
        });
        (allocated, codes)
    }
}

pub fn metadata_of_too_many_pairs_are_refused_and_not_kept() {
    let mut setup = set_up();
    let wait = |nth: u32| full(call(2 * nth + 1, "Wait", &key("a")));
    let frames: Vec<_> = (0..4).map(wait).collect();
    let (allocated, codes) = setup.send(&frames);
    let kept = allocated.bytes_current;
    assert!(kept <= MOST_KEPT, "{} KiB are kept for four Requests of 4 MiB", kept >> 10);
    assert_eq!(codes, [RESOURCE_EXHAUSTED; 4]);
    let most = allocated.bytes_max as i64;
    // One frame at a time, perhaps twice while its buffer grows.
    assert!(most <= 16 * MIB, "{} MiB at the most", most >> 20);
    setup.runtime.block_on(expect_echo(&mut setup.peer, 9));
}

pub fn metadata_of_too_many_pairs_are_refused_where_they_open_a_stream() {
    let mut setup = set_up();
    let open = |id| full(Frame::request(id, REMOTE_OPEN, SERVICE, "Hold", &key("")));
    let (allocated, codes) = setup.send(&[1, 3, 5].map(open));
    assert_eq!(codes, [RESOURCE_EXHAUSTED; 3]);
    assert!(allocated.bytes_current <= MOST_KEPT, "{} KiB", allocated.bytes_current >> 10);
    // What the client takes for open is dropped without an answer.
    setup.runtime.block_on(async {
        setup.peer.send(Frame::end(1)).await;
        expect_echo(&mut setup.peer, 7).await;
    });
}

pub fn metadata_of_1024_pairs_are_served_and_one_more_is_not() {
    let mut setup = set_up();
    for (id, pairs, codes) in
        [(1, MAX_PAIRS, vec![0]), (3, MAX_PAIRS + 1, vec![RESOURCE_EXHAUSTED]), (5, 1, vec![0])]
    {
        let echo = call(id, "Echo", &echo_request([]));
        assert_eq!(setup.send(&[with_pairs(echo, pairs)]).1, codes, "{pairs} pairs");
    }
}

/// The frame's data, and what the pairs cost to keep.
pub fn metadata_count_as_request_bytes_by_what_they_cost_to_keep() {
    let mut setup = set_up();
    let frame = with_pairs(call(1, "Wait", &key("a")), MAX_PAIRS);
    let least = frame.data.len() + MAX_PAIRS * PAIR_COST;
    let (allocated, codes) = setup.send(&[frame]);
    assert!(codes.is_empty(), "the handler waits");
    let charged = setup.server.handle.snapshot().request_bytes.used;
    assert!(charged >= least, "{charged} bytes are charged, it costs {least} at least");
    let kept = allocated.bytes_current as usize;
    assert!(charged <= 4 * kept.max(least), "{charged} bytes are charged, {kept} are kept");
    setup.server.service.release("a");
    setup.runtime.block_on(async {
        assert_eq!(setup.peer.receive().await.code(), 0);
        setup.server.is_idle().await;
    });
    assert_eq!(setup.server.handle.snapshot().request_bytes.used, 0);
}

/// Only the method's name is looked at.
pub fn metadata_of_unknown_methods_cost_no_allocation_each() {
    let mut setup = set_up();
    let unknown = |nth: u32| call(2 * nth + 1, "NoSuchMethod", &key("a"));
    // Whatever a first call allocates for all.
    assert_eq!(setup.send(&[unknown(0)]).1, [UNIMPLEMENTED]);
    let (small, _) = setup.send(&[unknown(1)]);
    let (large, codes) = setup.send(&[full(unknown(2))]);
    assert_eq!(codes, [UNIMPLEMENTED]);
    let more = large.count_total - small.count_total;
    assert!(more <= 200, "two million pairs cost {more} allocations more");
    let most = large.bytes_max as i64;
    assert!(most <= 16 * MIB, "{} MiB at the most", most >> 20);
}
