//! The golden files, compiled and used.

use tokio::io::duplex;
use ttrpc::{
    Client, ClientConfig, Server, async_trait,
    server::{StreamReceiver, StreamSender},
};

/// The packages' modules lie as the packages do, since one names the other by its relative path.
mod golden {
    #![deny(missing_docs, warnings)]
    pub mod reference {
        pub mod v1 {
            include!("../golden/reference.v1.rs");
        }
    }
    pub mod other {
        pub mod deep {
            pub mod nested {
                include!("../golden/other.deep.nested.rs");
            }
        }
    }
}
use golden::other::deep::nested::{self, SelfClient, SelfServer, TServer};
use golden::reference::v1::{self, Reference, ReferenceClient, ReferenceServer, Reply, Request};

struct MyReference;

fn reply(text: &str) -> Reply {
    Reply { text: text.to_owned(), ..Reply::default() }
}

fn request(text: &str) -> Request {
    Request { text: text.to_owned(), ..Request::default() }
}

#[async_trait]
impl Reference for MyReference {
    async fn unary(&self, ctx: &ttrpc::Context, request: Request) -> Result<Reply, ttrpc::Status> {
        Ok(reply(&format!("{} {} {}", ctx.service(), ctx.method(), request.text)))
    }

    async fn server_streaming(
        &self,
        _ctx: &ttrpc::Context,
        request: Request,
        mut replies: StreamSender<Reply>,
    ) -> Result<(), ttrpc::Status> {
        for word in request.text.split(' ') {
            replies.send(reply(word)).await?;
        }
        Ok(())
    }

    async fn client_streaming(
        &self,
        _ctx: &ttrpc::Context,
        mut requests: StreamReceiver<Request>,
    ) -> Result<Reply, ttrpc::Status> {
        let mut text = String::new();
        while let Some(request) = requests.recv().await? {
            text += &request.text;
        }
        Ok(reply(&text))
    }

    async fn bidi(
        &self,
        _ctx: &ttrpc::Context,
        mut requests: StreamReceiver<Request>,
        mut replies: StreamSender<Reply>,
    ) -> Result<(), ttrpc::Status> {
        while let Some(request) = requests.recv().await? {
            replies.send(reply(&request.text)).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn the_golden_code_serves_and_calls_every_kind_of_method() {
    let (here, there) = duplex(1024);
    let server = Server::builder().add_service(ReferenceServer::new(MyReference)).io(there);
    tokio::spawn(server.serve());
    let client = ReferenceClient::from(Client::from_io(here, ClientConfig::default()));

    let unary = client.unary(request("hello")).await.unwrap();
    assert_eq!(unary.text, "reference.v1.Reference Unary hello");

    let mut replies = client.server_streaming(request("one two")).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().text, "one");
    assert_eq!(replies.recv().await.unwrap().unwrap().text, "two");
    assert_eq!(replies.recv().await.unwrap(), None);

    let (mut requests, answer) = client.client_streaming().await.unwrap();
    requests.send(request("a")).await.unwrap();
    requests.send(request("b")).await.unwrap();
    requests.finish();
    assert_eq!(answer.await.unwrap().text, "ab");

    let (mut requests, mut replies) = client.bidi().await.unwrap();
    requests.send(request("ping")).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().text, "ping");
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
}

/// Implements traits of a package with a message called `Box`, which the macro knows nothing of.
struct Boxes;

#[async_trait]
impl nested::T for Boxes {
    async fn unary(
        &self,
        _ctx: &ttrpc::Context,
        request: nested::Box,
    ) -> Result<nested::Thing, ttrpc::Status> {
        let size = request.inner.map_or(0, |_| 1);
        Ok(nested::Thing { part: Some(nested::thing::Part { size }) })
    }

    async fn server_streaming(
        &self,
        _ctx: &ttrpc::Context,
        _request: nested::Thing,
        mut replies: StreamSender<nested::Box>,
    ) -> Result<(), ttrpc::Status> {
        replies.send(nested::Box::default()).await?;
        Ok(())
    }

    async fn client_streaming(
        &self,
        _ctx: &ttrpc::Context,
        mut requests: StreamReceiver<nested::Box>,
    ) -> Result<nested::Thing, ttrpc::Status> {
        requests.recv().await?;
        Ok(nested::Thing::default())
    }

    async fn bidi(
        &self,
        _ctx: &ttrpc::Context,
        mut requests: StreamReceiver<nested::Box>,
        mut replies: StreamSender<nested::Box>,
    ) -> Result<(), ttrpc::Status> {
        while let Some(request) = requests.recv().await? {
            replies.send(request).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl nested::Self_ for Boxes {
    async fn self_(
        &self,
        _ctx: &ttrpc::Context,
        request: nested::Box,
    ) -> Result<nested::Box, ttrpc::Status> {
        Ok(request)
    }
}

#[tokio::test]
async fn a_message_called_box_and_services_called_t_and_self_are_served_and_called() {
    let (here, there) = duplex(1024);
    let server = Server::builder()
        .add_service(TServer::new(Boxes))
        .add_service(SelfServer::new(Boxes))
        .io(there);
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());

    let full = nested::Box { inner: Some(Box::default()) };
    let thing = nested::TClient::new(client.clone()).unary(full.clone()).await.unwrap();
    assert_eq!(thing.part.unwrap().size, 1);
    assert_eq!(SelfClient::new(client).self_(full.clone()).await.unwrap(), full);
}

#[test]
fn hard_names_have_the_names_that_one_would_expect() {
    // Compiling is the test; nothing is called.
    let _ = |client: v1::NamesClient| {
        drop(client.new_(()));
        drop(client.call(Request::default()));
        drop(client.clone_(Request::default()));
        drop(client.from_(Request::default()));
        drop(client.into_(ttrpc::prost_types::Timestamp::default()));
        drop(client.r#type(Request::default()));
        drop(client.r#match());
        drop(client.self_());
        drop(client.super_(Request::default()));
        drop(client.http_get_url(golden::other::deep::nested::Thing::default()));
    };
    assert_eq!(v1::NamesClient::NAME, "reference.v1.Names");
}
