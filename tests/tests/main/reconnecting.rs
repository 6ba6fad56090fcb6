//! Clients that connect anew when their connection is lost.

use std::{
    collections::HashSet,
    future::{Future, pending, poll_fn},
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use tempfile::tempdir;
use tokio::{
    io::{AsyncWrite, DuplexStream, WriteHalf, duplex, join, split},
    net::{TcpListener, TcpStream, UnixListener},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};
use ttrpc::{
    Client, Code, Connection, ConnectionError, Error, Server, Status,
    client::{Backoff, ClientState, ConnectOptions},
    observer::{CallEnd, CallInfo, EndCause, Observer},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    process::Process,
    service::ConformanceService,
    wire::{self, Frame, Peer},
};

const SECOND: Duration = Duration::from_secs(1);

/// The other ends of the connections that a client has made.
type Connections = mpsc::UnboundedReceiver<Played>;

/// A client that has one connection after another, through pipes of this many bytes.
fn client_over_pipes(options: ConnectOptions, pipe_len: usize) -> (Client, Connections) {
    let (connections, accepted) = mpsc::unbounded_channel();
    let client = options.connect_through(move || {
        let (here, there) = duplex(pipe_len);
        let opened = connections.send(Peer::new(there));
        let opened = opened.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused));
        async move { opened.map(|()| Connection::new(here)) }
    });
    (client, accepted)
}

fn at_once() -> ConnectOptions {
    ConnectOptions::new().reconnect(Backoff::new().first(Duration::ZERO))
}

fn serve(address: &str) -> JoinHandle<Result<(), Error>> {
    let service = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(service).bind(address).expect("it is free");
    tokio::spawn(server.serve())
}

async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}

#[tokio::test]
async fn a_client_goes_on_when_its_server_is_killed_and_started_again() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let start = || {
        let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
        Process::start_conformance_server(program, &address).expect("it starts")
    };
    let mut server = start();
    let client = ConnectOptions::new().reconnect(Backoff::new()).connect(&address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone().with_wait_for_ready(true));
    for _ in 0..3 {
        conformance.echo(echo_request([])).await.unwrap();
        server.kill();
        let gone = conformance.echo(echo_request([])).timeout(PATIENCE);
        let (reply, started) = tokio::join!(gone, async { start() });
        // The client may have learnt of the end before or after it sent the call.
        if let Err(status) = reply {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            assert!(status.connection_error().is_some());
        }
        server = started;
        conformance.echo(echo_request([])).timeout(PATIENCE).await.unwrap();
    }
    assert!(matches!(client.state(), ClientState::Ready));
}

#[tokio::test]
async fn a_lazy_client_connects_when_a_call_needs_it_and_finds_a_server_that_was_replaced() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let client = ConnectOptions::new().connect_lazy(&address).unwrap();
    let conformance = ConformanceClient::new(client.clone());
    settle().await;
    assert!(matches!(client.state(), ClientState::Idle));
    for _ in 0..2 {
        let serving = serve(&address);
        conformance.echo(echo_request([])).wait_for_ready(true).await.unwrap();
        assert!(matches!(client.state(), ClientState::Ready));
        serving.abort();
        let _ = serving.await;
        let is_idle =
            || matches!(client.state(), ClientState::Idle | ClientState::BackingOff { .. });
        eventually("the client notices", is_idle).await;
    }
    let error = ConnectOptions::new().connect_lazy("tcp:nowhere").unwrap_err();
    assert!(matches!(error, Error::Address { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_server_a_call_fails_at_once_with_the_cause_or_waits_within_its_deadline() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let client = ConnectOptions::new().connect_lazy(&address).unwrap();
    let conformance = ConformanceClient::new(client.clone());
    for _ in 0..3 {
        let start = Instant::now();
        let status = conformance.echo(echo_request([])).await.unwrap_err();
        assert_eq!((status.code(), start.elapsed()), (Code::Unavailable, Duration::ZERO));
        let cause = status.connection_error();
        assert!(matches!(cause, Some(ConnectionError::NoConnection(_))), "{status:?}");
        assert!(status.message().contains("No such file"), "{status}");
    }
    assert!(matches!(client.state(), ClientState::BackingOff { .. }));
    let start = Instant::now();
    let waits = conformance.echo(echo_request([])).wait_for_ready(true).timeout(30 * SECOND);
    let waits = tokio::spawn(waits.into_future());
    tokio::task::yield_now().await;
    let snapshot = client.snapshot().to_string();
    assert!(snapshot.contains("Echo: 0.0ns of 30s, waits for a connection"), "{snapshot}");
    assert!(snapshot.contains("client: connects again in"), "{snapshot}");
    let status = waits.await.unwrap().unwrap_err();
    assert_eq!((status.code(), start.elapsed()), (Code::DeadlineExceeded, 30 * SECOND));
    assert!(status.message().contains("No such file"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_is_shut_down_with_the_cause() {
    let limits = [Backoff::new().max_attempts(5), Backoff::new().give_up_after(60 * SECOND)];
    for backoff in limits {
        let (client, accepted) = client_over_pipes(ConnectOptions::new().reconnect(backoff), 100);
        drop(accepted);
        let mut states = client.watch_state();
        let conformance = ConformanceClient::new(client.clone().with_wait_for_ready(true));
        let status = conformance.echo(echo_request([])).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        let reason = client.closed().await.to_string();
        assert_eq!(reason, "cannot connect: connection refused");
        assert_eq!(status.message(), reason);
        let last = states.changed().await.expect("it has not seen this");
        assert!(matches!(last, ClientState::ShutDown { .. }), "{last:?}");
        assert!(states.changed().await.is_none());
        assert_eq!(conformance.echo(echo_request([])).await.unwrap_err().message(), reason);
    }
}

/// Whatever it is doing.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_client_whose_last_clone_is_dropped() {
    let before = alive_tasks();
    type Make = fn() -> (Client, Option<Connections>);
    let makes: [Make; 4] = [
        || (client_over_pipes(at_once(), 100).0, None),
        || (at_once().keep_connected().connect_through(pending::<io::Result<Connection>>), None),
        || (client_over_pipes(at_once().keep_connected(), 100).0, None),
        || {
            let (client, accepted) = client_over_pipes(at_once().keep_connected(), 100);
            (client, Some(accepted))
        },
    ];
    for make in makes {
        let (client, accepted) = make();
        let mut states = client.watch_state();
        settle().await;
        assert!(alive_tasks() > before);
        let mut call = client.unary::<(), ()>("S", "M", ()).wait_for_ready(true);
        assert!(is_pending(&mut call).await);
        drop(client);
        settle().await;
        drop((call, accepted));
        tasks_are_back_at(before).await;
        while let Some(state) = states.changed().await {
            drop(state);
        }
    }
}

/// Notes how calls begin and end.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Observer for Calls {
    fn call_begun(&self, call: &CallInfo<'_>) {
        self.0.lock().unwrap().push(format!("{} begins", call.method));
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let end = if end.cause == EndCause::Replied { "is answered" } else { "fails" };
        self.0.lock().unwrap().push(format!("{} {end}", call.method));
    }

    fn client_state_changed(&self, state: &ClientState) {
        self.0.lock().unwrap().push(state.to_string());
    }
}

/// The first call is half written, the others lie in the sender's batch and in the queue.
#[tokio::test(start_paused = true)]
async fn calls_that_were_not_sent_are_made_again_and_one_that_may_have_been_seen_never_is() {
    let calls = Calls::default();
    let (client, mut accepted) = client_over_pipes(at_once().observe(calls.clone()), 80);
    let conformance = ConformanceClient::new(client.clone());
    // Connects, so that the next ones are made on a connection that is there.
    let mut seen = conformance.echo(echo_request([1; 100]));
    assert!(is_pending(&mut seen).await);
    let first = accepted.recv().await.unwrap();
    settle().await;
    assert!(is_pending(&mut seen).await);
    let mut in_batch = conformance.sleep(SleepRequest { millis: 1 });
    let mut stream = conformance.generate(GenerateRequest::default());
    assert!(is_pending(&mut in_batch).await && is_pending(&mut stream).await);
    settle().await;
    assert!(is_pending(&mut in_batch).await && is_pending(&mut stream).await);
    let mut queued = conformance.inspect(Empty {});
    assert!(is_pending(&mut queued).await);

    drop(first);
    let status = seen.await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        matches!(
            status.connection_error(),
            Some(ConnectionError::Truncated | ConnectionError::ClosedByServer)
        ),
        "{status:?}"
    );
    let server = async {
        let mut second = accepted.recv().await.unwrap();
        let mut methods = HashSet::new();
        for _ in 0..3 {
            let frame = second.receive().await;
            let method = frame.as_request().method;
            if method == "Generate" {
                second
                    .send(Frame::new(frame.id, wire::DATA, wire::REMOTE_CLOSED | wire::NO_DATA, []))
                    .await;
            } else {
                second.send(Frame::reply(frame.id, &Empty {})).await;
            }
            methods.insert(method);
        }
        assert_eq!(methods, HashSet::from(["Sleep", "Inspect", "Generate"].map(String::from)));
        assert!(second.is_quiet().await, "nothing is made twice");
        second
    };
    let client_side = async {
        let (slept, replies, inspected) = tokio::join!(in_batch, stream, queued);
        slept.unwrap();
        inspected.unwrap();
        assert_eq!(replies.unwrap().recv().await.unwrap(), None);
    };
    let (_second, ()) = tokio::join!(server, client_side);
    let mut told = calls.0.lock().unwrap().clone();
    let states: Vec<_> =
        told.extract_if(.., |line| !line.contains(' ') || line.contains("again")).collect();
    assert_eq!(states[..2], ["connecting", "connected"]);
    assert_eq!(states.last().unwrap(), "connected");
    told.sort();
    let expected = [
        "Echo begins",
        "Echo fails",
        "Generate begins",
        "Generate is answered",
        "Inspect begins",
        "Inspect is answered",
        "Sleep begins",
        "Sleep is answered",
    ];
    assert_eq!(told, expected, "one call with all its attempts");
}

/// Whatever a server has seen of a call, it is not made again.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_written_is_not_made_again_however_its_connection_ends() {
    for sees in [1, 10, 50, usize::MAX] {
        let (client, mut accepted) = client_over_pipes(at_once().keep_connected(), 1 << 16);
        let mut call = client.unary::<EchoRequest, Empty>("S", "M", echo_request([0; 100]));
        let mut first: DuplexStream = accepted.recv().await.unwrap().into_inner();
        settle().await;
        assert!(is_pending(&mut call).await);
        settle().await;
        let mut bytes = vec![0; sees.min(100)];
        tokio::io::AsyncReadExt::read_exact(&mut first, &mut bytes).await.unwrap();
        drop(first);
        assert_eq!(call.await.unwrap_err().code(), Code::Unavailable);
        let mut second = accepted.recv().await.unwrap();
        assert!(second.is_quiet().await);
    }
}

/// TCP takes what is written to it, so the call would be lost. The end lies in the socket, and the runtime has not seen it: its
/// thread was busy, or nobody drove a blocking client.
#[tokio::test]
async fn a_call_is_not_written_to_a_server_that_has_gone_though_nobody_has_read_that() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sockets, connected) = std::sync::mpsc::channel();
    let client = at_once().connect_through(move || {
        let sockets = sockets.clone();
        async move {
            let stream = TcpStream::connect(address).await?.into_std()?;
            sockets.send(stream.try_clone()?).expect("the test takes it");
            TcpStream::from_std(stream).map(Connection::from)
        }
    });
    let client = client.with_wait_for_ready(true);
    for _ in 0..5 {
        let call = client.unary::<Empty, Empty>("S", "M", Empty {}).timeout(PATIENCE);
        let answer = async {
            let mut server = Peer::new(listener.accept().await.unwrap().0);
            let id = server.receive().await.id;
            server.send(Frame::reply(id, &Empty {})).await;
            server
        };
        let mut call = call.into_future();
        let server = tokio::select! {
            biased;
            lost = &mut call => panic!("it is made on the next connection: {lost:?}"),
            server = answer => server,
        };
        call.await.expect("it was answered");
        drop(server);
        let socket = connected.recv().unwrap();
        while !matches!(socket.peek(&mut [0]), Ok(0)) {
            std::thread::yield_now();
        }
    }
}

/// Passes on what it is offered and fails then, as TLS does whose socket is reset meanwhile.
struct PassesOnAndFails(WriteHalf<DuplexStream>);

impl AsyncWrite for PassesOnAndFails {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let _ = Pin::new(&mut self.0).poll_write(cx, bytes);
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_passed_through_a_stream_before_that_failed_is_not_made_again() {
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let client = at_once().keep_connected().connect_through(move || {
        let (here, there) = duplex(PIPE_LEN);
        connections.send(Peer::new(there)).expect("the test takes it");
        let (reader, writer) = split(here);
        async { Ok::<_, io::Error>(Connection::new(join(reader, PassesOnAndFails(writer)))) }
    });
    let call = tokio::spawn(client.unary::<Empty, Empty>("S", "M", Empty {}).into_future());
    let mut first = accepted.recv().await.unwrap();
    assert_eq!(first.receive().await.as_request().method, "M");
    let mut second = accepted.recv().await.unwrap();
    assert!(second.is_quiet().await, "the first one has seen it");
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_made_again_keeps_its_deadline() {
    let (client, mut accepted) = client_over_pipes(at_once(), 80);
    let start = Instant::now();
    let mut seen = client.unary::<EchoRequest, Empty>("S", "M", echo_request([1; 100]));
    assert!(is_pending(&mut seen).await);
    let first = accepted.recv().await.unwrap();
    settle().await;
    assert!(is_pending(&mut seen).await);
    let unsent = client.unary::<EchoRequest, Empty>("S", "M", echo_request([])).timeout(SECOND);
    let unsent = tokio::spawn(unsent.into_future());
    tokio::time::sleep(SECOND / 2).await;
    drop(first);
    let mut second = accepted.recv().await.unwrap();
    let request = second.receive().await.as_request();
    let left = Duration::from_nanos(request.timeout_nano as u64);
    assert!(left > SECOND / 10 && left <= SECOND / 2, "{left:?}");
    let status: Status = unsent.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(start.elapsed() < SECOND * 11 / 10);
}

#[tokio::test(start_paused = true)]
async fn interceptors_and_clones_with_options_work_over_every_connection() {
    let (client, mut accepted) = client_over_pipes(at_once(), PIPE_LEN);
    let client = client.with_interceptor(PassesThrough).with_metadata("user", "ann");
    let client = client.with_wait_for_ready(true);
    let conformance = ConformanceClient::new(client);
    for _ in 0..3 {
        let calling = tokio::spawn(conformance.echo(echo_request(*b"a")).into_future());
        let mut server = accepted.recv().await.unwrap();
        let frame = server.receive().await;
        assert_eq!(frame.as_request().metadata[0].value, "ann");
        server.send(Frame::reply(frame.id, &EchoResponse { payload: b"b".to_vec() })).await;
        assert_eq!(calling.await.unwrap().unwrap().payload, b"b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_connection_is_not_called_in_a_spin() {
    let backoff = Backoff::new().first(SECOND).longest(SECOND);
    let options = ConnectOptions::new().reconnect(backoff).keep_connected();
    let (_client, mut accepted) = client_over_pipes(options, PIPE_LEN);
    let mut attempts = 0;
    let counting = async {
        while let Some(connection) = accepted.recv().await {
            drop(connection);
            attempts += 1;
        }
    };
    assert!(timeout(1000 * SECOND, counting).await.is_err());
    // A pause of half a second on average, with an even spread.
    assert!((1500..2500).contains(&attempts), "{attempts}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_or_shut_down_connects_no_more() {
    for is_shut_down in [true, false] {
        let (client, mut accepted) = client_over_pipes(at_once().keep_connected(), PIPE_LEN);
        let mut server = accepted.recv().await.unwrap();
        settle().await;
        let mut call = client.unary::<(), ()>("S", "M", ());
        assert!(is_pending(&mut call).await);
        settle().await;
        assert!(is_pending(&mut call).await);
        if is_shut_down {
            client.shutdown().await;
            assert_eq!(server.receive().await.as_request().method, "M");
        } else {
            client.close();
        }
        assert_eq!(call.await.unwrap_err().code(), Code::Unavailable);
        let later = client.unary::<(), ()>("S", "M", ()).wait_for_ready(true).await.unwrap_err();
        assert!(matches!(later.connection_error(), Some(ConnectionError::ClosedLocally)));
        assert!(matches!(client.closed().await, ConnectionError::ClosedLocally));
        server.expect_end().await;
        settle().await;
        assert!(accepted.try_recv().is_err());
    }
}

#[test]
fn a_blocking_client_reconnects() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let start = || {
        let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
        Process::start_conformance_server(program, &address).expect("it starts")
    };
    let mut server = start();
    let options = ConnectOptions::new().reconnect(Backoff::new());
    let client = options.connect_blocking(&address).unwrap().with_wait_for_ready(true);
    let echo = || client.unary::<EchoRequest, EchoResponse>(SERVICE, "Echo", echo_request([]));
    echo().call().unwrap();
    server.kill();
    server = start();
    // It learns of the end while a thread waits, at the latest with a call that was sent.
    if let Err(status) = echo().call() {
        assert_eq!(status.code(), Code::Unavailable);
        echo().call().unwrap();
    }
    drop(server);
}

/// Their attempts come spread over the bound of the pauses, not in one burst.
#[tokio::test(start_paused = true)]
async fn a_thousand_clients_that_lose_their_server_spread_their_attempts() {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let lost = Arc::new(Mutex::new(None::<Instant>));
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let clients: Vec<_> = (0..1000)
        .map(|_| {
            let (attempts, lost, connections) =
                (attempts.clone(), lost.clone(), connections.clone());
            let options =
                ConnectOptions::new().reconnect(Backoff::new().first(SECOND)).keep_connected();
            options.connect_through(move || {
                let (here, there) = duplex(100);
                let opened = match *lost.lock().unwrap() {
                    None => connections
                        .send(there)
                        .map(|()| Connection::new(here))
                        .map_err(|_| io::ErrorKind::BrokenPipe),
                    Some(lost) => {
                        attempts.lock().unwrap().push(lost.elapsed());
                        Err(io::ErrorKind::ConnectionRefused)
                    }
                };
                async move { opened.map_err(io::Error::from) }
            })
        })
        .collect();
    let mut servers = Vec::new();
    accepted.recv_many(&mut servers, 1000).await;
    while servers.len() < 1000 {
        accepted.recv_many(&mut servers, 1000).await;
    }
    tokio::time::sleep(60 * SECOND).await;
    *lost.lock().unwrap() = Some(Instant::now());
    drop(servers);
    tokio::time::sleep(SECOND).await;
    // After the first attempt of each, which fails at once, 1,000 more are drawn from a second.
    let mut tenths = [0; 10];
    for at in attempts.lock().unwrap().iter().filter(|at| !at.is_zero() && **at < SECOND) {
        tenths[at.as_millis() as usize / 100] += 1;
    }
    println!("attempts in each tenth of the first second: {tenths:?}");
    assert!(tenths.iter().all(|count| (50..400).contains(count)), "{tenths:?}");
    drop(clients);
}

/// An address is looked up for each attempt.
#[tokio::test]
async fn a_socket_that_is_replaced_by_another_one_is_found() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock");
    let connect = |name: &'static str| {
        let path = folder.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::rename(&path, &address).unwrap();
        listener
    };
    let first = connect("first");
    let client = at_once().keep_connected().connect(address.to_str().unwrap()).await.unwrap();
    let (accepted, _) = first.accept().await.unwrap();
    let second = connect("second");
    drop((first, accepted));
    timeout(PATIENCE, second.accept()).await.expect("the client finds it").unwrap();
    drop(client);
}

#[tokio::test]
async fn a_function_that_connects_and_panics_shuts_its_client_down_with_that_cause() {
    type Connect = fn() -> std::future::Ready<io::Result<Connection>>;
    let panics: Connect = || panic!("as the test asks");
    let clients = [
        ConnectOptions::new().connect_through(panics),
        ConnectOptions::new().keep_connected().connect_through(|| async {
            tokio::task::yield_now().await;
            panic!("as the test asks, later");
            #[expect(unreachable_code, reason = "the type of the output")]
            io::Result::<Connection>::Err(io::ErrorKind::Other.into())
        }),
    ];
    for client in clients {
        let call = client.unary::<(), ()>("S", "M", ()).wait_for_ready(true);
        let status = call.await.unwrap_err();
        let cause = "cannot connect: the program's function that connects panicked";
        assert_eq!((status.code(), status.message()), (Code::Unavailable, cause));
        assert_eq!(client.closed().await.to_string(), cause);
        let state = client.state();
        assert!(matches!(state, ClientState::ShutDown { .. }), "{state:?}");
    }
}

/// Its server reads nothing, so that a shutdown never ends by itself.
#[tokio::test(start_paused = true)]
async fn a_client_is_closed_also_while_it_shuts_down_and_a_shutdown_may_be_begun_again() {
    let (client, mut accepted) = client_over_pipes(at_once(), 64);
    let call = tokio::spawn(client.unary::<Vec<u8>, ()>("S", "M", vec![1; 2 << 20]).into_future());
    let _server = accepted.recv().await.unwrap();
    eventually("the Request is queued", || client.calls_in_flight() == 1).await;
    for _ in 0..2 {
        timeout(SECOND, client.shutdown()).await.expect_err("its Request cannot be written");
        assert!(!call.is_finished());
    }
    assert_eq!(client.calls_in_flight(), 1);
    client.close();
    let status = timeout(SECOND, call).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_leaves_a_client_whose_shutdown_was_dropped() {
    let (client, mut accepted) = client_over_pipes(at_once(), 64);
    let (mut requests, reply) = client.client_streaming::<Vec<u8>, ()>("S", "M").await.unwrap();
    let mut server = accepted.recv().await.unwrap();
    requests.send(vec![1; 1000]).await.unwrap();
    drop((requests, reply));
    timeout(SECOND, client.shutdown()).await.expect_err("the pipe is full");
    assert_eq!(server.receive().await.kind, wire::REQUEST);
    for is_last in [false, true] {
        let frame = server.receive().await;
        assert_eq!((frame.kind, frame.data.is_empty()), (wire::DATA, is_last));
    }
    client.shutdown().await;
}

/// A connection that is lost soon is followed by a pause, in which new calls fail.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_sent_waits_for_an_attempt_after_a_connection_that_was_lost_soon() {
    let options = ConnectOptions::new().reconnect(Backoff::new());
    let (client, mut accepted) = client_over_pipes(options, 80);
    let seen = tokio::spawn(client.unary::<Vec<u8>, ()>("S", "Seen", vec![1; 200]).into_future());
    let server = accepted.recv().await.unwrap();
    eventually("its Request is queued", || client.calls_in_flight() == 1).await;
    tokio::task::yield_now().await;
    let unsent = tokio::spawn(client.unary::<(), ()>("S", "Unsent", ()).into_future());
    eventually("its Request is queued", || client.calls_in_flight() == 2).await;
    drop(server);
    assert_eq!(seen.await.unwrap().unwrap_err().code(), Code::Unavailable);
    let mut server = accepted.recv().await.unwrap();
    let frame = server.receive().await;
    assert_eq!(frame.as_request().method, "Unsent");
    server.send(Frame::reply(frame.id, &())).await;
    unsent.await.unwrap().unwrap();
}

/// They were no failures in a row.
#[tokio::test(start_paused = true)]
async fn failures_before_a_connection_that_was_good_do_not_count() {
    let failures = Mutex::new(4);
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let backoff = Backoff::new().first(SECOND).max_attempts(5);
    let options = ConnectOptions::new().reconnect(backoff).keep_connected();
    let client = options.connect_through(move || {
        let mut left = failures.lock().unwrap();
        let fails = *left > 0;
        *left -= i32::from(fails);
        let (here, there) = duplex(1000);
        let opened = if fails { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(here) };
        if !fails {
            connections.send(there).unwrap();
        }
        async move { opened.map(Connection::new) as io::Result<Connection> }
    });
    let first = accepted.recv().await.unwrap();
    // Less than the pause after five failures.
    tokio::time::sleep(9 * SECOND).await;
    drop(first);
    let second = timeout(60 * SECOND, accepted.recv()).await.expect("the client connects again");
    assert!(second.is_some(), "{}", client.state());
}

/// Closes the client as it is told the first state, and notes each state when it has been told.
#[derive(Clone, Default)]
struct ClosesAtOnce {
    client: Arc<Mutex<Option<Client>>>,
    states: Arc<Mutex<Vec<String>>>,
}

impl Observer for ClosesAtOnce {
    fn client_state_changed(&self, state: &ClientState) {
        if let ClientState::Connecting = state
            && let Some(client) = self.client.lock().unwrap().take()
        {
            client.close();
        }
        self.states.lock().unwrap().push(state.to_string());
    }
}

#[tokio::test]
async fn an_observer_that_changes_the_state_is_told_of_that_when_it_has_returned() {
    let seen = ClosesAtOnce::default();
    let options = ConnectOptions::new().observe(seen.clone()).reconnect(Backoff::new());
    let (client, _accepted) = client_over_pipes(options, 1000);
    *seen.client.lock().unwrap() = Some(client.clone());
    let status = client.unary::<(), ()>("S", "M", ()).await.expect_err("the client is closed");
    assert_eq!(status.code(), Code::Unavailable);
    let states = seen.states.lock().unwrap().clone();
    // "idle" is told first if the client's task begins before the call.
    let states = states.iter().filter(|state| *state != "idle").collect::<Vec<_>>();
    assert_eq!(states, ["connecting", "closed, the connection was closed by this side"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_request_is_not_written_in_time_has_not_been_opened() {
    let (client, mut accepted) = client_over_pipes(at_once(), 64);
    let stuck = tokio::spawn(client.unary::<Vec<u8>, ()>("S", "Stuck", vec![1; 999]).into_future());
    let _server = accepted.recv().await.unwrap();
    eventually("its Request is queued", || client.calls_in_flight() == 1).await;
    let start = Instant::now();
    let stream = client.server_streaming::<(), ()>("S", "Stream", ()).timeout(SECOND);
    let status = stream.await.expect_err("its Request waits behind that of another call");
    assert_eq!((status.code(), start.elapsed()), (Code::DeadlineExceeded, SECOND));
    stuck.abort();
}

#[test]
fn a_blocking_client_connects_through_a_function_and_its_calls_wait_for_that() {
    let (connections, accepted) = std::sync::mpsc::channel();
    let failures = Mutex::new(2);
    let options = ConnectOptions::new().reconnect(Backoff::new().first(Duration::ZERO));
    let client = options.connect_through_blocking(move || {
        let mut left = failures.lock().unwrap();
        let fails = *left > 0;
        *left -= i32::from(fails);
        let connections = connections.clone();
        async move {
            if fails {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            let (here, there) = tokio::net::UnixStream::pair()?;
            connections.send(there.into_std()?).expect("the test waits");
            Ok(Connection::from(here))
        }
    });
    let client = client.unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut there = accepted.recv().unwrap();
        there.set_nonblocking(false).unwrap();
        let mut header = [0; 10];
        there.read_exact(&mut header).unwrap();
        let [l0, l1, l2, l3, i0, i1, i2, i3, ..] = header;
        let mut data = vec![0; u32::from_be_bytes([l0, l1, l2, l3]) as usize];
        there.read_exact(&mut data).unwrap();
        there.write_all(&[0, 0, 0, 2, i0, i1, i2, i3, 2, 0, 0x12, 0]).unwrap();
        there
    });
    client.unary::<(), ()>("S", "M", ()).wait_for_ready(true).call().unwrap();
    drop(server.join());
}
