//! What panics outside of a tokio runtime, and what does not, as the documentation says.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{net::UnixStream, runtime::Runtime};
use ttrpc::{Client, ClientConfig};
use ttrpc_tests::{conformance::*, harness::echo_request, service::ConformanceService};

fn panics<T>(action: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(action)).is_err()
}

/// Polls once, outside of any runtime.
fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn address(&self) -> String {
        format!("unix://{}", self.0.path().join("a.sock").display())
    }
}

#[test]
fn connecting_and_serving_panic_outside_of_a_runtime() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let _listener = std::os::unix::net::UnixListener::bind(folder.0.path().join("b.sock"));
    let listening = folder.address().replace("a.sock", "b.sock");
    assert!(panics(|| poll(Client::connect(&listening))));
    assert!(panics(|| poll(Client::connect_with(&listening, ClientConfig::default()))));
    assert!(panics(|| Client::from_io(tokio::io::duplex(10).0, ClientConfig::default())));

    assert!(panics(|| poll(
        ConformanceService::builder().bind(&folder.address()).unwrap().serve()
    )));
    let server = || ConformanceService::builder().bind(&folder.address()).unwrap().build().unwrap();
    assert!(panics(|| poll(server().serve())));
    assert!(panics(|| poll(server().serve_until(std::future::pending(), Duration::ZERO))));
}

#[test]
fn building_a_server_and_shutting_it_down_need_no_runtime() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let server = ConformanceService::builder().bind(&folder.address()).unwrap().build().unwrap();
    let handle = server.handle();
    handle.begin_shutdown(Duration::from_secs(1));
    drop(server);
    assert!(poll(handle.ended()).is_ready() && poll(handle.close()).is_ready());
    assert_eq!((handle.connections(), handle.calls_in_flight()), (0, 0));
    assert!(handle.snapshot().connections.is_empty());
}

#[test]
fn calls_may_be_awaited_outside_of_the_runtime_unless_they_have_a_timeout() {
    let runtime = Runtime::new().unwrap();
    let (conformance, serving) = runtime.block_on(async {
        let (here, there) = UnixStream::pair().unwrap();
        let serving = tokio::spawn(ConformanceService::builder().unix_stream(there).serve());
        let client = Client::from_unix_stream(here, ClientConfig::default());
        (ConformanceClient::new(client), serving)
    });
    let reply = drive(conformance.echo(echo_request([1, 2])).into_future());
    assert_eq!(reply.unwrap().payload, [1, 2]);
    let wait = || conformance.wait(ttrpc_tests::harness::key("a"));
    assert!(!panics(|| poll(wait().into_future())));
    assert!(panics(|| poll(wait().timeout(Duration::from_secs(1)).into_future())));
    let client = conformance.client().clone();
    assert!(poll(client.closed()).is_pending());
    client.close();
    assert!(poll(client.closed()).is_ready());
    drop((conformance, client));
    runtime.block_on(serving).unwrap().unwrap();
}

/// Drives a future on this thread, which is in no runtime.
fn drive<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Thread(std::thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
