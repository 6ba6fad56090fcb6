//! What an observer and an interceptor that does nothing allocate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use allocation_counter::measure;
use tokio::{io::duplex, runtime::Builder};
use ttrpc::{
    Client, ClientConfig, Context, ServerConfig, Status, async_trait,
    observer::{CallEnd, CallInfo, Observer},
    server::{Interceptor, Next, ServerBuilder},
};
use ttrpc_tests::{conformance::*, harness::*};

use super::{TIMES, echo};

struct PassesThrough;

#[async_trait]
impl Interceptor for PassesThrough {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        next.run(ctx).await
    }
}

#[derive(Default)]
struct Counts(AtomicU64);

impl Observer for Counts {
    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Allocations of an echo.
fn per_call(build: impl FnOnce(ServerBuilder) -> ServerBuilder) -> f64 {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (_server, conformance) = runtime.block_on(async {
        let (here, there) = duplex(PIPE_LEN);
        let server = TestServer::start_with(ServerConfig::default(), |b| build(b).io(there));
        (server, ConformanceClient::new(Client::from_io(here, ClientConfig::default())))
    });
    let calls = |count| {
        runtime.block_on(async {
            for _ in 0..count {
                echo(&conformance).await;
            }
        })
    };
    calls(100);
    measure(|| calls(TIMES)).count_total as f64 / TIMES as f64
}

#[test]
fn an_interceptor_that_only_runs_the_rest_allocates_twice_at_most() {
    let (without, with) = (per_call(|b| b), per_call(|b| b.intercept(PassesThrough)));
    println!("{without} and {with} allocations per call");
    assert!(with <= without + 2.0, "{without} and {with} allocations per call");
}

#[test]
fn an_observer_allocates_nothing() {
    let (without, with) = (per_call(|b| b), per_call(|b| b.observe(Counts::default())));
    assert!(with <= without + 0.01, "{without} and {with} allocations per call");
}
