//! Calls that are over before they begin: their handlers do not run at all.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{net::UnixStream, runtime::Builder, time::advance};
use ttrpc::{
    Server, ServerConfig, Status,
    prost::Message,
    server::{Routes, ServerHandle, StreamReceiver, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::DEADLINE_EXCEEDED, *},
    wire::{Frame, Peer, REMOTE_CLOSED, REMOTE_OPEN, Request},
};

const LIMIT: Duration = Duration::from_millis(10);

/// Calls that are read together with the one before them.
const LATER: u32 = 100;

#[derive(Default)]
struct Seen {
    /// The other end of the connection, for a handler to drop.
    client: Mutex<Option<UnixStream>>,
    begun: AtomicUsize,
}

impl Seen {
    async fn begin(&self) -> Result<Empty, Status> {
        self.begun.fetch_add(1, SeqCst);
        std::future::pending().await
    }
}

/// `Delay` lets the time of the others pass in its first step, `Leave` lets the client go away. The others
/// count that they have begun.
fn routes(seen: &Arc<Seen>) -> Routes {
    Routes::new(SERVICE)
        .unary("Delay", seen, |_, _, Empty {}| {
            Box::pin(async {
                advance(2 * LIMIT).await;
                Ok(Empty {})
            })
        })
        .unary("Leave", seen, |seen: &Seen, _, Empty {}| {
            Box::pin(async {
                drop(seen.client.lock().unwrap().take());
                std::future::pending::<Result<Empty, Status>>().await
            })
        })
        .unary("Unary", seen, |seen: &Seen, _, Empty {}| Box::pin(seen.begin()))
        .client_streaming("ClientStreaming", seen, |seen: &Seen, _, _: StreamReceiver<Empty>| {
            Box::pin(seen.begin())
        })
        .server_streaming(
            "ServerStreaming",
            seen,
            |seen: &Seen, _, Empty {}, _: StreamSender<Empty>| {
                Box::pin(async { seen.begin().await.map(drop) })
            },
        )
        .bidi_streaming(
            "Bidi",
            seen,
            |seen: &Seen, _, _: StreamReceiver<Empty>, _: StreamSender<Empty>| {
                Box::pin(async { seen.begin().await.map(drop) })
            },
        )
}

fn start(seen: &Arc<Seen>) -> (ServerHandle, UnixStream) {
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let builder = Server::builder().config(ServerConfig::default());
    let server = builder.add_service(Handmade(routes(seen))).unix_stream(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    (handle, here)
}

const METHODS: [(&str, u8); 4] = [
    ("Unary", 0),
    ("ClientStreaming", REMOTE_OPEN),
    ("ServerStreaming", REMOTE_CLOSED),
    ("Bidi", REMOTE_OPEN),
];

/// Calls that are read together: the first of this method, the others with a timeout if there is one.
fn burst(first: &str, (method, flags): (&str, u8), timeout: Option<Duration>) -> Vec<u8> {
    let mut bytes = call(1, first, &Empty {}).to_bytes();
    for nth in 1..=LATER {
        let mut frame = Frame::request(2 * nth + 1, flags, SERVICE, method, &Empty {});
        let timeout_nano = timeout.map_or(0, |timeout| timeout.as_nanos() as i64);
        frame.data = Request { timeout_nano, ..frame.as_request() }.encode_to_vec();
        bytes.extend(frame.to_bytes());
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn calls_that_expire_before_they_begin_are_answered_and_their_handlers_do_not_run() {
    for method in METHODS {
        let seen = Arc::default();
        let (handle, here) = start(&seen);
        let mut peer = Peer::new(here);
        peer.send_bytes(&burst("Delay", method, Some(LIMIT))).await;
        for _ in 0..=LATER {
            let reply = peer.receive().await;
            let expected = if reply.id == 1 { 0 } else { DEADLINE_EXCEEDED };
            assert_eq!(reply.code(), expected, "{method:?} #{}", reply.id);
        }
        eventually("no call is left", || handle.calls_in_flight() == 0).await;
        assert_eq!(seen.begun.load(SeqCst), 0, "handlers of {method:?} have begun");
    }
}

/// The client is gone as soon as the first handler has run. The runtime, which has one thread, looks at the socket
/// between the first turn of calls and the next.
#[test]
fn calls_that_are_cancelled_before_they_begin_do_not_run_their_handlers() {
    for method in METHODS {
        let mut runtime = Builder::new_current_thread();
        runtime.enable_all().start_paused(true).event_interval(1).build().unwrap().block_on(
            async {
                let seen = Arc::<Seen>::default();
                let (handle, here) = start(&seen);
                let mut peer = Peer::new(here);
                peer.send_bytes(&burst("Leave", method, None)).await;
                *seen.client.lock().unwrap() = Some(peer.into_inner());
                eventually("the client goes", || seen.client.lock().unwrap().is_none()).await;
                eventually("the connection ends", || handle.connections() == 0).await;
                eventually("no call is left", || handle.calls_in_flight() == 0).await;
                let begun = seen.begun.load(SeqCst);
                assert!(begun < 32, "{begun} handlers of {method:?} have begun");
            },
        );
    }
}
