//! Bytes at a live client with pending calls of every kind: every call ends, at the latest with the
//! connection, and nothing is left.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio::{io::duplex, task::JoinSet, time::Duration};
use ttrpc::{Client, ClientConfig, Code, Status};
use ttrpc_fuzz::{Peer, Script, frames, run};

/// Limits so small that a few frames reach them.
fn config() -> ClientConfig {
    ClientConfig::default()
        .max_calls(20)
        .send_queue_frames(3)
        .send_queue_bytes(100)
        .stream_inbox_messages(3)
        .stream_inbox_bytes(60)
}

async fn take_all(client: Client) -> Result<(), Status> {
    let mut replies = client.server_streaming::<_, String>("f", "g", "take".to_owned()).await?;
    while replies.recv().await?.is_some() {}
    Ok(())
}

/// A consumer that takes one message and then stands still until the connection ends.
async fn take_one(client: Client) -> Result<(), Status> {
    let mut replies = client.server_streaming::<_, String>("f", "g", "one".to_owned()).await?;
    replies.recv().await?;
    client.closed().await;
    while replies.recv().await?.is_some() {}
    Ok(())
}

async fn collect(client: Client) -> Result<(), Status> {
    let (mut requests, reply) = client.client_streaming::<String, String>("f", "c").await?;
    for _ in 0..10 {
        requests.send("chunk".to_owned()).await?;
    }
    requests.finish();
    reply.await.map(drop)
}

/// Sends back what comes.
async fn exchange(client: Client) -> Result<(), Status> {
    let (mut requests, mut replies) = client.bidi_streaming::<String, String>("f", "x").await?;
    while let Some(reply) = replies.recv().await? {
        requests.send(reply).await?;
    }
    Ok(())
}

async fn echo(client: Client, timeout: Option<Duration>) -> Result<(), Status> {
    let mut call = client.unary::<_, String>("f", "e", "echo".to_owned());
    if let Some(timeout) = timeout {
        call = call.timeout(timeout);
    }
    call.await.map(drop)
}

async fn call(script: Script<'_>) {
    let (here, there) = duplex(script.pipe_len());
    let client = Client::from_io(here, config());
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        calls.spawn(echo(client.clone(), None));
        calls.spawn(take_all(client.clone()));
        calls.spawn(collect(client.clone()));
        calls.spawn(exchange(client.clone()));
        calls.spawn(echo(client.clone(), Some(Duration::from_millis(700))));
        calls.spawn(take_one(client.clone()));
    }
    let mut peer = Peer::new(there);
    peer.play(script, &[]).await;
    // The server goes away, and the client is still there.
    let received = peer.end().await;
    for frame in frames(&received).0 {
        assert!(frame.kind == 1 || frame.kind == 3, "not a client's frame: {frame:?}");
        assert!(frame.id % 2 == 1, "not a client's id: {frame:?}");
    }
    client.closed().await;
    for result in calls.join_all().await {
        if let Err(status) = result {
            assert_ne!(status.raw_code(), 0, "a failure with a good end's code");
        }
    }
    let late = echo(client.clone(), None).await.expect_err("there is no connection");
    assert_eq!(late.code(), Code::Unavailable);
    assert_eq!(client.calls_in_flight(), 0);
}

fuzz_target!(|input: &[u8]| {
    if let Some(script) = Script::new(input) {
        run(call(script));
    }
});
