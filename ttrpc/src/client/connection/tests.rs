//! The ends of a connection: its tasks in each order, and its stream ids when they run out.

use std::{
    error::Error,
    future::poll_fn,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll, Wake},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::{
    Code, Status,
    client::{Client, UnaryCall, connection::calls::Calls, reconnect::Link},
    observer::{CallEnd, CallInfo, EndCause, Observer},
    proto::frame::{Flags, FrameType, HEADER_LEN, Header},
};

fn spawn(io: DuplexStream, settings: Settings) -> Arc<ConnectionTasks> {
    ConnectionTasks::spawn(Connection::new(io), &settings)
}

/// A connection whose first call has this stream id.
fn starting_at(id: u32, io: DuplexStream, observers: Observers) -> Arc<ConnectionTasks> {
    let tasks = spawn(io, Settings { observers, ..Settings::default() });
    tasks.connection.queue.streams(|calls| *calls = Calls::starting_at(id));
    tasks
}

fn call(tasks: &Arc<ConnectionTasks>) -> UnaryCall<(), ()> {
    Client::over(Link::Fixed(tasks.clone())).unary("S", "M", ())
}

/// Takes a Request, and says which id it has.
async fn request_id(there: &mut DuplexStream) -> u32 {
    let mut header = [0; HEADER_LEN];
    there.read_exact(&mut header).await.unwrap();
    let header = Header::from_bytes(&header);
    assert_eq!(header.frame_type, FrameType::Request);
    there.read_exact(&mut vec![0; header.data_len as usize]).await.unwrap();
    header.stream_id
}

fn response(stream_id: u32) -> [u8; HEADER_LEN] {
    Header { data_len: 0, stream_id, frame_type: FrameType::Response, flags: Flags::NONE }
        .to_bytes()
}

#[tokio::test]
async fn a_call_in_the_senders_hand_when_the_connection_ends_is_answered() {
    let (here, _there) = tokio::io::duplex(1);
    let tasks = spawn(here, Settings::default());
    let mut call = call(&tasks);
    let mut poll = async || poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
    assert!(poll().await.is_pending());
    tokio::task::yield_now().await;
    assert!(tasks.connection.queue.unsent_requests().is_empty(), "the sender has it");
    tasks.connection.end(ConnectionError::ClosedLocally);
    let Poll::Ready(Err(status)) = poll().await else { panic!("the call ends") };
    assert_eq!(status.code(), Code::Unavailable);
}

/// Ends the receiver's task when it is woken, and notes whether the queue is closed behind that.
struct EndsReceiver(Mutex<(Option<EndGuard>, bool)>);

impl Wake for EndsReceiver {
    fn wake(self: Arc<Self>) {
        let mut state = self.0.lock().expect("nothing panics");
        let guard = state.0.take().expect("it is woken once");
        let connection = guard.connection.clone();
        drop(guard);
        state.1 = connection.queue.is_closed();
    }
}

/// Else the sender would look in vain whether the connection has ended, and stay for as long as its socket is full.
#[tokio::test]
async fn a_queue_is_closed_when_its_sender_is_told_of_the_end_also_if_two_end_the_connection() {
    let (here, _there) = tokio::io::duplex(1000);
    let config = ClientConfig::default().max_calls(1);
    let tasks = spawn(here, Settings { config, ..Settings::default() });
    let mut first = call(&tasks);
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut first).poll(cx))).await.is_pending());
    let guard = EndGuard { connection: tasks.connection.clone(), _signal: oneshot::channel().0 };
    let ends = Arc::new(EndsReceiver(Mutex::new((Some(guard), false))));
    // Woken by the end of the connection, before that closes the queue.
    let mut waits = call(&tasks);
    let waker = ends.clone().into();
    assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
    tasks.connection.end(ConnectionError::ClosedLocally);
    let state = ends.0.lock().expect("nothing panics");
    assert!(state.0.is_none() && state.1);
}

/// Why calls have ended.
#[derive(Clone, Default)]
struct Causes(Arc<std::sync::Mutex<Vec<EndCause>>>);

impl Observer for Causes {
    fn call_ended(&self, _: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.0.lock().expect("no observer panics").push(end.cause);
    }
}

#[tokio::test]
async fn a_connection_without_ids_ends_with_that_cause_when_its_last_call_has_ended() {
    let (here, mut there) = tokio::io::duplex(1000);
    let causes = Causes::default();
    let mut observers = Observers::default();
    observers.add(causes.clone());
    let tasks = starting_at(u32::MAX, here, observers);
    let mut last = call(&tasks);
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut last).poll(cx))).await.is_pending());

    let is_spent = |status: Status| {
        let source = status.source().and_then(|source| source.downcast_ref());
        matches!(source, Some(ConnectionError::IdsExhausted))
    };
    let status = call(&tasks).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(is_spent(status));
    assert!(tasks.connection.close_reason().is_none(), "a call is in flight");

    there.write_all(&response(u32::MAX)).await.unwrap();
    last.await.unwrap();
    let reason = tasks.connection.closed().await;
    assert!(matches!(reason, ConnectionError::IdsExhausted));
    assert!(is_spent(call(&tasks).await.unwrap_err()));
    let causes = causes.0.lock().expect("no observer panics").clone();
    assert_eq!(causes, [EndCause::Limit, EndCause::Replied, EndCause::Limit]);
    assert_eq!(request_id(&mut there).await, u32::MAX);
}

#[tokio::test]
async fn a_connection_without_calls_ends_as_soon_as_a_call_finds_no_id() {
    let (here, _there) = tokio::io::duplex(1000);
    let tasks = starting_at(u32::MAX, here, Observers::default());
    let mut last = call(&tasks);
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut last).poll(cx))).await.is_pending());
    drop(last);
    assert!(tasks.connection.close_reason().is_none(), "nobody has found out");
    call(&tasks).await.unwrap_err();
    let reason = tasks.connection.close_reason();
    assert!(matches!(reason, Some(ConnectionError::IdsExhausted)));
}

/// What happens next on a connection whose ids run out.
#[derive(Clone, Copy, Debug)]
enum Step {
    Call,
    AnswerOldest,
    AnswerNewest,
    DropOldest,
    DropNewest,
}

const STEPS: [Step; 5] =
    [Step::Call, Step::AnswerOldest, Step::AnswerNewest, Step::DropOldest, Step::DropNewest];

/// Two ids are left. Every call that gets one goes on, whatever becomes of the others; the connection
/// ends when a call has found no id and none is in flight, and not before.
async fn two_ids_are_used_up(steps: &[Step]) {
    let (here, mut there) = tokio::io::duplex(1000);
    let tasks = starting_at(u32::MAX - 2, here, Observers::default());
    let mut left = vec![u32::MAX, u32::MAX - 2];
    let (mut in_flight, mut is_noticed) = (Vec::new(), false);
    for step in steps {
        let at = match step {
            Step::AnswerOldest | Step::DropOldest => 0,
            Step::Call | Step::AnswerNewest | Step::DropNewest => in_flight.len().saturating_sub(1),
        };
        match step {
            Step::Call => {
                let mut call = call(&tasks);
                let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
                match (polled, left.pop()) {
                    (Poll::Pending, Some(id)) => {
                        assert_eq!(request_id(&mut there).await, id, "{steps:?}");
                        in_flight.push((id, call));
                    }
                    (Poll::Ready(Err(status)), None) => {
                        let reason = ConnectionError::IdsExhausted.to_string();
                        assert_eq!(status.message(), reason, "{steps:?}");
                        is_noticed = true;
                    }
                    (polled, id) => panic!("{steps:?}: {id:?} is left, but {polled:?}"),
                }
            }
            Step::AnswerOldest | Step::AnswerNewest if at < in_flight.len() => {
                let (stream_id, call) = in_flight.remove(at);
                there.write_all(&response(stream_id)).await.unwrap();
                call.await.unwrap();
            }
            Step::DropOldest | Step::DropNewest if at < in_flight.len() => {
                drop(in_flight.remove(at));
            }
            _ => {}
        }
        let reason = tasks.connection.close_reason();
        let has_ended = matches!(reason, Some(ConnectionError::IdsExhausted));
        assert_eq!(has_ended, is_noticed && in_flight.is_empty(), "{steps:?}: {reason:?}");
    }
}

#[test]
fn the_last_ids_serve_their_calls_in_whatever_order_these_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let len = if cfg!(miri) { 3 } else { 6 };
    for schedule in 0..STEPS.len().pow(len) {
        let steps: Vec<_> =
            (0..len).map(|at| STEPS[schedule / STEPS.len().pow(at) % STEPS.len()]).collect();
        runtime.block_on(two_ids_are_used_up(&steps));
    }
}
