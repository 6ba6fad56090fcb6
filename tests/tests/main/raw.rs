//! Names that are made at run time, messages that stay encoded, and calls whose kind is not known.

use std::{future::IntoFuture, io, sync::Arc};

use bytes::Bytes;
use tokio::{io::duplex, sync::mpsc};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Context, Name, Raw, RawEnd, Server, ServerConfig,
    Status, async_trait,
    client::{ConnectOptions, RawReply},
    prost::Message,
    proto::frame::Flags,
    server::{
        Fallback, FallbackCall, Routes, ServerBuilder, Service, StreamReceiver, StreamSender,
    },
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, NO_DATA, Peer, REMOTE_CLOSED, REMOTE_OPEN, REQUEST, RESPONSE, Response},
};

/// Payloads of every size that is treated in a way of its own, up to what fits into a frame.
const LENS: [usize; 6] = [0, 1, 300, 16 << 10, 1 << 20, (4 << 20) - 100];

/// A service whose names are made when the program runs.
struct Plugin {
    name: String,
}

impl Service for Plugin {
    fn into_routes(self) -> Routes {
        let name = format!("plugins.v1.{}", self.name);
        let service = Arc::new(self);
        Routes::new(name)
            .unary(String::from("Echo"), &service, |_, _, request: Raw| {
                Box::pin(async move { Ok(request) })
            })
            .bidi_streaming(
                Arc::<str>::from("Exchange"),
                &service,
                |_, _, mut requests: StreamReceiver<Raw>, mut replies: StreamSender<Raw>| {
                    Box::pin(async move {
                        while let Some(request) = requests.recv().await? {
                            replies.send(request).await?;
                        }
                        Ok(())
                    })
                },
            )
            .unary("Names", &service, |_, ctx, (): ()| {
                let names = format!("{}/{}", ctx.service(), ctx.method());
                Box::pin(async move { Ok(names) })
            })
    }
}

fn serve(builder: ttrpc::server::ServerBuilder) -> Client {
    let (here, there) = duplex(PIPE_LEN);
    tokio::spawn(builder.io(there).serve());
    Client::from_io(here, ClientConfig::default())
}

fn plugin() -> (Client, Name) {
    let client = serve(Server::builder().add_service(Plugin { name: "Seven".to_owned() }));
    (client, Name::from(format!("plugins.v1.{}", "Seven")))
}

#[tokio::test]
async fn raw_names_of_run_time_reach_routes_of_run_time() {
    let (client, service) = plugin();
    let names: String = client.unary(&service, format!("N{}", "ames"), ()).await.unwrap();
    assert_eq!(names, "plugins.v1.Seven/Names");
    let unknown = client.unary::<(), ()>(&service, String::from("Nothing"), ()).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
    let snapshot = {
        let _call = client.bidi_streaming::<Raw, Raw>(&service, "Exchange").await.unwrap();
        client.snapshot()
    };
    assert_eq!(snapshot.calls[0].service, "plugins.v1.Seven");
    assert_eq!(snapshot.calls[0].method, "Exchange");
}

#[tokio::test]
async fn raw_service_names_that_are_made_twice_are_refused() {
    let plugin = || Plugin { name: "Seven".to_owned() };
    let (io, _there) = duplex(1);
    let built = Server::builder().add_service(plugin()).add_service(plugin()).io(io).build();
    let text = built.unwrap_err().to_string();
    assert_eq!(text, "service `plugins.v1.Seven` was added twice");
}

#[tokio::test]
async fn raw_payloads_of_every_size_pass_through_unary_calls() {
    let (client, service) = plugin();
    for len in LENS {
        let request = Raw::from(vec![0xff; len]);
        let reply: Raw = client.unary(&service, "Echo", request.clone()).await.unwrap();
        assert_eq!(reply.0.len(), len);
        assert!(reply == request, "{len} bytes");
    }
}

#[tokio::test]
async fn raw_messages_of_every_size_pass_through_streams() {
    let (client, service) = plugin();
    let (mut requests, mut replies) =
        client.bidi_streaming::<Raw, Raw>(&service, "Exchange").await.unwrap();
    for len in LENS {
        requests.send(vec![7; len].into()).await.unwrap();
        assert!(replies.recv().await.unwrap() == Some(vec![7; len].into()), "{len} bytes");
    }
    for _ in 0..3000 {
        requests.send(Raw::default()).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(Raw::default()));
    }
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
}

#[tokio::test]
async fn raw_message_that_is_too_long_is_refused() {
    let (client, service) = plugin();
    let request = Raw::from(vec![0; MAX_DATA_LEN + 1]);
    let refused = client.unary::<Raw, Raw>(&service, "Echo", request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

/// prost-reflect's messages are like this one: they are made from a descriptor, and have no `Default`.
struct Dynamic(Vec<u8>);

impl Dynamic {
    fn decode(_descriptor: &str, bytes: Bytes) -> Self {
        Dynamic(bytes.to_vec())
    }
}

#[tokio::test]
async fn raw_replies_are_decoded_by_a_function() {
    let (client, service) = plugin();
    let request =
        Raw(EchoRequest { payload: vec![1], ..Default::default() }.encode_to_vec().into());
    let Raw(reply) = client.unary(&service, "Echo", request.clone()).await.unwrap();
    assert_eq!(Dynamic::decode("EchoRequest", reply).0, request.0);
}

async fn raw_call(client: &Client, flags: Flags, method: &str, payload: &[u8]) -> RawParts {
    let payload = Raw::from(payload.to_vec());
    client.raw(SERVICE, method.to_owned(), flags, payload).await.expect("it is queued")
}

type RawParts = (Option<ttrpc::client::StreamSender<Raw>>, ttrpc::client::RawReceiver);

#[tokio::test(start_paused = true)]
async fn raw_call_opens_with_its_flags_and_sends_only_where_more_may_follow() {
    let (client, _, mut peer) = played_server(ClientConfig::default());
    for (flags, may_send) in [
        (Flags::NONE, false),
        (Flags::REMOTE_CLOSED, false),
        (Flags::REMOTE_OPEN, true),
        (Flags(REMOTE_OPEN | NO_DATA), true),
    ] {
        let (requests, replies) = raw_call(&client, flags, "Any", b"").await;
        assert_eq!(requests.is_some(), may_send);
        let request = peer.receive().await;
        assert_eq!(request.flags, flags.0);
        if let Some(mut requests) = requests {
            requests.send(Raw::from(&b"more"[..])).await.unwrap();
            drop(requests);
            assert_eq!(peer.receive().await.data, b"more");
            assert_eq!(peer.receive().await.flags, REMOTE_CLOSED | NO_DATA);
        }
        drop(replies);
    }
}

#[tokio::test(start_paused = true)]
async fn raw_call_tells_a_message_from_a_reply_and_a_reply_from_a_close() {
    let message = |text: &'static [u8]| RawReply::Message(Raw::from(text));
    let reply = |text: &'static [u8]| RawReply::End(RawEnd::Reply(Raw::from(text)));
    let closed = || RawReply::End(RawEnd::Closed);
    let raw = |text: &'static [u8]| Raw::from(text);
    for flags in [Flags::REMOTE_CLOSED, Flags::REMOTE_OPEN] {
        let played: [(Vec<Frame>, Vec<RawReply>); 5] = [
            (
                vec![Frame::message(1, &raw(b"one")), Frame::message(1, &()), Frame::end(1)],
                vec![message(b"one"), message(b""), closed()],
            ),
            (vec![Frame::end(1)], vec![closed()]),
            (
                vec![Frame::message(1, &raw(b"one")), Frame::reply(1, &raw(b"two"))],
                vec![message(b"one"), reply(b"two"), closed()],
            ),
            (vec![Frame::reply(1, &raw(b"only"))], vec![reply(b"only"), closed()]),
            // containerd's shims answer so all the time.
            (vec![Frame::new(1, RESPONSE, 0, [])], vec![reply(b""), closed()]),
        ];
        for (frames, expected) in played {
            let (client, _, mut peer) = played_server(ClientConfig::default());
            let (_requests, mut replies) = raw_call(&client, flags, "Any", b"payload").await;
            assert_eq!(peer.receive().await.as_request().payload, b"payload");
            for frame in frames {
                peer.send(frame).await;
            }
            for reply in expected {
                assert_eq!(replies.recv().await.unwrap(), reply);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn raw_unary_call_gets_its_reply_and_takes_no_messages() {
    for (frame, expected) in [
        (Frame::reply(1, &Raw::from(&b"reply"[..])), Ok(RawEnd::Reply(Raw::from(&b"reply"[..])))),
        (Frame::failure(1, code::NOT_FOUND, "gone"), Err(Code::NotFound)),
        (Frame::message(1, &()), Err(Code::Internal)),
    ] {
        let (client, _, mut peer) = played_server(ClientConfig::default());
        let (_, mut replies) = raw_call(&client, Flags::NONE, "Any", b"").await;
        peer.receive().await;
        peer.send(frame).await;
        let reply = replies.recv().await.map_err(|status| status.code());
        assert_eq!(reply, expected.map(RawReply::End));
    }
}

/// Does what the method's name says.
struct Told;

#[async_trait]
impl Fallback for Told {
    async fn call(&self, ctx: &Context, mut call: FallbackCall) -> Result<RawEnd, Status> {
        match ctx.method() {
            "Echo" => Ok(RawEnd::Reply(call.payload)),
            "Close" => Ok(RawEnd::Closed),
            "Fail" => Err(Status::not_found(ctx.service())),
            "Panic" => panic!("as asked"),
            "Wait" => std::future::pending().await,
            _ => {
                let mut replies = call.replies.take().expect("it is a stream");
                if !call.payload.0.is_empty() {
                    replies.send(call.payload).await?;
                }
                while let Some(requests) = &mut call.requests
                    && let Some(request) = requests.recv().await?
                {
                    replies.send(request).await?;
                }
                Ok(RawEnd::Closed)
            }
        }
    }
}

fn told() -> Client {
    serve(Server::builder().add_service(Plugin { name: "Known".to_owned() }).fallback(Told))
}

async fn end_of(client: &Client, flags: Flags, method: &str) -> Result<RawEnd, Code> {
    let (_requests, mut replies) = raw_call(client, flags, method, b"bytes").await;
    match replies.recv().await.map_err(|status| status.code())? {
        RawReply::End(end) => Ok(end),
        RawReply::Message(message) => panic!("a message came: {message:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_utf8_comes_to_no_fallback() {
    let (here, there) = duplex(10_000);
    let server = |server: ServerBuilder| server.fallback(Told).io(there);
    let _server = TestServer::start_with(ServerConfig::default(), server);
    let mut peer = Peer::new(here);
    for names in [&b"\x0a\x01\xff\x12\x04Echo"[..], b"\x0a\x01S\x12\x01\xff"] {
        let id = if names[2] == 0xff { 1 } else { 3 };
        peer.send(Frame::new(id, REQUEST, 0, names)).await;
        let answer = peer.receive().await;
        assert_eq!((answer.id, answer.code()), (id, Code::InvalidArgument as i32));
    }
}

#[tokio::test]
async fn fallback_gets_what_no_service_takes_and_nothing_else() {
    let client = told();
    let known: String = client.unary("plugins.v1.Known", "Names", ()).await.unwrap();
    assert_eq!(known, "plugins.v1.Known/Names");
    for service in ["plugins.v1.Known", "plugins.v1.Unknown", ""] {
        let refused = client.unary::<(), ()>(service, "Fail", ()).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::NotFound, service));
    }
}

#[tokio::test]
async fn fallback_ends_calls_of_every_kind() {
    let client = told();
    for flags in [Flags::NONE, Flags::REMOTE_CLOSED, Flags::REMOTE_OPEN] {
        let reply = RawEnd::Reply(Raw::from(&b"bytes"[..]));
        assert_eq!(end_of(&client, flags, "Echo").await, Ok(reply), "{flags:?}");
        assert_eq!(end_of(&client, flags, "Fail").await, Err(Code::NotFound), "{flags:?}");
        assert_eq!(end_of(&client, flags, "Panic").await, Err(Code::Internal), "{flags:?}");
        let expected = if flags == Flags::NONE { Err(Code::Internal) } else { Ok(RawEnd::Closed) };
        assert_eq!(end_of(&client, flags, "Close").await, expected, "{flags:?}");
    }
}

#[tokio::test]
async fn fallback_serves_typed_calls_of_every_kind() {
    let client = told();
    let mut replies =
        client.server_streaming::<String, String>("any", "Stream", "one".into()).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().as_deref(), Some("one"));
    assert_eq!(replies.recv().await.unwrap(), None);

    let (mut requests, mut replies) =
        client.bidi_streaming::<String, String>("any", "Stream").await.unwrap();
    for word in ["one", "", "two"] {
        requests.send(word.to_owned()).await.unwrap();
        assert_eq!(replies.recv().await.unwrap().as_deref(), Some(word));
    }
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);

    let (_requests, reply) = client.client_streaming::<(), ()>("any", "Fail").await.unwrap();
    assert_eq!(reply.await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn fallback_calls_end_with_their_deadlines() {
    let client = told();
    let call = client.unary::<(), ()>("any", "Wait", ()).timeout(std::time::Duration::from_secs(1));
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
}

/// Passes each call on.
struct PassesOn(Client);

#[async_trait]
impl Fallback for PassesOn {
    async fn call(&self, ctx: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
        call.pass_on(ctx, &self.0).await
    }
}

/// A server that passes calls on, its client, and the server behind it: the two are played.
fn passes_on() -> (TestServer, Played, Played) {
    let (upstream, _, behind) = played_server(ClientConfig::default());
    let (here, there) = duplex(PIPE_LEN);
    let server = |server: ServerBuilder| server.fallback(PassesOn(upstream)).io(there);
    (TestServer::start_with(ServerConfig::default(), server), Peer::new(here), behind)
}

#[tokio::test(start_paused = true)]
async fn pass_on_makes_no_good_end_of_an_upload_whose_client_has_gone() {
    let (_server, mut client, mut behind) = passes_on();
    client.send(Frame::request(1, REMOTE_OPEN, "S", "Upload", &Empty {})).await;
    client.send(Frame::message(1, &chunk(0))).await;
    let id = behind.receive().await.id;
    assert_eq!(behind.receive().await, Frame::message(id, &chunk(0)));
    drop(client);
    assert_eq!(behind.expect_end().await, []);
}

/// Else nobody who shares it could call any more.
#[tokio::test(start_paused = true)]
async fn pass_on_closes_one_connection_of_an_upstream_that_reconnects() {
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let upstream = ConnectOptions::new().connect_through(move || {
        let (here, there) = duplex(PIPE_LEN);
        connections.send(Peer::new(there)).expect("the test takes it");
        async { Ok::<_, io::Error>(Connection::new(here)) }
    });
    let (here, there) = duplex(PIPE_LEN);
    let fallback = PassesOn(upstream.clone());
    let server = |server: ServerBuilder| server.fallback(fallback).io(there);
    let _server = TestServer::start_with(ServerConfig::default(), server);
    let mut client = Peer::new(here);
    client.send(Frame::request(1, REMOTE_OPEN, "S", "Upload", &Empty {})).await;
    let mut behind = accepted.recv().await.unwrap();
    assert_eq!(behind.receive().await.as_request().method, "Upload");
    drop(client);
    assert_eq!(behind.expect_end().await, []);
    let call = upstream.unary::<Empty, Empty>("S", "M", Empty {}).wait_for_ready(true);
    let call = tokio::spawn(call.into_future());
    let mut behind = accepted.recv().await.expect("it connects anew");
    let id = behind.receive().await.id;
    behind.send(Frame::reply(id, &Empty {})).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pass_on_ends_an_upload_as_its_client_does() {
    let (_server, mut client, mut behind) = passes_on();
    client.send(Frame::request(1, REMOTE_OPEN, "S", "Upload", &Empty {})).await;
    client.send(Frame::end(1)).await;
    let id = behind.receive().await.id;
    assert_eq!(behind.receive().await, Frame::end(id));
    behind.send(Frame::reply(id, &chunk(7))).await;
    assert_eq!(client.receive().await, Frame::reply(1, &chunk(7)));
}

#[tokio::test(start_paused = true)]
async fn pass_on_makes_internal_of_a_stream_that_answers_a_unary_call() {
    let (_server, mut client, mut behind) = passes_on();
    client.send(Frame::request(1, 0, "S", "Unary", &Empty {})).await;
    let id = behind.receive().await.id;
    behind.send(Frame::message(id, &chunk(0))).await;
    let answer = client.receive().await;
    let status = Response::decode_from(&answer.data).status.expect("it has failed");
    assert_eq!((answer.id, status.code), (1, code::INTERNAL));
}

/// A connection is the caller's own, or it is told whose it was.
#[tokio::test(start_paused = true)]
async fn pass_on_says_that_the_server_behind_is_lost() {
    for flags in [0, REMOTE_OPEN] {
        let (_server, mut client, mut behind) = passes_on();
        client.send(Frame::request(1, flags, "S", "Any", &Empty {})).await;
        behind.receive().await;
        drop(behind);
        let answer = client.receive().await;
        let status = Response::decode_from(&answer.data).status.expect("it has failed");
        assert_eq!((answer.id, status.code), (1, code::UNAVAILABLE));
        let text = "no connection to the server behind: the server closed the connection";
        assert_eq!(status.message, text);
    }
}
