//! Messages that stay encoded: long ones are not copied as they are received.

use std::sync::Arc;

use allocation_counter::measure;
use tokio::{io::duplex, runtime::Builder};
use ttrpc::{
    Client, ClientConfig, Raw, Server,
    server::{Routes, Service},
};
use ttrpc_tests::harness::PIPE_LEN;

use super::long_frames;

const LEN: usize = 1 << 20;

struct Echo;

impl Service for Echo {
    fn into_routes(self) -> Routes {
        let echo = Arc::new(self);
        Routes::new("Echo")
            .unary("Raw", &echo, |_, _, request: Raw| Box::pin(async { Ok(request) }))
            .unary("Decoded", &echo, |_, _, request: Vec<u8>| Box::pin(async { Ok(request) }))
    }
}

#[test]
fn raw_messages_are_copied_once_less_on_each_side_than_decoded_ones() {
    let _turn = long_frames();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let client = runtime.block_on(async {
        let (here, there) = duplex(PIPE_LEN);
        tokio::spawn(Server::builder().add_service(Echo).io(there).serve());
        Client::from_io(here, ClientConfig::default())
    });
    let raw = || {
        let request = Raw::from(vec![7; LEN]);
        let reply: Raw = runtime.block_on(client.unary("Echo", "Raw", request)).unwrap();
        assert_eq!(reply.0.len(), LEN);
    };
    let decoded = || {
        let request = vec![7; LEN];
        let reply: Vec<u8> = runtime.block_on(client.unary("Echo", "Decoded", request)).unwrap();
        assert_eq!(reply.len(), LEN);
    };
    raw();
    decoded();
    let (raw, decoded) = (measure(raw).bytes_total, measure(decoded).bytes_total);
    // The encoded message is a few bytes longer than its only field, and a call's future as large as its types.
    assert!(raw + 2 * LEN as u64 <= decoded + 100, "{raw} bytes raw, {decoded} decoded");
}
