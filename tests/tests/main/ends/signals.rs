//! The end of a call is seen by every task that holds its cancellation token or its context, in
//! whatever way the call ended.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{io::duplex, sync::oneshot, task::JoinHandle, time::timeout};
use ttrpc::{
    Client, ClientConfig, Code, Context, Server, Status,
    server::{Routes, ServerHandle, StreamReceiver, StreamSender},
};
use ttrpc_tests::harness::*;

const NAME: &str = "test.Ends";

const METHODS: [&str; 4] = ["Unary", "ClientStreaming", "ServerStreaming", "Bidi"];

/// What the last handler left behind.
#[derive(Debug, Default)]
struct Left {
    watchers: Vec<JoinHandle<()>>,
    context: Option<Context>,
}

type Service = Mutex<Left>;

/// Leaves tasks behind that wait for the end of the call: on its token, and on its context.
fn leave_watchers(left: &Service, ctx: &Context) {
    let (token, context) = (ctx.cancellation_token(), ctx.clone());
    let mut left = left.lock().unwrap();
    left.watchers = vec![
        tokio::spawn(async move { token.cancelled().await }),
        tokio::spawn(async move { context.cancelled().await }),
    ];
}

fn routes(left: &Arc<Service>) -> Routes {
    Routes::new(NAME)
        .unary("Unary", left, |left: &Service, ctx, (): ()| {
            leave_watchers(left, ctx);
            Box::pin(async { Ok::<(), Status>(()) })
        })
        .unary("Fail", left, |left: &Service, ctx, (): ()| {
            leave_watchers(left, ctx);
            Box::pin(async { Err::<(), _>(Status::not_found("nothing here")) })
        })
        .unary("Panic", left, |left: &Service, ctx, (): ()| {
            leave_watchers(left, ctx);
            Box::pin(async { panic!("asked to") as Result<(), Status> })
        })
        .unary("KeepContext", left, |left: &Service, ctx, (): ()| {
            left.lock().unwrap().context = Some(ctx.clone());
            Box::pin(async { Ok::<(), Status>(()) })
        })
        .client_streaming("ClientStreaming", left, |left: &Service, ctx, _: StreamReceiver<()>| {
            leave_watchers(left, ctx);
            Box::pin(async { Ok::<(), Status>(()) })
        })
        .server_streaming(
            "ServerStreaming",
            left,
            |left: &Service, ctx, (): (), _: StreamSender<()>| {
                leave_watchers(left, ctx);
                Box::pin(async { Ok(()) })
            },
        )
        .bidi_streaming(
            "Bidi",
            left,
            |left: &Service, ctx, _: StreamReceiver<()>, _: StreamSender<()>| {
                leave_watchers(left, ctx);
                Box::pin(async { Ok(()) })
            },
        )
}

struct Setup {
    left: Arc<Service>,
    handle: ServerHandle,
    client: Client,
    _serving: JoinHandle<Result<(), ttrpc::Error>>,
}

fn set_up() -> Setup {
    let left = Arc::<Service>::default();
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(&left))).io(there).build().unwrap();
    let handle = server.handle();
    let client = Client::from_io(here, ClientConfig::default());
    Setup { left, handle, client, _serving: tokio::spawn(server.serve()) }
}

impl Setup {
    /// Makes a call and waits for its end.
    async fn call(&self, method: &'static str) -> Result<(), Status> {
        match method {
            "ClientStreaming" => {
                let (requests, reply) =
                    self.client.client_streaming::<(), ()>(NAME, method).await?;
                requests.finish();
                reply.await
            }
            "ServerStreaming" => {
                let mut replies = self.client.server_streaming::<(), ()>(NAME, method, ()).await?;
                replies.recv().await.map(|end| assert_eq!(end, None))
            }
            "Bidi" => {
                let (requests, mut replies) =
                    self.client.bidi_streaming::<(), ()>(NAME, method).await?;
                requests.finish();
                replies.recv().await.map(|end| assert_eq!(end, None))
            }
            _ => self.client.unary::<(), ()>(NAME, method, ()).await,
        }
    }

    async fn watchers_hear_of_the_end(&self, method: &str) {
        let watchers = std::mem::take(&mut self.left.lock().unwrap().watchers);
        assert_eq!(watchers.len(), 2);
        for (watcher, of) in watchers.into_iter().zip(["the token", "the cloned context"]) {
            let heard = timeout(PAUSE, watcher).await;
            assert!(heard.is_ok(), "{method}: a task that waits on {of} hears of the end");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_and_contexts_of_calls_that_ended_well_fire() {
    let setup = set_up();
    for method in METHODS {
        assert_eq!(setup.call(method).await, Ok(()), "{method}");
        setup.watchers_hear_of_the_end(method).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_and_contexts_of_calls_that_failed_fire() {
    let setup = set_up();
    for (method, code) in [("Fail", Code::NotFound), ("Panic", Code::Internal)] {
        assert_eq!(setup.call(method).await.unwrap_err().code(), code);
        setup.watchers_hear_of_the_end(method).await;
    }
}

#[tokio::test(start_paused = true)]
async fn contexts_that_are_first_asked_after_the_end_fire_at_once() {
    let setup = set_up();
    assert_eq!(setup.call("KeepContext").await, Ok(()));
    settle().await;
    let context = setup.left.lock().unwrap().context.take().expect("the handler has run");
    let heard = timeout(Duration::from_millis(1), context.cancelled()).await;
    assert!(heard.is_ok(), "the call is over");
    assert!(context.cancellation_token().is_cancelled());
}

/// What a call left behind keeps neither the call nor its connection once `end` has ended it.
async fn nothing_is_left<F: Future<Output = ()>>(end: impl Fn(Setup) -> F) {
    for method in METHODS {
        let tasks_before = alive_tasks();
        let setup = set_up();
        assert_eq!(setup.call(method).await, Ok(()), "{method}");
        let watchers = std::mem::take(&mut setup.left.lock().unwrap().watchers);
        end(setup).await;
        for watcher in watchers {
            let heard = timeout(PAUSE, watcher).await;
            assert!(heard.is_ok(), "{method}: a task that waits hears of the end");
        }
        tasks_are_back_at(tasks_before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_and_contexts_of_calls_that_ended_well_keep_nothing_after_a_disconnect() {
    nothing_is_left(|Setup { client, handle, _serving, .. }| async move {
        drop(client);
        eventually("the connection ends", || handle.connections() == 0).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tokens_and_contexts_of_calls_that_ended_well_keep_nothing_after_a_shutdown() {
    nothing_is_left(|Setup { handle, .. }| async move {
        handle.shutdown(PAUSE).await;
    })
    .await;
}

/// Those who waited before the deadline and those who ask after it.
#[tokio::test(start_paused = true)]
async fn tokens_of_handlers_that_their_deadline_ended_fire_once_the_call_is_over() {
    let (sender, receiver) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let routes = Routes::new(NAME).unary(
        "Wait",
        &sender,
        |sender: &Mutex<Option<oneshot::Sender<_>>>, ctx, (): ()| {
            let sender = sender.lock().unwrap().take().expect("it is called once");
            sender.send(ctx.clone()).expect("the test waits for it");
            Box::pin(std::future::pending::<Result<(), Status>>())
        },
    );
    let (here, there) = duplex(PIPE_LEN);
    tokio::spawn(Server::builder().add_service(Handmade(routes)).io(there).serve());
    let client = Client::from_io(here, ClientConfig::default());
    let limit = Duration::from_millis(300);
    let late = client.unary::<(), ()>(NAME, "Wait", ()).timeout(limit).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let context = receiver.await.unwrap();
    timeout(PAUSE, context.cancelled()).await.expect("the call is over");
}

/// Nobody but the token is left of the call: neither its context nor a wait of its handler's.
#[tokio::test(start_paused = true)]
async fn tokens_of_handlers_that_never_waited_fire() {
    let (give, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    let routes = ttrpc::server::Routes::new("signals.Test").unary(
        "Call",
        &Arc::new(give),
        |give, ctx, (): ()| {
            give.send(ctx.cancellation_token()).expect("the test takes it");
            Box::pin(async { Ok(()) })
        },
    );
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let client = ttrpc::Client::from_io(here, ttrpc::ClientConfig::default());
    client.unary::<(), ()>("signals.Test", "Call", ()).await.unwrap();
    let token: ttrpc::CancellationToken = tokens.recv().await.expect("the handler has run");
    tokio::time::timeout(std::time::Duration::from_secs(1), token.cancelled()).await.unwrap();
    serving.abort();
}
