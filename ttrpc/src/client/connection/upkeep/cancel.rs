//! Cancels calls at the server: those that were given up, or failed by their deadline or a limit of this side, after
//! their Request had begun to be written.
//!
//! One call of `ttrpc.control.v1.Control/Cancel` is under way at a time, with all ids that were noted until it was made;
//! further ones wait for its answer. A server that does not know the service is asked once.
//!
//! A stream of requests that was given up is not closed, so that the handler does not take it for complete. If the
//! server refuses `Cancel`, or too many calls are noted already, the close is sent after all: the handler would wait
//! for ever.

use std::{mem, sync::Arc};

use prost::Message;
use tokio::sync::Notify;

use super::own_call::OwnCall;
use crate::{
    Code,
    client::{call::stream::end_of_requests, connection::ClientConnection},
    contain::contain,
    proto::control::{CANCEL, CancelRequest, MAX_CANCELLED, SERVICE},
    sync::Mutex,
    transport::lock,
};

/// The calls of which the server is to be told.
#[derive(Debug, Default)]
pub(in crate::client) struct Cancels {
    state: Mutex<Noted>,
    /// Notified of the first one.
    noted: Notify,
}

#[derive(Debug, Default)]
struct Noted {
    /// No more than one call may name: the server hears nothing of those that come while a call with as many waits for an
    /// answer.
    calls: Vec<GivenUp>,
    /// The server does not know the service.
    is_refused: bool,
}

/// A call that was given up.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct GivenUp {
    pub(in crate::client) stream_id: u32,
    /// Its requests have not ended, and end only if the server is not told.
    pub(in crate::client) owes_close: bool,
}

impl Cancels {
    /// Notes a call, and returns whether the server is going to be told. Never waits.
    pub(in crate::client) fn note(&self, call: GivenUp) -> bool {
        let mut state = lock(&self.state);
        if state.is_refused || state.calls.len() == MAX_CANCELLED {
            return false;
        }
        state.calls.push(call);
        drop(state);
        let _ = contain(|| self.noted.notify_one());
        true
    }

    async fn take(&self) -> Vec<GivenUp> {
        loop {
            let calls = mem::take(&mut lock(&self.state).calls);
            if !calls.is_empty() {
                return calls;
            }
            self.noted.notified().await;
        }
    }

    /// Notes no more calls. Returns those that the server is not told of.
    fn refuse(&self) -> Vec<GivenUp> {
        let mut state = lock(&self.state);
        state.is_refused = true;
        mem::take(&mut state.calls)
    }
}

/// Tells the server until the connection ends, or the server says that it does not know the service.
pub(super) async fn run(connection: &Arc<ClientConnection>) {
    let Some(cancels) = &connection.cancels else { return };
    loop {
        let calls = cancels.take().await;
        let stream_id = calls.iter().map(|call| call.stream_id).collect();
        let request = CancelRequest { stream_id }.encode_to_vec();
        let call = OwnCall::start(connection, (SERVICE, CANCEL), request, None);
        let Some(call) = call else { return };
        if let Err(status) = call.answer().await {
            close(connection, &calls);
            if is_unknown(status.code()) {
                return close(connection, &cancels.refuse());
            }
        }
    }
}

/// Ends the streams of requests of calls that the server has not cancelled.
pub(in crate::client) fn close(connection: &ClientConnection, calls: &[GivenUp]) {
    for call in calls.iter().filter(|call| call.owes_close) {
        connection
            .queue
            .push_without_capacity(&end_of_requests(call.stream_id), |_| Some(call.stream_id));
    }
}

/// Returns whether servers answer so to a service that they do not have.
fn is_unknown(code: Code) -> bool {
    matches!(code, Code::Unimplemented | Code::NotFound | Code::InvalidArgument)
}
