//! Connecting to a server that is not there yet.

use std::{os::unix::net::UnixListener, time::Duration};

#[cfg(target_os = "linux")]
use rustix::io::Errno;
use tempfile::tempdir;
use tokio::time::{Instant, sleep, timeout};
use ttrpc::{Client, Error, Server, client::ConnectOptions};
use ttrpc_tests::{
    conformance::*,
    harness::{PATIENCE, echo_request},
    service::ConformanceService,
};

const SECOND: Duration = Duration::from_secs(1);

/// 1 at the start, 5 ms later the second, then twice as much later each: 8 until 635 ms. Each pause behind
/// them is half of what is left: 6 more until 989 ms. Behind another one there would be less than 5 ms.
const ATTEMPTS_IN_A_SECOND: u32 = 14;

async fn refused(address: &str) -> (u32, Error) {
    let error = ConnectOptions::new().retry_for(SECOND).connect(address).await.unwrap_err();
    let text = error.to_string();
    let Error::ConnectTimeout { limit, attempts, last, .. } = error else { panic!("{error:?}") };
    assert_eq!(limit, SECOND);
    assert!(text.contains("within 1s") && text.contains(&last.to_string()), "{text}");
    (attempts, *last)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_comes_is_waited_for_until_the_end_of_the_time() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let start = Instant::now();
    let (attempts, last) = refused(&address).await;
    assert!(start.elapsed() > SECOND * 98 / 100 && start.elapsed() < SECOND);
    assert_eq!(attempts, ATTEMPTS_IN_A_SECOND);
    assert!(matches!(last, Error::Connect { .. }), "{last:?}");
    let text = last.to_string();
    assert!(text.contains("No such file") && text.contains(&address), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_error_says_what_the_last_attempt_met() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let meanwhile = async {
        sleep(SECOND / 2).await;
        drop(UnixListener::bind(&path).unwrap());
    };
    let ((), (_, last)) = tokio::join!(meanwhile, refused(path.to_str().unwrap()));
    assert!(last.to_string().contains("refused"), "{last}");
}

#[tokio::test]
async fn a_server_that_comes_later_is_found() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let listening = address.clone();
    let options = ConnectOptions::new().retry_for(PATIENCE);
    let connecting = tokio::spawn(async move { options.connect(&address).await });
    // It has met nobody at least once.
    tokio::task::yield_now().await;
    let service = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(service).bind(&listening).unwrap();
    let serving = tokio::spawn(server.serve());
    let client = ConformanceClient::new(connecting.await.unwrap().unwrap());
    client.echo(echo_request([])).await.unwrap();
    serving.abort();
}

/// A hypervisor refuses the first attempt, and leaves the second one without an answer.
#[tokio::test(start_paused = true)]
async fn the_last_attempt_is_the_one_that_hung_and_what_came_before_stands_behind_it() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("vm.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let address = format!("hvsock://{}:1", path.to_str().unwrap());
    let hypervisor = async {
        drop(listener.accept().await.unwrap());
        listener.accept().await.unwrap()
    };
    let options = ConnectOptions::new().retry_for(SECOND);
    let (_silent, result) = tokio::join!(hypervisor, options.connect(&address));
    let error = result.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no connection within 1s, after 2 attempts; the last one: cannot connect to `{address}`: the \
             hypervisor gave no answer within 995ms; before that: cannot connect to `{address}`: nobody \
             listens on this port in the virtual machine"
        )
    );
    let Error::ConnectTimeout { last, before, .. } = error else { panic!("{error:?}") };
    assert!(matches!(*last, Error::HandshakeTimeout { .. }), "{last:?}");
    assert!(matches!(before.as_deref(), Some(Error::HandshakeRefused { .. })), "{before:?}");
}

/// Whenever it comes, an attempt behind that moment has the time to meet it.
#[tokio::test(start_paused = true)]
async fn a_server_that_comes_late_in_the_time_is_found() {
    for (limit_ms, comes_ms) in [(600, 350), (600, 360), (600, 570), (1000, 700), (1000, 980)] {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let coming = async {
            sleep(Duration::from_millis(comes_ms)).await;
            UnixListener::bind(&path).unwrap()
        };
        let options = ConnectOptions::new().retry_for(Duration::from_millis(limit_ms));
        let (_listener, found) = tokio::join!(coming, options.open(path.to_str().unwrap()));
        found.unwrap_or_else(|error| panic!("after {comes_ms} ms of {limit_ms}: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn no_time_at_all_finds_a_server_that_is_there() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let options = ConnectOptions::new().retry_for(Duration::ZERO);
    options.open(path.to_str().unwrap()).await.unwrap();
}

#[tokio::test]
async fn no_time_at_all_is_one_attempt() {
    let options = ConnectOptions::new().retry_for(Duration::ZERO);
    let error = options.connect("/nowhere/a.sock").await.unwrap_err();
    assert!(matches!(error, Error::ConnectTimeout { attempts: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("after 1 attempt: cannot connect"), "{error}");
    let error = Client::connect("/nowhere/a.sock").await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_makes_no_sense_is_not_tried_again() {
    let start = Instant::now();
    let options = ConnectOptions::new().retry_for(Duration::MAX);
    for address in ["localhost:1", "vsock://any:1"] {
        let error = options.connect(address).await.unwrap_err();
        assert!(matches!(error, Error::Address { .. }), "{error:?}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// The host, if there is one, has nobody at the last port, and neither has the first virtual machine, which may be this one.
/// What the system says of that differs; it is said behind the attempt, and not while it goes on.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_port_of_vsock_at_which_nobody_is_is_an_error() {
    for address in ["vsock://2:4294967294", "vsock://3:4294967294"] {
        let connecting = timeout(PATIENCE, Client::connect(address)).await;
        match connecting.expect("the system gives it up").unwrap_err() {
            Error::Connect { source, .. } => {
                let in_progress = Errno::INPROGRESS.raw_os_error();
                assert_ne!(source.raw_os_error(), Some(in_progress), "{address}");
            }
            error => panic!("{address}: {error:?}"),
        }
    }
}

/// The hypervisor's socket is open, and nobody answers: the time for connecting bounds the handshake.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_is_given_up_at_the_end_of_the_time() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("vm.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let (attempts, last) = refused(&format!("hvsock://{}:1", path.to_str().unwrap())).await;
    assert!(start.elapsed() < SECOND + SECOND / 10, "{:?}", start.elapsed());
    assert_eq!(attempts, 1);
    assert!(last.to_string().contains("no answer within 1s"), "{last}");
}
