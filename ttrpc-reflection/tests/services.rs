//! The three services, seen by a client.

use std::time::Duration;

use std::sync::Arc;
use tokio::{net::UnixStream, time::timeout};

use ttrpc::{
    Client, ClientConfig, Code, Raw, Server, ServerConfig, Status,
    prost::Message,
    prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet},
    server::{Routes, ServerBuilder, ServerHandle, Service},
};
use ttrpc_reflection::{
    Debug, Health, Reflection,
    proto::{
        debug::{DebugClient, Fill, MethodStats, SnapshotRequest, Sort, WatchRequest},
        health::{self, HealthCheckRequest, HealthClient, health_check_response::ServingStatus},
        reflection::{
            ServerReflectionClient, ServerReflectionRequest,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        },
    },
};

/// Long enough that a test which waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(600);

fn serve(builder: ServerBuilder) -> (Client, ServerHandle) {
    let (here, there) = UnixStream::pair().unwrap();
    let server = builder.unix_stream(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    (Client::from_unix_stream(here, ClientConfig::default()), handle)
}

async fn ask(client: &Client, requests: Vec<MessageRequest>) -> Vec<MessageResponse> {
    let reflection = ServerReflectionClient::new(client.clone());
    let (mut sender, mut replies) = reflection.server_reflection_info().await.unwrap();
    let mut answers = Vec::new();
    for request in requests {
        let request =
            ServerReflectionRequest { host: "h".to_owned(), message_request: Some(request) };
        sender.send(request.clone()).await.unwrap();
        let reply = replies.recv().await.unwrap().expect("one answer to each request");
        assert_eq!(reply.original_request, Some(request));
        assert_eq!(reply.valid_host, "h");
        answers.push(reply.message_response.unwrap());
    }
    sender.finish();
    assert_eq!(replies.recv().await.unwrap(), None, "the stream ends well");
    answers
}

fn files(answer: &MessageResponse) -> Vec<String> {
    let MessageResponse::FileDescriptorResponse(files) = answer else {
        panic!("no files: {answer:?}")
    };
    let decode = |bytes: &Vec<u8>| FileDescriptorProto::decode(&**bytes).unwrap();
    files.file_descriptor_proto.iter().map(|bytes| decode(bytes).name().to_owned()).collect()
}

fn reflection() -> Reflection {
    Reflection::new(health::FILE_DESCRIPTOR_SET)
        .unwrap()
        .and(ttrpc_reflection::proto::debug::FILE_DESCRIPTOR_SET)
        .unwrap()
}

fn services(answer: &MessageResponse) -> Vec<&str> {
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("no list: {answer:?}") };
    list.service.iter().map(|service| &*service.name).collect()
}

#[tokio::test]
async fn reflection_lists_services_and_sends_each_import_once_per_stream() {
    let (client, _) = serve(Server::builder().add_service(reflection()));
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.to_owned());
    let answers = ask(
        &client,
        vec![
            MessageRequest::ListServices(String::new()),
            symbol("ttrpc.debug.v1.Debug.Snapshot"),
            symbol("ttrpc.debug.v1.Call.age"),
            MessageRequest::FileByFilename("health.proto".to_owned()),
        ],
    )
    .await;
    let expected =
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "ttrpc.debug.v1.Debug"];
    assert_eq!(services(&answers[0]), expected);
    assert_eq!(files(&answers[1]), ["debug.proto", "google/protobuf/duration.proto"]);
    assert_eq!(files(&answers[2]), ["debug.proto"], "its import was sent before");
    assert_eq!(files(&answers[3]), ["health.proto"]);
}

/// A file that imports others, which are as long as wanted.
fn set_of_long_files(imports: usize, length: usize) -> Vec<u8> {
    let name = |index: usize| format!("{index}.proto");
    let message = |index: usize| DescriptorProto {
        name: Some(format!("{}{index}", "M".repeat(length))),
        ..DescriptorProto::default()
    };
    let import = |index: usize| FileDescriptorProto {
        name: Some(name(index)),
        message_type: vec![message(index)],
        ..FileDescriptorProto::default()
    };
    let root = FileDescriptorProto {
        name: Some("root.proto".to_owned()),
        dependency: (0..imports).map(name).collect(),
        ..FileDescriptorProto::default()
    };
    let file = (0..imports).map(import).chain([root]).collect();
    FileDescriptorSet { file }.encode_to_vec()
}

#[tokio::test]
async fn reflection_sends_the_imports_that_fit_and_the_others_when_they_are_asked_for() {
    let set = set_of_long_files(512, 8 << 10);
    assert!(set.len() > 4 << 20, "they do not fit into a message together");
    let (client, _) = serve(Server::builder().add_service(Reflection::new(set).unwrap()));
    let by_name = |name: &str| MessageRequest::FileByFilename(name.to_owned());
    let found = files(&ask(&client, vec![by_name("root.proto")]).await[0]);
    assert_eq!(found[0], "root.proto");
    assert!((400..512).contains(&found.len()), "{}", found.len());
    let missing = |found: &[String]| {
        (0..512).map(|index| format!("{index}.proto")).find(|name| !found.contains(name)).unwrap()
    };
    let missing = missing(&found);
    let answers = ask(&client, vec![by_name("root.proto"), by_name(&missing)]).await;
    assert_eq!(files(&answers[1]), [missing]);
}

/// Every length at which a file is the last that fits, or the first that does not.
#[tokio::test]
async fn reflection_answers_around_the_limit_of_a_message() {
    let mut counts = Vec::new();
    for length in ((4 << 20) - 160)..((4 << 20) - 40) {
        let (client, _) = serve(
            Server::builder().add_service(Reflection::new(set_of_long_files(1, length)).unwrap()),
        );
        let requests =
            ["root.proto", "0.proto"].map(|name| MessageRequest::FileByFilename(name.to_owned()));
        // With the first, the import is sent if it fits beside it.
        let answers = ask(&client, requests.to_vec()).await;
        counts.push((
            files(&answers[0]).len(),
            matches!(answers[1], MessageResponse::FileDescriptorResponse(_)),
        ));
    }
    assert_eq!((counts[0], counts[counts.len() - 1]), ((2, true), (1, false)));
}

#[tokio::test]
async fn a_file_longer_than_a_message_is_an_error_of_its_own() {
    let set = set_of_long_files(1, 4 << 20);
    let (client, _) = serve(Server::builder().add_service(Reflection::new(set).unwrap()));
    let requests =
        ["0.proto", "root.proto"].map(|name| MessageRequest::FileByFilename(name.to_owned()));
    let answers = ask(&client, requests.to_vec()).await;
    let MessageResponse::ErrorResponse(error) = &answers[0] else { panic!("{:?}", answers[0]) };
    assert_eq!(error.error_code, Code::ResourceExhausted as i32);
    assert!(error.error_message.starts_with("file `0.proto` is in a file of "), "{error:?}");
    assert_eq!(files(&answers[1]), ["root.proto"], "the stream goes on");
}

#[tokio::test]
async fn reflection_goes_on_after_what_it_does_not_know() {
    let (client, _) = serve(Server::builder().add_service(reflection()));
    let answers = ask(
        &client,
        vec![
            MessageRequest::FileContainingSymbol("no.Such".to_owned()),
            MessageRequest::FileByFilename("no.proto".to_owned()),
            MessageRequest::AllExtensionNumbersOfType("no.Such".to_owned()),
            MessageRequest::AllExtensionNumbersOfType("grpc.health.v1.HealthCheckRequest".into()),
        ],
    )
    .await;
    for answer in &answers[..3] {
        let MessageResponse::ErrorResponse(error) = answer else { panic!("{answer:?}") };
        assert_eq!(error.error_code, Code::NotFound as i32);
        assert!(error.error_message.contains("no."), "{}", error.error_message);
    }
    let MessageResponse::AllExtensionNumbersResponse(numbers) = &answers[3] else { panic!() };
    assert!(numbers.extension_number.is_empty());
}

#[tokio::test]
async fn reflection_lists_what_it_is_told_to() {
    let reflection = reflection().list_only(["grpc.health.v1.Health"]);
    let (client, _) = serve(Server::builder().add_service(reflection));
    let answers = ask(&client, vec![MessageRequest::ListServices(String::new())]).await;
    assert_eq!(services(&answers[0]), ["grpc.health.v1.Health"]);
}

#[tokio::test]
async fn health_is_checked() {
    let health = Health::new();
    let (client, _) = serve(Server::builder().add_service(health.service()));
    let client = HealthClient::new(client);
    let check = async |service: &str| {
        let reply = client.check(HealthCheckRequest { service: service.to_owned() }).await;
        reply.map(|reply| reply.status())
    };
    assert_eq!(check("").await, Ok(ServingStatus::Serving));
    assert_eq!(check("a.B").await.unwrap_err().code(), Code::NotFound);
    health.set_serving("a.B", false);
    assert_eq!(check("a.B").await, Ok(ServingStatus::NotServing));
    health.shut_down();
    assert_eq!(check("").await, Ok(ServingStatus::NotServing));
}

#[tokio::test]
async fn health_is_watched_until_the_end() {
    let health = Health::new();
    let (client, handle) = serve(Server::builder().add_service(health.service()));
    let client = HealthClient::new(client);
    let request = HealthCheckRequest { service: "a.B".to_owned() };
    let mut statuses = client.watch(request).await.unwrap();
    let mut next = async || statuses.recv().await.unwrap().map(|reply| reply.status());
    assert_eq!(next().await, Some(ServingStatus::ServiceUnknown));
    health.set_serving("a.B", true);
    assert_eq!(next().await, Some(ServingStatus::Serving));
    // What does not concern this service is not told.
    health.set_serving("c.D", true);
    health.set_serving("a.B", false);
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    health.shut_down();
    assert_eq!(next().await, None);
    // Nothing is left that a shutdown would have to wait for.
    timeout(PATIENCE, handle.shutdown(Duration::MAX)).await.unwrap();
}

#[tokio::test]
async fn debug_shows_the_call_that_asks() {
    let debug = Debug::new();
    let (client, handle) = serve(Server::builder().add_service(debug.service()));
    let client = DebugClient::new(client);
    let error = client.snapshot(SnapshotRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    debug.show(handle);
    let snapshot = client.snapshot(SnapshotRequest::default()).await.unwrap();
    assert_eq!(snapshot.pid, std::process::id());
    assert_eq!(snapshot.state, "serving");
    let [connection] = &snapshot.connections[..] else { panic!("{snapshot:?}") };
    assert_eq!(connection.peer_pid, Some(std::process::id() as i32));
    let [call] = &connection.calls[..] else { panic!("{connection:?}") };
    assert_eq!((&*call.service, &*call.method), ("ttrpc.debug.v1.Debug", "Snapshot"));
    assert_eq!(call.stream_id, 3);
}

#[tokio::test]
async fn debug_does_not_keep_its_server_alive() {
    let debug = Debug::new();
    let (client, handle) = serve(Server::builder().add_service(debug.service()));
    debug.show(handle);
    drop(debug);
    let error = DebugClient::new(client).snapshot(SnapshotRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
}

/// A method that fails, one that answers, and one that never does.
struct Slow;

impl Service for Slow {
    fn into_routes(self) -> Routes {
        let slow = Arc::new(self);
        Routes::new("a.Slow")
            .unary("Wait", &slow, |_, _, _: Raw| Box::pin(std::future::pending::<Result<Raw, _>>()))
            .unary("Answer", &slow, |_, _, asked: Raw| Box::pin(async { Ok(asked) }))
            .unary("Fail", &slow, |_, _, _: Raw| {
                Box::pin(async { Err::<Raw, _>(Status::not_found("gone")) })
            })
    }
}

/// A server with a debug service and this one.
fn slow(debug: &Debug) -> (Client, ServerHandle) {
    let config = ServerConfig {
        max_calls: 100_000,
        max_calls_per_connection: 100_000,
        ..ServerConfig::default()
    };
    let builder = Server::builder().config(config).observe(debug.observer());
    let (client, handle) = serve(builder.add_service(debug.service()).add_service(Slow));
    debug.show(handle.clone());
    (client, handle)
}

async fn wait_for(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_has_room_in_a_frame_however_much_waits() {
    const CALLS: usize = 40_000;
    let debug = Debug::new();
    let (client, handle) = slow(&debug);
    let method = "Wait";
    for _ in 0..CALLS {
        tokio::spawn(client.unary::<Raw, Raw>("a.Slow", method, Raw::default()).into_future());
    }
    wait_for(|| handle.calls_in_flight() == CALLS).await;
    let client = DebugClient::new(client);
    for (request, most) in [
        (SnapshotRequest::default(), 1000),
        (SnapshotRequest { max_calls: 10, ..Default::default() }, 10),
        (SnapshotRequest { max_calls: u32::MAX, ..Default::default() }, 4000),
    ] {
        let snapshot = client.snapshot(request).await.unwrap();
        let [connection] = &snapshot.connections[..] else { panic!("there is one") };
        assert_eq!(connection.calls.len(), most);
        // The call that asks is one of them.
        assert_eq!(snapshot.omitted_calls, (CALLS + 1 - most) as u64);
        assert_eq!(snapshot.calls, CALLS as u64 + 1);
        let ages: Vec<_> = connection.calls.iter().map(|call| call.age.unwrap()).collect();
        assert!(
            ages.is_sorted_by(|one, next| {
                (one.seconds, one.nanos) >= (next.seconds, next.nanos)
            })
        );
    }
}

#[tokio::test]
async fn connections_come_in_pages_and_in_the_order_that_is_asked_for() {
    let folder = std::env::temp_dir().join(format!("ttrpc-debug-{}", std::process::id()));
    let address = folder.display().to_string();
    let debug = Debug::new();
    let builder = Server::builder().add_service(debug.service()).add_service(Slow);
    let server = builder.bind(&address).unwrap().build().unwrap();
    let handle = server.handle();
    debug.show(handle.clone());
    tokio::spawn(server.serve());
    let mut clients = Vec::new();
    for calls in 0..5 {
        let client = Client::connect(&address).await.unwrap();
        for _ in 0..calls {
            let call = client.unary::<Raw, Raw>("a.Slow", "Wait", Raw::default());
            tokio::spawn(call.into_future());
        }
        clients.push(client);
    }
    wait_for(|| handle.calls_in_flight() == 10 && handle.connections() == 5).await;
    std::fs::remove_file(&folder).unwrap();
    let client = DebugClient::new(clients[0].clone());
    let ids = async |request: SnapshotRequest| {
        let snapshot = client.snapshot(request).await.unwrap();
        let ids: Vec<_> = snapshot.connections.iter().map(|connection| connection.id).collect();
        (ids, snapshot.omitted_connections)
    };
    // One call alone: those of the oldest calls come along.
    let page = |after_connection| SnapshotRequest {
        max_connections: 2,
        max_calls: 1,
        after_connection,
        sort: Sort::Age.into(),
    };
    assert_eq!(ids(page(0)).await, (vec![1, 2], 3));
    assert_eq!(ids(page(3)).await, (vec![4, 5], 0));
    assert_eq!(ids(page(5)).await, (vec![], 0));
    let busiest = SnapshotRequest { sort: Sort::Calls.into(), ..Default::default() };
    // The first one has the call that asks.
    assert_eq!(ids(busiest).await, (vec![5, 4, 3, 1, 2], 0));
}

#[tokio::test]
async fn counters_are_absolute_and_a_watch_sends_them_with_a_snapshot() {
    let debug = Debug::with_counters();
    let (client, handle) = slow(&debug);
    let call = async |method: &'static str| {
        client.unary::<Raw, Raw>("a.Slow", method, Raw(vec![1; 100].into())).await
    };
    for _ in 0..3 {
        call("Answer").await.unwrap();
        call("Fail").await.unwrap_err();
        call("Nothing").await.unwrap_err();
    }
    let waiting = client.unary::<Raw, Raw>("a.Slow", "Wait", Raw::default());
    let waiting = tokio::spawn(waiting.into_future());
    wait_for(|| handle.calls_in_flight() == 1).await;
    let request = WatchRequest {
        interval: Some(ttrpc::prost_types::Duration { seconds: 0, nanos: 1 }),
        snapshot: None,
    };
    let mut samples = DebugClient::new(client.clone()).watch(request).await.unwrap();
    let first = samples.recv().await.unwrap().unwrap();
    let of = |methods: &[MethodStats], name: &str| {
        methods.iter().find(|stats| stats.method == name).cloned().unwrap()
    };
    let answered = of(&first.methods, "Answer");
    assert_eq!((answered.begun, &answered.ended), (3, &[(0, 3)].into()));
    assert_eq!((answered.messages_sent, answered.messages_received), (3, 3));
    assert!(answered.bytes_sent >= 300 && answered.bytes_received >= 300);
    assert_eq!(answered.durations.iter().sum::<u64>(), 3);
    assert!(answered.durations.len() <= first.bounds_nanos.len() + 1);
    assert_eq!(of(&first.methods, "Fail").ended, [(Code::NotFound as i32, 3)].into());
    let waits = of(&first.methods, "Wait");
    assert_eq!((waits.begun, waits.ended.len()), (1, 0), "it is in flight");
    let other = first.methods.iter().find(|stats| stats.service == "_OTHER").unwrap();
    assert_eq!(other.ended, [(Code::Unimplemented as i32, 3)].into());
    let snapshot = first.snapshot.unwrap();
    assert_eq!(snapshot.all_connections.map(|Fill { used, .. }| used), Some(1));
    call("Answer").await.unwrap();
    let next = samples.recv().await.unwrap().unwrap();
    assert_eq!(of(&next.methods, "Answer").begun, 4);
    waiting.abort();
}

#[tokio::test]
async fn a_watch_does_not_hold_up_the_end_of_the_server() {
    let debug = Debug::with_counters();
    let (client, handle) = slow(&debug);
    let interval = Some(ttrpc::prost_types::Duration { seconds: 0, nanos: 1 });
    let request = WatchRequest { interval, snapshot: None };
    let mut samples = DebugClient::new(client).watch(request).await.unwrap();
    samples.recv().await.unwrap().unwrap();
    timeout(PATIENCE, handle.shutdown(Duration::MAX)).await.unwrap();
}

#[tokio::test]
async fn a_server_without_counters_has_no_watch() {
    let debug = Debug::new();
    let (client, _handle) = slow(&debug);
    let mut samples = DebugClient::new(client).watch(WatchRequest::default()).await.unwrap();
    assert_eq!(samples.recv().await.unwrap_err().code(), Code::Unimplemented);
}
