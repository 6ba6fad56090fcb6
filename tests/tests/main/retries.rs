//! Calls that a client makes again by its policy, and those that it must not.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tempfile::{TempDir, tempdir};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
    time::{Instant, sleep},
};
use ttrpc::{
    Client, Code, Connection, Context, Error, Server, Status, async_trait,
    client::{
        self, Answer, Backoff, CallDefaults, ConnectOptions, MethodDefaults, Next, OutgoingCall,
        Retry, RetryBudget,
    },
    observer::{CallEnd, CallInfo, EndCause, Observer},
    server::StreamSender,
};
use ttrpc_tests::{
    conformance::{ConformanceBlockingClient, Empty, FailRequest},
    harness::*,
    process::Process,
    wire::{Frame, Peer},
};

mod store {
    ttrpc::include_proto!("ttrpc.store.v1");
}

use store::{Item, Store, StoreClient, StoreServer};

const SECOND: Duration = Duration::from_secs(1);

/// Pauses that take no time to speak of.
fn at_once() -> Backoff {
    Backoff::new().first(Duration::ZERO)
}

fn retry() -> Retry {
    Retry::new().backoff(at_once())
}

/// Fails with the codes that it is given, one a call, and succeeds from then on.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    failures: VecDeque<Code>,
    /// Method, and the metadata `attempt`, of each handler that was executed.
    executed: Vec<(String, Vec<String>)>,
    /// Time that each handler had.
    left: Vec<Option<Duration>>,
    /// Time that each handler takes.
    takes: Duration,
}

impl Script {
    fn fails(&self, failures: impl IntoIterator<Item = Code>) {
        self.0.lock().unwrap().failures = failures.into_iter().collect();
    }

    /// The methods of the handlers that were executed since the last look.
    fn executed(&self) -> Vec<String> {
        let executed = std::mem::take(&mut self.0.lock().unwrap().executed);
        executed.into_iter().map(|(method, _)| method).collect()
    }

    async fn execute(&self, ctx: &Context) -> Result<Item, Status> {
        let (failure, takes) = {
            let mut played = self.0.lock().unwrap();
            let attempts = ctx.metadata().get_all("attempt").map(str::to_owned).collect();
            played.executed.push((ctx.method().to_owned(), attempts));
            played.left.push(ctx.timeout());
            (played.failures.pop_front(), played.takes)
        };
        if !takes.is_zero() {
            sleep(takes).await;
        }
        match failure {
            None => Ok(Item { name: "found".to_owned() }),
            Some(code) => Err(Status::new(code, "as the test asks")),
        }
    }
}

#[async_trait]
impl Store for Script {
    async fn get(&self, ctx: &Context, _: Item) -> Result<Item, Status> {
        self.execute(ctx).await
    }

    async fn put(&self, ctx: &Context, _: Item) -> Result<Item, Status> {
        self.execute(ctx).await
    }

    async fn append(&self, ctx: &Context, _: Item) -> Result<Item, Status> {
        self.execute(ctx).await
    }

    async fn list(
        &self,
        ctx: &Context,
        _: Item,
        mut items: StreamSender<Item>,
    ) -> Result<(), Status> {
        let item = self.execute(ctx).await?;
        items.send(item).await
    }
}

/// What observers see of calls: how many have begun, and how each ended.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(usize, Vec<End>)>>);

type End = (String, Code, EndCause, u32);

impl Seen {
    /// The ends since the last look, of as many calls.
    fn ends(&self) -> Vec<End> {
        let (begun, ends) = std::mem::take(&mut *self.0.lock().unwrap());
        assert_eq!(begun, ends.len(), "{ends:?}");
        ends
    }
}

impl Observer for Seen {
    fn call_begun(&self, _: &CallInfo<'_>) {
        self.0.lock().unwrap().0 += 1;
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let CallEnd { code, cause, attempts, .. } = *end;
        self.0.lock().unwrap().1.push((call.method.to_owned(), code, cause, attempts));
    }
}

fn ended(method: &str, code: Code, attempts: u32) -> End {
    let cause = if code == Code::Ok { EndCause::Replied } else { EndCause::Failed };
    (method.to_owned(), code, cause, attempts)
}

/// A server on a socket, and a client that is observed.
struct Serving {
    script: Script,
    seen: Seen,
    client: Client,
    _server: JoinHandle<Result<(), Error>>,
    _folder: TempDir,
}

impl Serving {
    async fn start() -> Self {
        let folder = tempdir().unwrap();
        let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
        let (script, seen) = (Script::default(), Seen::default());
        let service = StoreServer::new(script.clone());
        let server = Server::builder().add_service(service).bind(&address).unwrap();
        let _server = tokio::spawn(server.serve());
        let client = ConnectOptions::new().observe(seen.clone()).connect(&address).await.unwrap();
        Serving { script, seen, client, _server, _folder: folder }
    }

    fn store(&self, retry: Retry) -> StoreClient {
        StoreClient::new(self.client.clone().with_retry(retry))
    }
}

#[tokio::test]
async fn a_call_that_the_proto_calls_idempotent_is_made_again_and_no_other_one() {
    use Code::{Ok, Unavailable};
    let all = Serving::start().await;
    let store = all.store(retry());
    all.script.fails([Unavailable, Unavailable]);
    assert_eq!(store.get(Item::default()).await.unwrap().name, "found");
    all.script.fails([Unavailable]);
    store.put(Item::default()).await.unwrap();
    assert_eq!(all.script.executed(), ["Get", "Get", "Get", "Put", "Put"]);
    assert_eq!(all.seen.ends(), [ended("Get", Ok, 3), ended("Put", Ok, 2)]);

    all.script.fails([Unavailable; 10]);
    let status = store.get(Item::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Unavailable, "as the test asks"));
    assert_eq!(all.script.executed(), ["Get"; 3]);
    assert_eq!(all.seen.ends(), [ended("Get", Unavailable, 3)]);

    let status = store.append(Item::default()).await.unwrap_err();
    assert_eq!(status.code(), Unavailable);
    let mut items = store.list(Item::default()).await.unwrap();
    assert_eq!(items.recv().await.unwrap_err().code(), Unavailable);
    assert_eq!(all.script.executed(), ["Append", "List"], "each once");
    assert_eq!(all.seen.ends(), [ended("Append", Unavailable, 1), ended("List", Unavailable, 1)]);

    // Without a policy nothing is made again.
    let plain = StoreClient::new(all.client.clone());
    plain.get(Item::default()).await.unwrap_err();
    assert_eq!(all.script.executed(), ["Get"]);
}

#[tokio::test]
async fn a_call_is_made_again_after_the_codes_of_its_policy_alone() {
    let all = Serving::start().await;
    let store = all.store(retry().codes([Code::Aborted, Code::ResourceExhausted]));
    all.script.fails([Code::Aborted, Code::ResourceExhausted]);
    store.get(Item::default()).await.unwrap();
    assert_eq!(all.script.executed().len(), 3);
    all.script.fails([Code::Aborted, Code::Unavailable]);
    assert_eq!(store.get(Item::default()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(all.script.executed().len(), 2);
    let ends = [ended("Get", Code::Ok, 3), ended("Get", Code::Unavailable, 2)];
    assert_eq!(all.seen.ends(), ends);
}

#[tokio::test]
async fn whether_a_call_may_be_executed_again_is_said_by_the_method_the_call_or_the_proto() {
    let all = Serving::start().await;
    let defaults = MethodDefaults::new()
        .all(CallDefaults::new().retry(retry()))
        .method(StoreClient::NAME, "Append", CallDefaults::new().idempotent(true))
        .method(StoreClient::NAME, "Get", CallDefaults::new().idempotent(false));
    let client = all.client.clone().with_method_defaults(defaults);
    let own = StoreClient::new(client.clone().with_retry(Retry::none()));
    let store = StoreClient::new(client);
    let plain = all.store(retry());
    let fails = || all.script.fails([Code::Unavailable]);
    fails();
    store.append(Item::default()).await.unwrap();
    fails();
    store.get(Item::default()).await.unwrap_err();
    fails();
    plain.append(Item::default()).idempotent().await.unwrap();
    fails();
    plain.get(Item::default()).retry(Retry::none()).await.unwrap_err();
    fails();
    let alone = StoreClient::new(all.client.clone());
    alone.get(Item::default()).retry(retry()).await.unwrap();
    fails();
    store.get(Item::default()).idempotent().await.expect("the call's word comes first");
    fails();
    store.append(Item::default()).retry(Retry::none()).await.unwrap_err();
    fails();
    own.put(Item::default()).await.expect_err("the client's word comes before the row's");
    let executed = [
        "Append", "Append", "Get", "Append", "Append", "Get", "Get", "Get", "Get", "Get", "Append",
        "Put",
    ];
    assert_eq!(all.script.executed(), executed);
}

/// The first call of a client whose connections are accepted by this listener. The server sees its Request and closes the
/// connection without an answer; the next connection, if there is one, is served.
async fn loses_its_connection(
    client: StoreClient,
    listener: &UnixListener,
    method: &str,
) -> Result<Item, Status> {
    let call = match method {
        "Get" => client.get(Item::default()),
        "Put" => client.put(Item::default()),
        _ => client.append(Item::default()),
    };
    let mut calling = tokio::spawn(call.into_future());
    let mut first = accept(listener).await;
    assert_eq!(first.receive().await.as_request().method, method);
    drop(first);
    let second = async {
        let mut second = accept(listener).await;
        let frame = second.receive().await;
        assert_eq!(frame.as_request().method, method);
        second.send(Frame::reply(frame.id, &Item { name: "second".to_owned() })).await;
        second
    };
    tokio::select! {
        biased;
        result = &mut calling => result.unwrap(),
        _second = second => calling.await.unwrap(),
    }
}

async fn accept(listener: &UnixListener) -> Peer<UnixStream> {
    Peer::new(listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn a_call_that_a_lost_server_may_have_seen_is_made_again_only_if_it_is_idempotent() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let seen = Seen::default();
    let client = || {
        let options = ConnectOptions::new().reconnect(at_once()).observe(seen.clone());
        let client = options.connect_lazy(path.to_str().unwrap()).unwrap();
        StoreClient::new(client.with_retry(retry()).with_wait_for_ready(true))
    };
    for method in ["Get", "Put"] {
        let item = loses_its_connection(client(), &listener, method).await.unwrap();
        assert_eq!(item.name, "second");
        assert_eq!(seen.ends(), [ended(method, Code::Ok, 2)]);
    }
    let status = loses_its_connection(client(), &listener, "Append").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.connection_error().is_some());
    let lost = ("Append".to_owned(), Code::Unavailable, EndCause::PeerGone, 1);
    assert_eq!(seen.ends(), [lost]);
}

/// The first attempts to connect fail. No server can have seen the call, so that it is made again whatever it is.
#[tokio::test]
async fn a_call_that_was_not_sent_is_made_again_whatever_its_method_is() {
    for is_stream in [false, true] {
        let (script, seen, failures) = (Script::default(), Seen::default(), Mutex::new(2));
        let server = Server::builder().add_service(StoreServer::new(script.clone()));
        let server = Mutex::new(Some(server));
        let options = ConnectOptions::new().reconnect(at_once()).observe(seen.clone());
        let client = options.connect_through(move || {
            let mut left = failures.lock().unwrap();
            let fails = *left > 0;
            *left -= i32::from(fails);
            let server = server.lock().unwrap().take_if(|_| !fails);
            async move {
                let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
                let (here, there) = UnixStream::pair()?;
                tokio::spawn(server.io(there).serve());
                Ok::<_, io::Error>(Connection::from(here))
            }
        });
        // Those that come between two attempts to connect fail at once.
        let patient = retry().max_attempts(u32::MAX).budget(RetryBudget::new(1_000_000, 1.0));
        let store = StoreClient::new(client.with_retry(patient));
        let method = if is_stream {
            let mut items = store.list(Item::default()).await.unwrap();
            assert_eq!(items.recv().await.unwrap().unwrap().name, "found");
            assert_eq!(items.recv().await.unwrap(), None);
            "List"
        } else {
            store.append(Item::default()).await.unwrap();
            "Append"
        };
        assert_eq!(script.executed(), [method]);
        let ends = seen.ends();
        assert!(ends[0].3 > 2, "{ends:?}");
        assert_eq!(ends, [ended(method, Code::Ok, ends[0].3)]);
    }
}

#[tokio::test]
async fn a_call_without_a_connection_has_as_many_attempts_as_its_policy_says() {
    let seen = Seen::default();
    let options = ConnectOptions::new().observe(seen.clone());
    let client =
        options.connect_through(|| async { Err(io::Error::from(io::ErrorKind::NotFound)) });
    let store = StoreClient::new(client.with_retry(retry().max_attempts(4)));
    assert_eq!(store.append(Item::default()).await.unwrap_err().code(), Code::Unavailable);
    store.list(Item::default()).await.unwrap_err();
    let lost = |method: &str| (method.to_owned(), Code::Unavailable, EndCause::PeerGone, 4);
    assert_eq!(seen.ends(), [lost("Append"), lost("List")]);
}

#[tokio::test]
async fn a_client_that_does_not_reconnect_makes_no_call_again_when_its_connection_is_lost() {
    let (here, there) = UnixStream::pair().unwrap();
    let seen = Seen::default();
    let client = ConnectOptions::new().observe(seen.clone()).from_connection(here);
    // A pause would be for days.
    let patient =
        Retry::new().backoff(Backoff::new().first(SECOND * 100_000_000).longest(Duration::MAX));
    let store = StoreClient::new(client.with_retry(patient));
    let (result, ()) = tokio::join!(store.get(Item::default()), async {
        Peer::new(there).receive().await;
    });
    assert_eq!(result.unwrap_err().code(), Code::Unavailable);
    store.get(Item::default()).await.unwrap_err();
    assert_eq!(seen.ends().into_iter().map(|end| end.3).collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_budget_ends_the_retries_of_a_failing_server_and_is_earned_back() {
    let all = Serving::start().await;
    let budget = RetryBudget::new(10, 1.0);
    let stores =
        [2, 10].map(|attempts| all.store(retry().max_attempts(attempts).budget(budget.clone())));
    all.script.fails([Code::Unavailable; 14]);
    let mut executed = Vec::new();
    for store in stores.iter().cycle().take(4) {
        store.get(Item::default()).await.unwrap_err();
        executed.push(all.script.executed().len());
    }
    // Two attempts, then three until half of the tokens are gone, and then no repeats.
    assert_eq!(executed, [2, 3, 1, 1]);
    for code in [Code::NotFound, Code::Unavailable] {
        all.script.fails([code]);
        stores[1].get(Item::default()).await.unwrap_err();
    }
    all.script.fails([]);
    for _ in 0..5 {
        stores[0].get(Item::default()).await.unwrap();
    }
    all.script.fails([Code::Unavailable]);
    stores[1].get(Item::default()).await.expect("6 of 10 tokens are left");
}

#[tokio::test]
async fn all_rows_of_a_text_share_one_budget() {
    let rows = format!("{}/* retry=100 retry.backoff=0us..0us", StoreClient::NAME);
    for (budget, repeats) in [("budget tokens=10 ratio=1", 5), ("", 50)] {
        let all = Serving::start().await;
        let text = format!("{rows}\n{}/Put retry=100\n{budget}", StoreClient::NAME);
        let client = all.client.clone().with_method_defaults(text.parse().unwrap());
        let store = StoreClient::new(client);
        all.script.fails([Code::Unavailable; 200]);
        store.get(Item::default()).await.unwrap_err();
        assert_eq!(all.script.executed(), vec!["Get"; repeats]);
        store.put(Item::default()).await.unwrap_err();
        assert_eq!(all.script.executed(), ["Put"], "{budget}: the other row has spent it");
    }
}

/// A stream that was opened says nothing of how it ends, and a call that is never made again fails as any other.
#[tokio::test]
async fn a_budget_counts_failures_of_all_calls_and_successes_of_unary_ones() {
    let all = Serving::start().await;
    let store = all.store(retry().budget(RetryBudget::new(4, 1.0)));
    let retried = async || {
        all.script.fails([Code::Unavailable]);
        let is_ok = store.get(Item::default()).await.is_ok();
        all.script.fails([]);
        is_ok
    };
    assert!(retried().await, "3 of 4 tokens are left, and the call adds one");
    all.script.fails([Code::Unavailable; 2]);
    for _ in 0..2 {
        store.append(Item::default()).await.unwrap_err();
    }
    for _ in 0..4 {
        let mut items = store.list(Item::default()).await.unwrap();
        items.recv().await.unwrap();
    }
    assert!(!retried().await, "1 of 4 tokens is left");
}

#[tokio::test]
async fn a_budget_does_not_pay_for_calls_that_no_server_has_seen() {
    let client = ConnectOptions::new()
        .connect_through(|| async { Err(io::Error::from(io::ErrorKind::NotFound)) });
    let budget = RetryBudget::new(10, 1.0);
    let store = StoreClient::new(client.with_retry(retry().budget(budget.clone())));
    for _ in 0..10 {
        store.get(Item::default()).await.unwrap_err();
    }
    assert_eq!(format!("{budget:?}"), "RetryBudget(10 of 10, 1 for each success)");
}

/// It will fit in no frame later either.
#[tokio::test]
async fn a_request_that_is_too_long_is_not_made_again() {
    let all = Serving::start().await;
    let store = all.store(retry().codes([Code::ResourceExhausted]));
    let status = store.get(Item { name: "n".repeat(5 << 20) }).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let limit = ("Get".to_owned(), Code::ResourceExhausted, EndCause::Limit, 1);
    assert_eq!(all.seen.ends(), [limit]);
}

/// A limit of this side says nothing of a server.
#[tokio::test(start_paused = true)]
async fn a_call_that_this_side_refuses_is_made_again_after_that_code() {
    let (here, _there) = tokio::io::duplex(1000);
    let config = ttrpc::ClientConfig::default().max_calls(1).stall_timeout(SECOND);
    let (seen, options) = (Seen::default(), ConnectOptions::new().config(config));
    let client = options.observe(seen.clone()).from_connection(Connection::new(here));
    let store = StoreClient::new(client);
    let open = tokio::spawn(store.append(Item::default()).into_future());
    eventually("it is open", || store.client().calls_in_flight() == 1).await;
    for (code, attempts) in [(Code::Unavailable, 1), (Code::ResourceExhausted, 3)] {
        let call = store.append(Item::default()).retry(retry().codes([code]));
        call.await.unwrap_err();
        let ends = std::mem::take(&mut seen.0.lock().unwrap().1);
        let limit = ("Append".to_owned(), Code::ResourceExhausted, EndCause::Limit, attempts);
        assert_eq!(ends, [limit]);
    }
    open.abort();
}

/// One pause is beyond the deadline in any case, and the call has no use of waiting for that.
#[tokio::test]
async fn no_pause_goes_beyond_the_deadline() {
    let all = Serving::start().await;
    let long = Backoff::new().first(SECOND * 1_000_000_000).longest(Duration::MAX);
    let store = all.store(Retry::new().backoff(long));
    all.script.fails([Code::Unavailable]);
    let status = store.get(Item::default()).timeout(PATIENCE).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "as the test asks"));
    assert_eq!(all.seen.ends(), [ended("Get", Code::Unavailable, 1)]);
    all.script.fails([Code::Unavailable]);
    let over = Backoff::new().give_up_after(Duration::ZERO);
    all.store(Retry::new().backoff(over)).get(Item::default()).await.unwrap_err();
    assert_eq!(all.script.executed().len(), 2);
    all.script.fails([Code::Unavailable; 5]);
    let twice = at_once().max_attempts(2);
    let store = all.store(Retry::new().max_attempts(5).backoff(twice));
    store.get(Item::default()).await.unwrap_err();
    assert_eq!(all.script.executed().len(), 2, "the limit that is reached first");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_all_attempts() {
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let (script, seen) = (Script::default(), Seen::default());
    script.fails([Code::Unavailable; 10]);
    script.0.lock().unwrap().takes = 4 * SECOND;
    let service = StoreServer::new(script.clone());
    let _server =
        TestServer::start_with(patient_server(), |builder| builder.add_service(service).io(there));
    let client = ConnectOptions::new().observe(seen.clone()).from_connection(Connection::new(here));
    let pauses = Backoff::new().first(SECOND / 10).longest(SECOND / 10);
    let retry = Retry::new().max_attempts(10).backoff(pauses);
    let store = StoreClient::new(client.with_retry(retry));
    let start = Instant::now();
    let status = store.get(Item::default()).timeout(10 * SECOND).await.unwrap_err();
    assert_eq!((status.code(), start.elapsed()), (Code::DeadlineExceeded, 10 * SECOND));
    let left = std::mem::take(&mut script.0.lock().unwrap().left);
    let left: Vec<_> = left.into_iter().map(Option::unwrap).collect();
    assert_eq!((left.len(), left[0]), (3, 10 * SECOND));
    assert!(left[1] <= 6 * SECOND && left[1] > SECOND * 58 / 10, "{left:?}");
    assert!(left[2] <= 2 * SECOND && left[2] > SECOND * 16 / 10, "{left:?}");
    assert_eq!(
        seen.ends(),
        [("Get".to_owned(), Code::DeadlineExceeded, EndCause::DeadlineHere, 3)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_the_interceptors_of_each_attempt() {
    struct StaysLater;
    #[async_trait]
    impl client::Interceptor for StaysLater {
        async fn intercept(&self, call: &mut OutgoingCall, _: Next<'_>) -> Result<Answer, Status> {
            match call.attempt() {
                1 => Err(Status::unavailable("not now")),
                _ => std::future::pending().await,
            }
        }
    }
    let (here, _there) = tokio::io::duplex(PIPE_LEN);
    let client = ConnectOptions::new().from_connection(Connection::new(here));
    let store = StoreClient::new(client.with_retry(retry()).with_interceptor(StaysLater));
    let start = Instant::now();
    let call = store.get(Item::default()).timeout(10 * SECOND);
    let status = tokio::time::timeout(20 * SECOND, call).await.expect("it ends").unwrap_err();
    assert_eq!((status.code(), start.elapsed()), (Code::DeadlineExceeded, 10 * SECOND));
}

/// The caller has its status, so observers have it as well.
#[tokio::test(start_paused = true)]
async fn a_calls_end_is_reported_at_its_deadline_though_an_interceptor_keeps_its_answer() {
    #[derive(Clone, Default)]
    struct Keeps(Arc<Mutex<Vec<Answer>>>);
    #[async_trait]
    impl client::Interceptor for Keeps {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            let answer = next.run(call).await?;
            self.0.lock().unwrap().push(answer);
            std::future::pending().await
        }
    }
    for retry in [Retry::none(), retry()] {
        let (here, there) = tokio::io::duplex(PIPE_LEN);
        let (script, seen, keeps) = (Script::default(), Seen::default(), Keeps::default());
        let service = StoreServer::new(script);
        let _server =
            TestServer::start_with(patient_server(), |b| b.add_service(service).io(there));
        let client =
            ConnectOptions::new().observe(seen.clone()).from_connection(Connection::new(here));
        let client = client.with_retry(retry).with_interceptor(keeps.clone());
        let call = StoreClient::new(client).get(Item::default()).timeout(SECOND);
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
        let late = ("Get".to_owned(), Code::DeadlineExceeded, EndCause::DeadlineHere, 1);
        assert_eq!(seen.ends(), [late]);
        assert_eq!(std::mem::take(&mut *keeps.0.lock().unwrap()).len(), 1);
        assert_eq!(seen.ends(), [], "once");
    }
}

/// Marks each attempt, and counts their ends.
#[derive(Clone, Default)]
struct Marks(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl client::Interceptor for Marks {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        let attempt = call.attempt();
        call.metadata_mut().append("attempt", attempt.to_string());
        let note = |text: String| self.0.lock().unwrap().push(text);
        match next.run(call).await {
            Err(status) => {
                note(format!("{attempt} fails with {}", status.code()));
                Err(status)
            }
            Ok(answer) => {
                let all = self.0.clone();
                answer.on_end(move |end| {
                    let text = format!("{attempt} of {} ends with {}", end.attempts, end.code);
                    all.lock().unwrap().push(text);
                });
                // Not every answer is as good as the server says.
                match attempt {
                    2 => Err(Status::unavailable("the second one is not good enough")),
                    _ => Ok(answer),
                }
            }
        }
    }
}

#[tokio::test]
async fn an_interceptor_sees_each_attempt_as_the_call_was_at_first() {
    let all = Serving::start().await;
    let marks = Marks::default();
    let client =
        all.client.clone().with_retry(retry().max_attempts(4)).with_interceptor(marks.clone());
    all.script.fails([Code::Unavailable]);
    StoreClient::new(client).get(Item::default()).await.unwrap();
    let executed: Vec<_> = all
        .script
        .0
        .lock()
        .unwrap()
        .executed
        .iter()
        .map(|(_, attempts)| attempts.join(" "))
        .collect();
    assert_eq!(executed, ["1", "2", "3"], "what one attempt adds is not in the next one");
    let noted = marks.0.lock().unwrap().clone();
    assert_eq!(noted, ["1 fails with UNAVAILABLE", "2 of 2 ends with OK", "3 of 3 ends with OK"]);
    assert_eq!(all.seen.ends(), [ended("Get", Code::Ok, 3)]);
}

/// An interceptor that makes a call again makes another call, which observers see; the policy goes on with that.
#[tokio::test]
async fn an_interceptor_may_make_an_attempt_again_itself() {
    struct Twice;
    #[async_trait]
    impl client::Interceptor for Twice {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            match next.run(call).await {
                Err(_) => next.run(call).await,
                answer => answer,
            }
        }
    }
    let all = Serving::start().await;
    let client = all.client.clone().with_retry(retry()).with_interceptor(Twice);
    all.script.fails([Code::Unavailable; 3]);
    StoreClient::new(client).get(Item::default()).await.unwrap();
    assert_eq!(all.script.executed().len(), 4);
    let codes: Vec<_> = all.seen.ends().into_iter().map(|end| end.1).collect();
    assert_eq!(codes, [Code::Unavailable, Code::Unavailable, Code::Ok]);
}

#[tokio::test]
async fn a_stream_whose_request_was_sent_is_not_made_again_whatever_an_interceptor_makes_of_it() {
    struct RefusesAnswers;
    #[async_trait]
    impl client::Interceptor for RefusesAnswers {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            drop(next.run(call).await?);
            Err(Status::unavailable("not good enough"))
        }
    }
    let all = Serving::start().await;
    let client = all.client.clone().with_retry(retry()).with_interceptor(RefusesAnswers);
    let store = StoreClient::new(client);
    let status = store.list(Item::default()).idempotent().await.unwrap_err();
    assert_eq!(status.message(), "not good enough");
    assert_eq!(all.seen.ends()[0].3, 1, "attempts");
    store.get(Item::default()).await.unwrap_err();
    assert_eq!(all.seen.ends()[0].3, 3, "attempts");
}

#[tokio::test]
async fn what_an_interceptor_wants_called_for_messages_is_called_for_those_of_its_attempt() {
    struct CountsFirst(Arc<Mutex<u32>>);
    #[async_trait]
    impl client::Interceptor for CountsFirst {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            if call.attempt() == 1 {
                let messages = self.0.clone();
                call.on_message(move |_| *messages.lock().unwrap() += 1);
            }
            next.run(call).await
        }
    }
    let all = Serving::start().await;
    let messages = Arc::default();
    let counts = CountsFirst(Arc::clone(&messages));
    let store = StoreClient::new(all.client.clone().with_retry(retry()).with_interceptor(counts));
    all.script.fails([Code::Unavailable]);
    store.get(Item::default()).await.unwrap();
    assert_eq!(
        *messages.lock().unwrap(),
        1,
        "the request of the first attempt, which had no reply"
    );
}

#[tokio::test]
async fn an_interceptor_that_refuses_a_call_is_asked_again_and_the_call_ends_once() {
    struct Refuses;
    #[async_trait]
    impl client::Interceptor for Refuses {
        async fn intercept(&self, _: &mut OutgoingCall, _: Next<'_>) -> Result<Answer, Status> {
            Err(Status::unavailable("not now"))
        }
    }
    let all = Serving::start().await;
    let store = StoreClient::new(all.client.clone().with_retry(retry()).with_interceptor(Refuses));
    assert_eq!(store.append(Item::default()).await.unwrap_err().message(), "not now");
    assert_eq!(all.seen.ends(), [("Append".to_owned(), Code::Unavailable, EndCause::Refused, 3)]);
    assert!(all.script.executed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_between_two_attempts_was_given_up() {
    let (here, there) = UnixStream::pair().unwrap();
    let seen = Seen::default();
    let client = ConnectOptions::new().observe(seen.clone()).from_connection(here);
    let long = Backoff::new().first(SECOND * 1_000_000).longest(Duration::MAX);
    let store = StoreClient::new(client.with_retry(Retry::new().backoff(long)));
    let calling = tokio::spawn(store.get(Item::default()).into_future());
    let mut server = Peer::new(there);
    let frame = server.receive().await;
    server.send(Frame::failure(frame.id, code::UNAVAILABLE, "not now")).await;
    eventually("the attempt has failed", || store.client().calls_in_flight() == 0).await;
    assert!(!calling.is_finished());
    calling.abort();
    calling.await.unwrap_err();
    assert_eq!(seen.ends(), [("Get".to_owned(), Code::Cancelled, EndCause::GivenUp, 1)]);
}

#[test]
fn a_blocking_client_makes_calls_again() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
    let server = Process::start_conformance_server(program, &address).expect("it starts");
    let client = ttrpc::blocking::Client::connect(&address).unwrap().with_retry(retry());
    let conformance = ConformanceBlockingClient::new(client);
    let total = || conformance.stats(Empty {}).call().unwrap().calls_total;
    let fail = || {
        let code = code::UNAVAILABLE;
        conformance.fail(FailRequest { code, ..FailRequest::default() })
    };
    let mut before = total();
    for (call, executed) in [
        (fail(), 1),
        (fail().idempotent(), 3),
        (fail().idempotent().retry(retry().max_attempts(5)), 5),
        (fail().idempotent().retry(Retry::none()), 1),
    ] {
        assert_eq!(call.call().unwrap_err().code(), Code::Unavailable);
        let now = total();
        assert_eq!(now - before - 1, executed, "less the one that asks");
        before = now;
    }
    drop(server);
}
