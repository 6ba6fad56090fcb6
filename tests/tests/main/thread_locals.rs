//! What a program keeps in thread locals is dropped while others may be gone already.

use std::{any::Any, cell::RefCell, sync::Arc, thread};

use tokio::{net::UnixStream, runtime::Builder};
use ttrpc::{
    Client, ClientConfig, Server,
    server::{Routes, StreamReceiver},
};
use ttrpc_tests::{
    conformance::{Chunk, Empty},
    harness::{Handmade, eventually},
};

thread_local! {
    static KEPT: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

#[test]
fn a_stream_can_be_dropped_with_its_thread() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let routes = Routes::new("T").client_streaming(
        "Collect",
        &Arc::new(()),
        |(), _, mut requests: StreamReceiver<Chunk>| {
            Box::pin(async move {
                while requests.recv().await?.is_some() {}
                Ok(Empty {})
            })
        },
    );
    let client = runtime.block_on(async {
        let (here, there) = UnixStream::pair().unwrap();
        tokio::spawn(Server::builder().add_service(Handmade(routes)).unix_stream(there).serve());
        Client::from_unix_stream(here, ClientConfig::default())
    });
    let handle = runtime.handle().clone();
    let ending = thread::spawn(move || {
        // Made first, it is dropped last.
        KEPT.with_borrow_mut(|kept| *kept = Some(Box::new(())));
        let stream = handle.block_on(async {
            let mut stream = client.client_streaming::<Chunk, Empty>("T", "Collect").await.unwrap();
            // Long enough that the queue gives its buffer away when it is written.
            stream.0.send(Chunk { sequence: 0, payload: vec![1; 3000] }).await.unwrap();
            eventually("it is written", || client.snapshot().queue.frames.used == 0).await;
            stream
        });
        KEPT.with_borrow_mut(|kept| *kept = Some(Box::new((stream, client))));
    });
    ending.join().unwrap();
}
