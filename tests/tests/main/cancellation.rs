//! Handlers whose call is over: the token, the grace of those who took it, panics.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{DuplexStream, duplex},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use ttrpc::{
    Client, ClientConfig, Code, Context, Server, Status,
    prost::Message,
    server::{Routes, ServerHandle},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer, Request},
};

const LIMIT: Duration = Duration::from_millis(300);

/// The grace that a handler with a token has by default.
const GRACE: Duration = Duration::from_secs(1);

const BIT: Duration = Duration::from_millis(20);

const NAME: &str = "test.Cancel";

/// What handlers leave for the test to see.
#[derive(Debug, Default)]
struct Seen {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    cleaned_up: AtomicUsize,
    was_cancelled: AtomicBool,
    /// The token of the method `HandOut`, for those outside of the handler.
    token: std::sync::OnceLock<CancellationToken>,
}

/// Counts a handler's drop.
struct Alive<'a>(&'a Seen);

impl<'a> Alive<'a> {
    fn new(seen: &'a Seen) -> Self {
        seen.begun.fetch_add(1, SeqCst);
        Alive(seen)
    }
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, SeqCst);
    }
}

/// A handler that cleans up for this long after its token has fired.
async fn clean_up_for(seen: &Seen, ctx: &Context, time: Duration) -> Result<(), Status> {
    let _alive = Alive::new(seen);
    ctx.cancelled().await;
    seen.was_cancelled.store(ctx.is_cancelled(), SeqCst);
    sleep(time).await;
    seen.cleaned_up.fetch_add(1, SeqCst);
    Ok(())
}

fn routes(seen: &Arc<Seen>) -> Routes {
    Routes::new(NAME)
        .unary("NoToken", seen, |seen: &Seen, _ctx, (): ()| {
            Box::pin(async {
                let _alive = Alive::new(seen);
                std::future::pending::<Result<(), Status>>().await
            })
        })
        .unary("Quick", seen, |seen: &Seen, ctx, (): ()| {
            Box::pin(clean_up_for(seen, ctx, GRACE / 2))
        })
        .unary("Slow", seen, |seen: &Seen, ctx, (): ()| {
            Box::pin(clean_up_for(seen, ctx, 2 * GRACE))
        })
        .unary("AtOnce", seen, |seen: &Seen, ctx, (): ()| {
            Box::pin(clean_up_for(seen, ctx, Duration::ZERO))
        })
        .unary("HandOut", seen, |seen: &Seen, ctx, (): ()| {
            Box::pin(async {
                let _alive = Alive::new(seen);
                seen.token.set(ctx.cancellation_token()).expect("it is called once");
                std::future::pending::<Result<(), Status>>().await
            })
        })
        .unary("Panic", seen, |_, _ctx, (): ()| {
            Box::pin(async {
                tokio::task::yield_now().await;
                panic!("asked to") as Result<(), Status>
            })
        })
        .server_streaming("PanicInStream", seen, |_, _ctx, (), mut replies| {
            Box::pin(async move {
                replies.send(chunk(1)).await?;
                panic!("asked to")
            })
        })
}

struct Setup {
    seen: Arc<Seen>,
    handle: ServerHandle,
    client: Client,
    _serving: tokio::task::JoinHandle<Result<(), ttrpc::Error>>,
}

fn set_up() -> Setup {
    let seen = Arc::new(Seen::default());
    let (here, there): (DuplexStream, _) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(&seen))).io(there).build().unwrap();
    let handle = server.handle();
    let client = Client::from_io(here, ClientConfig::default());
    Setup { seen, handle, client, _serving: tokio::spawn(server.serve()) }
}

impl Setup {
    /// Starts a call that is not waited for.
    async fn start(&self, method: &'static str) -> tokio::task::JoinHandle<Result<(), Status>> {
        let before = self.seen.begun.load(SeqCst);
        let call = tokio::spawn(self.client.unary::<(), ()>(NAME, method, ()).into_future());
        eventually("the handler begins", || self.seen.begun.load(SeqCst) > before).await;
        call
    }

    async fn handlers_end(&self) {
        eventually("the handlers end", || self.handle.calls_in_flight() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_a_token_is_dropped_at_the_deadline() {
    let setup = set_up();
    let start = Instant::now();
    let call = setup.client.unary::<(), ()>(NAME, "NoToken", ()).timeout(LIMIT);
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("it is dropped", || setup.seen.dropped.load(SeqCst) == 1).await;
    assert!(start.elapsed() < LIMIT + BIT);
    setup.handlers_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_took_its_token_cleans_up_after_the_deadline() {
    let setup = set_up();
    let start = Instant::now();
    let call = setup.client.unary::<(), ()>(NAME, "Quick", ()).timeout(LIMIT);
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(start.elapsed() < LIMIT + BIT, "the answer does not wait for the handler");
    eventually("it cleans up", || setup.seen.cleaned_up.load(SeqCst) == 1).await;
    assert!(setup.seen.was_cancelled.load(SeqCst));
    setup.handlers_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_outstays_its_grace_is_dropped() {
    let setup = set_up();
    let start = Instant::now();
    let call = setup.client.unary::<(), ()>(NAME, "Slow", ()).timeout(LIMIT);
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("it is dropped", || setup.seen.dropped.load(SeqCst) == 1).await;
    let elapsed = start.elapsed();
    assert!((LIMIT + GRACE..LIMIT + GRACE + BIT).contains(&elapsed), "{elapsed:?}");
    assert_eq!(setup.seen.cleaned_up.load(SeqCst), 0);
    setup.handlers_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_cancels_its_handlers() {
    let setup = set_up();
    let calls = [setup.start("NoToken").await, setup.start("Quick").await];
    setup.client.close();
    eventually("one is dropped", || setup.seen.dropped.load(SeqCst) == 1).await;
    assert_eq!(setup.seen.cleaned_up.load(SeqCst), 0, "the other one has its grace");
    eventually("the other one cleans up", || setup.seen.cleaned_up.load(SeqCst) == 1).await;
    setup.handlers_end().await;
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_fires_at_the_limit_of_a_shutdown_for_one_more_poll() {
    let setup = set_up();
    let _calls =
        [setup.start("AtOnce").await, setup.start("Slow").await, setup.start("HandOut").await];
    let token = setup.seen.token.get().expect("it was handed out").clone();
    setup.handle.begin_shutdown(LIMIT);
    sleep(LIMIT - BIT).await;
    assert!(!token.is_cancelled(), "until the limit handlers are waited for");
    let start = Instant::now();
    setup.handle.ended().await;
    assert!(start.elapsed() < 2 * BIT, "nobody has a grace beyond the limit");
    assert!(token.is_cancelled());
    assert_eq!(setup.seen.dropped.load(SeqCst), 3);
    assert_eq!(setup.handle.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_server_ends_a_grace_also_when_its_client_has_gone() {
    for limit in [Duration::ZERO, GRACE / 4] {
        let setup = set_up();
        let _call = setup.start("Slow").await;
        setup.client.close();
        eventually("the client is gone", || setup.handle.connections() == 0).await;
        let start = Instant::now();
        setup.handle.shutdown(limit).await;
        assert!(start.elapsed() < limit + BIT, "{:?}", start.elapsed());
        assert_eq!(setup.seen.dropped.load(SeqCst), 1);
        assert_eq!(setup.handle.calls_in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_handed_out_fires_when_the_client_goes_away() {
    let setup = set_up();
    let _call = setup.start("HandOut").await;
    let token = setup.seen.token.get().expect("it was handed out").clone();
    setup.client.close();
    token.cancelled().await;
    setup.handlers_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_answers_internal_and_harms_nobody() {
    let setup = set_up();
    let other = setup.start("NoToken").await;
    for _ in 0..3 {
        let status = setup.client.unary::<(), ()>(NAME, "Panic", ()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Internal, "the handler panicked"));
    }
    let mut replies =
        setup.client.server_streaming::<(), Chunk>(NAME, "PanicInStream", ()).await.unwrap();
    assert_eq!(replies.recv().await, Ok(Some(chunk(1))));
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::Internal);
    assert!(!other.is_finished());
    eventually("only the other one is left", || setup.handle.calls_in_flight() == 1).await;
    assert_eq!((setup.handle.connections(), setup.handle.calls_in_flight()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_in_its_grace_is_not_answered_twice() {
    let seen = Arc::new(Seen::default());
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(&seen))).io(there);
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    let frame = Frame::unary(1, NAME, "AtOnce", &());
    let data = Request { timeout_nano: 1_000_000, ..frame.as_request() }.encode_to_vec();
    peer.send(Frame { data, ..frame }).await;
    assert_eq!(peer.receive().await.code(), code::DEADLINE_EXCEEDED);
    assert!(peer.is_quiet().await);
    assert_eq!(seen.cleaned_up.load(SeqCst), 1);
    serving.abort();
}

/// A client has its own clock, and only a peer that has none sees when the server answers.
#[tokio::test(start_paused = true)]
async fn the_answer_at_the_deadline_does_not_wait_for_the_handlers_grace() {
    let seen = Arc::new(Seen::default());
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(&seen))).io(there);
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    let frame = Frame::unary(1, NAME, "Slow", &());
    let timeout_nano = LIMIT.as_nanos() as i64;
    let data = Request { timeout_nano, ..frame.as_request() }.encode_to_vec();
    let start = Instant::now();
    peer.send(Frame { data, ..frame }).await;
    assert_eq!(peer.receive().await.code(), code::DEADLINE_EXCEEDED);
    assert!(start.elapsed() < LIMIT + BIT, "{:?}", start.elapsed());
    assert_eq!(seen.dropped.load(SeqCst), 0, "it has its grace");
    serving.abort();
}

/// Else the next call's handler could run beside what the last one still holds.
#[tokio::test(start_paused = true)]
async fn a_handler_has_its_place_until_all_that_it_holds_is_gone() {
    /// Where the calls in flight are noted, and who knows them.
    #[derive(Clone, Default)]
    struct Looks(Arc<AtomicUsize>, Arc<std::sync::OnceLock<ServerHandle>>);

    /// Notes them when it is dropped.
    struct Holder(Looks);

    impl Drop for Holder {
        fn drop(&mut self) {
            let Looks(at_drop, handle) = &self.0;
            let handle = handle.get().expect("the server has been built");
            at_drop.store(handle.calls_in_flight(), SeqCst);
        }
    }

    let looks = Looks::default();
    let Looks(at_drop, handle) = looks.clone();
    let routes = Routes::new(NAME).unary("Holds", &Arc::new(looks), |looks, _ctx, (): ()| {
        Box::pin(async {
            let _holder = Holder(looks.clone());
            std::future::pending::<Result<(), Status>>().await
        })
    });
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    handle.set(server.handle()).expect("there is one server");
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    let call = client.unary::<(), ()>(NAME, "Holds", ()).timeout(LIMIT);
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("it is dropped", || handle.get().unwrap().calls_in_flight() == 0).await;
    assert_eq!(at_drop.load(SeqCst), 1);
}
