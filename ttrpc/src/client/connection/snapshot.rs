//! What a connection and its calls wait for at a moment.

use super::{super::reconnect::state::state_of, ClientConnection};
use crate::{
    proto::stream::Kind,
    snapshot::{CallSnapshot, CallWait, ClientSnapshot, QueueSnapshot, merge_calls},
};

impl ClientConnection {
    /// Returns a snapshot of the connection and its calls. Of these it copies what it needs under the lock of their table.
    pub(in crate::client) fn snapshot(&self) -> ClientSnapshot {
        let unsent = self.queue.unsent_requests();
        let calls: Vec<_> = self.queue.streams(|calls| {
            let calls = calls.iter();
            calls.map(|(id, call)| (call.kind.kind, call.info(id), call.messages.clone())).collect()
        });
        let calls = calls.into_iter().map(|(kind, mut info, messages)| {
            info.stream_id = info.stream_id.filter(|id| unsent.binary_search(id).is_err());
            let (fill, consumer_waits) =
                messages.map_or_else(Default::default, |inbox| inbox.fill());
            let wait = match kind {
                _ if info.stream_id.is_none() => CallWait::Sender,
                Kind::Unary | Kind::ClientStreaming => CallWait::Reply,
                Kind::ServerStreaming | Kind::Bidirectional if consumer_waits => CallWait::Message,
                Kind::ServerStreaming | Kind::Bidirectional => CallWait::Consumer,
            };
            CallSnapshot::new(info, wait, fill)
        });
        let close_reason = self.close_reason();
        ClientSnapshot {
            state: state_of(close_reason.clone()),
            close_reason,
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(calls, self.registry.callers()),
        }
    }
}
