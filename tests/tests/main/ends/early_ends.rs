//! Calls that the server ends while their client still sends: each send is told the call's own end.

use std::{
    collections::BTreeMap,
    io::{BufReader, Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    thread,
};

use tokio::net::UnixStream;
use ttrpc::{Client, ClientConfig, Code};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, REQUEST},
};

/// Streams that are failed together.
const STREAMS: usize = 400;

const ROUNDS: usize = 500;

/// Bytes of each failure's message: it takes the client's receiver longer to read it than the sender
/// needs to find out that a stream has failed and to go on with the next.
const MESSAGE_LEN: usize = 100;

/// Reads all that comes, and fails the streams once there are so many of them. On a thread of its own,
/// so that the client's tasks have the runtime to themselves.
fn fail_all(socket: StdUnixStream) {
    let mut writer = socket.try_clone().expect("it is open");
    let mut reader = BufReader::new(socket);
    let mut failures = Vec::new();
    let mut header = [0; 10];
    while reader.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let mut data = vec![0; word(0) as usize];
        reader.read_exact(&mut data).expect("a frame comes whole");
        if header[8] == REQUEST {
            failures.push(Frame::failure(word(4), 5, &"x".repeat(MESSAGE_LEN)).to_bytes());
        }
        if failures.len() == STREAMS {
            writer.write_all(&failures.concat()).expect("the client reads");
            failures.clear();
        }
    }
}

/// With several threads, since a send has to fall between two steps of the receiver. How often it does
/// is up to the system; that no status is wrong is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn sends_that_race_with_the_servers_end_are_told_that_end_and_not_that_the_connection_is_lost()
 {
    let (here, there) = StdUnixStream::pair().unwrap();
    let server = thread::spawn(|| fail_all(there));
    here.set_nonblocking(true).unwrap();
    let here = UnixStream::from_std(here).unwrap();
    let client = Client::from_unix_stream(here, ClientConfig::default());
    let conformance = ConformanceClient::new(client.clone());
    let sending = tokio::spawn(async move {
        let mut codes = BTreeMap::new();
        for _ in 0..ROUNDS {
            let mut streams = Vec::new();
            for _ in 0..STREAMS {
                streams.push(conformance.exchange().await.unwrap());
            }
            for (requests, _) in &mut streams {
                let status = loop {
                    if let Err(status) = requests.send(chunk(0)).await {
                        break status;
                    }
                };
                *codes.entry(status.code().name()).or_insert(0) += 1;
            }
            for (_, mut replies) in streams {
                assert_eq!(replies.recv().await.unwrap_err().code(), Code::NotFound);
            }
        }
        codes
    });
    let codes = sending.await.unwrap();
    assert!(client.close_reason().is_none(), "the connection is well");
    assert_eq!(codes, BTreeMap::from([(Code::NotFound.name(), STREAMS * ROUNDS)]));
    client.close();
    server.join().unwrap();
}
