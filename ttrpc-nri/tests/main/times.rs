//! Handlers that take too long.

use std::{sync::Mutex, time::Duration};

use tokio::sync::oneshot;
use ttrpc::Code;
use ttrpc_nri::{
    Container, Creation, FailurePolicy, SlowHandler, Status, Stub, proto,
    testing::{self, Setup},
};

use crate::{
    hand::{ByHand, PLUGIN, registered},
    plugins::{All, both},
    raw::{self, Raw},
};

/// A runtime in memory, and the report of the plugin's slow handler.
async fn with_slow() -> (testing::Runtime, oneshot::Receiver<SlowHandler>) {
    let (sender, slow) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let stub = Stub::new(All::default()).on_slow(move |slow| {
        let sender = sender.lock().expect("no test panics here").take();
        sender.expect("one is slow").send(slow.clone()).expect("the test waits");
    });
    (Setup::default().start_stub(stub).await.expect("it starts"), slow)
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_reported_before_the_runtime_drops_the_plugin() {
    let (runtime, slow) = with_slow().await;
    let (pod, mut container) = both();
    container.name = "slow".into();
    let (created, slow) = tokio::join!(runtime.create_container(&pod, &container), slow);
    // The request goes on without the plugin, and without the adjustment.
    assert_eq!(created.expect("the policy is the default"), Creation::default());
    let slow = slow.expect("it was reported");
    assert_eq!(
        (slow.event, &*slow.subject, slow.limit),
        ("CreateContainer", "c", Duration::from_secs(2))
    );
    assert_eq!(slow.elapsed, Duration::from_millis(1500));
    assert!(runtime.plugin().is_closed());
}

/// As the last part of Synchronize, which has the time that those before it have left.
#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_reported_by_the_time_that_its_request_has_left() {
    let (runtime, slow) = with_slow().await;
    let container = Container { name: "slow".into(), ..Container::default() };
    let request = proto::CreateContainerRequest { pod: None, container: Some(container) };
    let began = tokio::time::Instant::now();
    let call = runtime.plugin().client().create_container(request).timeout(Duration::from_secs(1));
    let call = tokio::spawn(call);
    let slow = tokio::time::timeout(Duration::from_secs(3600), slow).await;
    let slow = slow.expect("it is slow").expect("it was reported");
    assert_eq!(began.elapsed(), Duration::from_millis(500));
    assert_eq!(slow.elapsed, Duration::from_millis(1500));
    call.await.expect("it does not panic").expect_err("it is late");
}

/// A runtime in Go takes its own timer or the plugin's status, whichever comes first, and fails the request for the latter.
#[tokio::test(start_paused = true)]
async fn a_handler_that_is_late_is_not_answered_for() {
    let (connection, mut runtime) = Raw::new();
    let stub = Stub::new(All::default()).name("late").index("10");
    let _stub = tokio::spawn(stub.connection(connection).run());
    let register = runtime.next().await.expect("it registers");
    assert!(register.calls("RegisterPlugin"));
    let container = Container { name: "slow".into(), ..Container::default() };
    let request = proto::CreateContainerRequest { pod: None, container: Some(container) };
    let mut data = raw::request(PLUGIN, "CreateContainer", &request);
    // A timeout of 100 ms.
    data.extend([4 << 3, 0x80, 0xc2, 0xd7, 0x2f]);
    runtime.write(1, &raw::frame(1, raw::REQUEST, &data)).await;
    let answer = tokio::time::timeout(Duration::from_secs(2), runtime.next()).await;
    assert!(answer.is_err(), "it is answered");
}

/// A plugin on a stub that answers at a handler's deadline. Whichever is looked at first, the runtime's timer or the status.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_says_itself_that_it_is_late_is_late() {
    let late = ByHand(|routes, service| {
        routes
            .unary("Configure", service, |_, _, _: proto::ConfigureRequest| {
                Box::pin(async { Ok(proto::ConfigureResponse::default()) })
            })
            .unary("CreateContainer", service, |_, ctx, _: proto::CreateContainerRequest| {
                Box::pin(async move {
                    tokio::time::sleep_until(ctx.deadline().expect("it has one")).await;
                    Err::<proto::CreateContainerResponse, _>(Status::deadline_exceeded("late"))
                })
            })
    });
    let (plugin, _mux) = registered(late).await;
    let mut call =
        std::pin::pin!(plugin.create_container(proto::CreateContainerRequest::default()));
    tokio::select! {
        biased;
        _ = &mut call => panic!("it is answered at once"),
        () = tokio::task::yield_now() => {}
    }
    // The runtime is busy: when it looks again, both have come.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(call.await.expect("the request goes on"), None);
    assert!(plugin.is_closed());
}

#[tokio::test(start_paused = true)]
async fn the_failure_policy_keeps_the_plugin_and_fails_the_request() {
    let policy = FailurePolicy { fail_request: true, keep_connected: true };
    let stub = Stub::new(All::default()).failure_policy(policy);
    let runtime = Setup::default().start_stub(stub).await.expect("it starts");
    let (pod, mut container) = both();
    container.name = "slow".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("the policy says so");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("00-plugin"), "{status}");
    container.name = "c".into();
    let created = runtime.create_container(&pod, &container).await.expect("it is connected");
    assert_eq!(created.adjustment.env_value("NAME"), Some("c"));
}
