//! Handlers that block their threads, which async code should not do and some does: they hold up none of
//! the calls that came with theirs as long as the runtime has another thread, and that one is awake.
//!
//! A thread of tokio's may go to sleep just when another one, which it takes to be looking for work, adds tasks to its own
//! queue and then blocks (tokio's issue 6847, the loom test of its pull request 6876). Nobody runs these tasks until something
//! else wakes the thread that sleeps. So something happens in the server's runtime all the time here. What
//! lies where no other thread finds it, as a handler must not leave anything, is held up all the same.

use std::{sync::Arc, time::Duration};

use tokio::{
    net::UnixStream,
    runtime::{Builder, Runtime},
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc::{
    Client, ClientConfig, Server, Status,
    server::{Routes, ServerHandle},
};
use ttrpc_tests::{
    conformance::Empty,
    gate::Gate,
    harness::{Handmade, PATIENCE},
};

const SERVICE: &str = "blocking.Test";

/// A server on a runtime of its own, with so many threads.
struct TestServer {
    gate: Arc<Gate>,
    handle: ServerHandle,
    runtime: Runtime,
}

fn start(threads: usize, client_side: &Runtime) -> (TestServer, Client) {
    let gate = Arc::<Gate>::default();
    let notify = Arc::<Notify>::default();
    let routes = Routes::new(SERVICE)
        .unary("Reply", &gate, |_, _, Empty {}| Box::pin(async { Ok(Empty {}) }))
        .unary("Block", &gate, |gate, _, Empty {}| {
            Box::pin(async {
                gate.wait();
                Ok(Empty {})
            })
        })
        .unary("Open", &gate, |gate, _, Empty {}| {
            Box::pin(async {
                gate.open();
                Ok(Empty {})
            })
        })
        .unary("Wait", &notify, |notify, _, Empty {}| {
            Box::pin(async {
                notify.notified().await;
                Ok(Empty {})
            })
        })
        .unary("Wake", &notify, |notify, _, Empty {}| {
            Box::pin(async {
                notify.notify_one();
                Ok(Empty {})
            })
        });
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    let handle = runtime.block_on(async {
        let there = UnixStream::from_std(there).unwrap();
        let server = Server::builder().add_service(Handmade(routes)).unix_stream(there);
        let server = server.build().unwrap();
        let handle = server.handle();
        tokio::spawn(server.serve());
        handle
    });
    let client = client_side.block_on(async {
        Client::from_unix_stream(UnixStream::from_std(here).unwrap(), ClientConfig::default())
    });
    (TestServer { gate, handle, runtime }, client)
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // The runtime waits for its threads.
        self.gate.open();
    }
}

fn client_side() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes these calls at once. What is given back gets the number of each that is answered.
fn call_all(client: &Client, methods: &[&'static str]) -> JoinSet<(usize, Result<Empty, Status>)> {
    let mut calls = JoinSet::new();
    for (number, &method) in methods.iter().enumerate() {
        let client = client.clone();
        calls.spawn(async move { (number, client.unary(SERVICE, method, Empty {}).await) });
    }
    calls
}

impl TestServer {
    /// The number of the next call that is answered, and it is with success.
    async fn next(&self, calls: &mut JoinSet<(usize, Result<Empty, Status>)>) -> usize {
        let (number, result) = self.answer(calls).await;
        result.unwrap();
        number
    }

    /// The next call that is answered.
    async fn answer(
        &self,
        calls: &mut JoinSet<(usize, Result<Empty, Status>)>,
    ) -> (usize, Result<Empty, Status>) {
        let keep_awake = async {
            loop {
                sleep(Duration::from_millis(10)).await;
                self.runtime.spawn(async {});
            }
        };
        let answered = tokio::select! {
            answered = timeout(PATIENCE, calls.join_next()) => answered.expect("a call is held up"),
            () = keep_awake => unreachable!("it goes on for ever"),
        };
        answered.unwrap().unwrap()
    }
}

/// Whether a round is on a connection of its own.
fn is_new(round: usize) -> bool {
    round % 3 < 2
}

#[test]
fn while_handlers_block_all_threads_but_one_every_other_call_is_answered() {
    const CALLS: usize = 48;
    let client_side = client_side();
    for threads in [2, 4] {
        let (mut server, mut client) = start(threads, &client_side);
        for round in 0..CALLS {
            if is_new(round) {
                (server, client) = start(threads, &client_side);
            }
            let mut methods = ["Reply"; CALLS];
            let blocking: Vec<_> =
                (1..threads).map(|nth| (round + (nth - 1) * (1 + round % 7)) % CALLS).collect();
            blocking.iter().for_each(|&number| methods[number] = "Block");
            server.gate.close();
            client_side.block_on(async {
                let mut calls = call_all(&client, &methods);
                let blocked = methods.iter().filter(|&&method| method == "Block").count();
                for _ in blocked..CALLS {
                    let number = server.next(&mut calls).await;
                    assert_eq!(methods[number], "Reply");
                }
                server.gate.open();
                for _ in 0..blocked {
                    server.next(&mut calls).await;
                }
            });
        }
    }
}

/// A runtime keeps a task that another one wakes for the thread that woke it: a handler that blocks this
/// thread must not come between.
#[test]
fn a_call_that_another_one_has_woken_is_not_held_up_by_a_third_that_blocks() {
    let client_side = client_side();
    let (mut server, mut client) = start(2, &client_side);
    for round in 0..200 {
        if is_new(round) {
            (server, client) = start(2, &client_side);
        }
        server.gate.close();
        client_side.block_on(async {
            let mut calls = call_all(&client, &["Wait", "Wake", "Block", "Reply"]);
            for _ in 0..3 {
                assert_ne!(server.next(&mut calls).await, 2);
            }
            server.gate.open();
            assert_eq!(server.next(&mut calls).await, 2);
        });
    }
}

/// The client waits for a reply before it makes the call that ends the handler which has blocked its thread, behind the
/// one that has replied.
#[test]
fn a_reply_is_not_held_up_by_the_handler_behind_it_that_blocks() {
    let client_side = client_side();
    for _ in 0..50 {
        let (server, client) = start(2, &client_side);
        client_side.block_on(async {
            let mut calls = call_all(&client, &["Reply", "Reply", "Block"]);
            for _ in 0..2 {
                assert_ne!(server.next(&mut calls).await, 2);
            }
            let mut opens = call_all(&client, &["Open"]);
            server.next(&mut opens).await;
            assert_eq!(server.next(&mut calls).await, 2);
        });
    }
}

/// What the receiver has woken just before, too: here the sender, which is to write that there is no such method.
#[test]
fn a_refusal_is_not_held_up_by_the_handler_behind_it_that_blocks() {
    let client_side = client_side();
    for _ in 0..50 {
        let (server, client) = start(2, &client_side);
        client_side.block_on(async {
            let mut calls = call_all(&client, &["Missing", "Block", "Reply"]);
            let mut answered = 0;
            while answered < 2 {
                let (number, result) = server.answer(&mut calls).await;
                assert_ne!(number, 1);
                assert_eq!(result.is_err(), number == 0);
                answered += 1;
            }
            server.gate.open();
            assert_eq!(server.next(&mut calls).await, 1);
        });
    }
}

/// The connection ends, though one of its handlers blocks its thread.
#[test]
fn a_connection_ends_while_one_of_its_handlers_blocks() {
    let client_side = client_side();
    for _ in 0..20 {
        let (server, client) = start(2, &client_side);
        client_side.block_on(async {
            let mut calls = call_all(&client, &["Reply", "Block", "Reply"]);
            for _ in 0..2 {
                assert_ne!(server.next(&mut calls).await, 1);
            }
            calls.shutdown().await;
            drop(client);
            let ends = async {
                while server.handle.connections() > 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, ends).await.expect("it waits for the handler");
        });
    }
}

/// The control: where there is no other thread, nobody is answered meanwhile.
#[test]
fn a_handler_that_blocks_the_only_thread_holds_up_every_other_call() {
    let client_side = client_side();
    let (server, client) = start(1, &client_side);
    client_side.block_on(async {
        let mut blocked = call_all(&client, &["Block"]);
        server.gate.has_come(1).await;
        let mut other = call_all(&client, &["Reply"]);
        timeout(Duration::from_millis(50), other.join_next()).await.expect_err("it is held up");
        server.gate.open();
        server.next(&mut blocked).await;
        server.next(&mut other).await;
    });
}
