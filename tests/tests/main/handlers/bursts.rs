//! Calls that come together, in a runtime that does other things too.

use std::{
    future::poll_fn,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    runtime::Builder,
    sync::Barrier,
};
use ttrpc::{
    Server,
    prost::{
        self, DecodeError,
        encoding::{DecodeContext, WireType, skip_field},
    },
    proto::frame::HEADER_LEN,
    server::Routes,
};
use ttrpc_tests::{
    conformance::Empty,
    harness::{Handmade, PATIENCE},
    wire::Frame,
};

const SERVICE: &str = "burst.Test";

/// So many Requests, to be written at once.
fn requests(count: u32, request: &impl prost::Message) -> Vec<u8> {
    let request = |nth| Frame::unary(2 * nth + 1, SERVICE, "Call", request).to_bytes();
    (0..count).flat_map(request).collect()
}

/// Waits for so many empty replies.
async fn replies(socket: &mut UnixStream, count: u32) {
    socket.read_exact(&mut vec![0; count as usize * HEADER_LEN]).await.unwrap();
}

/// The runtime's turns are long here: one task computes for a millisecond whenever it is polled.
#[test]
fn in_a_busy_runtime_calls_begin_within_few_turns() {
    const CALLS: u32 = 200;
    let turns = Arc::<AtomicUsize>::default();
    let began = Arc::new(Mutex::new(Vec::new()));
    let all_here = Arc::new(Barrier::new(CALLS as usize));
    let routes = {
        let (turns, began) = (turns.clone(), began.clone());
        Routes::new(SERVICE).unary(
            "Call",
            &Arc::new((turns, began, all_here)),
            |state, _, Empty {}| {
                Box::pin(async {
                    let (turns, began, all_here) = state;
                    began.lock().unwrap().push(turns.load(SeqCst));
                    all_here.wait().await;
                    Ok(Empty {})
                })
            },
        )
    };
    // On the paused clock no timer of the library ends a turn, however slow the machine is.
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
        let (mut here, there) = UnixStream::pair().unwrap();
        tokio::spawn(Server::builder().add_service(Handmade(routes)).unix_stream(there).serve());
        tokio::spawn(poll_fn::<(), _>(move |cx| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1) {}
            turns.fetch_add(1, SeqCst);
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        here.write_all(&requests(CALLS, &Empty {})).await.unwrap();
        replies(&mut here, CALLS).await;
    });
    let began = began.lock().unwrap();
    let turns = began[began.len() - 1] - began[0];
    assert!(turns <= 10, "the last one began {turns} turns after the first");
}

/// Calls of the burst whose handlers compute: more than those whose first steps the connection's task makes itself.
const COMPUTING_CALLS: u32 = 512;

/// Calls that begin in a row.
const IN_A_ROW: u32 = 32;

/// How often another task counts on the runtime's one thread while a burst of calls is served whose handlers compute for
/// a millisecond each.
fn count_beside_handlers_that_compute<F>(counts: impl FnOnce(Arc<AtomicUsize>) -> F) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let routes = Routes::new(SERVICE).unary("Call", &Arc::new(()), |(), _, Empty {}| {
        Box::pin(async {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1) {}
            Ok(Empty {})
        })
    });
    let mut runtime = Builder::new_current_thread();
    // The runtime looks at its timers between any two turns.
    runtime.event_interval(IN_A_ROW / 4);
    runtime.enable_all().build().unwrap().block_on(async {
        let (mut here, there) = UnixStream::pair().unwrap();
        tokio::spawn(Server::builder().add_service(Handmade(routes)).unix_stream(there).serve());
        let count = Arc::<AtomicUsize>::default();
        tokio::spawn(counts(count.clone()));
        here.write_all(&requests(COMPUTING_CALLS, &Empty {})).await.unwrap();
        replies(&mut here, 1).await;
        let before = count.load(SeqCst);
        replies(&mut here, COMPUTING_CALLS - 1).await;
        count.load(SeqCst) - before
    })
}

/// On one thread calls that were read together begin in a row, but few of them: another connection waits for these.
#[test]
fn between_handlers_that_compute_other_tasks_have_their_turns() {
    let turns = count_beside_handlers_that_compute(|turns| {
        poll_fn(move |cx| {
            turns.fetch_add(1, SeqCst);
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    });
    assert!(turns >= (COMPUTING_CALLS / IN_A_ROW) as usize, "{turns} turns");
}

/// Nor do timers and sockets, if the runtime looks at them as often.
#[test]
fn between_handlers_that_compute_timers_have_their_turns() {
    let ticks = count_beside_handlers_that_compute(|ticks| async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ticks.fetch_add(1, SeqCst);
        }
    });
    let turns = (COMPUTING_CALLS / IN_A_ROW) as usize;
    assert!(ticks >= turns / 2, "{ticks} ticks of a millisecond in {turns} turns of calls");
}

/// Nor do more than some of them begin in a row where they take no time: other connections' would have to wait for all.
#[test]
fn between_many_quick_handlers_other_tasks_have_their_turns() {
    const CALLS: u32 = 320;
    let turns = Arc::<AtomicUsize>::default();
    let began = Arc::<Mutex<Vec<usize>>>::default();
    let state = Arc::new((turns.clone(), began.clone()));
    let routes = Routes::new(SERVICE).unary("Call", &state, |(turns, began), _, Empty {}| {
        Box::pin(async {
            began.lock().unwrap().push(turns.load(SeqCst));
            Ok(Empty {})
        })
    });
    // On the paused clock no timer of the library ends a turn.
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
        let (mut here, there) = UnixStream::pair().unwrap();
        tokio::spawn(Server::builder().add_service(Handmade(routes)).unix_stream(there).serve());
        tokio::spawn(poll_fn::<(), _>(move |cx| {
            turns.fetch_add(1, SeqCst);
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        here.write_all(&requests(CALLS, &Empty {})).await.unwrap();
        replies(&mut here, CALLS).await;
    });
    let began = began.lock().unwrap();
    let longest = began.chunk_by(|one, next| one == next).map(<[_]>::len).max();
    assert!(longest <= Some(32), "{longest:?} calls began in a row");
}

/// A request that takes long to decode. The last one of a burst is decoded only when a handler has begun:
/// where that needs another thread, there is one, and it has all the time that the machine takes.
#[derive(Debug, Default)]
struct Slow;

/// Requests of the burst, and those that have been decoded.
const SLOW_CALLS: usize = 300;
static DECODED: AtomicUsize = AtomicUsize::new(0);

/// Whether a handler has begun.
static HAS_BEGUN: Mutex<bool> = Mutex::new(false);
static BEGAN: Condvar = Condvar::new();

impl prost::Message for Slow {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&[8, 1]);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(200) {
            std::thread::yield_now();
        }
        if DECODED.fetch_add(1, SeqCst) == SLOW_CALLS - 1 {
            let has_begun = HAS_BEGUN.lock().unwrap();
            let wait = BEGAN.wait_timeout_while(has_begun, PATIENCE, |has_begun| !*has_begun);
            assert!(!wait.unwrap().1.timed_out(), "none begins before all are decoded");
        }
        skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        2
    }

    fn clear(&mut self) {}
}

/// While a burst is being decoded, other threads run the calls at its head.
#[test]
fn calls_begin_while_the_rest_of_their_burst_is_decoded() {
    const CALLS: u32 = SLOW_CALLS as u32;
    let routes = Routes::new(SERVICE).unary("Call", &Arc::new(()), |(), _, _: Slow| {
        *HAS_BEGUN.lock().unwrap() = true;
        BEGAN.notify_all();
        Box::pin(async { Ok(Empty {}) })
    });
    Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap().block_on(async {
        let (mut here, there) = UnixStream::pair().unwrap();
        tokio::spawn(Server::builder().add_service(Handmade(routes)).unix_stream(there).serve());
        here.write_all(&requests(CALLS, &Slow)).await.unwrap();
        replies(&mut here, CALLS).await;
    });
}
