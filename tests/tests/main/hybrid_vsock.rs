//! The handshake of hybrid vsock with a hypervisor that is played: whatever it answers, the client
//! connects or says what is wrong, and reads nothing that belongs to the guest.

use std::time::Duration;

use tempfile::{TempDir, tempdir};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::{Instant, sleep},
};
use ttrpc::{Client, Error, client::ConnectOptions, server::Listener};
use ttrpc_tests::{
    conformance::*,
    harness::echo_request,
    wire::{Frame, Peer},
};

/// A hypervisor's socket.
struct Hypervisor {
    listener: UnixListener,
    address: String,
    _folder: TempDir,
}

impl Hypervisor {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let path = folder.path().join("vm.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let address = format!("hvsock://{}:1024", path.to_str().unwrap());
        Hypervisor { listener, address, _folder: folder }
    }

    /// The next client, which asks for port 1024.
    async fn accept(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        stream.readable().await.unwrap();
        let mut line = [0; 64];
        let len = stream.read(&mut line).await.unwrap();
        assert_eq!(line[..len].escape_ascii().to_string(), "CONNECT 1024\\n");
        stream
    }

    /// What becomes of a client that gets this answer, and then the end of the connection or nothing.
    async fn answers(&self, answer: &[u8], then_closes: bool) -> Result<Client, Error> {
        let play = async {
            let mut stream = self.accept().await;
            stream.write_all(answer).await.unwrap();
            (!then_closes).then_some(stream)
        };
        let (_stream, client) = tokio::join!(play, Client::connect(&self.address));
        client
    }
}

async fn call(client: Client) -> Vec<u8> {
    let request = echo_request(*b"through the hypervisor");
    ConformanceClient::new(client).echo(request).await.expect("the guest answers").payload
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_called_through_its_hypervisor() {
    let hypervisor = Hypervisor::new();
    let guest = async {
        let mut stream = hypervisor.accept().await;
        stream.write_all(b"OK 1073741824\n").await.unwrap();
        answer_echo_over(stream).await;
    };
    let calling = async { call(Client::connect(&hypervisor.address).await.unwrap()).await };
    let ((), payload) = tokio::join!(guest, calling);
    assert_eq!(payload, b"through the hypervisor");
}

async fn answer_echo_over(stream: UnixStream) {
    let mut peer = Peer::new(stream);
    let frame = peer.receive().await;
    let payload = b"through the hypervisor".to_vec();
    peer.send(Frame::reply(frame.id, &EchoResponse { payload })).await;
}

/// The guest's first bytes come in one packet with the answer: the client reads them as the guest's.
#[tokio::test(start_paused = true)]
async fn what_follows_the_answer_in_one_packet_is_the_guests() {
    let hypervisor = Hypervisor::new();
    let reply = EchoResponse { payload: b"in one packet".to_vec() };
    let bytes = Frame::reply(1, &reply).to_bytes();
    let (first, rest) = bytes.split_at(7);
    let guest = async {
        let mut stream = hypervisor.accept().await;
        stream.write_all(&[b"OK 5\n", first].concat()).await.unwrap();
        let mut request = [0; 10];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(rest).await.unwrap();
        stream
    };
    let calling = async { call(Client::connect(&hypervisor.address).await.unwrap()).await };
    let (_stream, payload) = tokio::join!(guest, calling);
    assert_eq!(payload, b"in one packet");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_slowly_is_waited_for() {
    let hypervisor = Hypervisor::new();
    let guest = async {
        let mut stream = hypervisor.accept().await;
        for byte in b"OK 1024\n" {
            sleep(Duration::from_secs(1)).await;
            stream.write_all(&[*byte]).await.unwrap();
        }
        answer_echo_over(stream).await;
    };
    let calling = async { call(Client::connect(&hypervisor.address).await.unwrap()).await };
    let ((), payload) = tokio::join!(guest, calling);
    assert_eq!(payload, b"through the hypervisor");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_closed_in_place_of_an_answer_is_refused() {
    let hypervisor = Hypervisor::new();
    let error = hypervisor.answers(b"", true).await.unwrap_err();
    assert!(matches!(error, Error::HandshakeRefused { .. }), "{error:?}");
    assert!(error.to_string().contains(&hypervisor.address), "{error}");
    // Closed before the request was read: a reset, and the same to the user.
    let reset = async { drop(hypervisor.listener.accept().await.unwrap()) };
    let ((), client) = tokio::join!(reset, Client::connect(&hypervisor.address));
    let error = client.unwrap_err();
    assert!(matches!(error, Error::HandshakeRefused { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_kind_is_shown_with_what_is_wrong_with_it() {
    const ANOTHER: &str = "this is not `OK <number of 32 bits>`";
    const TOO_LONG: &str = "no line feed is among its first 32 bytes";
    const CUT: &str = "the connection ended before the line feed";
    let hypervisor = Hypervisor::new();
    let long = [b'x'; 100];
    let zeroes = format!("OK {:029}", 7);
    let too_long = format!("{zeroes}\n");
    for (answer, then_closes, shown, reason) in [
        (&b"OK 10"[..], true, "OK 10", CUT),
        (b"O", true, "O", CUT),
        (b"NO 1024\n", false, "NO 1024", ANOTHER),
        (b"OK\n", false, "OK", ANOTHER),
        (b"OK \n", false, "OK ", ANOTHER),
        (b"OK 1a\n", false, "OK 1a", ANOTHER),
        (b"OK -1\n", false, "OK -1", ANOTHER),
        (b"OK +1\n", false, "OK +1", ANOTHER),
        (b"OK 4294967296\n", false, "OK 4294967296", ANOTHER),
        (b"OK 99999999999999999999\n", false, "OK 99999999999999999999", ANOTHER),
        (b"OK 1024\r\n", false, "OK 1024\\r", ANOTHER),
        (b"\n", false, "", ANOTHER),
        (b"\xff\0\n", false, "\\xff\\x00", ANOTHER),
        // The client does not wait for a line feed behind 32 bytes.
        (&long[..32], false, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", TOO_LONG),
        (&long, false, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", TOO_LONG),
        (too_long.as_bytes(), false, &zeroes, TOO_LONG),
    ] {
        let error = hypervisor.answers(answer, then_closes).await.unwrap_err();
        let address = &hypervisor.address;
        assert_eq!(
            error.to_string(),
            format!("cannot connect to `{address}`: the hypervisor answered `{shown}`: {reason}")
        );
        let Error::HandshakeAnswer { address, answer, .. } = &error else { panic!("{error:?}") };
        assert_eq!((address, answer.as_str()), (&hypervisor.address, shown));
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_answer_has_32_bytes() {
    let hypervisor = Hypervisor::new();
    let answer = format!("OK {:028}\n", 7);
    assert_eq!(answer.len(), 32);
    hypervisor.answers(answer.as_bytes(), false).await.unwrap();
    let error = hypervisor.answers(format!("OK {:029}\n", 7).as_bytes(), false).await.unwrap_err();
    assert!(matches!(error, Error::HandshakeAnswer { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hypervisor_without_an_answer_is_given_up_after_the_handshakes_own_time() {
    let hypervisor = Hypervisor::new();
    let limit = Duration::from_millis(300);
    for (options, limit) in [
        (ConnectOptions::new(), Duration::from_secs(10)),
        (ConnectOptions::new().handshake_timeout(limit), limit),
    ] {
        for (answer, came) in
            [("", "no answer within"), ("OK 1", "only `OK 1` of an answer within")]
        {
            let start = Instant::now();
            let play = async {
                let mut stream = hypervisor.accept().await;
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream
            };
            let (_stream, client) = tokio::join!(play, options.connect(&hypervisor.address));
            let error = client.unwrap_err();
            assert!(matches!(error, Error::HandshakeTimeout { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&format!("the hypervisor gave {came} {limit:?}")), "{text}");
            assert!(start.elapsed() >= limit, "{:?}", start.elapsed());
            assert!(start.elapsed() < limit + Duration::from_millis(10), "{:?}", start.elapsed());
        }
    }
}

/// A guest that is about to start: the hypervisor refuses, then gives no answer, then accepts.
#[tokio::test(start_paused = true)]
async fn a_guest_that_is_about_to_listen_is_waited_for() {
    let hypervisor = Hypervisor::new();
    let guest = async {
        for _ in 0..3 {
            drop(hypervisor.accept().await);
        }
        let silent = hypervisor.accept().await;
        let mut stream = hypervisor.accept().await;
        stream.write_all(b"OK 1024\n").await.unwrap();
        let mut peer = Peer::new(stream);
        let frame = peer.receive().await;
        peer.send(Frame::reply(frame.id, &EchoResponse { payload: b"at last".to_vec() })).await;
        drop(silent);
    };
    let options = ConnectOptions::new()
        .retry_for(Duration::from_secs(30))
        .handshake_timeout(Duration::from_secs(1));
    let calling = async { call(options.connect(&hypervisor.address).await.unwrap()).await };
    let ((), payload) = tokio::join!(guest, calling);
    assert_eq!(payload, b"at last");
}

/// What the port adds to the path counts, and no file of another name is made.
#[tokio::test]
async fn the_socket_of_a_port_whose_name_is_too_long_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("").to_str().unwrap().to_owned();
    let path = format!("{path}{}", "x".repeat(107 - "_1024".len() - path.len()));
    let longest = format!("hvsock://{path}:1024");
    drop(Listener::bind(&longest).expect("it has 107 bytes"));
    for address in [format!("hvsock://{path}x:1024"), format!("hvsock://{path}:10240")] {
        let error = Listener::bind(&address).unwrap_err();
        assert!(matches!(error, Error::Address { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&address) && text.contains("107 bytes"), "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
