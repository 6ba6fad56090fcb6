//! The observers of one client or server, and what a call counts for them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use super::{CallInfo, MessageInfo, Observer};
use crate::{
    contain::{Contained, contain},
    trace,
};

/// All observers of a client or a server: most have none, which costs a branch.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    all: Vec<Contained<Arc<dyn Observer>>>,
    /// Those that receive messages.
    of_messages: Vec<Contained<Arc<dyn Observer>>>,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        let observer: Arc<dyn Observer> = Arc::new(observer);
        if observer.wants_messages() {
            self.of_messages.push(Contained::new(observer.clone()));
        }
        self.all.push(Contained::new(observer));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether an observer wants messages.
    pub(crate) fn want_messages(&self) -> bool {
        !self.of_messages.is_empty()
    }

    pub(crate) fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {
        notify(&self.of_messages, |observer| observer.message(call, message));
    }

    /// Reports an event to each of them.
    pub(crate) fn notify(&self, event: impl Fn(&dyn Observer)) {
        notify(&self.all, event);
    }
}

/// Reports an event to each observer. A panic of one does not reach the others.
fn notify(observers: &[Contained<Arc<dyn Observer>>], event: impl Fn(&dyn Observer)) {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    for observer in observers {
        if contain(|| event(&***observer)).is_err() && !IS_LOGGED.swap(true, SeqCst) {
            trace::warn!("an observer panicked; it is not said again");
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tokio::time::Instant;

    use super::*;
    use crate::{
        Extensions, Metadata,
        observer::{Direction, Side},
        transport::peer::Peer,
    };

    /// Counts the messages that are reported to it.
    #[derive(Default)]
    struct Messages<const WANTED: bool>(AtomicU64);

    impl<const WANTED: bool> Observer for Messages<WANTED> {
        fn wants_messages(&self) -> bool {
            WANTED
        }

        fn message(&self, _: &CallInfo<'_>, _: &MessageInfo) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_reported_to_those_who_want_them() {
        let mut observers = Observers::default();
        assert!(observers.is_empty());
        let (deaf, keen) = (Arc::<Messages<false>>::default(), Arc::<Messages<true>>::default());
        observers.add(deaf.clone());
        assert!(!observers.is_empty() && !observers.want_messages());
        observers.add(keen.clone());
        assert!(observers.want_messages());
        let call = CallInfo {
            side: Side::Server,
            connection_id: 1,
            peer: &Peer::unknown(),
            stream_id: Some(1),
            service: "a.B",
            method: "C",
            is_known: true,
            method_id: None,
            is_stream: false,
            metadata: &Metadata::new(),
            started: Instant::now(),
            deadline: None,
            extensions: &Extensions::default(),
        };
        let message = MessageInfo { direction: Direction::Sent, number: 1, bytes: 0 };
        observers.message(&call, &message);
        assert_eq!((deaf.0.load(Relaxed), keen.0.load(Relaxed)), (0, 1));
    }
}
