//! Connecting to a server that is not there yet.

use std::{os::unix::net::UnixListener, time::Duration};

use tempfile::tempdir;
use tokio::time::{Instant, sleep};
use ttrpc::{Client, Error, Server, client::ConnectOptions};
use ttrpc_tests::{
    conformance::*,
    harness::{PATIENCE, echo_request},
    service::ConformanceService,
};

const SECOND: Duration = Duration::from_secs(1);

/// 1 at the start, 5 ms later the second, then twice as much later each: 8 until 635 ms. The pause
/// behind the eighth ends with the time.
const ATTEMPTS_IN_A_SECOND: u32 = 9;

async fn refused(address: &str) -> (u32, Error) {
    let error = ConnectOptions::new().retry_for(SECOND).connect(address).await.unwrap_err();
    let text = error.to_string();
    let Error::ConnectTimeout { limit, attempts, last } = error else { panic!("{error:?}") };
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
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + SECOND / 10);
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

#[tokio::test]
async fn no_time_at_all_is_one_attempt() {
    let options = ConnectOptions::new().retry_for(Duration::ZERO);
    let error = options.connect("/nowhere/a.sock").await.unwrap_err();
    assert!(matches!(error, Error::ConnectTimeout { attempts: 1, .. }), "{error:?}");
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
    assert!(last.to_string().contains("timed out"), "{last}");
}
