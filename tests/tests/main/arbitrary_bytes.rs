//! No bytes of a peer bring the other side down: not random ones, not frames that are nearly right.
//! The bytes come from a generator with fixed seeds, so that a failure repeats itself.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{Duration, timeout},
};
use ttrpc::{Client, ClientConfig, Code, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, REMOTE_OPEN, REQUEST, RESPONSE, header},
};

const SEEDS: u64 = 300;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A frame that the other side could get, or nearly.
    fn frame(&mut self) -> Vec<u8> {
        let id = self.below(12) as u32;
        let methods = ["Echo", "Collect", "Exchange", "Generate", "Hold", "Release", "Panics"];
        let method = methods[self.below(methods.len())];
        let mut frame = match self.below(5) {
            0 => Frame::unary(id, SERVICE, method, &echo_request(self.bytes(20))),
            1 => Frame::request(id, REMOTE_OPEN, SERVICE, method, &chunk(1)),
            2 => Frame::reply(id, &EchoResponse { payload: self.bytes(20) }),
            3 => Frame::failure(id, self.next() as i32, "no"),
            _ => Frame::message(id, &chunk(self.next())),
        };
        match self.below(6) {
            0 => frame.flags = self.next() as u8,
            1 => frame.kind = [REQUEST, RESPONSE, DATA, 0, 200][self.below(5)],
            2 if !frame.data.is_empty() => {
                let at = self.below(frame.data.len());
                frame.data[at] = self.next() as u8;
            }
            3 => frame.data.truncate(self.below(frame.data.len() + 1)),
            _ => {}
        }
        frame.to_bytes()
    }

    fn frames(&mut self) -> Vec<u8> {
        let count = self.below(60);
        (0..count).flat_map(|_| self.frame()).collect()
    }
}

/// Sends bytes in random portions while everything that comes back is read.
async fn play(io: DuplexStream, bytes: &[u8], random: &mut Random) -> DuplexStream {
    let (mut reader, mut writer) = tokio::io::split(io);
    let reading = tokio::spawn(async move {
        let mut sink = vec![0; 4096];
        while let Ok(Ok(1..)) = timeout(PATIENCE / 10, reader.read(&mut sink)).await {}
        reader
    });
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + random.below(rest.len()));
        if writer.write_all(now).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
        rest = later;
    }
    reading.await.expect("reading does not panic").unsplit(writer)
}

#[tokio::test(start_paused = true)]
async fn random_bytes_harm_no_server() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let len = random.below(3000);
        let bytes = random.bytes(len);
        let (server, peer) = played_client(ServerConfig::default());
        let io = play(peer.into_inner(), &bytes, &mut random).await;
        drop(io);
        server.is_idle().await;
        server.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_serves_on_after_frames_that_are_nearly_right() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let frames = random.frames();
        let (server, peer) = played_client(ServerConfig::default());
        let io = play(peer.into_inner(), &frames, &mut random).await;
        let mut peer = ttrpc_tests::wire::Peer::new(io);
        // Whole frames came, so this one is found behind them and is answered.
        expect_echo(&mut peer, 9999).await;
        assert_eq!(server.handle.connections(), 1, "with seed {seed}");
        drop(peer);
        server.is_idle().await;
        server.ended().await;
    }
}

/// A client with one call of each kind, whose ends are all awaited.
async fn client_under(bytes: &[u8], random: &mut Random) -> Client {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let unary = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let (requests, reply) = conformance.collect().await.unwrap();
    let exchange = conformance.exchange().await.unwrap();
    for _ in 0..4 {
        peer.receive().await;
    }
    let reading = tokio::spawn(async move { while let Ok(Some(_)) = replies.recv().await {} });
    let io = play(peer.into_inner(), bytes, random).await;
    drop(io);
    let reason = timeout(PATIENCE, client.closed()).await;
    reason.expect("the connection ends when the server goes away");
    let _ = timeout(PATIENCE, unary).await.expect("the call ends").expect("without a panic");
    let _ = timeout(PATIENCE, reply).await.expect("the upload ends");
    timeout(PATIENCE, reading).await.expect("the stream ends").expect("without a panic");
    drop((requests, exchange));
    client
}

#[tokio::test(start_paused = true)]
async fn random_bytes_harm_no_client() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let len = random.below(3000);
        let bytes = random.bytes(len);
        let client = client_under(&bytes, &mut random).await;
        assert_eq!(client.calls_in_flight(), 0, "with seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_are_nearly_right_harm_no_client() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let frames = random.frames();
        let client = client_under(&frames, &mut random).await;
        assert_eq!(client.calls_in_flight(), 0, "with seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_flag_on_every_type_for_every_kind_of_stream_is_survived() {
    let (here, there) = duplex(1 << 20);
    let server = TestServer::start(ServerConfig::default(), [there]);
    let mut peer = ttrpc_tests::wire::Peer::new(here);
    let mut id = 1;
    for kind in [REQUEST, DATA] {
        for flags in 0..=u8::MAX {
            for method in ["Echo", "Collect", "Exchange"] {
                if kind == DATA {
                    peer.send(open_stream(id, method)).await;
                }
                let request = Frame::request(id, flags, SERVICE, method, &Empty {});
                peer.send(Frame { kind, ..request }).await;
                peer.send(Frame::end(id)).await;
                id += 2;
            }
        }
        // What comes back is read now and then, within the room of the pipe.
        while timeout(Duration::from_millis(100), peer.receive()).await.is_ok() {}
    }
    expect_echo(&mut peer, id).await;
    server.is_idle().await;
    // A header of nothing but ones, then the end.
    peer.send_bytes(&header(u32::MAX, u32::MAX, u8::MAX, u8::MAX)).await;
    drop(peer);
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_of_rubbish_reaches_the_caller_as_one() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let id = peer.receive().await.id;
        // A status field of random bytes.
        let mut data = vec![0x0a, 30];
        data.extend(random.bytes(30));
        peer.send(Frame::new(id, RESPONSE, 0, data)).await;
        if let Err(status) = echo.await.unwrap() {
            assert_ne!(status.code(), Code::Ok, "with seed {seed}");
        }
    }
}
