//! A call that has to wait until its connection's limits allow it.

use std::sync::Arc;

use prost::Message;

use super::{PendingCall, owner::CallOwner};
use crate::{
    Status,
    client::{
        connection::{ClientConnection, ConnectionTasks, record::CallRecord},
        meta::within,
    },
    transport::{
        limiter::{Closed, Load, Permit},
        registry::CallWait,
    },
};

impl<Req: Message> PendingCall<Req> {
    /// Waits until the connection's limits allow it, within the call's deadline, and queues the Request. A failure is left to
    /// its caller to report.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED, UNAVAILABLE, and RESOURCE_EXHAUSTED if too many calls are in flight and none ends.
    pub(in crate::client) async fn admit(
        &self,
        tasks: &Arc<ConnectionTasks>,
        record: Option<&Arc<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        let connection = &tasks.connection;
        let queue = async {
            let len = self.frame()?.len();
            let waiting = connection.registry.enter(self.head.info(), CallWait::Admission);
            let observed = record.map(|record| record.stats.wait_for_admission());
            let permit = call_permit(connection).await?;
            drop(observed);
            waiting.now_for(CallWait::Capacity);
            let observed = record.map(|record| record.stats.wait_for_capacity());
            let reserved = connection.queue.reserve(len).await;
            let capacity = reserved.map_err(|Closed| connection.unavailable())?;
            drop((waiting, observed));
            // The deadline has come nearer meanwhile; a smaller number is not longer.
            let frame = self.frame()?;
            let queued = self.push(tasks, &frame, permit, Some(capacity), record, None);
            Ok(queued?.expect("its capacity is reserved"))
        };
        within(self.head.options.deadline, queue).await?
    }
}

/// Waits for a permit among the calls in flight, while others end. The `stall_timeout` starts anew
/// while the queue is stuck.
async fn call_permit(connection: &ClientConnection) -> Result<Permit<'_>, Status> {
    let is_paused = connection.queue.is_stuck();
    let stall_timeout = connection.config.stall_timeout;
    let permit = connection.calls.acquire_while_moving(Load::one(0), stall_timeout, &is_paused);
    permit.await.ok_or_else(|| match connection.calls.is_closed() {
        true => connection.unavailable(),
        false => Status::resource_exhausted(
            "too many calls are in flight on this connection and none ends",
        ),
    })
}
