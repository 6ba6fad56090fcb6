//! Handlers without `async`: what they hold up, how many run, and what ends them.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{io::duplex, sync::mpsc, task::JoinHandle, time::timeout};
use ttrpc::{
    Client, Code, Context, Error, Server, ServerConfig, Status,
    server::{
        ServerHandle,
        blocking::{StreamReceiver, StreamSender},
    },
    snapshot::{CallSnapshot, CallWait, ConnectionSnapshot, ReceiverWait},
};
use ttrpc_tests::{
    conformance::{ConformanceClient, ConformanceServer, GenerateRequest},
    gate::Gate,
    harness::{
        PATIENCE, PIPE_LEN, SERVICE, echo_request, eventually, patient_client, patient_server,
    },
    service::ConformanceService,
    wire::{Frame, Peer, REMOTE_CLOSED, RESPONSE},
};

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{
    CountdownRequest, GreeterBlocking, GreeterBlockingServer, GreeterClient, HelloReply,
    HelloRequest, Summary,
};

/// Bytes of the reply to "large".
const LARGE: usize = 1 << 20;

struct Blocking {
    gate: Arc<Gate>,
    /// With what handlers have ended.
    ends: mpsc::UnboundedSender<&'static str>,
}

impl GreeterBlocking for Blocking {
    fn say_hello(&self, ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
        match request.name.as_str() {
            "gate" => self.gate.wait(),
            "deadline" => {
                self.gate.wait();
                // Its client's deadline has passed; its own may be a little later.
                let begin = Instant::now();
                while !ctx.is_cancelled() && begin.elapsed() < PATIENCE {
                    thread::yield_now();
                }
            }
            "token" => {
                self.gate.come();
                let token = ctx.cancellation_token();
                tokio::runtime::Handle::current().block_on(token.cancelled());
            }
            "panic" => panic!("asked to"),
            "large" => {
                self.gate.come();
                return Ok(HelloReply { message: "x".repeat(LARGE) });
            }
            _ => {}
        }
        let _ = self.ends.send(if ctx.is_cancelled() { "cancelled" } else { "well" });
        Ok(HelloReply { message: request.name })
    }

    fn countdown(
        &self,
        _ctx: &Context,
        request: CountdownRequest,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        for left in (1..=request.from).rev() {
            replies.send(HelloReply { message: left.to_string() })?;
        }
        Ok(())
    }

    fn greet_all(
        &self,
        _ctx: &Context,
        requests: StreamReceiver<HelloRequest>,
    ) -> Result<Summary, Status> {
        let names = requests.map(|request| Ok(request?.name));
        let names = names.collect::<Result<Vec<_>, Status>>()?;
        Ok(Summary { people: names.len() as u32, message: names.join(" ") })
    }

    fn chat(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<HelloRequest>,
        mut replies: StreamSender<HelloReply>,
    ) -> Result<(), Status> {
        let result = loop {
            match requests.recv() {
                Ok(Some(request)) => replies.send(HelloReply { message: request.name })?,
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
            }
        };
        let was_cancelled = matches!(&result, Err(status) if status.code() == Code::Cancelled);
        let _ = self.ends.send(if was_cancelled { "cancelled" } else { "well" });
        result
    }
}

/// A server with blocking handlers beside the conformance service's.
struct TestServer {
    gate: Arc<Gate>,
    ends: mpsc::UnboundedReceiver<&'static str>,
    handle: ServerHandle,
    serving: JoinHandle<Result<(), Error>>,
}

impl TestServer {
    fn start(config: ServerConfig) -> Self {
        let (gate, (ends, ended)) = (Arc::<Gate>::default(), mpsc::unbounded_channel());
        let service = Blocking { gate: gate.clone(), ends };
        let server = Server::builder()
            .config(config)
            .add_service(GreeterBlockingServer::new(service))
            .add_service(ConformanceServer::new(ConformanceService::default()))
            .keep_open()
            .build()
            .unwrap();
        let handle = server.handle();
        TestServer { gate, ends: ended, handle, serving: tokio::spawn(server.serve()) }
    }

    async fn connect(&self) -> Client {
        let (here, there) = duplex(PIPE_LEN);
        self.handle.serve_connection(ttrpc::Connection::new(there)).await.unwrap();
        Client::from_io(here, patient_client())
    }

    async fn greeter(&self) -> GreeterClient {
        self.connect().await.into()
    }
}

/// A thread that waits at the gate would keep the runtime from ending.
impl Drop for TestServer {
    fn drop(&mut self) {
        self.gate.open();
    }
}

fn hello(name: &str) -> HelloRequest {
    HelloRequest { name: name.to_owned() }
}

/// A call that is under way while the test goes on.
fn begin(greeter: &GreeterClient, name: &str) -> JoinHandle<Result<HelloReply, Status>> {
    tokio::spawn(greeter.say_hello(hello(name)).into_future())
}

#[tokio::test]
async fn all_four_kinds_of_calls_are_served() {
    let server = TestServer::start(patient_server());
    let greeter = server.greeter().await;
    assert_eq!(greeter.say_hello(hello("Ann")).await.unwrap().message, "Ann");

    let mut replies =
        greeter.countdown(CountdownRequest { from: 5000, ..Default::default() }).await.unwrap();
    for left in (1..=5000).rev() {
        assert_eq!(replies.recv().await.unwrap().unwrap().message, left.to_string());
    }
    assert_eq!(replies.recv().await.unwrap(), None);

    let (mut requests, summary) = greeter.greet_all().await.unwrap();
    for name in ["Ann", "Ben"] {
        requests.send(hello(name)).await.unwrap();
    }
    requests.finish();
    assert_eq!(summary.await.unwrap(), Summary { people: 2, message: "Ann Ben".to_owned() });

    let (mut requests, mut replies) = greeter.chat().await.unwrap();
    for name in ["Ann", "Ben"] {
        requests.send(hello(name)).await.unwrap();
        assert_eq!(replies.recv().await.unwrap().unwrap().message, name);
    }
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
}

/// The runtime has one thread, and all calls are on one connection.
#[tokio::test]
async fn handlers_that_block_hold_up_neither_their_connection_nor_the_runtime() {
    let server = TestServer::start(patient_server());
    let client = server.connect().await;
    let greeter = GreeterClient::new(client.clone());
    let blocked: Vec<_> = (0..100).map(|_| begin(&greeter, "gate")).collect();
    server.gate.has_come(100).await;
    let echo = ConformanceClient::new(client).echo(echo_request([1]));
    assert_eq!(echo.await.unwrap().payload, [1]);
    assert_eq!(greeter.say_hello(hello("Ann")).await.unwrap().message, "Ann");
    server.gate.open();
    for blocked in blocked {
        assert_eq!(blocked.await.unwrap().unwrap().message, "gate");
    }
}

#[tokio::test]
async fn no_more_run_at_a_time_than_may_and_a_part_is_for_connections_that_run_none() {
    let server = TestServer::start(patient_server().max_blocking_calls(4));
    let (greeter, other) = (server.greeter().await, server.greeter().await);
    let mut calls: Vec<_> = (0..5).map(|_| begin(&greeter, "gate")).collect();
    server.gate.has_come(3).await;
    calls.push(begin(&other, "gate"));
    server.gate.has_come(4).await;
    let third = server.greeter().await;
    for greeter in [&greeter, &other, &third] {
        let call = greeter.say_hello(hello("Ann")).timeout(Duration::from_millis(1));
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    }
    assert_eq!(server.gate.came(), 4);
    server.gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(other.say_hello(hello("Ann")).await.unwrap().message, "Ann");
}

/// Each has a handler that never ends. The runtime's pool has no more threads than the server may use and the program needs.
#[test]
fn connections_with_endless_handlers_leave_the_program_its_threads_and_are_refused_in_time() {
    const MAX: usize = 8;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(MAX + 1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let stall_timeout = Duration::from_millis(50);
        let config = ServerConfig { stall_timeout, ..ServerConfig::default() };
        let server = TestServer::start(config.max_blocking_calls(MAX));
        let mut calls = Vec::new();
        for _ in 0..40 {
            let greeter = server.greeter().await;
            calls.push(begin(&greeter, "gate"));
        }
        // More come where the limit does not hold.
        eventually("as many run as may", || server.gate.came() >= MAX).await;
        // The others are refused, each without a deadline of its own, and the program's thread is free.
        eventually("all others are refused", || {
            assert!(server.gate.came() <= MAX, "the program's thread is taken");
            calls.iter().filter(|call| call.is_finished()).count() == 40 - MAX
        })
        .await;
        for refused in calls.iter_mut().filter(|call| call.is_finished()) {
            let status = refused.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(status.message().contains("max_blocking_calls"), "{status}");
        }
        assert_eq!(server.gate.came(), MAX);
        let polite = server.greeter().await;
        let status = timeout(PATIENCE, polite.say_hello(hello("Ann")).into_future()).await;
        let status = status.expect("it is refused at once").unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let own = tokio::task::spawn_blocking(|| 7);
        assert_eq!(timeout(PATIENCE, own).await.expect("a thread is left").unwrap(), 7);
        server.gate.open();
        drop(server);
    });
}

/// It need not wait for the others' handlers, which may go on for ever.
#[tokio::test]
async fn a_call_that_waits_begins_when_its_connection_runs_no_other() {
    let config = ServerConfig { stall_timeout: 2 * PATIENCE, ..ServerConfig::default() };
    let server = TestServer::start(config.max_blocking_calls(4));
    let (greeter, other) = (server.greeter().await, server.greeter().await);
    let blocked: Vec<_> = (0..4).map(|_| begin(&greeter, "gate")).collect();
    server.gate.has_come(3).await;
    let (mut requests, mut replies) = other.chat().await.unwrap();
    requests.send(hello("Ann")).await.unwrap();
    replies.recv().await.unwrap();
    let waiting: Vec<_> = ["Ben", "Cid"].map(|name| begin(&other, name)).into();
    eventually("both calls wait, and one of the other connection", || {
        let snapshot = server.handle.snapshot();
        let calls = snapshot.connections.iter().flat_map(|connection| &connection.calls);
        calls.filter(|call| call.wait == CallWait::Admission).count() == 3
    })
    .await;
    requests.finish();
    for call in waiting {
        timeout(PATIENCE, call).await.expect("it begins").unwrap().unwrap();
    }
    server.gate.open();
    for blocked in blocked {
        blocked.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_call_is_refused_when_every_place_is_taken_and_no_handler_ends() {
    let config = ServerConfig { stall_timeout: Duration::from_millis(1), ..Default::default() };
    let server = TestServer::start(config.max_blocking_calls(1));
    let greeter = server.greeter().await;
    let blocked = begin(&greeter, "gate");
    server.gate.has_come(1).await;
    for _ in 0..2 {
        let status = greeter.say_hello(hello("Ann")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
    server.gate.open();
    blocked.await.unwrap().unwrap();
    assert_eq!(greeter.say_hello(hello("Ann")).await.unwrap().message, "Ann");
}

/// Else clients that read nothing would leave any number of replies with the server.
#[tokio::test]
async fn a_reply_that_has_no_room_keeps_the_place_of_its_handler() {
    replies_without_room_keep_places().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_reply_that_has_no_room_keeps_the_place_of_its_handler_on_several_threads() {
    replies_without_room_keep_places().await;
}

async fn replies_without_room_keep_places() {
    const CONNECTIONS: usize = 10;
    const PLACES: usize = 8;
    // Of each connection, one reply has room in the queue and one waits for room.
    let config = patient_server().max_blocking_calls(PLACES);
    let server = TestServer::start(config.send_queue_bytes(LARGE).reply_bytes_per_connection(1));
    let mut peers = Vec::new();
    for nth in 1..=CONNECTIONS {
        let (here, there) = duplex(PIPE_LEN);
        server.handle.serve_connection(ttrpc::Connection::new(there)).await.unwrap();
        let mut peer = Peer::new(here);
        let ids = (1..).step_by(2).take(PLACES);
        let call = |id| Frame::unary(id, "greeter.v1.Greeter", "SayHello", &hello("large"));
        let calls: Vec<_> = ids.flat_map(|id| call(id).to_bytes()).collect();
        peer.send_bytes(&calls).await;
        peers.push(peer);
        let waits =
            |call: &CallSnapshot| matches!(call.wait, CallWait::Admission | CallWait::Capacity);
        // Its receiver waits if the queue was full before it had acted on all calls.
        let is_full = |connection: &ConnectionSnapshot| {
            let held_up = connection.receiver.as_ref().map(|held_up| &held_up.by);
            let calls = &connection.calls;
            !calls.is_empty()
                && calls.iter().all(waits)
                && (calls.len() == PLACES - 1 || held_up == Some(&ReceiverWait::SendQueue))
        };
        let mut looks = 0;
        let stands_still = || {
            let connections = server.handle.snapshot().connections;
            let all_wait = connections.len() == nth && connections.iter().all(is_full);
            looks = if all_wait { looks + 1 } else { 0 };
            looks > 20
        };
        eventually("all but the reply in the queue wait", stands_still).await;
    }
    let made = server.gate.came();
    let with_room = 2 * CONNECTIONS;
    assert!(made <= with_room + PLACES, "{made} replies of 1 MiB were made");
}

/// Else a client that reads nothing would hold, for calls that do not begin, what those of others wait for.
#[tokio::test]
async fn a_call_whose_turn_has_not_come_leaves_the_place_to_others() {
    let config = ServerConfig { stall_timeout: 2 * PATIENCE, ..ServerConfig::default() };
    let config = config.send_queue_bytes(1).reply_bytes_per_connection(1);
    let server = TestServer::start(config.max_blocking_calls(3));
    let holder = server.greeter().await;
    let (mut held, mut replies) = holder.chat().await.unwrap();
    held.send(hello("Ann")).await.unwrap();
    replies.recv().await.unwrap();
    let waiting = |wait| {
        let snapshot = server.handle.snapshot();
        let calls = snapshot.connections.iter().flat_map(|connection| &connection.calls);
        calls.filter(|call| call.wait == wait).count()
    };

    let (here, there) = duplex(PIPE_LEN);
    server.handle.serve_connection(ttrpc::Connection::new(there)).await.unwrap();
    let mut peer = Peer::new(here);
    let call = |id, name| Frame::unary(id, "greeter.v1.Greeter", "SayHello", &hello(name));
    peer.send(call(1, "gate")).await;
    server.gate.has_come(1).await;
    let other = server.greeter().await;
    let only = begin(&other, "gate");
    server.gate.has_come(2).await;
    peer.send(call(3, "Ben")).await;
    eventually("the next one waits", || waiting(CallWait::Admission) == 1).await;
    // One message is in the queue, and one waits for room.
    let chunks = GenerateRequest { count: 2, size: LARGE as u32, ..GenerateRequest::default() };
    peer.send(Frame::request(5, REMOTE_CLOSED, SERVICE, "Generate", &chunks)).await;
    eventually("a message waits for room", || waiting(CallWait::Capacity) == 1).await;

    let next = begin(&other, "Cid");
    eventually("it waits behind the client that reads nothing", || {
        waiting(CallWait::Admission) == 2
    })
    .await;
    held.finish();
    let next = timeout(PATIENCE, next).await.expect("it begins");
    assert_eq!(next.unwrap().unwrap().message, "Cid");

    server.gate.open();
    only.await.unwrap().unwrap();
    let mut ended = Vec::new();
    while ended.len() < 3 {
        let frame = peer.receive().await;
        ended.extend(
            (frame.kind == RESPONSE || frame.flags & REMOTE_CLOSED != 0).then_some(frame.id),
        );
    }
    ended.sort();
    assert_eq!(ended, [1, 3, 5], "a client that reads gets every reply");
}

#[tokio::test]
async fn a_handler_that_panics_answers_internal_and_leaves_its_place() {
    let server = TestServer::start(patient_server().max_blocking_calls(1));
    let greeter = server.greeter().await;
    for _ in 0..3 {
        let status = greeter.say_hello(hello("panic")).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
    }
    assert_eq!(greeter.say_hello(hello("Ann")).await.unwrap().message, "Ann");
}

#[tokio::test]
async fn a_handler_is_told_of_its_deadline_and_keeps_its_place_until_it_returns() {
    // Until one has begun: on a slow machine a deadline passes before that. Each is the first of its server, since one that
    // waits behind another would begin as the only one of its connection, and leave the server's place free.
    let (mut server, greeter) = loop {
        let server = TestServer::start(patient_server().max_blocking_calls(1));
        let greeter = server.greeter().await;
        let call = greeter.say_hello(hello("deadline")).timeout(Duration::from_millis(20));
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
        if server.gate.came() == 1 {
            break (server, greeter);
        }
    };
    let next = begin(&greeter, "Ann");
    let call = greeter.say_hello(hello("Ben")).timeout(Duration::from_millis(1));
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(!next.is_finished(), "the thread is still in the first handler");
    server.gate.open();
    assert_eq!(server.ends.recv().await, Some("cancelled"));
    assert_eq!(next.await.unwrap().unwrap().message, "Ann");
}

#[tokio::test]
async fn a_handler_is_told_that_its_client_has_gone() {
    let mut server = TestServer::start(patient_server());
    let greeter = server.greeter().await;
    let waiting = begin(&greeter, "token");
    server.gate.has_come(1).await;
    let (mut requests, mut replies) = greeter.chat().await.unwrap();
    requests.send(hello("Ann")).await.unwrap();
    replies.recv().await.unwrap();
    greeter.client().close();
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
    for _ in 0..2 {
        assert_eq!(server.ends.recv().await, Some("cancelled"));
    }
}

#[tokio::test]
async fn a_shutdown_waits_for_handlers_that_block() {
    let mut server = TestServer::start(patient_server());
    let greeter = server.greeter().await;
    let blocked = begin(&greeter, "gate");
    server.gate.has_come(1).await;
    server.handle.begin_shutdown(Duration::from_secs(600));
    server.gate.open();
    assert_eq!(blocked.await.unwrap().unwrap().message, "gate");
    (&mut server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_closes_tells_its_handlers() {
    let mut server = TestServer::start(patient_server());
    let greeter = server.greeter().await;
    let waiting = begin(&greeter, "token");
    server.gate.has_come(1).await;
    server.handle.close().await;
    assert_eq!(server.ends.recv().await, Some("cancelled"));
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
}
