//! Wakers are the program's: they may call into the library, when they are woken and when they are dropped,
//! so none of both happens under a lock.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use tokio::runtime::Builder;
use ttrpc::{Client, ClientConfig, Status, client::StreamReceiver};
use ttrpc_tests::{conformance::*, harness::*, wire::Frame};

/// A waker that asks for a snapshot.
struct Nosy {
    client: Client,
    asked: Arc<AtomicUsize>,
}

impl Nosy {
    fn ask(&self) {
        self.client.snapshot();
        self.asked.fetch_add(1, SeqCst);
    }
}

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        self.ask();
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        self.ask();
    }
}

/// A client's connection, and how often its wakers have asked.
struct Setup {
    client: Client,
    conformance: ConformanceClient,
    peer: Played,
    asked: Arc<AtomicUsize>,
}

impl Setup {
    fn waker(&self) -> Waker {
        Arc::new(Nosy { client: self.client.clone(), asked: self.asked.clone() }).into()
    }

    /// Polls with a waker of its own, which is gone once nobody else keeps it.
    fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(&self.waker()))
    }

    fn poll_recv(
        &self,
        replies: &mut StreamReceiver<Chunk>,
    ) -> Poll<Result<Option<Chunk>, Status>> {
        self.poll(pin!(replies.recv()))
    }

    async fn stream(&mut self) -> (u32, StreamReceiver<Chunk>) {
        let replies = self.conformance.generate(GenerateRequest::default()).await.unwrap();
        (self.peer.receive().await.id, replies)
    }
}

/// Plays this on a thread of its own: a thread that waits for its own lock never comes back.
fn on_a_thread<F: Future<Output = ()>>(play: impl FnOnce(Setup) -> F + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (client, conformance, peer) = played_server(ClientConfig::default());
            play(Setup { client, conformance, peer, asked: Arc::default() }).await;
        });
        done.send(()).expect("the test waits for it");
    });
    is_done.recv_timeout(PATIENCE).expect("no waker waits for a lock that its thread holds");
}

#[test]
fn wakers_of_consumers_are_woken_without_a_lock() {
    on_a_thread(|mut setup| async move {
        let (id, mut replies) = setup.stream().await;
        for frame in [Frame::message(id, &chunk(0)), Frame::end(id)] {
            let waker = setup.waker();
            let mut cx = Context::from_waker(&waker);
            assert!(pin!(replies.recv()).poll(&mut cx).is_pending());
            let before = setup.asked.load(SeqCst);
            setup.peer.send(frame).await;
            settle().await;
            assert!(setup.asked.load(SeqCst) > before, "it was woken");
            replies.recv().await.unwrap();
        }
    });
}

#[test]
fn wakers_of_consumers_are_replaced_without_a_lock() {
    on_a_thread(|mut setup| async move {
        let (_, mut replies) = setup.stream().await;
        for _ in 0..3 {
            assert!(setup.poll_recv(&mut replies).is_pending());
        }
        assert_eq!(setup.asked.load(SeqCst), 2, "all but the last one were dropped");
    });
}

#[test]
fn wakers_of_consumers_that_go_are_dropped_without_a_lock() {
    on_a_thread(|mut setup| async move {
        let (_, mut replies) = setup.stream().await;
        assert!(setup.poll_recv(&mut replies).is_pending());
        drop(replies);
        settle().await;
        assert_eq!(setup.asked.load(SeqCst), 1, "it was dropped");
    });
}

#[test]
fn wakers_of_callers_are_replaced_and_dropped_without_a_lock() {
    on_a_thread(|setup| async move {
        let mut call = Box::pin(setup.conformance.echo(echo_request([])).into_future());
        for _ in 0..3 {
            assert!(setup.poll(call.as_mut()).is_pending());
        }
        drop(call);
        settle().await;
        assert_eq!(setup.asked.load(SeqCst), 3, "all were dropped");
    });
}

#[test]
fn wakers_of_those_who_wait_for_the_end_of_the_connection_are_woken_without_a_lock() {
    on_a_thread(|mut setup| async move {
        let (_, mut replies) = setup.stream().await;
        let client = setup.client.clone();
        let mut closed = pin!(client.closed());
        assert!(setup.poll(closed.as_mut()).is_pending());
        assert!(setup.poll_recv(&mut replies).is_pending());
        setup.client.close();
        poll_fn(|cx| closed.as_mut().poll(cx)).await;
        replies.recv().await.unwrap_err();
        assert!(setup.asked.load(SeqCst) >= 2, "both were woken");
    });
}
