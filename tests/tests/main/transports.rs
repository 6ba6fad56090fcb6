//! What a server takes connections from: addresses of every kind, listeners and descriptors of the
//! program, streams of connections, and single ones, before and while it runs.

use std::{
    fs::{self, File},
    io,
    net::IpAddr,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tempfile::{TempDir, tempdir};
use tokio::{
    io::{AsyncReadExt, duplex},
    net::{TcpListener, UnixStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use ttrpc::{
    Client, ClientConfig, Connection, Error, ServerConfig,
    server::{Listener, Peer, PeerPolicy, Routes, ServerBuilder, ServerHandle},
};
use ttrpc_tests::{
    conformance::*,
    harness::{Handmade, PATIENCE, SERVICE, echo_request, eventually, key, settle},
    service::ConformanceService,
    wire::Frame,
};

type Serving = JoinHandle<Result<(), Error>>;

fn start(builder: ServerBuilder) -> (ServerHandle, Serving) {
    let server = builder.build().expect("the server is complete");
    (server.handle(), tokio::spawn(server.serve()))
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("the path is UTF-8").to_owned()
}

async fn is_served(client: &Client) -> bool {
    let client = ConformanceClient::new(client.clone());
    client.echo(echo_request([])).timeout(PATIENCE).await.is_ok()
}

async fn expect_service_at(address: &str) -> Client {
    let client = Client::connect(address).await.expect("a server listens");
    assert!(is_served(&client).await, "{address}");
    client
}

/// A free port: the address of a TCP listener that the program has bound.
fn tcp_listener() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, address)
}

/// A TCP address that nobody else takes: a port below those that the system chooses, on an address of this process. A
/// program that listens on all addresses may have the first ones.
fn free_tcp_address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, a, b, c]);
    let mut ports = 4001..5000;
    let port = ports.find(|port| std::net::TcpListener::bind((address, *port)).is_ok());
    format!("tcp://{address}:{}", port.expect("a port is free"))
}

/// A client whose connection is handed to a server that runs, and what came of it.
async fn hand_over(handle: &ServerHandle) -> (Client, Result<(), Error>) {
    let (here, there) = UnixStream::pair().unwrap();
    let result = handle.serve_connection(there).await;
    (Client::from_unix_stream(here, ClientConfig::default()), result)
}

#[tokio::test]
async fn one_server_listens_on_addresses_of_every_kind() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a.sock");
    let hybrid = path_in(&folder, "vm.sock");
    let tcp = free_tcp_address();
    let builder =
        ConformanceService::builder().bind(&format!("unix://{path}")).unwrap().bind(&tcp).unwrap();
    let (handle, serving) = start(builder.bind(&format!("hvsock://{hybrid}:1024")).unwrap());
    let clients = [
        expect_service_at(&path).await,
        expect_service_at(&tcp).await,
        expect_service_at(&format!("{hybrid}_1024")).await,
    ];
    assert_eq!(handle.connections(), 3);
    handle.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    for client in clients {
        client.closed().await;
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the socket files are removed");
}

#[tokio::test]
async fn a_tcp_address_in_use_is_named() {
    let (_listener, address) = tcp_listener();
    let error = ConformanceService::builder().bind(&address).unwrap_err();
    assert!(matches!(&error, Error::AddressInUse { address: named, .. } if *named == address));
}

#[tokio::test]
async fn the_port_that_the_system_chose_is_told() {
    let folder = tempdir().unwrap();
    let bound = Listener::bind("tcp://127.0.0.1:0").unwrap();
    let tokio = Listener::from(TcpListener::bind("127.0.0.1:0").await.unwrap());
    assert_eq!(Listener::bind(&path_in(&folder, "a")).unwrap().socket_addr(), None);
    let addresses = [&bound, &tokio].map(|listener| listener.socket_addr().expect("it is TCP"));
    let (_handle, serving) = start(ConformanceService::builder().listener(bound).listener(tokio));
    for address in addresses {
        expect_service_at(&format!("tcp://{address}")).await;
    }
    serving.abort();
}

#[tokio::test]
async fn the_address_any_is_for_servers_alone() {
    let error = Client::connect("vsock://any:1").await.unwrap_err();
    assert!(error.to_string().contains("for servers"), "{error}");
}

#[tokio::test]
async fn listeners_and_descriptors_of_the_program_are_served() {
    let folder = tempdir().unwrap();
    let path = |name| path_in(&folder, name);
    let bind = |name| std::os::unix::net::UnixListener::bind(path(name)).unwrap();
    let ((std_tcp, a), (tokio_tcp, b), (tcp_descriptor, c)) =
        (tcp_listener(), tcp_listener(), tcp_listener());
    tokio_tcp.set_nonblocking(true).unwrap();
    let builder = ConformanceService::builder()
        .listener(bind("std"))
        .listener(tokio::net::UnixListener::bind(path("tokio")).unwrap())
        .listener(OwnedFd::from(bind("descriptor")))
        .listener(std_tcp)
        .listener(tokio::net::TcpListener::from_std(tokio_tcp).unwrap())
        .listener(OwnedFd::from(tcp_descriptor));
    let (handle, serving) = start(builder);
    for address in [path("std"), path("tokio"), path("descriptor"), a, b, c] {
        expect_service_at(&address).await;
    }
    handle.close().await;
    serving.await.unwrap().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "the files are the program's");
}

#[tokio::test]
async fn a_descriptor_that_is_no_socket_is_an_error() {
    let file = || OwnedFd::from(File::open("/dev/null").unwrap());
    let error = ConformanceService::builder().listener(file()).serve().await.unwrap_err();
    assert!(matches!(error, Error::Listener(_)), "{error:?}");
    let (handle, serving) = start(ConformanceService::builder().keep_open());
    let error = handle.listen(file()).unwrap_err();
    assert!(matches!(error, Error::Listener(_)), "{error:?}");
    Connection::from_fd(file()).unwrap_err();
    serving.abort();
}

/// Accepting from it would fail again and again, and nobody would know.
#[tokio::test(start_paused = true)]
async fn a_descriptor_that_does_not_listen_is_an_error() {
    let (connected, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for socket in [OwnedFd::from(connected), datagrams.into(), udp.into()] {
        let serving = ConformanceService::builder().listener(socket).serve();
        let result = timeout(PATIENCE, serving).await.expect("it is refused at once");
        assert!(matches!(result, Err(Error::Listener(_))), "{result:?}");
    }
}

#[tokio::test]
async fn a_connected_descriptor_that_is_no_stream_is_an_error() {
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    for socket in [OwnedFd::from(datagrams), udp.into()] {
        let error = Connection::from_fd(socket).unwrap_err();
        assert!(error.to_string().contains("no stream socket"), "{error}");
    }
}

#[tokio::test]
async fn connected_descriptors_are_served_and_called() {
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let connection = Connection::from_fd(there.into()).unwrap();
    let credentials = connection.peer().credentials().expect("it is a Unix socket");
    assert_eq!(credentials.pid, Some(std::process::id() as i32));
    let (_handle, serving) = start(ConformanceService::builder().connection(connection));
    let here = Connection::from_fd(here.into()).unwrap();
    let client = Client::from_connection(here, ClientConfig::default());
    assert!(is_served(&client).await);
    drop(client);
    serving.await.unwrap().unwrap();

    let (listener, _) = tcp_listener();
    let here = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, address) = listener.accept().unwrap();
    let connection = Connection::from_fd(there.into()).unwrap();
    assert_eq!(connection.peer().socket_addr(), Some(address));
    let (_handle, serving) = start(ConformanceService::builder().connection(connection));
    let here = Connection::from_fd(here.into()).unwrap();
    assert!(is_served(&Client::from_connection(here, ClientConfig::default())).await);
    serving.abort();
}

/// A plugin or a shim that serves the one socket that it was given has no other way to know it.
#[tokio::test]
async fn a_server_whose_only_connection_fails_says_so_and_others_do_not() {
    use tokio::io::AsyncWriteExt;
    let echo = Frame::unary(1, SERVICE, "Echo", &echo_request(*b"hi")).to_bytes();
    let in_a_header = [&echo[..], &[0, 0]].concat();
    let in_a_frame = echo[..echo.len() - 1].to_vec();
    let garbage: Vec<u8> = (0..100).map(|byte| byte | 0x40).collect();
    for (sent, fails) in [
        (Vec::new(), false),
        (echo.clone(), false),
        (in_a_header, true),
        (in_a_frame, true),
        (garbage, true),
    ] {
        for (keeps_open, others) in [(false, 0), (true, 0), (false, 1)] {
            let (mut here, there) = duplex(1 << 16);
            let mut builder = ConformanceService::builder().io(there);
            let mut kept = Vec::new();
            for _ in 0..others {
                let (here, there) = duplex(1 << 16);
                builder = builder.io(there);
                kept.push(here);
            }
            let server = if keeps_open { builder.keep_open() } else { builder }.build().unwrap();
            let handle = server.handle();
            let serving = tokio::spawn(server.serve());
            here.write_all(&sent).await.unwrap();
            drop(here);
            eventually("it ends", || handle.connections() == others).await;
            drop(kept);
            if keeps_open {
                handle.close().await;
            }
            match serving.await.unwrap() {
                Ok(()) => assert!(!fails || keeps_open || others > 0, "{sent:?}"),
                Err(error) => {
                    assert!(fails && !keeps_open && others == 0, "{sent:?}: {error}");
                    assert!(matches!(error, Error::ConnectionFailed { .. }), "{error:?}");
                    assert!(error.to_string().contains("within a frame"), "{error}");
                }
            }
        }
    }
}

/// They block, as all sockets of the standard library do unless they are told not to.
#[tokio::test]
async fn sockets_of_the_standard_library_are_served_and_called() {
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let (listener, _) = tcp_listener();
    let tcp_here = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let tcp_there = listener.accept().unwrap().0;
    let unix = [here, there].map(|stream| Connection::try_from(stream).unwrap());
    let tcp = [tcp_here, tcp_there].map(|stream| Connection::try_from(stream).unwrap());
    for [here, there] in [unix, tcp] {
        let peer = there.peer();
        assert!(peer.credentials().is_some() || peer.socket_addr().is_some());
        let (_handle, serving) = start(ConformanceService::builder().connection(there));
        let client = Client::from_connection(here, ClientConfig::default());
        assert!(is_served(&client).await);
        drop(client);
        serving.await.unwrap().unwrap();
    }
    let not_connected = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
    let not_connected = OwnedFd::from(not_connected.unwrap());
    Connection::try_from(std::os::unix::net::UnixStream::from(not_connected)).unwrap_err();
}

/// Most machines have vsock sockets and nobody to connect to over them; tests/vm connects.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn descriptors_of_vsock_sockets_are_told_apart() {
    // The last port stands for any that is free.
    let listener = match Listener::bind("vsock://any:4294967295") {
        Ok(listener) => listener,
        Err(Error::Bind { source, .. }) if source.raw_os_error().is_some() => {
            return println!("skipped: {source}");
        }
        Err(error) => panic!("the library says so: {error}"),
    };
    assert_eq!(listener.socket_addr(), None);
    let socket = listener.into_fd().unwrap();
    let error = Connection::from_fd(socket.try_clone().unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
    let (handle, serving) =
        start(ConformanceService::builder().listener(socket.try_clone().unwrap()));
    handle.listen(socket).unwrap();
    settle().await;
    assert!(!serving.is_finished());
    handle.close().await;
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_is_added_while_the_server_runs_and_shares_its_limits() {
    let folder = tempdir().unwrap();
    let (first, second) = (path_in(&folder, "first"), path_in(&folder, "second"));
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let (handle, serving) =
        start(ConformanceService::builder().config(config).bind(&first).unwrap());
    let client = expect_service_at(&first).await;
    handle.bind(&second).unwrap();
    assert!(matches!(handle.bind(&second), Err(Error::AddressInUse { .. })));
    let waiting = Client::connect(&second).await.unwrap();
    let echo = ConformanceClient::new(waiting).echo(echo_request([]));
    let echo = tokio::spawn(echo.into_future());
    assert!(is_served(&client).await);
    assert_eq!((handle.connections(), echo.is_finished()), (1, false));
    drop(client);
    echo.await.unwrap().expect("it is served when there is a place");
    handle.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the socket files are removed");
    assert!(matches!(handle.bind(&second), Err(Error::ServerEnded)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_address_that_is_added_to_a_server_that_never_runs_goes_with_it() {
    let folder = tempdir().unwrap();
    let server = ConformanceService::builder().keep_open().build().unwrap();
    let handle = server.handle();
    handle.bind(&path_in(&folder, "a")).unwrap();
    drop(server);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(matches!(handle.bind(&path_in(&folder, "b")), Err(Error::ServerEnded)));
}

/// Connections that come through a channel.
struct Channel(mpsc::Receiver<io::Result<UnixStream>>);

impl futures_core::Stream for Channel {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

#[tokio::test]
async fn a_stream_of_connections_is_served_until_it_ends() {
    let (sender, receiver) = mpsc::channel(8);
    let (handle, serving) =
        start(ConformanceService::builder().listener(Listener::incoming(Channel(receiver))));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (here, there) = UnixStream::pair().unwrap();
        sender.send(Err(io::Error::other("a handshake failed"))).await.unwrap();
        sender.send(Ok(there)).await.unwrap();
        clients.push(Client::from_unix_stream(here, ClientConfig::default()));
    }
    for client in &clients {
        assert!(is_served(client).await, "errors in between change nothing");
    }
    drop(sender);
    settle().await;
    assert!(is_served(&clients[0]).await, "the stream's end touches no connection");
    assert_eq!(handle.connections(), 3);
    drop(clients);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_program_accepts_connections_itself_until_there_are_no_more() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let (sender, receiver) = mpsc::channel(1);
    let (here, there) = UnixStream::pair().unwrap();
    sender.try_send(Ok(there)).unwrap();
    drop(sender);
    let mut socket = Listener::bind(&path).unwrap().start().unwrap();
    let mut stream = Listener::incoming(Channel(receiver)).start().unwrap();
    let clients = [
        Client::connect(&path).await.unwrap(),
        Client::from_unix_stream(here, ClientConfig::default()),
    ];
    for (acceptor, client) in [&mut socket, &mut stream].into_iter().zip(clients) {
        let accepted = timeout(PATIENCE, acceptor.accept()).await.expect("it is there");
        let (_handle, serving) =
            start(ConformanceService::builder().connection(accepted.unwrap().unwrap()));
        assert!(is_served(&client).await);
        drop(client);
        serving.await.unwrap().unwrap();
    }
    assert!(stream.accept().await.is_none());
}

#[tokio::test]
async fn a_stream_of_connections_that_ends_leaves_other_listeners_alone() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let (sender, receiver) = mpsc::channel(1);
    let incoming = Listener::incoming(Channel(receiver));
    let (_handle, serving) =
        start(ConformanceService::builder().listener(incoming).bind(&path).unwrap());
    drop(expect_service_at(&path).await);
    drop(sender);
    settle().await;
    drop(expect_service_at(&path).await);
    serving.abort();
}

#[tokio::test]
async fn a_running_server_is_handed_connections_and_what_is_known_of_their_peers() {
    struct Session(u64);
    let routes = Routes::new("S").unary("Who", &std::sync::Arc::new(()), |_, ctx, (): ()| {
        Box::pin(async move {
            let session = ctx.peer().get::<Session>().map_or(0, |session| session.0);
            Ok(format!("{} {session}", ctx.peer().name().unwrap_or("nobody")))
        })
    });
    let (handle, serving) =
        start(ConformanceService::builder().add_service(Handmade(routes)).keep_open());
    for (name, session) in [("plugin a", 1), ("plugin b", 2)] {
        let (here, there) = duplex(1000);
        let peer = Peer::unknown().with_name(name).with(Session(session));
        handle.serve_connection(Connection::new(there).with_peer(peer)).await.unwrap();
        let client = Client::from_io(here, ClientConfig::default());
        let reply: String = client.unary("S", "Who", ()).await.unwrap();
        assert_eq!(reply, format!("{name} {session}"));
        let snapshot = handle.snapshot().to_string();
        assert!(snapshot.contains(&format!(" of {name}: open for")), "{snapshot}");
    }
    eventually("the connections end", || handle.connections() == 0).await;
    assert!(!serving.is_finished(), "the server is kept open");
    handle.close().await;
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_policy_holds_for_connections_that_are_handed_over() {
    let policy = PeerPolicy::custom(|peer| peer.name() == Some("friend"));
    let (handle, serving) = start(ConformanceService::builder().keep_open().allow_peers(policy));
    let (mut here, there) = duplex(1000);
    let stranger = Connection::new(there).with_peer(Peer::vsock(3, 7));
    let error = handle.serve_connection(stranger).await.unwrap_err();
    assert!(matches!(error, Error::PeerRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("cid 3, port 7"), "{error}");
    assert_eq!(here.read(&mut [0]).await.unwrap(), 0, "it is closed");
    let (here, there) = duplex(1000);
    let friend = Connection::new(there).with_peer(Peer::unknown().with_name("friend"));
    handle.serve_connection(friend).await.unwrap();
    assert!(is_served(&Client::from_io(here, ClientConfig::default())).await);
    serving.abort();
}

#[tokio::test]
async fn connections_that_are_handed_over_wait_for_a_place() {
    let config = ServerConfig { max_connections: 2, ..ServerConfig::default() };
    let (handle, serving) = start(ConformanceService::builder().config(config).keep_open());
    let (first, result) = hand_over(&handle).await;
    result.unwrap();
    let (second, result) = hand_over(&handle).await;
    result.unwrap();
    let more = {
        let handle = handle.clone();
        tokio::spawn(async move { hand_over(&handle).await })
    };
    assert!(is_served(&first).await && is_served(&second).await);
    settle().await;
    assert_eq!((handle.connections(), more.is_finished()), (2, false));
    drop(second);
    let (third, result) = more.await.unwrap();
    result.unwrap();
    assert!(is_served(&third).await);
    let one_more = {
        let handle = handle.clone();
        tokio::spawn(async move { hand_over(&handle).await })
    };
    settle().await;
    handle.close().await;
    let (client, result) = one_more.await.unwrap();
    assert!(matches!(result, Err(Error::ServerEnded)), "{result:?}");
    client.closed().await;
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_that_are_handed_over_before_the_start_wait_for_a_place_too() {
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let mut builder = ConformanceService::builder().config(config);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (here, there) = UnixStream::pair().unwrap();
        builder = builder.unix_stream(there);
        clients.push(Client::from_unix_stream(here, ClientConfig::default()));
    }
    let (handle, serving) = start(builder);
    for client in clients {
        assert!(is_served(&client).await);
        assert_eq!(handle.connections(), 1);
    }
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_is_handed_to_a_server_that_is_about_to_start() {
    let server = ConformanceService::builder().keep_open().build().unwrap();
    let handle = server.handle();
    let handed = tokio::spawn(async move { hand_over(&handle).await });
    settle().await;
    assert!(!handed.is_finished());
    let serving = tokio::spawn(server.serve());
    let (client, result) = handed.await.unwrap();
    result.unwrap();
    assert!(is_served(&client).await);
    serving.abort();
}

/// The permit for a connection that nobody has made is free for others.
#[tokio::test]
async fn a_listener_that_waits_takes_no_place() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let (handle, serving) =
        start(ConformanceService::builder().config(config).bind(&path).unwrap());
    drop(expect_service_at(&path).await);
    let (client, result) = hand_over(&handle).await;
    result.unwrap();
    assert!(is_served(&client).await);
    serving.abort();
}

#[tokio::test]
async fn accepting_pauses_and_resumes_without_touching_calls() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let (handle, serving) = start(ConformanceService::builder().bind(&path).unwrap());
    let client = expect_service_at(&path).await;
    let conformance = ConformanceClient::new(client.clone());
    let wait = tokio::spawn(conformance.wait(key("a")).into_future());
    handle.pause_accepting().await;
    let waiting =
        ConformanceClient::new(Client::connect(&path).await.expect("the backlog is open"));
    let echo = tokio::spawn(waiting.echo(echo_request([])).into_future());
    assert!(is_served(&client).await);
    settle().await;
    assert_eq!((handle.connections(), echo.is_finished()), (1, false));
    let (handed_over, result) = hand_over(&handle).await;
    result.expect("a connection that is handed over is not accepted by the server");
    assert!(is_served(&handed_over).await);
    // What is added while accepting is paused waits, too.
    let second = path_in(&folder, "b");
    handle.bind(&second).unwrap();
    let second = ConformanceClient::new(Client::connect(&second).await.unwrap());
    let second = tokio::spawn(second.echo(echo_request([])).into_future());
    settle().await;
    assert!(!second.is_finished());
    handle.resume_accepting();
    echo.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    conformance.release(key("a")).await.unwrap();
    wait.await.unwrap().unwrap();
    serving.abort();
}

/// Another process takes the socket over: it gets every client that comes once accepting is paused.
#[tokio::test]
async fn a_paused_server_hands_its_socket_on() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let copy = listener.try_clone().unwrap();
    let (old, serving) = start(ConformanceService::builder().listener(listener));
    let client = expect_service_at(&path).await;
    old.pause_accepting().await;
    let (new, new_serving) = start(ConformanceService::builder().listener(copy));
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(expect_service_at(&path).await);
    }
    assert_eq!((old.connections(), new.connections()), (1, 10));
    assert!(is_served(&client).await);
    old.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    expect_service_at(&path).await;
    new_serving.abort();
}

/// The library binds the socket, with a mode, and the program has its descriptor.
#[tokio::test]
async fn a_socket_that_was_bound_with_a_mode_is_handed_on() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let socket = Listener::bind_with_mode(&path, 0o620).unwrap().into_fd().unwrap();
    let (old, serving) = start(ConformanceService::builder().listener(socket.try_clone().unwrap()));
    let client = expect_service_at(&path).await;
    old.pause_accepting().await;
    let (new, new_serving) = start(ConformanceService::builder().listener(socket));
    let _clients = [expect_service_at(&path).await, expect_service_at(&path).await];
    assert_eq!((old.connections(), new.connections()), (1, 2));
    drop(client);
    old.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
    expect_service_at(&path).await;
    new.close().await;
    new_serving.await.unwrap().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the file is the program's");
    let (_sender, receiver) = mpsc::channel(1);
    let error = Listener::incoming(Channel(receiver)).into_fd().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

/// Every place is taken by a connection that was handed over: a client of the listener waits in the backlog, where a
/// successor finds it.
#[tokio::test(start_paused = true)]
async fn a_server_without_a_place_accepts_nobody_and_pauses() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "a");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let copy = listener.try_clone().unwrap();
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let (old, serving) = start(ConformanceService::builder().config(config).listener(listener));
    settle().await;
    let (handed_over, result) = hand_over(&old).await;
    result.unwrap();
    let waiting = ConformanceClient::new(Client::connect(&path).await.unwrap());
    let echo = tokio::spawn(waiting.echo(echo_request([])).into_future());
    settle().await;
    assert_eq!((old.connections(), echo.is_finished()), (1, false));
    timeout(PATIENCE, old.pause_accepting()).await.expect("it waits for no connection's end");
    let (new, new_serving) = start(ConformanceService::builder().listener(copy));
    echo.await.unwrap().expect("the successor has accepted the client");
    assert_eq!((old.connections(), new.connections()), (1, 1));
    assert!(is_served(&handed_over).await);
    serving.abort();
    new_serving.abort();
}

#[tokio::test]
async fn pausing_a_server_that_does_not_run_returns_at_once() {
    let server = ConformanceService::builder().keep_open().build().unwrap();
    let handle = server.handle();
    handle.pause_accepting().await;
    let serving = tokio::spawn(server.serve());
    handle.close().await;
    handle.pause_accepting().await;
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_tcp_peer_is_known_by_its_address() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(None));
    let noted = seen.clone();
    let policy = PeerPolicy::custom(move |peer| {
        *noted.lock().unwrap() = peer.socket_addr();
        true
    });
    let (listener, address) = tcp_listener();
    let (handle, serving) =
        start(ConformanceService::builder().listener(listener).allow_peers(policy));
    let _client = expect_service_at(&address).await;
    let seen = seen.lock().unwrap().expect("it is a TCP connection");
    assert!(seen.ip().is_loopback());
    let snapshot = handle.snapshot().to_string();
    assert!(snapshot.contains(&format!("connection 1 of {seen}")), "{snapshot}");
    let users = PeerPolicy::same_user().or(PeerPolicy::root());
    serving.abort();
    let (listener, address) = tcp_listener();
    let (_handle, serving) =
        start(ConformanceService::builder().listener(listener).allow_peers(users));
    Client::connect(&address).await.unwrap().closed().await;
    serving.abort();
}

#[tokio::test]
async fn a_socket_has_the_mode_that_it_is_bound_with() {
    let folder = tempdir().unwrap();
    let (path, hybrid) = (folder.path().join("a.sock"), folder.path().join("vm.sock"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (name, hybrid) = (path.to_str().unwrap(), hybrid.to_str().unwrap());
    let listener = Listener::bind_with_mode(name, 0o620).unwrap();
    let guests = Listener::bind_with_mode(&format!("hvsock://{hybrid}:7"), 0o600).unwrap();
    assert_eq!((mode(&path), mode(Path::new(&format!("{hybrid}_7")))), (0o620, 0o600));
    let (_handle, serving) =
        start(ConformanceService::builder().listener(listener).listener(guests));
    expect_service_at(name).await;
    serving.abort();
    let _ = serving.await;
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_mode_is_refused_where_there_is_no_file() {
    for address in ["tcp://127.0.0.1:0", "unix://@ttrpc-mode", "vsock://any:1024"] {
        let error = Listener::bind_with_mode(address, 0o600).unwrap_err();
        assert!(matches!(error, Error::Address { .. }), "{error:?}");
    }
}

/// A server with only what came from its handle ends as every other does.
#[tokio::test]
async fn a_server_that_is_kept_open_drains() {
    let (handle, serving) = start(ConformanceService::builder().keep_open());
    let (client, result) = hand_over(&handle).await;
    result.unwrap();
    let conformance = ConformanceClient::new(client);
    let wait = tokio::spawn(conformance.wait(key("a")).into_future());
    eventually("the call arrives", || handle.calls_in_flight() == 1).await;
    let ended = handle.shutdown(Duration::from_secs(60));
    let (_refused, result) = hand_over(&handle).await;
    assert!(matches!(result, Err(Error::ServerEnded)), "{result:?}");
    assert!(!serving.is_finished());
    handle.close().await;
    ended.await;
    wait.await.unwrap().unwrap_err();
    serving.await.unwrap().unwrap();
}
