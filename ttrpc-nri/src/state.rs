//! The state of a plugin's connection, which its service and its driver share.

use std::{
    mem,
    sync::{Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use ttrpc::Status;

use crate::{Container, PodSandbox, Runtime, memory::Kept, proto::SynchronizeRequest};

/// Bytes that the pods and containers of Synchronize may take in memory: some 100,000 containers.
pub(crate) const SYNCHRONIZE_BYTES: usize = 256 << 20;

/// A plugin's connection.
pub(crate) struct Session {
    pub(crate) runtime: Runtime,
    /// How `configure` ended, once it has.
    pub(crate) configured: watch::Sender<Option<Result<(), Status>>>,
    /// How `synchronize` ended, once it has: the plugin takes part from then on.
    pub(crate) synchronized: OnceLock<Result<(), Status>>,
    pub(crate) request_timeout: Mutex<Duration>,
    /// The subscription is to RemovePodSandbox alone, in the place of none.
    pub(crate) is_stand_in: AtomicBool,
    pub(crate) parts: Mutex<Parts>,
    /// The runtime has asked the plugin to end, and has its answer.
    pub(crate) shutdown: CancellationToken,
}

/// What of a Synchronize in parts has arrived.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) pods: Vec<PodSandbox>,
    pub(crate) containers: Vec<Container>,
    pub(crate) bytes: usize,
}

impl Session {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Session {
            runtime,
            configured: watch::Sender::new(None),
            synchronized: OnceLock::new(),
            request_timeout: Mutex::new(Duration::ZERO),
            is_stand_in: AtomicBool::new(false),
            parts: Mutex::default(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Adds a part of Synchronize. Returns all if it was the last one.
    pub(crate) fn add_part(&self, request: SynchronizeRequest) -> Result<Option<Parts>, Status> {
        let mut parts = lock(&self.parts);
        parts.bytes += request.pods.kept() + request.containers.kept();
        if parts.bytes > SYNCHRONIZE_BYTES {
            *parts = Parts::default();
            let message = format!("Synchronize has brought more than {SYNCHRONIZE_BYTES} bytes");
            return Err(Status::resource_exhausted(message));
        }
        parts.pods.extend(request.pods);
        parts.containers.extend(request.containers);
        Ok((!request.more).then(|| mem::take(&mut *parts)))
    }
}

/// Locks what no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::duplex;
    use ttrpc::{Client, ClientConfig, Code, Connection};

    use super::*;
    use crate::{instrument::Monitor, proto::Mount};

    pub(crate) fn session() -> Session {
        let (here, _there) = duplex(1);
        let client = Client::from_connection(Connection::new(here), ClientConfig::default());
        Session::new(Runtime::new(client, Monitor::of_no_mux()))
    }

    /// Two bytes on the wire are an empty mount, which is a hundred in memory.
    #[tokio::test]
    async fn empty_elements_in_parts_of_synchronize_count_as_what_they_take_in_memory() {
        let session = session();
        let container = Container { mounts: vec![Mount::default(); 200_000], ..Default::default() };
        let bytes = container.kept();
        let mut kept = 0;
        let refused = loop {
            let containers = vec![container.clone()];
            match session.add_part(SynchronizeRequest { containers, more: true, pods: vec![] }) {
                Ok(_) => kept += bytes,
                Err(status) => break status,
            }
            assert!(kept <= SYNCHRONIZE_BYTES, "{kept} bytes are kept");
        };
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(lock(&session.parts).containers.len(), 0);
    }
}
