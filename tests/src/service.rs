//! The conformance service, served.

use std::{
    collections::HashMap,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use ttrpc::{
    Any, Context, Server, Status, async_trait,
    server::{ServerBuilder, ServerHandle, StreamReceiver, StreamSender},
};

use crate::conformance::*;

/// The key whose release lets [`Conformance::hold`] read.
const HOLD_KEY: &str = "hold";

/// The type of the detail that [`Conformance::fail`] attaches.
const DETAIL_TYPE: &str = "type.googleapis.com/ttrpc.conformance.v1.EchoResponse";

/// Serves every method of the conformance service as its .proto describes it.
#[derive(Debug, Default)]
pub struct ConformanceService {
    /// Keys that are waited for or were released. A release is remembered.
    keys: Mutex<HashMap<String, CancellationToken>>,
    server: OnceLock<ServerHandle>,
    calls_total: AtomicU64,
    calls_cancelled: AtomicU64,
}

impl ConformanceService {
    /// A service that also answers `Stats` with what this server says of itself.
    pub fn with_server(server: ServerHandle) -> Self {
        let service = ConformanceService::default();
        service.observe(server);
        service
    }

    /// A server of the service alone, still to be configured.
    pub fn builder() -> ServerBuilder {
        Server::builder().add_service(ConformanceServer::new(ConformanceService::default()))
    }

    /// Answers `Stats` with what this server says of itself. The first server counts.
    pub fn observe(&self, server: ServerHandle) {
        let _ = self.server.set(server);
    }

    /// Handlers that have begun.
    pub fn calls_total(&self) -> u64 {
        self.calls_total.load(Relaxed)
    }

    /// Handlers that were dropped before they had ended.
    pub fn calls_cancelled(&self) -> u64 {
        self.calls_cancelled.load(Relaxed)
    }

    /// Lets those who wait for the key go, as the method `Release` does.
    pub fn release(&self, key: &str) {
        self.key(key).cancel();
    }

    fn begin(&self) -> Running<'_> {
        self.calls_total.fetch_add(1, Relaxed);
        Running { service: self, has_ended: false }
    }

    fn key(&self, key: &str) -> CancellationToken {
        let mut keys = self.keys.lock().expect("no holder panics");
        keys.entry(key.to_owned()).or_default().clone()
    }
}

/// Counts a handler as cancelled unless it comes to its end.
struct Running<'a> {
    service: &'a ConformanceService,
    has_ended: bool,
}

impl Running<'_> {
    fn end<T>(mut self, result: T) -> T {
        self.has_ended = true;
        result
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended && !std::thread::panicking() {
            self.service.calls_cancelled.fetch_add(1, Relaxed);
        }
    }
}

#[async_trait]
impl Conformance for ConformanceService {
    async fn echo(&self, _ctx: &Context, request: EchoRequest) -> Result<EchoResponse, Status> {
        let running = self.begin();
        let payload = match request.response_size {
            0 => request.payload,
            size => vec![0; size as usize],
        };
        running.end(Ok(EchoResponse { payload }))
    }

    async fn fail(&self, _ctx: &Context, request: FailRequest) -> Result<Empty, Status> {
        let running = self.begin();
        let status = Status::with_raw_code(request.code, request.message);
        running.end(Err(match request.detail {
            detail if detail.is_empty() => status,
            value => status.with_detail(Any { type_url: DETAIL_TYPE.to_owned(), value }),
        }))
    }

    async fn sleep(&self, _ctx: &Context, request: SleepRequest) -> Result<Empty, Status> {
        let running = self.begin();
        sleep(Duration::from_millis(request.millis)).await;
        running.end(Ok(Empty {}))
    }

    async fn inspect(&self, ctx: &Context, _request: Empty) -> Result<InspectResponse, Status> {
        let running = self.begin();
        let entry = |(key, value): (&str, &str)| inspect_response::Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let timeout_nano = ctx.timeout().map_or(0, |timeout| timeout.as_nanos() as i64);
        let peer = ctx.peer().credentials();
        running.end(Ok(InspectResponse {
            metadata: ctx.metadata().iter().map(entry).collect(),
            timeout_nano,
            service: ctx.service().to_owned(),
            method: ctx.method().to_owned(),
            peer_uid: peer.map_or(0, |peer| peer.uid),
            peer_gid: peer.map_or(0, |peer| peer.gid),
            peer_pid: peer.and_then(|peer| peer.pid).unwrap_or(0),
        }))
    }

    async fn wait(&self, _ctx: &Context, request: KeyRequest) -> Result<Empty, Status> {
        let running = self.begin();
        self.key(&request.key).cancelled().await;
        running.end(Ok(Empty {}))
    }

    async fn release(&self, _ctx: &Context, request: KeyRequest) -> Result<Empty, Status> {
        let running = self.begin();
        self.key(&request.key).cancel();
        running.end(Ok(Empty {}))
    }

    async fn panic(&self, _ctx: &Context, _request: Empty) -> Result<Empty, Status> {
        let _running = self.begin();
        panic!("asked to");
    }

    async fn stats(&self, _ctx: &Context, _request: Empty) -> Result<StatsResponse, Status> {
        let running = self.begin();
        let server = self.server.get();
        running.end(Ok(StatsResponse {
            connections: server.map_or(0, |server| server.connections() as u64),
            calls_in_flight: server.map_or(0, |server| server.calls_in_flight() as u64),
            tasks_alive: tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64,
            calls_total: self.calls_total(),
            calls_cancelled: self.calls_cancelled(),
        }))
    }

    async fn collect(
        &self,
        _ctx: &Context,
        requests: StreamReceiver<Chunk>,
    ) -> Result<CollectResponse, Status> {
        let running = self.begin();
        let result = collect(requests).await;
        running.end(result)
    }

    async fn generate(
        &self,
        ctx: &Context,
        request: GenerateRequest,
        mut replies: StreamSender<Chunk>,
    ) -> Result<(), Status> {
        let running = self.begin();
        for sequence in 0..request.count {
            if sequence > 0 && request.interval_micros > 0 {
                sleep(Duration::from_micros(request.interval_micros)).await;
            }
            let payload = vec![0; request.size as usize];
            replies.send(Chunk { sequence, payload }).await?;
        }
        running.end(match request.fail_code {
            0 => Ok(()),
            code => Err(Status::with_raw_code(code, as_asked(ctx))),
        })
    }

    async fn exchange(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<Chunk>,
        mut replies: StreamSender<Chunk>,
    ) -> Result<(), Status> {
        let running = self.begin();
        while let Some(chunk) = requests.recv().await? {
            replies.send(chunk).await?;
        }
        running.end(Ok(()))
    }

    async fn hold(
        &self,
        _ctx: &Context,
        requests: StreamReceiver<Chunk>,
    ) -> Result<CollectResponse, Status> {
        let running = self.begin();
        self.key(HOLD_KEY).cancelled().await;
        let result = collect(requests).await;
        running.end(result)
    }
}

/// The message with which a stream fails that was asked to. It tells what the handler saw, since no
/// streaming method has a reply for that.
fn as_asked(ctx: &Context) -> String {
    let timeout_nano = ctx.timeout().map_or(0, |timeout| timeout.as_nanos());
    let pairs = ctx.metadata().iter().map(|(key, value)| format!("; {key}={value}"));
    format!("as asked; timeout_nano={timeout_nano}{}", pairs.collect::<String>())
}

async fn collect(mut requests: StreamReceiver<Chunk>) -> Result<CollectResponse, Status> {
    let mut response = CollectResponse { chunks: 0, bytes: 0, in_order: true };
    while let Some(chunk) = requests.recv().await? {
        response.in_order &= chunk.sequence == response.chunks;
        response.chunks += 1;
        response.bytes += chunk.payload.len() as u64;
    }
    Ok(response)
}
