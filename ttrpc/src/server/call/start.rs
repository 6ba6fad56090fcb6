//! Calls between their admission and their handler's first step.

use std::{future::Future, sync::Arc};

use bytes::Buf;

use crate::server::call::task::{CallControl, CallOwner, CallTask, Finish};
use crate::{
    Status,
    contain::contain,
    proto::{frame::Flags, payload::Payload},
    server::call::{
        context::Context,
        interceptor::{Chain, intercepted},
        reasons::Refusal,
        state::Call,
    },
    sync::spawn,
    transport::messages::message_cost,
};

/// A call that has been let in and is not started yet. Dropped, it leaves.
pub(in crate::server) struct AdmittedCall<'a> {
    pub(in crate::server) owner: CallOwner,
    /// The length of its data.
    pub(in crate::server) request_bytes: usize,
    /// What runs before its handler.
    pub(in crate::server) chain: Option<&'a Chain>,
}

impl AdmittedCall<'_> {
    pub(in crate::server) fn call(&self) -> &Arc<Call> {
        &self.owner.0
    }

    /// Puts what came with the Request of a stream into its inbox, before the stream is open. An
    /// empty payload is a message only where the method needs one.
    pub(in crate::server) fn fill_inbox(&self, payload: Payload<'_>, needs_message: bool) {
        let call = self.call();
        let inbox = call.inbox();
        if self.has_message(payload, needs_message) {
            call.connection.force_message(message_cost(payload.remaining()));
            inbox.push(payload, call.connection.patience());
        }
        if !self.remote_open() {
            inbox.end(Ok(()), false);
        }
    }

    fn has_message(&self, payload: Payload<'_>, needs_message: bool) -> bool {
        payload.has_remaining() || (needs_message && !self.remote_open())
    }

    fn remote_open(&self) -> bool {
        self.call().head.flags.contains(Flags::REMOTE_OPEN)
    }

    /// Opens the stream and has its handler begin with what `decode` makes of the payload, or its interceptors, behind
    /// which it is decoded. `finish` ends the call with what the handler returns.
    ///
    /// # Errors
    /// What `decode` says of a call without interceptors.
    pub(in crate::server) fn begin<M, F, R>(
        self,
        payload: Payload<'_>,
        needs_message: bool,
        decode: fn(Payload<'_>) -> Result<M, Refusal>,
        handler: impl FnOnce(Context, M) -> F + Send + 'static,
        finish: Finish<R>,
    ) -> Result<(), Refusal>
    where
        M: 'static,
        F: Future<Output = Result<R, Status>> + Send + 'static,
        R: Send + 'static,
    {
        let call = self.call().clone();
        let has_message = self.has_message(payload, needs_message);
        match self.chain {
            None => {
                let request = decode(payload)?;
                call.begun(self.request_bytes, has_message.into());
                let handler = contain(|| handler(Context::new(call), request));
                self.spawn(handler.ok(), finish);
            }
            Some(chain) => {
                call.begun(self.request_bytes, has_message.into());
                let (chain, payload) = (chain.clone(), payload.to_bytes());
                self.spawn(Some(intercepted(chain, call, payload, decode, handler)), finish);
            }
        }
        Ok(())
    }

    /// `handler` is `None` if the program's code has panicked before it had made one.
    fn spawn<R: Send + 'static>(
        self,
        handler: Option<impl Future<Output = Result<R, Status>> + Send + 'static>,
        finish: Finish<R>,
    ) {
        let call = self.call().clone();
        let task = CallTask { handler, finish, control: CallControl::new(self.owner) };
        // A call may end as soon as it has its task.
        let connection = &*task.control.owner.0.connection;
        connection.queue.streams(|table| table.open(call.head.stream_id, call.head.flags, call));
        spawn(task);
    }
}
