//! What a client's calls have by default, by method.

use std::{sync::Arc, time::Duration};

use tempfile::tempdir;
use tokio::time::Instant;
use ttrpc::{
    Client, Code, Metadata,
    client::{CallDefaults, ConnectOptions, MethodDefaults, Retry},
};
use ttrpc_tests::{conformance::*, harness::*, service::ConformanceService};

const SECOND: Duration = Duration::from_secs(1);

/// What a server sees of a call: its time, and its metadata.
async fn inspected(
    call: ttrpc::client::UnaryCall<Empty, InspectResponse>,
) -> (Duration, Vec<String>) {
    let seen = call.await.unwrap();
    let pairs = seen.metadata.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
    (Duration::from_nanos(seen.timeout_nano as u64), pairs)
}

fn table() -> MethodDefaults {
    MethodDefaults::new()
        .all(
            CallDefaults::new()
                .timeout(10 * SECOND)
                .metadata("tenant", "all")
                .metadata("zone", "a"),
        )
        .service(SERVICE, CallDefaults::new().timeout(20 * SECOND).metadata("tenant", "service"))
        .method(
            SERVICE,
            "Inspect",
            CallDefaults::new().metadata("Tenant", "x").metadata("tenant", "y"),
        )
        .method(SERVICE, "Wait", CallDefaults::new().no_timeout())
        .method("other.Service", "Inspect", CallDefaults::new().timeout(SECOND))
}

#[tokio::test(start_paused = true)]
async fn the_most_specific_row_that_has_a_field_wins() {
    let (_server, client, _) = connected_by_default();
    let conformance = ConformanceClient::new(client.clone().with_method_defaults(table()));
    let (timeout, metadata) = inspected(conformance.inspect(Empty {})).await;
    assert_eq!(timeout, 20 * SECOND, "of the service");
    assert_eq!(metadata, ["tenant=x", "tenant=y", "zone=a"], "key by key");

    let start = Instant::now();
    let status = conformance.sleep(SleepRequest { millis: 100_000 }).await.unwrap_err();
    assert_eq!((status.code(), start.elapsed()), (Code::DeadlineExceeded, 20 * SECOND));
    let other = client.clone().with_method_defaults(table());
    let unknown = other.unary::<_, Empty>("a.Service", "M", Empty {}).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);

    // A stream has the time of its method for all of it, and a method may be an exception.
    let start = Instant::now();
    let (_requests, mut replies) = conformance.exchange().await.unwrap();
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(start.elapsed(), 20 * SECOND);
    let waiting = tokio::spawn(conformance.wait(key("a")).into_future());
    tokio::time::sleep(1000 * SECOND).await;
    conformance.release(key("a")).await.unwrap();
    waiting.await.unwrap().unwrap();
    // The client that was cloned has none of it.
    let plain = ConformanceClient::new(client);
    assert_eq!(inspected(plain.inspect(Empty {})).await, (Duration::ZERO, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_row_for_all_is_for_services_that_have_no_row() {
    let (_server, client, _) = connected_by_default();
    let all = MethodDefaults::new()
        .all(CallDefaults::new().timeout(SECOND))
        .service("other.Service", CallDefaults::new().no_timeout());
    let conformance = ConformanceClient::new(client.with_method_defaults(all));
    assert_eq!(inspected(conformance.inspect(Empty {})).await.0, SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_a_call_or_its_client_sets_itself_wins() {
    let (_server, client, _) = connected_by_default();
    let conformance = ConformanceClient::new(client.clone().with_method_defaults(table()));
    let inspect = || conformance.inspect(Empty {});
    let (timeout, metadata) =
        inspected(inspect().timeout(30 * SECOND).metadata("tenant", "own")).await;
    assert_eq!((timeout, &*metadata), (30 * SECOND, &["tenant=own".into(), "zone=a".into()][..]));
    let (timeout, _) = inspected(inspect().deadline(Instant::now() + 40 * SECOND)).await;
    assert_eq!(timeout, 40 * SECOND, "a deadline of its own is its time");
    let (timeout, metadata) = inspected(inspect().with_metadata(Metadata::new())).await;
    assert_eq!((timeout, metadata.len()), (20 * SECOND, 3));

    let own = client.with_timeout(5 * SECOND).with_metadata("zone", "b");
    let own = ConformanceClient::new(own.with_method_defaults(table()));
    let (timeout, metadata) = inspected(own.inspect(Empty {})).await;
    assert_eq!(timeout, 5 * SECOND);
    assert_eq!(metadata, ["zone=b", "tenant=x", "tenant=y"]);
}

/// The time of the call on whose behalf another one is made is a limit, and not that call's own.
#[tokio::test(start_paused = true)]
async fn a_call_within_another_one_ends_with_the_earlier_of_both_times() {
    use ttrpc::server::Routes;
    let (_server, backend, _) = connected_by_default();
    let backend = Arc::new(ConformanceClient::new(backend.with_method_defaults(table())));
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let routes = Routes::new("test.Front").unary("Ask", &backend, |backend, ctx, (): ()| {
        Box::pin(async move { backend.inspect(Empty {}).within(ctx).await })
    });
    let _front =
        TestServer::start_with(patient_server(), |b| b.add_service(Handmade(routes)).io(there));
    let front = Client::from_io(here, patient_client());
    for (own, expected) in [(5, 5), (60, 20)] {
        let ask = front.unary::<(), InspectResponse>("test.Front", "Ask", ());
        let seen = ask.timeout(own * SECOND).await.unwrap();
        assert_eq!(Duration::from_nanos(seen.timeout_nano as u64), expected * SECOND);
    }
}

#[tokio::test]
async fn a_text_is_a_table_and_an_error_says_where_it_is_wrong() {
    let text = format!(
        r#"
        # The program's configuration.
        *               timeout=600s retry=3
        {SERVICE}/*     metadata.greeting="Good morning" # and a comment
        {SERVICE}/Wait  timeout=none
        "#
    );
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let serving = tokio::spawn(ConformanceService::builder().bind(&address).unwrap().serve());
    let client = ConnectOptions::new().connect(&address).await.unwrap();
    let client = client.with_method_defaults(text.parse().unwrap());
    let (timeout, metadata) = inspected(ConformanceClient::new(client).inspect(Empty {})).await;
    assert!(timeout > SECOND && timeout <= 600 * SECOND, "{timeout:?}");
    assert_eq!(metadata, ["greeting=Good morning"]);
    serving.abort();

    let error = format!("{text}\nother.Service timeout=1s").parse::<MethodDefaults>().unwrap_err();
    let cause = "`other.Service` is no pattern: `*`, `Service/*` and `Service/Method` are";
    assert_eq!(error.to_string(), format!("line {}: {cause}", error.line()));
    assert_eq!(error.line(), 7);
}

#[test]
fn a_blocking_client_has_defaults() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
    let server =
        ttrpc_tests::process::Process::start_conformance_server(program, &address).unwrap();
    let defaults = MethodDefaults::new()
        .service(SERVICE, CallDefaults::new().metadata("a", "b").retry(Retry::new()));
    let client = ttrpc::blocking::Client::connect(&address).unwrap().with_method_defaults(defaults);
    let seen =
        ConformanceBlockingClient::new(client).inspect(Empty {}).idempotent().call().unwrap();
    assert_eq!(seen.metadata[0].value, "b");
    drop(server);
}
