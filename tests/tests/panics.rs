//! Code of the program's that panics where the library calls it: the call ends all the same, and
//! nobody else is harmed.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::io::duplex;
use ttrpc::{
    Client, ClientConfig, Code, Server, Status,
    prost::{
        DecodeError, Message,
        bytes::{Buf, BufMut},
        encoding::{DecodeContext, WireType},
    },
    server::Routes,
};
use ttrpc_tests::harness::{Handmade, PIPE_LEN, eventually};

const NAME: &str = "panics.v1.Panics";

/// A message that cannot be encoded.
#[derive(Debug, Default)]
struct Unencodable;

impl Message for Unencodable {
    fn encode_raw(&self, _: &mut impl BufMut) {
        panic!("as asked");
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        1
    }

    fn clear(&mut self) {}
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as asked");
    }
}

fn routes() -> Routes {
    let service = Arc::new(());
    Routes::new(NAME)
        .unary("Unencodable", &service, |(), _, ()| Box::pin(async { Ok(Unencodable) }))
        .unary("Never", &service, |(), _, ()| {
            Box::pin(async {
                let _guard = PanicsWhenDropped;
                pending::<Result<(), Status>>().await
            })
        })
        .unary("Fine", &service, |(), _, ()| Box::pin(async { Ok(()) }))
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_reply_or_its_end_panics() {
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes())).io(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());

    let status = client.unary::<(), ()>(NAME, "Unencodable", ()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);

    let never = client.unary::<(), ()>(NAME, "Never", ()).timeout(Duration::from_secs(1));
    assert_eq!(never.await.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("no handler is left", || handle.calls_in_flight() == 0).await;

    assert_eq!(client.unary::<(), ()>(NAME, "Fine", ()).await, Ok(()));
}
