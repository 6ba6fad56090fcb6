//! A conformance server on the blocking side of the crate `ttrpc`, which has unary calls only.

use interop_conformance::{Service, listen_address, peer_of};
use interop_ttrpc::blocking::{Conformance, create_conformance};
use interop_ttrpc::messages::{
    EchoRequest, EchoResponse, Empty, FailRequest, InspectResponse, KeyRequest, SleepRequest,
    StatsResponse,
};
use interop_ttrpc::{fail, inspect_response, stats_response};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use ttrpc::{Result, Server, TtrpcContext};

struct Methods(Arc<Service>);

impl Conformance for Methods {
    fn echo(&self, _: &TtrpcContext, request: EchoRequest) -> Result<EchoResponse> {
        let payload = self.0.call_blocking(|| self.0.echo(request.payload, request.response_size));
        Ok(EchoResponse { payload, ..Default::default() })
    }

    fn fail(&self, _: &TtrpcContext, request: FailRequest) -> Result<Empty> {
        self.0.call_blocking(|| Err(fail(request)))
    }

    fn sleep(&self, _: &TtrpcContext, request: SleepRequest) -> Result<Empty> {
        self.0.call_blocking(|| std::thread::sleep(Duration::from_millis(request.millis)));
        Ok(Empty::default())
    }

    fn inspect(&self, context: &TtrpcContext, _: Empty) -> Result<InspectResponse> {
        // SAFETY: the library keeps the socket of a connection open while a handler of that connection runs.
        let socket = unsafe { BorrowedFd::borrow_raw(context.fd) };
        let peer = peer_of(socket);
        Ok(self.0.call_blocking(|| inspect_response(context.timeout_nano, &context.metadata, peer)))
    }

    fn wait(&self, _: &TtrpcContext, request: KeyRequest) -> Result<Empty> {
        self.0.call_blocking(|| self.0.wait_blocking(&request.key));
        Ok(Empty::default())
    }

    fn release(&self, _: &TtrpcContext, request: KeyRequest) -> Result<Empty> {
        self.0.call_blocking(|| self.0.release(&request.key));
        Ok(Empty::default())
    }

    fn panic(&self, _: &TtrpcContext, _: Empty) -> Result<Empty> {
        self.0.call_blocking(|| panic!("this handler panics, as asked"))
    }

    fn stats(&self, _: &TtrpcContext, _: Empty) -> Result<StatsResponse> {
        Ok(stats_response(self.0.call_blocking(|| self.0.stats(0))))
    }
}

fn main() -> Result<()> {
    let address = listen_address();
    let service = create_conformance(Arc::new(Methods(Arc::default())));
    let mut server = Server::new().bind(&address)?.register_service(service);
    server.start()?;
    println!("listening {address}");
    loop {
        std::thread::park();
    }
}
