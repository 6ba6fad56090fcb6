//! What an observer and interceptors that do nothing allocate.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use allocation_counter::measure;
use tokio::{io::duplex, runtime::Builder};
use ttrpc::{
    Client, ClientConfig, Connection, ServerConfig,
    client::{self, CallDefaults, ConnectOptions, MethodDefaults, Retry},
    observer::{CallEnd, CallInfo, Observer},
    server::{Interceptor, ServerBuilder},
};
use ttrpc_tests::{conformance::*, harness::*};

use super::{TIMES, echo};

#[derive(Default)]
struct Counts(AtomicU64);

impl Observer for Counts {
    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Allocations of an echo, to the next whole number: now and then some calls share one.
fn per_call(
    build: impl FnOnce(ServerBuilder) -> ServerBuilder,
    connect: impl FnOnce(Connection) -> Client,
) -> u64 {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (_server, conformance) = runtime.block_on(async {
        let (here, there) = duplex(PIPE_LEN);
        let server = TestServer::start_with(ServerConfig::default(), |b| build(b).io(there));
        (server, ConformanceClient::new(connect(Connection::new(here))))
    });
    let calls = |count| {
        runtime.block_on(async {
            for _ in 0..count {
                echo(&conformance).await;
            }
        })
    };
    calls(100);
    let total = measure(|| calls(TIMES)).count_total;
    println!("{total} allocations in {TIMES} calls");
    (total + TIMES / 2) / TIMES
}

fn connect(connection: Connection) -> Client {
    Client::from_connection(connection, ClientConfig::default())
}

/// The handler that runs it, and its own future.
#[test]
fn an_interceptor_that_only_runs_the_rest_allocates_twice_and_each_further_one_once() {
    let without = per_call(|b| b, connect);
    assert_eq!(per_call(|b| b.intercept(PassesThrough), connect), without + 2);
    let shared: Arc<dyn Interceptor> = Arc::new(PassesThrough);
    let (first, second) = (shared.clone(), shared);
    assert_eq!(per_call(|b| b.intercept(first).intercept(second), connect), without + 3);
}

/// The record of the call, its future, and that of the interceptor.
#[test]
fn a_client_interceptor_that_only_runs_the_rest_allocates_thrice_and_each_further_one_once() {
    let without = per_call(|b| b, connect);
    let one = |connection| connect(connection).with_interceptor(PassesThrough);
    assert_eq!(per_call(|b| b, one), without + 3);
    let shared: Arc<dyn client::Interceptor> = Arc::new(PassesThrough);
    let two =
        |connection| connect(connection).with_interceptor(shared.clone()).with_interceptor(shared);
    assert_eq!(per_call(|b| b, two), without + 4);
}

#[test]
fn an_observer_allocates_nothing_in_a_server_and_one_record_a_call_in_a_client() {
    let without = per_call(|b| b, connect);
    assert_eq!(per_call(|b| b.observe(Counts::default()), connect), without);
    let observed =
        |connection| ConnectOptions::new().observe(Counts::default()).from_connection(connection);
    assert_eq!(per_call(|b| b, observed), without + 1);
}

/// They are found where they lie. Metadata of theirs are the call's own from then on, as if it had set them.
#[test]
fn defaults_by_method_allocate_nothing() {
    let without = per_call(|b| b, connect);
    let service = ConformanceClient::NAME;
    let defaults = MethodDefaults::new()
        .all(CallDefaults::new().no_timeout())
        .service(service, CallDefaults::new().retry(Retry::none()))
        .method(service, "Echo", CallDefaults::new().idempotent(true));
    let by_method = |connection| connect(connection).with_method_defaults(defaults);
    assert_eq!(per_call(|b| b, by_method), without);
}

/// The record of the call, its future, and that of its attempts.
#[test]
fn a_retry_that_makes_no_call_again_allocates_thrice() {
    let without = per_call(|b| b, connect);
    let persistent = |connection| connect(connection).with_retry(Retry::new());
    assert_eq!(per_call(|b| b, persistent), without + 3);
}
