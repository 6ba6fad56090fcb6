//! Replies that the client does not read: how many calls begin meanwhile, what they cost, and that all
//! are answered once it reads.

use allocation_counter::measure;
use tokio::{
    io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    task::JoinHandle,
};
use ttrpc::ServerConfig;
use ttrpc_tests::{conformance::*, harness::*, wire::Response};

use crate::{POOL, runtime};

const MIB: usize = 1 << 20;

/// Longer frames have room of their own in the send queue.
const LONG_FRAME_LEN: usize = 128 << 10;

/// The most calls for replies of this length that begin while nothing is read: those whose replies fit into the send queue,
/// and those whose replies wait.
fn max_begun(config: &ServerConfig, reply_len: usize) -> usize {
    let queued = config.send_queue_bytes / reply_len;
    let waiting = match reply_len > LONG_FRAME_LEN {
        // The queue has room for short frames meanwhile, so calls begin until as many replies wait as may.
        true => config.reply_bytes_per_connection.div_ceil(reply_len),
        // One takes the last room, or finds that there is not enough: for each worker of the runtime, here one.
        false => 1,
    };
    queued + waiting
}

/// A client that asks for replies and reads nothing by itself.
struct Asking {
    reader: ReadHalf<DuplexStream>,
    writing: JoinHandle<WriteHalf<DuplexStream>>,
}

impl Asking {
    /// Asks for so many replies, of these lengths in turns.
    fn start(pipe: DuplexStream, calls: usize, reply_lens: &[usize]) -> Self {
        let (reader, mut writer) = split(pipe);
        let frames = (0..calls).zip(reply_lens.iter().cycle()).flat_map(|(nth, len)| {
            let request = EchoRequest { payload: Vec::new(), response_size: *len as u32 };
            call(2 * nth as u32 + 1, "Echo", &request).to_bytes()
        });
        let bytes: Vec<u8> = frames.collect();
        let writing = tokio::spawn(async move {
            writer.write_all(&bytes).await.expect("the server lives");
            writer
        });
        Asking { reader, writing }
    }

    /// Reads all replies.
    async fn read(mut self, calls: usize, reply_len: usize) {
        let mut ids = Vec::new();
        for _ in 0..calls {
            let (id, data) = read_frame(&mut self.reader).await;
            let response = Response::decode_from(&data);
            assert_eq!(response.status.map_or(0, |status| status.code), 0, "call {id}");
            assert!(response.payload.len() > reply_len, "call {id} has its whole reply");
            ids.push(id);
        }
        ids.sort_unstable();
        let all: Vec<_> = (0..calls as u32).map(|nth| 2 * nth + 1).collect();
        assert_eq!(ids, all, "each call is answered once");
        self.writing.await.expect("every request is read");
    }
}

/// Asks for replies that have no room, and reads them when nothing moves any more.
async fn calls_wait_for_room(calls: usize, reply_len: usize) {
    let config = ServerConfig::default();
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start(config.clone(), [there]);
    let asking = Asking::start(here, calls, &[reply_len]);
    settle().await;
    let begun = server.service.calls_total() as usize;
    let most = max_begun(&config, reply_len);
    // A frame is a little longer than its reply.
    let least = config.send_queue_bytes / reply_len - 1;
    assert!((least..=most).contains(&begun), "{begun} calls, not from {least} to {most}");
    asking.read(calls, reply_len).await;
    server.is_idle().await;
}

pub async fn calls_for_replies_that_nobody_reads_wait_for_room_before_they_begin() {
    calls_wait_for_room(1024, 64 << 10).await;
}

pub async fn calls_for_long_replies_that_nobody_reads_wait_for_room_before_they_begin() {
    calls_wait_for_room(128, MIB).await;
}

/// Calls of several bursts, each of which was read while there was still room.
pub async fn calls_that_were_read_while_there_was_room_wait_for_it_all_the_same() {
    const REPLY_LEN: usize = 64 << 10;
    let config = ServerConfig { send_queue_bytes: 4 * REPLY_LEN, ..ServerConfig::default() };
    let most = max_begun(&config, REPLY_LEN);
    let (server, mut peer) = played_client_over(config, 4096);
    let request = EchoRequest { payload: Vec::new(), response_size: REPLY_LEN as u32 };
    for id in 0..40 {
        peer.send(call(2 * id + 1, "Echo", &request)).await;
    }
    settle().await;
    let begun = server.service.calls_total() as usize;
    assert!(begun <= most, "{begun} calls have begun, and {most} may");
    for _ in 0..40 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
}

const CONNECTIONS: usize = 4;

/// What a connection costs at most whose client asks for replies of these lengths in turns and reads none, client and pipe
/// included. On one thread, since that is what is counted.
fn cost_of_unread_replies(reply_lens: &[usize]) -> usize {
    const CALLS: usize = 1024;
    let runtime = runtime();
    let most = measure(|| {
        runtime.block_on(async {
            let pipes = (0..CONNECTIONS).map(|_| duplex(PIPE_LEN));
            let (here, there): (Vec<_>, Vec<_>) = pipes.unzip();
            let server = TestServer::start(ServerConfig::default(), there);
            let asking = here.into_iter().map(|pipe| Asking::start(pipe, CALLS, reply_lens));
            let asking: Vec<_> = asking.collect();
            settle().await;
            drop(asking);
            server.is_idle().await;
        });
    });
    most.bytes_max as usize / CONNECTIONS
}

/// What a connection costs beside its replies: the pipe, and the requests, which are there as bytes and as calls.
const BESIDE_REPLIES: usize = MIB;

pub fn connections_that_read_no_replies_cost_a_bounded_amount_each() {
    let most = ServerConfig::default().send_queue_bytes + BESIDE_REPLIES;
    let each = cost_of_unread_replies(&[64 << 10]);
    assert!(each <= most, "{} KiB for each connection, not {}", each >> 10, most >> 10);
}

/// Short replies and long ones have room of their own, and long ones may wait beside. Nine short ones come for each long one:
/// so the room of the short ones is full when the last long one begins that may.
pub fn connections_that_read_neither_short_nor_long_replies_cost_a_bounded_amount_each() {
    let mut reply_lens = [64 << 10; 10];
    reply_lens[9] = MIB;
    let config = ServerConfig::default();
    let most = 2 * config.send_queue_bytes + config.reply_bytes_per_connection;
    let each = cost_of_unread_replies(&reply_lens);
    // A frame of a MiB is too long for the rest of the room, and some may lie in buffers that were there.
    assert!(
        each >= most - MIB - POOL / CONNECTIONS,
        "{} KiB for each connection, not {}",
        each >> 10,
        most >> 10
    );
    assert!(each <= most + BESIDE_REPLIES, "{} KiB for each connection", each >> 10);
}
