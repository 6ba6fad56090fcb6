//! Accepting connections from several listeners.

use std::{
    collections::VecDeque,
    io, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::io::Errno;
use tokio::{
    sync::Notify,
    time::{Sleep, sleep},
};

use crate::server::accept::{
    listener::{Acceptor, Listener},
    unserved::Unserved,
};
use crate::{
    Error,
    contain::notify_waiters,
    sync::Mutex,
    trace,
    transport::{lock, wait_until},
};

/// For how long a listener is not asked for connections after it has failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// How often a listener may fail in a row, whatever the error is, until it pauses.
const FAILURES_IN_A_ROW: u32 = 16;

/// The requests of a server's handles to the accepting task.
#[derive(Default)]
pub(in crate::server) struct AcceptControl {
    state: Mutex<ControlState>,
    /// Notified of every change.
    changed: Notify,
}

#[derive(Default)]
struct ControlState {
    /// Added, and not yet taken over by the accepting task.
    added: Vec<Acceptor>,
    is_paused: bool,
    /// The accepting task polls listeners.
    is_accepting: bool,
    /// Nothing is accepted any more.
    is_closed: bool,
}

debug_in_short!(AcceptControl);

impl AcceptControl {
    /// Adds a listener.
    ///
    /// # Errors
    /// [`Error::Listener`], and [`Error::ServerEnded`] if nothing is accepted any more.
    pub(in crate::server) fn add(&self, listener: Listener) -> Result<(), Error> {
        let acceptor = listener.start().map_err(Error::Listener)?;
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return Err(Error::ServerEnded);
        }
        state.added.push(acceptor);
        drop(state);
        notify_waiters(&self.changed);
        Ok(())
    }

    pub(in crate::server) fn set_paused(&self, is_paused: bool) {
        lock(&self.state).is_paused = is_paused;
        notify_waiters(&self.changed);
    }

    /// Waits until the accepting task does not poll listeners, or is asked to poll them again.
    pub(in crate::server) async fn paused(&self) {
        let is_paused = || {
            let state = lock(&self.state);
            !state.is_accepting || !state.is_paused
        };
        wait_until(&self.changed, &is_paused).await;
    }

    /// Waits until the accepting task, which is paused or not, is asked for something else.
    pub(in crate::server) async fn asks_for_more(&self, is_paused: bool) {
        let asks_for_more = || {
            let state = lock(&self.state);
            !state.added.is_empty() || state.is_paused != is_paused
        };
        wait_until(&self.changed, &asks_for_more).await;
    }

    /// Ends accepting: what was added and not taken over is dropped.
    pub(in crate::server) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.is_accepting = false;
        let added = mem::take(&mut state.added);
        drop(state);
        drop(added);
        notify_waiters(&self.changed);
    }
}

/// The connections that a server is to serve: those that were handed over before it started, and those
/// that its listeners accept.
pub(in crate::server) struct Accepting {
    /// Also what was taken from streams of connections before accepting was paused.
    handed_over: VecDeque<Unserved>,
    acceptors: Vec<PacedAcceptor>,
    /// Which acceptor to ask first, so that a busy one does not starve the others.
    next: usize,
    is_paused: bool,
}

impl Accepting {
    /// Hands the listeners to the runtime.
    ///
    /// # Errors
    /// [`Error::Listener`].
    pub(in crate::server) fn start(
        listeners: Vec<Listener>,
        handed_over: Vec<Unserved>,
    ) -> Result<Self, Error> {
        let start = |listener: Listener| listener.start().map(PacedAcceptor::new);
        let acceptors = listeners.into_iter().map(start).collect::<Result<_, _>>();
        Ok(Accepting {
            handed_over: handed_over.into(),
            acceptors: acceptors.map_err(Error::Listener)?,
            next: 0,
            is_paused: false,
        })
    }

    /// Does what the handles have asked for meanwhile. Returns whether accepting is paused.
    pub(in crate::server) fn update(&mut self, control: &AcceptControl) -> bool {
        let mut state = lock(&control.state);
        self.acceptors.extend(state.added.drain(..).map(PacedAcceptor::new));
        self.is_paused = state.is_paused;
        let has_changed = state.is_accepting == state.is_paused;
        state.is_accepting = !state.is_paused;
        drop(state);
        if has_changed {
            notify_waiters(&control.changed);
        }
        if self.is_paused {
            // They were accepted before the pause.
            let taken = self.acceptors.iter_mut().filter_map(|paced| paced.acceptor.taken());
            self.handed_over.extend(taken);
        }
        self.is_paused
    }

    /// Returns whether no connection can come any more.
    pub(in crate::server) fn is_done(&self) -> bool {
        self.handed_over.is_empty() && self.acceptors.is_empty()
    }

    /// The next connection, `None` if the last listener is done.
    pub(in crate::server) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Unserved>> {
        if let Some(connection) = self.handed_over.pop_front() {
            return Poll::Ready(Some(connection));
        }
        let mut asked = 0;
        while !self.is_paused && asked < self.acceptors.len() {
            let index = (self.next + asked) % self.acceptors.len();
            match self.acceptors[index].poll_next(cx) {
                Poll::Ready(Some(connection)) => {
                    self.next = index + 1;
                    return Poll::Ready(Some(connection));
                }
                Poll::Ready(None) => {
                    self.acceptors.remove(index);
                    if self.acceptors.is_empty() {
                        return Poll::Ready(None);
                    }
                }
                Poll::Pending => asked += 1,
            }
        }
        Poll::Pending
    }

    /// Completes when a connection, or the end of a listener, waits for [`Accepting::poll_next`].
    pub(in crate::server) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut has_one = |paced: &mut PacedAcceptor| paced.poll_waiting(cx).is_ready();
        let somebody_waits = !self.handed_over.is_empty()
            || !self.is_paused && self.acceptors.iter_mut().any(&mut has_one);
        if somebody_waits { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A listener that pauses when it fails, so that the loop does not spin. Others go on meanwhile.
struct PacedAcceptor {
    acceptor: Acceptor,
    failures_in_a_row: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl PacedAcceptor {
    fn new(acceptor: Acceptor) -> Self {
        PacedAcceptor { acceptor, failures_in_a_row: 0, pause: None }
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        self.acceptor.poll_waiting(cx)
    }

    /// The next connection, `None` if the listener is done.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Unserved>> {
        while self.pause.is_none() {
            let polled = self.acceptor.poll_accept(cx);
            let Poll::Ready(Some(Err(error))) = polled else {
                self.failures_in_a_row = 0;
                return polled.map(|next| next.and_then(Result::ok));
            };
            trace::warn!("accepting a connection failed: {error}");
            self.failures_in_a_row += 1;
            if is_lasting(&error) || self.failures_in_a_row == FAILURES_IN_A_ROW {
                self.failures_in_a_row = 0;
                self.pause = Some(Box::pin(sleep(PAUSE_AFTER_ERROR)));
            }
        }
        Poll::Pending
    }
}

/// Returns whether the next connection would meet the same error: the lack of descriptors or of memory, in which
/// the connection stays in the backlog. Any other is taken for what became of one connection: a client that
/// went away (ECONNABORTED), a handshake of the program's that failed.
fn is_lasting(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    lacks.iter().any(|lack| error.raw_os_error() == Some(lack.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Waker};

    use futures_core::Stream;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::{Connection, transport::peer::Peer};

    fn is_ready<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_pause_has_begun_when_the_accepting_task_knows_of_it_or_it_is_taken_back() {
        let control = AcceptControl::default();
        let mut accepting = Accepting::start(Vec::new(), Vec::new()).unwrap();
        assert!(is_ready(pin!(control.paused())), "nothing is accepted yet");
        assert!(!accepting.update(&control));
        for is_taken_back in [false, true] {
            control.set_paused(true);
            let mut paused = pin!(control.paused());
            assert!(!is_ready(paused.as_mut()), "the accepting task goes on");
            match is_taken_back {
                false => assert!(accepting.update(&control)),
                true => control.set_paused(false),
            }
            assert!(is_ready(paused));
            control.set_paused(false);
            assert!(!accepting.update(&control));
        }
    }

    /// Connections of a client that is known by its number, without end.
    struct Endless(u32);

    impl Stream for Endless {
        type Item = io::Result<Connection>;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let (io, _): (DuplexStream, _) = duplex(1);
            let credentials = crate::server::Credentials { uid: self.0, gid: 0, pid: None };
            Poll::Ready(Some(Ok(Connection::new(io).with_peer(Peer::unix(credentials)))))
        }
    }

    #[tokio::test]
    async fn listeners_with_many_clients_take_turns() {
        let listeners = (0..3).map(|number| Listener::incoming(Endless(number))).collect();
        let mut accepting = Accepting::start(listeners, Vec::new()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let accepted: Vec<_> = (0..7)
            .map(|_| match accepting.poll_next(&mut cx) {
                Poll::Ready(Some(connection)) => connection.peer().credentials().unwrap().uid,
                _ => panic!("they always have one"),
            })
            .collect();
        assert_eq!(accepted, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[tokio::test]
    async fn without_any_listener_there_is_no_connection_yet() {
        let mut accepting = Accepting::start(Vec::new(), Vec::new()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(accepting.poll_next(&mut cx).is_pending());
        assert!(accepting.is_done());
    }
}
