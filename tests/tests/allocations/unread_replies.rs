//! Replies that the client does not read: how many calls begin meanwhile, what they cost, and that all
//! are answered once it reads.

use allocation_counter::measure;
use tokio::{
    io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    runtime::Builder,
    task::JoinHandle,
};
use ttrpc::ServerConfig;
use ttrpc_tests::{conformance::*, harness::*, wire::Response};

/// Calls that may have begun beside those whose replies have room: one for each worker of the runtime,
/// here one, and a few.
const FEW: usize = 1 + 4;

const MIB: usize = 1 << 20;

/// A client that asks for so many replies and reads nothing by itself.
struct Asking {
    reader: ReadHalf<DuplexStream>,
    writing: JoinHandle<WriteHalf<DuplexStream>>,
}

impl Asking {
    fn start(pipe: DuplexStream, calls: usize, reply_len: usize) -> Self {
        let (reader, mut writer) = split(pipe);
        let request = EchoRequest { payload: Vec::new(), response_size: reply_len as u32 };
        let frames =
            (0..calls).flat_map(|nth| call(2 * nth as u32 + 1, "Echo", &request).to_bytes());
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
    let room = config.send_queue_bytes;
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start(config, [there]);
    let asking = Asking::start(here, calls, reply_len);
    settle().await;
    let begun = server.service.calls_total() as usize;
    let with_room = (room + PIPE_LEN) / reply_len;
    assert!(begun >= with_room / 2, "{begun} calls have begun, and there is room for {with_room}");
    assert!(
        begun <= with_room + FEW,
        "{begun} calls for {reply_len} bytes have begun, there is room for {with_room} replies"
    );
    asking.read(calls, reply_len).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_for_replies_that_nobody_reads_wait_for_room_before_they_begin() {
    calls_wait_for_room(1024, 64 << 10).await;
}

#[tokio::test(start_paused = true)]
async fn calls_for_long_replies_that_nobody_reads_wait_for_room_before_they_begin() {
    calls_wait_for_room(128, MIB).await;
}

/// Calls of several bursts, each of which was read while there was still room.
#[tokio::test(start_paused = true)]
async fn calls_that_were_read_while_there_was_room_wait_for_it_all_the_same() {
    const REPLY_LEN: usize = 64 << 10;
    let config = ServerConfig { send_queue_bytes: 4 * REPLY_LEN, ..ServerConfig::default() };
    let (server, mut peer) = played_client_over(config, 4096);
    let request = EchoRequest { payload: Vec::new(), response_size: REPLY_LEN as u32 };
    for id in 0..40 {
        peer.send(call(2 * id + 1, "Echo", &request)).await;
    }
    settle().await;
    let begun = server.service.calls_total();
    assert!(begun as usize <= 4 + FEW, "{begun} calls have begun, there is room for 4 replies");
    for _ in 0..40 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
}

/// The rule above as memory, client and pipe included. On one thread, since that is what is counted.
#[test]
fn connections_that_read_no_replies_cost_a_bounded_amount_each() {
    const CONNECTIONS: usize = 4;
    const CALLS: usize = 1024;
    const REPLY_LEN: usize = 64 << 10;
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let most = measure(|| {
        runtime.block_on(async {
            let pipes = (0..CONNECTIONS).map(|_| duplex(PIPE_LEN));
            let (here, there): (Vec<_>, Vec<_>) = pipes.unzip();
            let server = TestServer::start(ServerConfig::default(), there);
            let asking = here.into_iter().map(|pipe| Asking::start(pipe, CALLS, REPLY_LEN));
            let asking: Vec<_> = asking.collect();
            settle().await;
            drop(asking);
            server.is_idle().await;
        });
    });
    let each = most.bytes_max as usize / CONNECTIONS;
    // 150 MiB for 20 connections.
    assert!(each <= 15 * MIB / 2, "{} KiB for each connection", each >> 10);
}
