//! The frame codec, the stream tables, and whole calls over a pipe in memory, on one thread.
//!
//! `cargo bench -p bench-micro`, or with a part of a name behind `--`.

use std::sync::Arc;

use divan::{Bencher, black_box, counter::ItemsCount};
use tokio::{
    io::duplex,
    runtime::{Builder, Runtime},
};
use ttrpc::{
    Client, ClientConfig, Server,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header},
        stream::Kind,
        table::{ClientTable, ServerTable},
    },
    server::{Routes, Service},
};

fn main() {
    divan::main();
}

/// What one read of a busy connection brings.
const FRAMES: u32 = 64;

const LENGTHS: [usize; 3] = [0, 64, 4096];

fn header(stream_id: u32, frame_type: FrameType, data_len: usize) -> Header {
    Header { data_len: data_len as u32, stream_id, frame_type, flags: Flags::NONE }
}

#[divan::bench(args = LENGTHS)]
fn decode_frames(bencher: Bencher<'_, '_>, len: usize) {
    let frame = |id| {
        let mut frame = header(2 * id + 1, FrameType::Response, len).to_bytes().to_vec();
        frame.resize(frame.len() + len, 7);
        frame
    };
    let wire: Vec<u8> = (0..FRAMES).flat_map(frame).collect();
    let mut decoder = Decoder::default();
    bencher.counter(ItemsCount::new(FRAMES)).bench_local(|| {
        decoder.feed(black_box(&wire));
        while let Some(Decoded::Frame(header)) = decoder.decode() {
            black_box((header, decoder.data()));
        }
    });
}

#[divan::bench]
fn client_table(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(FRAMES)).with_inputs(ClientTable::default).bench_values(
        |mut table| {
            for handle in 0..FRAMES {
                table.open(Kind::Unary, handle);
            }
            for id in 0..FRAMES {
                black_box(table.receive(header(2 * id + 1, FrameType::Response, 0)));
            }
        },
    );
}

#[divan::bench]
fn server_table(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(FRAMES)).with_inputs(ServerTable::default).bench_values(
        |mut table| {
            for handle in 0..FRAMES {
                let id = 2 * handle + 1;
                black_box(table.receive(header(id, FrameType::Request, 0)));
                table.open(id, Flags::NONE, handle);
            }
            for id in 0..FRAMES {
                black_box(table.remove(2 * id + 1));
            }
        },
    );
}

#[derive(Clone, PartialEq, prost::Message)]
struct Echo {
    #[prost(bytes = "vec", tag = "1")]
    payload: Vec<u8>,
}

struct Echoer;

impl Service for Echoer {
    fn into_routes(self) -> Routes {
        let service = Arc::new(self);
        Routes::new("micro.v1.Echoer")
            .unary("Echo", &service, |_, _, request: Echo| Box::pin(async { Ok(request) }))
            .server_streaming("Repeat", &service, |_, _, request: Echo, mut replies| {
                Box::pin(async move {
                    for _ in 0..FRAMES {
                        replies.send(request.clone()).await?;
                    }
                    Ok(())
                })
            })
    }
}

/// A client and a server on one thread, with a pipe in memory between them.
fn connected() -> (Runtime, Client) {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime starts");
    let client = runtime.block_on(async {
        let (here, there) = duplex(64 << 10);
        let server = Server::builder().add_service(Echoer).io(there).build();
        tokio::spawn(server.expect("there is a connection").serve());
        Client::from_io(here, ClientConfig::default())
    });
    (runtime, client)
}

async fn call(client: Client, len: usize) {
    let request = Echo { payload: vec![7; len] };
    let reply: Echo = client.unary("micro.v1.Echoer", "Echo", request).await.expect("it answers");
    assert_eq!(reply.payload.len(), len);
}

#[divan::bench(args = LENGTHS)]
fn one_call(bencher: Bencher<'_, '_>, len: usize) {
    let (runtime, client) = connected();
    bencher.bench_local(|| runtime.block_on(call(client.clone(), len)));
}

#[divan::bench(args = LENGTHS)]
fn calls_together(bencher: Bencher<'_, '_>, len: usize) {
    let (runtime, client) = connected();
    bencher.counter(ItemsCount::new(FRAMES)).bench_local(|| {
        runtime.block_on(async {
            let spawn = |_| tokio::spawn(call(client.clone(), len));
            for call in (0..FRAMES).map(spawn).collect::<Vec<_>>() {
                call.await.expect("a call does not panic");
            }
        });
    });
}

#[divan::bench(args = LENGTHS)]
fn stream_of_replies(bencher: Bencher<'_, '_>, len: usize) {
    let (runtime, client) = connected();
    bencher.counter(ItemsCount::new(FRAMES)).bench_local(|| {
        runtime.block_on(async {
            let request = Echo { payload: vec![7; len] };
            let replies = client.server_streaming("micro.v1.Echoer", "Repeat", request).await;
            let mut replies = replies.expect("it opens");
            while let Some(reply) = replies.recv().await.expect("it goes on") {
                black_box::<Echo>(reply);
            }
        });
    });
}
