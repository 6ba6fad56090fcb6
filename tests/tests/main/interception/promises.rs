//! The promises of the library hold whatever interceptors do: deadlines, cancellation, limits, shutdown, and
//! that no task is left. Each call is told once.

use std::{
    future::pending,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use ttrpc::{
    Context, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    server::{Interceptor, Next},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn echo(conformance: &ConformanceClient) -> client::UnaryCall<EchoRequest, EchoResponse> {
    conformance.echo(echo_request(*b"hi"))
}

impl Recorder {
    /// The causes of all ends, of as many begins.
    pub(super) fn causes(&self) -> Vec<EndCause> {
        self.told(|told| {
            assert_eq!(told.begun.len(), told.ends.len(), "{told:?}");
            told.ends.iter().map(|end| end.cause).collect()
        })
    }
}

/// Asks the same server, on the connection of the call itself, before it lets a call of `Inspect` pass.
#[derive(Default)]
struct AsksTheServer(Arc<OnceLock<ConformanceClient>>);

#[async_trait]
impl Interceptor for AsksTheServer {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        if ctx.method() == "Inspect" {
            let conformance = self.0.get().expect("it is set before the first call");
            echo(conformance).within(ctx).await?;
        }
        next.run(ctx).await
    }
}

fn asking(config: ServerConfig) -> Observed {
    let client = Arc::<OnceLock<_>>::default();
    let asks = AsksTheServer(client.clone());
    let all = observed_with(config, ClientConfig::default(), |builder| builder.intercept(asks));
    client.set(all.conformance.clone()).expect("it is set once");
    all
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_may_call_the_server_on_the_connection_of_its_call() {
    let all = asking(ServerConfig::default());
    let Observed { server, conformance, at_server, .. } = &all;
    let calls: Vec<_> =
        (0..8).map(|_| tokio::spawn(conformance.inspect(Empty {}).into_future())).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    server.is_idle().await;
    assert_eq!(at_server.causes(), [EndCause::Replied; 16]);
}

/// All places are held by calls whose interceptors wait for a place: the limit ends some, and nothing hangs.
#[tokio::test(start_paused = true)]
async fn interceptors_that_call_the_server_at_its_limit_are_refused_in_time() {
    let config = ServerConfig { stall_timeout: SECOND, ..ServerConfig::default() };
    let all = asking(config.max_calls_per_connection(2));
    let Observed { server, conformance, at_server, .. } = &all;
    let calls: Vec<_> =
        (0..2).map(|_| tokio::spawn(conformance.inspect(Empty {}).into_future())).collect();
    for call in calls {
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
    server.is_idle().await;
    // The echoes by the limit, and what asked for them by its interceptor.
    let causes = at_server.causes();
    assert_eq!(causes.iter().filter(|cause| **cause == EndCause::Limit).count(), 2, "{causes:?}");
    assert_eq!(causes.iter().filter(|cause| **cause == EndCause::Refused).count(), 2);
    conformance.inspect(Empty {}).await.unwrap();
}

/// Spawns a task that holds the context until the call is over.
struct Spawns(Arc<AtomicUsize>);

#[async_trait]
impl Interceptor for Spawns {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let (ended, held) = (self.0.clone(), ctx.clone());
        tokio::spawn(async move {
            held.cancelled().await;
            ended.fetch_add(1, SeqCst);
        });
        next.run(ctx).await
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_that_interceptors_spawn_hear_of_every_end_of_their_calls() {
    let tasks = alive_tasks();
    let ended = Arc::<AtomicUsize>::default();
    let spawns = Spawns(ended.clone());
    let (to_server, to_client) = (ServerConfig::default(), ClientConfig::default());
    let all = observed_with(to_server, to_client, |builder| builder.intercept(spawns));
    let Observed { server, client, conformance, at_server, .. } = &all;
    echo(conformance).await.unwrap();
    conformance.panic(Empty {}).await.unwrap_err();
    conformance.wait(key("a")).timeout(SECOND).await.unwrap_err();
    let (_requests, mut replies) = conformance.exchange().await.unwrap();
    let call = tokio::spawn(conformance.wait(key("b")).into_future());
    server.has_begun(5).await;
    client.close();
    call.await.unwrap().unwrap_err();
    replies.recv().await.unwrap_err();
    eventually("all tasks hear of it", || ended.load(SeqCst) == 5).await;
    server.is_idle().await;
    let [replied, panicked, late, gone, gone_too] = at_server.causes()[..] else {
        panic!("five calls");
    };
    assert_eq!(
        [replied, panicked, late, gone, gone_too],
        [
            EndCause::Replied,
            EndCause::Panicked,
            EndCause::DeadlineHere,
            EndCause::PeerGone,
            EndCause::PeerGone
        ]
    );
    server.handle.shutdown(SECOND).await;
    drop((_requests, replies));
    drop(all);
    tasks_are_back_at(tasks).await;
}

/// A context that is kept keeps neither the server nor the connection from their ends.
#[tokio::test(start_paused = true)]
async fn contexts_that_interceptors_keep_hold_up_no_shutdown() {
    #[derive(Clone, Default)]
    struct Keeps(Arc<Mutex<Vec<Context>>>);
    #[async_trait]
    impl Interceptor for Keeps {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            self.0.lock().unwrap().push(ctx.clone());
            next.run(ctx).await
        }
    }
    let tasks = alive_tasks();
    let kept = Keeps::default();
    let keeps = kept.clone();
    let (to_server, to_client) = (ServerConfig::default(), ClientConfig::default());
    let all = observed_with(to_server, to_client, |builder| builder.intercept(keeps));
    let Observed { server, client, conformance, at_server, at_client } = all;
    echo(&conformance).await.unwrap();
    let stream = conformance.exchange().await.unwrap();
    server.has_begun(2).await;
    drop((stream, client, conformance));
    server.handle.shutdown(SECOND).await;
    server.ended().await;
    at_server.told(|told| assert_eq!((told.opened, told.closed.len()), (1, 1)));
    at_client.told(|told| assert_eq!((told.opened, told.closed.len()), (1, 1)));
    assert_eq!((at_server.causes().len(), at_client.causes().len()), (2, 2));
    tasks_are_back_at(tasks).await;
    let kept = kept.0.lock().unwrap();
    assert!(kept.iter().all(|ctx| ctx.is_cancelled() && ctx.is_disconnected()));
}

/// Takes its time before `next`, and behind it.
struct Slow(Duration);

#[async_trait]
impl Interceptor for Slow {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        sleep(self.0).await;
        let result = next.run(ctx).await;
        sleep(self.0).await;
        result
    }
}

fn slow() -> Observed {
    let (to_server, to_client) = (ServerConfig::default(), ClientConfig::default());
    observed_with(to_server, to_client, |builder| builder.intercept(Slow(SECOND)))
}

#[tokio::test(start_paused = true)]
async fn deadlines_end_calls_before_and_behind_the_handler() {
    for (timeout, handlers) in [(SECOND / 2, 0), (SECOND * 3 / 2, 1)] {
        let all = slow();
        let Observed { server, conformance, at_server, at_client, .. } = &all;
        let status = echo(conformance).timeout(timeout).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        for recorder in [at_server, at_client] {
            recorder.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
        }
        server.is_idle().await;
        assert_eq!(server.service.calls_total(), handlers);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_slow_interceptors_and_no_longer_than_it_may() {
    for (limit, cause) in [(10 * SECOND, EndCause::Replied), (SECOND / 2, EndCause::Shutdown)] {
        let all = slow();
        let Observed { server, conformance, at_server, .. } = &all;
        let call = tokio::spawn(echo(conformance).into_future());
        eventually("it waits", || server.handle.calls_in_flight() == 1).await;
        server.handle.shutdown(limit).await;
        assert_eq!(call.await.unwrap().is_ok(), cause == EndCause::Replied);
        assert_eq!(at_server.causes(), [cause]);
        assert_eq!(server.handle.calls_in_flight(), 0);
    }
}

/// Waits for ever, and for its call's end if it was asked to clean up.
struct Waits {
    cleans_up: Option<Arc<AtomicUsize>>,
}

#[async_trait]
impl Interceptor for Waits {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        match &self.cleans_up {
            _ if ctx.method() == "Inspect" => next.run(ctx).await,
            None => pending().await,
            Some(cleaned) => {
                ctx.cancelled().await;
                sleep(SECOND).await;
                cleaned.fetch_add(1, SeqCst);
                Ok(())
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn interceptors_that_wait_count_for_the_limits() {
    let config = ServerConfig { stall_timeout: SECOND, ..ServerConfig::default() };
    let config = config.max_calls_per_connection(1);
    let waits = Waits { cleans_up: None };
    let all = observed_with(config, ClientConfig::default(), |builder| builder.intercept(waits));
    let Observed { server, conformance, at_server, .. } = &all;
    let call = tokio::spawn(echo(conformance).timeout(60 * SECOND).into_future());
    eventually("it waits", || server.handle.calls_in_flight() == 1).await;
    let status = conformance.inspect(Empty {}).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    server.is_idle().await;
    assert_eq!(at_server.causes(), [EndCause::Limit, EndCause::DeadlineHere]);
    conformance.inspect(Empty {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn messages_for_a_handler_that_never_begins_count_until_the_call_is_over() {
    let waits = Waits { cleans_up: None };
    let (server, client) = (ServerConfig::default(), ClientConfig::default());
    let all = observed_with(server, client, |builder| builder.intercept(waits));
    let Observed { server, conformance, .. } = &all;
    let used = || server.handle.snapshot().inbox_bytes.used;
    let (mut requests, reply) = conformance.collect().timeout(60 * SECOND).await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    eventually("the message counts", || used() > 0).await;
    assert_eq!(reply.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("it counts no more", || used() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_asked_for_the_token_has_time_to_clean_up() {
    let cleaned = Arc::<AtomicUsize>::default();
    let waits = Waits { cleans_up: Some(cleaned.clone()) };
    let config = ServerConfig { cancellation_grace: 2 * SECOND, ..ServerConfig::default() };
    let all = observed_with(config, ClientConfig::default(), |builder| builder.intercept(waits));
    let Observed { server, client, conformance, at_server, .. } = &all;
    let status = echo(conformance).timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    server.is_idle().await;
    assert_eq!((cleaned.load(SeqCst), at_server.causes()), (1, vec![EndCause::DeadlineHere]));
    let call = tokio::spawn(echo(conformance).into_future());
    eventually("it waits", || server.handle.calls_in_flight() == 1).await;
    client.close();
    call.await.unwrap().unwrap_err();
    server.is_idle().await;
    assert_eq!(cleaned.load(SeqCst), 2);
    assert_eq!(at_server.causes(), [EndCause::DeadlineHere, EndCause::PeerGone]);
}

/// What an interceptor of a client does.
#[derive(Clone)]
enum Does {
    Waits,
    Panics,
    /// Makes the call, and waits with its answer.
    WaitsBehind,
    /// Makes the call, and panics.
    PanicsBehind,
    /// Makes the call, and refuses its answer.
    RefusesBehind,
    /// Makes the call for a moment.
    DropsTheCall,
    /// Calls the server itself.
    Calls(ConformanceClient),
}

#[async_trait]
impl client::Interceptor for Does {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        match self {
            Does::Waits => pending().await,
            Does::Panics => panic!("as the test asks"),
            Does::WaitsBehind => {
                let _answer = next.run(call).await?;
                pending().await
            }
            Does::PanicsBehind => {
                let _answer = next.run(call).await?;
                panic!("as the test asks")
            }
            Does::RefusesBehind => {
                drop(next.run(call).await?);
                Err(Status::aborted("no"))
            }
            Does::DropsTheCall => {
                let run = tokio::time::timeout(SECOND, next.run(call));
                run.await.unwrap_or_else(|_| Err(Status::aborted("too slow")))
            }
            Does::Calls(conformance) => {
                let reply = echo(conformance).await?;
                let value = String::from_utf8(reply.payload).expect("it is text");
                call.metadata_mut().insert("token", value);
                next.run(call).await
            }
        }
    }
}

/// A client with this interceptor.
fn doing(all: &Observed, does: Does) -> ConformanceClient {
    ConformanceClient::new(all.client.clone().with_interceptor(does))
}

#[tokio::test(start_paused = true)]
async fn calls_that_a_client_interceptor_never_makes_are_told_once() {
    for does in [Does::Waits, Does::Panics] {
        let all = observed();
        let conformance = doing(&all, does.clone());
        let Observed { client, at_client, server, .. } = &all;
        let call = tokio::spawn(echo(&conformance).into_future());
        settle().await;
        if let Does::Waits = does {
            at_client.told(|told| assert_eq!((told.begun.len(), told.ends.len()), (1, 0)));
            call.abort();
        }
        match does {
            Does::Panics => assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Internal),
            _ => assert!(call.await.unwrap_err().is_cancelled()),
        }
        at_client.expect("Echo", Code::Cancelled, EndCause::GivenUp).await;
        assert_eq!((server.service.calls_total(), client.calls_in_flight()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_a_client_interceptor_never_makes_are_told_once() {
    let all = observed();
    let conformance = doing(&all, Does::Waits);
    let status = conformance.exchange().timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    all.at_client.expect("Exchange", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

/// What the interceptor does with the answer changes nothing of how the call ended, and of a stream
/// that goes on it gives the call up.
#[tokio::test(start_paused = true)]
async fn calls_whose_answer_a_client_interceptor_throws_away_are_told_once() {
    for does in [Does::WaitsBehind, Does::PanicsBehind, Does::RefusesBehind] {
        for is_stream in [false, true] {
            let all = observed();
            let conformance = doing(&all, does.clone());
            let Observed { client, at_client, .. } = &all;
            let call = tokio::spawn(async move {
                match is_stream {
                    false => echo(&conformance).timeout(SECOND).await.map(drop),
                    true => conformance.exchange().timeout(SECOND).await.map(drop),
                }
            });
            let code = call.await.unwrap().unwrap_err().code();
            assert_eq!(
                code,
                match does {
                    Does::WaitsBehind => Code::DeadlineExceeded,
                    Does::RefusesBehind => Code::Aborted,
                    _ => Code::Internal,
                }
            );
            let (code, cause) = match (is_stream, &does) {
                (false, _) => (Code::Ok, EndCause::Replied),
                (true, Does::WaitsBehind) => (Code::DeadlineExceeded, EndCause::DeadlineHere),
                (true, _) => (Code::Cancelled, EndCause::GivenUp),
            };
            let method = if is_stream { "Exchange" } else { "Echo" };
            at_client.expect(method, code, cause).await;
            assert_eq!(client.calls_in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_client_interceptor_drops_is_told_as_given_up() {
    let all = observed();
    let conformance = doing(&all, Does::DropsTheCall);
    let Observed { client, at_client, server, .. } = &all;
    let status = conformance.wait(key("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    at_client.expect("Wait", Code::Cancelled, EndCause::GivenUp).await;
    assert_eq!(client.calls_in_flight(), 0);
    server.service.release("a");
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_may_call_the_same_server() {
    let tasks = alive_tasks();
    let all = observed();
    let conformance = doing(&all, Does::Calls(all.conformance.clone()));
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        calls.spawn(conformance.inspect(Empty {}).into_future());
    }
    while let Some(call) = calls.join_next().await {
        assert_eq!(call.unwrap().unwrap().metadata[0].value, "hi");
    }
    assert_eq!(all.at_client.causes(), [EndCause::Replied; 16]);
    all.server.is_idle().await;
    all.server.handle.shutdown(SECOND).await;
    drop((conformance, all));
    tasks_are_back_at(tasks).await;
}

#[test]
fn a_blocking_client_has_interceptors() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let (server, token) = runtime.block_on(async {
        let there = tokio::net::UnixStream::from_std(there).unwrap();
        let (near, far) = duplex(PIPE_LEN);
        let server =
            TestServer::start_with(patient_server(), |builder| builder.unix_stream(there).io(far));
        (server, ConformanceClient::new(Client::from_io(near, patient_client())))
    });
    let client = ttrpc::blocking::Client::from_unix_stream(here, patient_client()).unwrap();
    let doing = |does| ConformanceBlockingClient::new(client.clone().with_interceptor(does));
    let seen = doing(Does::Calls(token)).inspect(Empty {}).call().unwrap();
    assert_eq!(seen.metadata[0].value, "hi");
    let refused = doing(Does::RefusesBehind).exchange().call().unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    let late = doing(Does::Waits).echo(echo_request([])).timeout(Duration::from_millis(1)).call();
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    drop(server);
}
