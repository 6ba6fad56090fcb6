//! Whoever always has something to do does not keep others from running, nor its own deadline from
//! being seen.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::duplex,
    task::{coop::consume_budget, yield_now},
};
use ttrpc::{Client, ClientConfig, Code, Server, Status, server::Routes};
use ttrpc_tests::{conformance::*, harness::*, wire::Frame};

const NAME: &str = "test.Fairness";

const LIMIT: Duration = Duration::from_millis(50);

/// Computes without end, and gives way to others as tokio's resources do: by a budget, which is used
/// up whenever the handler is polled.
async fn compute() -> Result<(), Status> {
    loop {
        consume_budget().await;
    }
}

/// On the clock of the machine: the paused one stands while there is something to do.
#[tokio::test]
async fn a_handler_that_always_has_something_to_do_ends_at_its_deadline() {
    let routes = Routes::new(NAME)
        .unary("Compute", &Arc::new(()), |(), _, (): ()| Box::pin(compute()))
        .unary("ComputeOn", &Arc::new(()), |(), ctx, (): ()| {
            let _token = ctx.cancellation_token();
            Box::pin(compute())
        });
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    for method in ["Compute", "ComputeOn"] {
        let call = client.unary::<(), ()>(NAME, method, ()).timeout(LIMIT);
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
        eventually("the handler is dropped", || handle.calls_in_flight() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_of_many_messages_lets_others_run_in_between() {
    const COUNT: u64 = 10_000;
    let config = ClientConfig::default().stream_inbox_messages(COUNT as usize);
    let (_client, conformance, mut peer) = played_server(config);
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = peer.receive().await.id;
    for sequence in 0..COUNT {
        peer.send(Frame::message(id, &chunk(sequence))).await;
    }
    settle().await;
    let taken = Arc::new(AtomicU64::new(0));
    let counting = taken.clone();
    let reading = tokio::spawn(async move {
        for _ in 0..COUNT {
            replies.recv().await.unwrap().unwrap();
            counting.fetch_add(1, SeqCst);
        }
    });
    while taken.load(SeqCst) == 0 {
        yield_now().await;
    }
    assert!(taken.load(SeqCst) < COUNT);
    reading.await.unwrap();
}
