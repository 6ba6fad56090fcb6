//! Servers that close connections on which nothing happens.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, duplex},
    time::{Instant, sleep},
};
use ttrpc::{
    ServerConfig,
    observer::{ConnectionEnd, ConnectionEndCause, ConnectionInfo, Observer},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer, REMOTE_OPEN},
};

const SECOND: Duration = Duration::from_secs(1);
const MAX_IDLE: Duration = Duration::from_secs(60);

/// Notes why connections end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<(ConnectionEndCause, String)>>>);

impl Observer for Ends {
    fn connection_closed(&self, _: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {
        self.0.lock().unwrap().push((end.cause, end.message.to_owned()));
    }
}

fn played_over(pipe_len: usize) -> (TestServer, Played, Ends) {
    let (here, there) = duplex(pipe_len);
    let (config, ends) = (ServerConfig::default().max_idle(MAX_IDLE), Ends::default());
    let server = TestServer::start_with(config, |builder| builder.observe(ends.clone()).io(there));
    (server, Peer::new(here), ends)
}

fn sleep_for(id: u32, time: Duration) -> Frame {
    Frame::unary(id, SERVICE, "Sleep", &SleepRequest { millis: time.as_millis() as u64 })
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_closed_when_no_call_was_open_and_nothing_arrived_for_long() {
    let (_server, mut client, ends) = played_over(PIPE_LEN);
    let began = Instant::now();
    assert!(client.expect_end().await.is_empty());
    assert_eq!(began.elapsed(), MAX_IDLE);
    let seen = ends.0.lock().unwrap().clone();
    let message = "no call was open and nothing arrived for 60s".to_owned();
    assert_eq!(seen, [(ConnectionEndCause::Idle, message)]);
}

#[tokio::test(start_paused = true)]
async fn time_counts_from_the_end_of_the_last_call_and_from_what_arrived_last() {
    let (_server, mut client, _ends) = played_over(PIPE_LEN);
    sleep(MAX_IDLE - SECOND).await;
    client.send(sleep_for(1, 10 * MAX_IDLE)).await;
    client.send(sleep_for(3, SECOND)).await;
    assert_eq!(client.receive().await.id, 3);
    assert_eq!(client.receive().await.id, 1);
    sleep(MAX_IDLE - SECOND).await;
    // Part of a frame.
    client.send_bytes(&sleep_for(5, SECOND).to_bytes()[..3]).await;
    let began = Instant::now();
    assert!(client.expect_end().await.is_empty());
    assert_eq!(began.elapsed(), MAX_IDLE);
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_which_nothing_happens_is_a_call() {
    let (server, mut client, _ends) = played_over(PIPE_LEN);
    client.send(Frame::request(1, REMOTE_OPEN, SERVICE, "Collect", &Empty {})).await;
    server.has_begun(1).await;
    sleep(100 * MAX_IDLE).await;
    client.send(Frame::end(1)).await;
    assert_eq!(client.receive().await.code(), 0);
    let began = Instant::now();
    assert!(client.expect_end().await.is_empty());
    assert_eq!(began.elapsed(), MAX_IDLE);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_its_last_reply_slowly_gets_it_and_one_that_does_not_is_closed() {
    for reads in [true, false] {
        let (server, mut client, ends) = played_over(1);
        let request = EchoRequest { response_size: 1000, ..EchoRequest::default() };
        client.send(Frame::unary(1, SERVICE, "Echo", &request)).await;
        server.is_idle().await;
        let mut there = client.into_inner();
        let began = Instant::now();
        if reads {
            for _ in 0..1000 {
                sleep(MAX_IDLE / 2).await;
                there.read_u8().await.expect("it is open");
            }
        }
        eventually("it is closed", || ends.0.lock().unwrap().len() == 1).await;
        assert_eq!(ends.0.lock().unwrap()[0].0, ConnectionEndCause::Idle);
        assert_eq!(began.elapsed() > 100 * MAX_IDLE, reads, "{:?}", began.elapsed());
    }
}
