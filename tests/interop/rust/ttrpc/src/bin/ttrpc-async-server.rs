//! A conformance server on the asynchronous side of the crate `ttrpc`.

use async_trait::async_trait;
use interop_conformance::{Collecting, Peer, Service, as_asked, listen_address};
use interop_ttrpc::asynchronous::{Conformance, create_conformance};
use interop_ttrpc::messages::{
    Chunk, CollectResponse, EchoRequest, EchoResponse, Empty, FailRequest, GenerateRequest,
    InspectResponse, KeyRequest, SleepRequest, StatsResponse,
};
use interop_ttrpc::{chunk, collect_response, fail, inspect_response, rpc_status, stats_response};
use std::sync::Arc;
use std::time::Duration;
use ttrpc::Result;
use ttrpc::r#async::{
    Server, ServerStream, ServerStreamReceiver, ServerStreamSender, TtrpcContext,
};

struct Methods(Arc<Service>);

async fn collect(mut stream: ServerStreamReceiver<Chunk>) -> Result<CollectResponse> {
    let mut collecting = Collecting::default();
    while let Some(message) = stream.recv().await? {
        collecting.add(&chunk(message));
    }
    Ok(collect_response(collecting.total()))
}

#[async_trait]
impl Conformance for Methods {
    async fn echo(&self, _: &TtrpcContext, request: EchoRequest) -> Result<EchoResponse> {
        let echo = async { self.0.echo(request.payload, request.response_size) };
        Ok(EchoResponse { payload: self.0.call(echo).await, ..Default::default() })
    }

    async fn fail(&self, _: &TtrpcContext, request: FailRequest) -> Result<Empty> {
        self.0.call(async { Err(fail(request)) }).await
    }

    async fn sleep(&self, _: &TtrpcContext, request: SleepRequest) -> Result<Empty> {
        self.0.call(tokio::time::sleep(Duration::from_millis(request.millis))).await;
        Ok(Empty::default())
    }

    async fn inspect(&self, context: &TtrpcContext, _: Empty) -> Result<InspectResponse> {
        // The library tells a handler nothing about the socket unless it is built with its extension for that.
        let inspect =
            async { inspect_response(context.timeout_nano, &context.metadata, Peer::default()) };
        Ok(self.0.call(inspect).await)
    }

    async fn wait(&self, _: &TtrpcContext, request: KeyRequest) -> Result<Empty> {
        self.0.call(self.0.wait(&request.key)).await;
        Ok(Empty::default())
    }

    async fn release(&self, _: &TtrpcContext, request: KeyRequest) -> Result<Empty> {
        self.0.call(async { self.0.release(&request.key) }).await;
        Ok(Empty::default())
    }

    async fn panic(&self, _: &TtrpcContext, _: Empty) -> Result<Empty> {
        self.0.call(async { panic!("this handler panics, as asked") }).await
    }

    async fn stats(&self, _: &TtrpcContext, _: Empty) -> Result<StatsResponse> {
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        Ok(stats_response(self.0.call(async { self.0.stats(alive as u64) }).await))
    }

    async fn collect(
        &self,
        _: &TtrpcContext,
        stream: ServerStreamReceiver<Chunk>,
    ) -> Result<CollectResponse> {
        self.0.call(collect(stream)).await
    }

    async fn generate(
        &self,
        context: &TtrpcContext,
        request: GenerateRequest,
        stream: ServerStreamSender<Chunk>,
    ) -> Result<()> {
        let generate = async {
            for sequence in 0..request.count {
                if sequence > 0 && request.interval_micros > 0 {
                    tokio::time::sleep(Duration::from_micros(request.interval_micros)).await;
                }
                let payload = vec![0; request.size as usize];
                stream.send(&Chunk { sequence, payload, ..Default::default() }).await?;
            }
            match request.fail_code {
                0 => Ok(()),
                code => {
                    Err(rpc_status(code, as_asked(context.timeout_nano, &context.metadata), None))
                }
            }
        };
        self.0.call(generate).await
    }

    async fn exchange(
        &self,
        _: &TtrpcContext,
        mut stream: ServerStream<Chunk, Chunk>,
    ) -> Result<()> {
        let exchange = async {
            while let Some(chunk) = stream.recv().await? {
                stream.send(&chunk).await?;
            }
            Ok(())
        };
        self.0.call(exchange).await
    }

    async fn hold(
        &self,
        _: &TtrpcContext,
        stream: ServerStreamReceiver<Chunk>,
    ) -> Result<CollectResponse> {
        let hold = async {
            self.0.wait("hold").await;
            collect(stream).await
        };
        self.0.call(hold).await
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let address = listen_address();
    let service = create_conformance(Arc::new(Methods(Arc::default())));
    let mut server = Server::new().bind(&address)?.register_service(service);
    server.start().await?;
    println!("listening {address}");
    std::future::pending().await
}
