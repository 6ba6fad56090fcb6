//! What travels with a call: metadata, statuses, details, the peer. It arrives as it was sent.

use std::{sync::Arc, time::Duration};

use tokio::net::UnixStream;
use ttrpc::{
    Any, Client, ClientConfig, Code, Context, Metadata, Server, ServerConfig, Status, prost_types,
    server::Routes,
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    service::ConformanceService,
    wire::{Frame, KeyValue, RESPONSE, Request, Response, Status as WireStatus},
};

fn pairs(entries: &[inspect_response::Entry]) -> Vec<(&str, &str)> {
    entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect()
}

fn encode(message: &impl ttrpc::prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}

#[tokio::test(start_paused = true)]
async fn metadata_keeps_its_order_and_its_repeated_keys_on_the_wire() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let inspect = conformance
        .inspect(Empty {})
        .metadata("b", "1")
        .metadata("a", "2")
        .metadata("B", "Three")
        .metadata("empty", "")
        .metadata("ключ", "значение");
    let inspect = tokio::spawn(inspect.into_future());
    let request = peer.receive().await.as_request();
    let sent: Vec<_> =
        request.metadata.iter().map(|pair| (&pair.key[..], &pair.value[..])).collect();
    let expected = [("b", "1"), ("a", "2"), ("b", "Three"), ("empty", ""), ("ключ", "значение")];
    assert_eq!(sent, expected);
    inspect.abort();
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_metadata_as_it_arrived_and_finds_it_in_any_case() {
    let routes =
        Routes::new("test.Find").unary("Find", &Arc::new(()), |_, ctx: &Context, name: String| {
            Box::pin(async move {
                let all: Vec<_> = ctx.metadata().get_all(&name).collect();
                Ok(all.join(","))
            })
        });
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let conformance = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(Handmade(routes)).add_service(conformance);
    let serving = tokio::spawn(server.io(there).serve());
    let mut peer = ttrpc_tests::wire::Peer::new(here);
    let metadata: Vec<_> = [("Trace", "A"), ("x", ""), ("trace", "b"), ("", "no key")]
        .map(|(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() })
        .into();
    let request = Request {
        service: SERVICE.to_owned(),
        method: "Inspect".to_owned(),
        metadata: metadata.clone(),
        timeout_nano: 5_000_000_000,
        ..Request::default()
    };
    peer.send(Frame::new(1, 1, 0, encode(&request))).await;
    let seen: InspectResponse = payload_of(&peer.receive().await);
    assert_eq!(pairs(&seen.metadata), [("Trace", "A"), ("x", ""), ("trace", "b"), ("", "no key")]);
    assert_eq!(seen.timeout_nano, 5_000_000_000);
    assert_eq!((&seen.service[..], &seen.method[..]), (SERVICE, "Inspect"));
    let request = Request {
        service: "test.Find".to_owned(),
        method: "Find".to_owned(),
        payload: encode(&"TRACE".to_owned()),
        metadata,
        ..Request::default()
    };
    peer.send(Frame::new(3, 1, 0, encode(&request))).await;
    assert_eq!(payload_of::<String>(&peer.receive().await), "A,b");
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn options_of_a_call_replace_and_add_metadata_as_they_say() {
    let (_server, _client, conformance) = connected_by_default();
    let seen = conformance
        .inspect(Empty {})
        .metadata("gone", "1")
        .with_metadata(Metadata::from_iter([("Key", "a"), ("key", "b")]))
        .metadata("last", "c")
        .timeout(Duration::from_secs(7))
        .await
        .unwrap();
    assert_eq!(pairs(&seen.metadata), [("key", "a"), ("key", "b"), ("last", "c")]);
    assert_eq!(seen.timeout_nano, 7_000_000_000);
    let seen = conformance.inspect(Empty {}).await.unwrap();
    assert_eq!((seen.metadata.len(), seen.timeout_nano), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_servers_status_reaches_the_wire_unharmed() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let mut id = 1;
    for code in (1..=16).chain([17, 99, -1, i32::MAX, i32::MIN]) {
        let message = format!("über {code}");
        let request = FailRequest { code, message: message.clone(), detail: vec![1, 2, 255] };
        peer.send(call(id, "Fail", &request)).await;
        let response = peer.receive().await.as_response();
        let type_url = "type.googleapis.com/ttrpc.conformance.v1.EchoResponse".to_owned();
        let details = vec![Any { type_url, value: vec![1, 2, 255] }];
        let expected =
            Response { status: Some(WireStatus { code, message, details }), payload: Vec::new() };
        assert_eq!(response, expected);
        id += 2;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wire_status_reaches_the_caller_unharmed() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let details: Vec<_> = ["type.googleapis.com/google.protobuf.Duration", "foreign/type", ""]
        .map(|type_url| Any { type_url: type_url.to_owned(), value: vec![8, 3] })
        .into();
    for code in (1..=16).chain([17, 99, -1, i32::MAX, i32::MIN]) {
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let id = peer.receive().await.id;
        let message = "line 1\nline 2 – €".to_owned();
        let status = Some(WireStatus { code, message: message.clone(), details: details.clone() });
        let response = Response { status, payload: b"ignored".to_vec() };
        peer.send(Frame::new(id, RESPONSE, 0, encode(&response))).await;
        let status = echo.await.unwrap().unwrap_err();
        assert_eq!((status.raw_code(), status.message()), (code, &message[..]));
        assert_eq!(status.details(), details);
        assert_eq!(status.find_detail::<prost_types::Duration>().unwrap().seconds, 3);
        assert_eq!(status.code() as i32, if (1..=16).contains(&code) { code } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_with_the_code_of_success_becomes_unknown() {
    let (_server, _client, conformance) = connected_by_default();
    let request = FailRequest { code: 0, message: "why?".to_owned(), detail: Vec::new() };
    let status = conformance.fail(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert!(status.message().contains("why?"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn the_cause_of_a_status_stays_on_its_side() {
    let routes = Routes::new("test.Cause").unary("Fail", &Arc::new(()), |_, _ctx, (): ()| {
        Box::pin(async {
            let cause = std::io::Error::other("the secret path");
            Err::<(), _>(Status::internal("sorry").with_source(cause))
        })
    });
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    let status = client.unary::<(), ()>("test.Cause", "Fail", ()).await.unwrap_err();
    assert_eq!(status.to_string(), "INTERNAL: sorry");
    assert!(std::error::Error::source(&status).is_none());
    serving.abort();
}

#[tokio::test]
async fn a_handler_knows_who_calls_over_a_unix_socket() {
    let (here, there) = UnixStream::pair().unwrap();
    let service = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(service).unix_stream(there);
    let serving = tokio::spawn(server.serve());
    let client = ConformanceClient::new(Client::from_unix_stream(here, ClientConfig::default()));
    let seen = client.inspect(Empty {}).await.unwrap();
    assert_eq!(seen.peer_pid, std::process::id() as i32);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn large_payloads_survive_both_ways_over_a_narrow_pipe() {
    let (_server, _client, conformance) =
        connected(ClientConfig::default(), ServerConfig::default(), 1000);
    let payload: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
    let reply = conformance.echo(echo_request(payload.clone())).await.unwrap();
    assert!(reply.payload == payload, "the payload differs");
}
