//! What a handler hands on to a task of its own: that task does not wait for ever when the call is
//! over.

use std::sync::Arc;

use tokio::sync::mpsc;
use ttrpc::{
    Client, ClientConfig, Code, Server, Status,
    client::{StreamReceiver as Replies, StreamSender as Requests},
    server::{Routes, ServerHandle, StreamReceiver},
};
use ttrpc_tests::{conformance::Chunk, harness::*, wire::Watchdog};

const NAME: &str = "test.HandedOn";

/// What the task saw: a message, or the stream's end.
type Seen = Result<Option<u64>, Code>;

/// Where the tasks tell what they see.
type Tell = mpsc::UnboundedSender<Seen>;

/// Reads a stream to its end.
async fn read(mut requests: StreamReceiver<Chunk>, tell: Tell) {
    loop {
        let seen = requests.recv().await;
        let seen = seen.map(|message| message.map(|chunk| chunk.sequence));
        let is_end = !matches!(seen, Ok(Some(_)));
        tell.send(seen.map_err(|status| status.code())).expect("the test listens");
        if is_end {
            return;
        }
    }
}

fn routes(tell: Tell) -> Routes {
    let tell = Arc::new(tell);
    Routes::new(NAME)
        .bidi_streaming("Stays", &tell, |tell: &Tell, _, requests, _replies: Replying| {
            tokio::spawn(read(requests, tell.clone()));
            Box::pin(std::future::pending())
        })
        .bidi_streaming("Returns", &tell, |tell: &Tell, _, requests, _replies: Replying| {
            tokio::spawn(read(requests, tell.clone()));
            Box::pin(async { Ok::<(), Status>(()) })
        })
        .bidi_streaming("Panics", &tell, |tell: &Tell, _, requests, _replies: Replying| {
            tokio::spawn(read(requests, tell.clone()));
            Box::pin(async { panic!("as asked") as Result<(), Status> })
        })
}

type Replying = ttrpc::server::StreamSender<Chunk>;

fn set_up() -> (Client, ServerHandle, mpsc::UnboundedReceiver<Seen>) {
    let (tell, told) = mpsc::unbounded_channel();
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(tell))).io(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    (Client::from_io(here, ClientConfig::default()), handle, told)
}

async fn open(client: &Client, method: &'static str) -> (Requests<Chunk>, Replies<Chunk>) {
    client.bidi_streaming(NAME, method).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_task_that_reads_for_its_handler_is_told_when_the_client_goes_away() {
    let _watchdog = Watchdog::default();
    let (client, _handle, mut told) = set_up();
    let tasks = alive_tasks();
    let (mut requests, _replies) = open(&client, "Stays").await;
    requests.send(chunk(7)).await.unwrap();
    assert_eq!(told.recv().await, Some(Ok(Some(7))));
    client.close();
    assert_eq!(told.recv().await, Some(Err(Code::Cancelled)));
    tasks_are_back_at(tasks).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_reads_for_its_handler_is_told_when_the_handler_ends() {
    for method in ["Returns", "Panics"] {
        let _watchdog = Watchdog::default();
        let (client, handle, mut told) = set_up();
        let (_requests, _replies) = open(&client, method).await;
        assert_eq!(told.recv().await, Some(Err(Code::Cancelled)), "{method}");
        assert_eq!(handle.calls_in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_reads_for_its_handler_sees_the_clients_good_end() {
    let _watchdog = Watchdog::default();
    let (client, _handle, mut told) = set_up();
    let (requests, _replies) = open(&client, "Stays").await;
    requests.finish();
    assert_eq!(told.recv().await, Some(Ok(None)));
}
