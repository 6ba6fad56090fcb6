//! A conformance server on the crate `trapeze`.

use futures::{Stream, StreamExt};
use interop_conformance::{
    Collecting, DETAIL_TYPE, Peer, Service, as_asked, listen_address, peer_of,
};
use interop_trapeze::{
    Chunk, CollectResponse, Conformance, EchoRequest, EchoResponse, Empty, FailRequest,
    GenerateRequest, InspectResponse, KeyRequest, SleepRequest, StatsResponse,
    inspect_response::Entry,
};
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use trapeze::{Result, ServerConnection, Status, get_context};

/// The methods for one connection, since the library does not tell a handler which one it serves.
struct Methods {
    service: Arc<Service>,
    peer: Peer,
}

fn failed(code: i32, message: String, detail: Vec<u8>) -> Status {
    let any = prost_types::Any { type_url: DETAIL_TYPE.to_owned(), value: detail };
    let details = if any.value.is_empty() { Vec::new() } else { vec![any] };
    Status { code, message, details }
}

async fn collect(chunks: impl Stream<Item = Chunk> + Send) -> CollectResponse {
    let mut collecting = Collecting::default();
    let mut chunks = pin!(chunks);
    while let Some(Chunk { sequence, payload }) = chunks.next().await {
        collecting.add(&interop_conformance::Chunk { sequence, payload });
    }
    let total = collecting.total();
    CollectResponse { chunks: total.chunks, bytes: total.bytes, in_order: total.in_order }
}

impl Conformance for Methods {
    async fn echo(&self, request: EchoRequest) -> Result<EchoResponse> {
        let echo = async { self.service.echo(request.payload, request.response_size) };
        Ok(EchoResponse { payload: self.service.call(echo).await })
    }

    async fn fail(&self, request: FailRequest) -> Result<Empty> {
        self.service
            .call(async { Err(failed(request.code, request.message, request.detail)) })
            .await
    }

    async fn sleep(&self, request: SleepRequest) -> Result<Empty> {
        self.service.call(tokio::time::sleep(Duration::from_millis(request.millis))).await;
        Ok(Empty {})
    }

    async fn inspect(&self, _: Empty) -> Result<InspectResponse> {
        let context = get_context();
        let mut metadata = Vec::new();
        for (key, values) in context.metadata.iter() {
            metadata.extend(
                values.iter().map(|value| Entry { key: key.clone(), value: value.clone() }),
            );
        }
        let response = InspectResponse {
            metadata,
            timeout_nano: context.timeout.as_nanos(),
            peer_uid: self.peer.uid,
            peer_gid: self.peer.gid,
            peer_pid: self.peer.pid,
            ..InspectResponse::default()
        };
        Ok(self.service.call(async { response }).await)
    }

    async fn wait(&self, request: KeyRequest) -> Result<Empty> {
        self.service.call(self.service.wait(&request.key)).await;
        Ok(Empty {})
    }

    async fn release(&self, request: KeyRequest) -> Result<Empty> {
        self.service.call(async { self.service.release(&request.key) }).await;
        Ok(Empty {})
    }

    async fn panic(&self, _: Empty) -> Result<Empty> {
        self.service.call(async { panic!("this handler panics, as asked") }).await
    }

    async fn stats(&self, _: Empty) -> Result<StatsResponse> {
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let stats = self.service.call(async { self.service.stats(alive as u64) }).await;
        Ok(StatsResponse {
            connections: stats.connections,
            calls_in_flight: stats.calls_in_flight,
            tasks_alive: stats.tasks_alive,
            calls_total: stats.calls_total,
            calls_cancelled: stats.calls_cancelled,
        })
    }

    async fn collect(&self, chunks: impl Stream<Item = Chunk> + Send) -> Result<CollectResponse> {
        Ok(self.service.call(collect(chunks)).await)
    }

    fn generate(&self, request: GenerateRequest) -> impl Stream<Item = Result<Chunk>> + Send {
        let (timeout_nano, metadata) = {
            let context = get_context();
            (context.timeout.as_nanos(), context.metadata.clone())
        };
        let service = Arc::clone(&self.service);
        async_stream::stream! {
            let _counted = service.begin_stream();
            for sequence in 0..request.count {
                if sequence > 0 && request.interval_micros > 0 {
                    tokio::time::sleep(Duration::from_micros(request.interval_micros)).await;
                }
                yield Ok(Chunk { sequence, payload: vec![0; request.size as usize] });
            }
            if request.fail_code != 0 {
                yield Err(failed(request.fail_code, as_asked(timeout_nano, &metadata), Vec::new()));
            }
        }
    }

    fn exchange(
        &self,
        chunks: impl Stream<Item = Chunk> + Send,
    ) -> impl Stream<Item = Result<Chunk>> + Send {
        let counted = self.service.begin_stream();
        chunks.map(move |chunk| {
            let _ = &counted;
            Ok(chunk)
        })
    }

    async fn hold(&self, chunks: impl Stream<Item = Chunk> + Send) -> Result<CollectResponse> {
        let hold = async {
            self.service.wait("hold").await;
            collect(chunks).await
        };
        Ok(self.service.call(hold).await)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = listen_address();
    let path = address.strip_prefix("unix://").ok_or("the address does not start with unix://")?;
    let listener = UnixListener::bind(path)?;
    println!("listening {address}");
    let service = Arc::new(Service::default());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream, Arc::clone(&service)));
    }
}

async fn serve(stream: UnixStream, service: Arc<Service>) {
    let _counted = service.begin_connection();
    let methods = Methods { peer: peer_of(&stream), service };
    let mut connection = ServerConnection::new(stream);
    connection.register(Conformance(methods));
    // A client that goes away is an error here, and nothing to report.
    let _ = connection.start().await;
}
