//! Peers that are very slow, and processes that are stopped: for a while, or for good.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex, split},
    time::sleep,
};
use ttrpc::{Client, ClientConfig, Code, ServerConfig};
use ttrpc_tests::{conformance::*, harness::*, process::Process};

const SECOND: Duration = Duration::from_secs(1);

/// For how long a process is stopped that goes on then.
const STOPPED: Duration = Duration::from_secs(10);

/// Passes bytes on, one a second.
async fn trickle(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    while let Ok(byte) = from.read_u8().await {
        sleep(SECOND).await;
        if to.write_all(&[byte]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn over_a_line_of_a_byte_a_second_every_kind_of_call_works_and_others_do_not_notice() {
    let (here, slow) = duplex(1);
    let (line, there) = duplex(1);
    let (other_here, other_there) = duplex(PIPE_LEN);
    let server = TestServer::start(ServerConfig::default(), [there, other_there]);
    let ((slow_reader, slow_writer), (line_reader, line_writer)) = (split(slow), split(line));
    let there = tokio::spawn(trickle(slow_reader, line_writer));
    let back = tokio::spawn(trickle(line_reader, slow_writer));
    let client = ConformanceClient::new(Client::from_io(here, ClientConfig::default()));
    let other = ConformanceClient::new(Client::from_io(other_here, ClientConfig::default()));

    let calls = async {
        let reply = client.echo(echo_request(vec![7; 300])).await.unwrap();
        assert_eq!(reply.payload, vec![7; 300]);
        let (mut requests, mut replies) = client.exchange().await.unwrap();
        for sequence in 0..5 {
            requests.send(chunk(sequence)).await.unwrap();
            assert_eq!(replies.recv().await.unwrap(), Some(chunk(sequence)));
        }
        requests.finish();
        assert_eq!(replies.recv().await.unwrap(), None);
        let late = client.echo(echo_request([])).timeout(10 * SECOND).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "it takes a minute to arrive");
    };
    let elsewhere = async {
        for _ in 0..100 {
            let start = tokio::time::Instant::now();
            other.echo(echo_request([])).await.unwrap();
            assert!(start.elapsed() < SECOND, "it is not held up");
            sleep(SECOND).await;
        }
    };
    tokio::join!(calls, elsewhere);
    drop((client, other));
    there.await.unwrap();
    back.await.unwrap();
    server.ended().await;
}

/// A server process, and where it listens.
struct ServerProcess {
    process: Process,
    address: String,
    _folder: TempDir,
}

impl ServerProcess {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let address = folder.path().join("a.sock").to_string_lossy().into_owned();
        let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
        let mut command = Command::new(program);
        command.args(["--listen", &address, "--stall-timeout", "600"]);
        let process = Process::start_server(&mut command).expect("it starts");
        ServerProcess { process, address, _folder: folder }
    }

    async fn connect(&self) -> ConformanceClient {
        let client = Client::connect_with(&self.address, patient_client()).await;
        ConformanceClient::new(client.expect("it listens"))
    }
}

#[tokio::test]
async fn a_server_that_is_stopped_for_ten_seconds_and_goes_on_has_lost_nothing() {
    let server = ServerProcess::start();
    let client = server.connect().await;
    let (mut requests, reply) = client.collect().await.unwrap();
    let request = GenerateRequest { count: 100_000, size: 100, ..GenerateRequest::default() };
    let mut generated = client.generate(request).await.unwrap();
    generated.recv().await.unwrap();
    let receiving = tokio::spawn(async move {
        let mut received = 1;
        while let Some(chunk) = generated.recv().await.unwrap() {
            assert_eq!(chunk.sequence, received);
            received += 1;
        }
        received
    });
    let wait = tokio::spawn(client.wait(key("a")).into_future());

    server.process.stop();
    let stopped_at = Instant::now();
    let sending = tokio::spawn(async move {
        // More than all buffers on the way hold.
        for sequence in 0..3000 {
            requests.send(Chunk { sequence, payload: vec![0; 5000] }).await.unwrap();
        }
        requests.finish();
    });
    let large = tokio::spawn(client.echo(echo_request(vec![3; 3 << 20])).into_future());
    let late = client.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "deadlines hold meanwhile");
    sleep(STOPPED.saturating_sub(stopped_at.elapsed())).await;
    server.process.resume();

    sending.await.unwrap();
    let collected = CollectResponse { chunks: 3000, bytes: 15_000_000, in_order: true };
    assert_eq!(reply.await.unwrap(), collected);
    assert_eq!(large.await.unwrap().unwrap().payload.len(), 3 << 20);
    assert_eq!(receiving.await.unwrap(), 100_000);
    client.release(key("a")).await.unwrap();
    wait.await.unwrap().unwrap();
}

#[tokio::test]
async fn of_a_server_that_is_stopped_for_good_deadlines_hold_and_the_client_can_be_closed() {
    let server = ServerProcess::start();
    let client = Client::connect(&server.address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    conformance.echo(echo_request([])).await.unwrap();
    server.process.stop();
    let pending = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let exchange = async {
        let (mut requests, mut replies) = conformance.exchange().timeout(SECOND).await?;
        // Fills every buffer on the way, and waits for room until the deadline.
        let chunk = || Chunk { sequence: 0, payload: vec![0; 1 << 20] };
        while requests.send(chunk()).await.is_ok() {}
        replies.recv().await
    };
    assert_eq!(exchange.await.unwrap_err().code(), Code::DeadlineExceeded);
    client.close();
    assert_eq!(pending.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn clients_that_are_stopped_for_good_harm_nobody_and_hold_up_no_shutdown() {
    let mut server = ServerProcess::start();
    let program = env!("CARGO_BIN_EXE_ttrpc-kill");
    let stopped: Vec<_> = (0..2)
        .map(|_| {
            let mut command = Command::new(program);
            Process::start(command.args(["client", &server.address])).expect("it starts")
        })
        .collect();
    let other = server.connect().await;
    // Both are in the middle of all kinds of calls.
    loop {
        let stats = other.stats(Empty {}).await.unwrap();
        if stats.connections == 3 && stats.calls_in_flight > 60 {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    stopped.iter().for_each(Process::stop);
    for _ in 0..100 {
        let served = other.echo(echo_request(vec![0; 10_000])).timeout(PATIENCE).await;
        assert_eq!(served.unwrap().payload.len(), 10_000);
    }
    server.process.terminate();
    eventually("the server ends", || server.process.try_wait().unwrap().is_some()).await;
}
