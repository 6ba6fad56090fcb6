//! What a plugin is called for, and what its runtime gets.

use ttrpc::Code;
use ttrpc_nri::{
    ContainerAdjustment, ContainerEviction, ContainerUpdate, Event, EventMask, LinuxResources,
    PodSandbox, proto,
    runtime::RuntimeInfo,
    testing::{self, Setup},
};

use crate::plugins::{All, Nothing, Starts, both};

#[tokio::test(start_paused = true)]
async fn a_plugin_sees_every_event_from_its_registration_to_shutdown() {
    let all = All::default();
    let log = all.log.clone();
    let (pod, container) = both();
    let state = (vec![pod.clone()], vec![container.clone(), container.clone()]);
    let runtime =
        Setup::default().config("c").state(state.0, state.1).start(all).await.expect("it starts");
    assert_eq!(log.take(), ["configure c testing v0.12.5", "synchronize 1 2"]);
    assert_eq!(runtime.synchronized(), [ContainerUpdate::of("first").cpu_shares(2)]);
    assert_eq!(runtime.plugin().events(), EventMask::ALL);

    for event in EventMask::ALL.iter() {
        let name =
            |text: &str| format!("{text} {}", if text.ends_with("sandbox") { "p" } else { "c" });
        let one =
            LinuxResources { unified: [("a".into(), "b".into())].into(), ..Default::default() };
        match event {
            Event::CreateContainer => {
                let created =
                    runtime.create_container(&pod, &container).await.expect("it is created");
                assert_eq!(created.adjustment.env_value("NAME"), Some("c"));
                assert_eq!(created.updates, [ContainerUpdate::of("other").memory_limit(1)]);
                assert_eq!(created.evictions, [ContainerEviction::of("third", "full")]);
            }
            Event::UpdateContainer => {
                let updates =
                    runtime.update_container(&pod, &container, one).await.expect("it is updated");
                assert_eq!(updates.updates, [ContainerUpdate::of("c").pids_limit(9)]);
                assert_eq!(log.take(), ["update_container c 1"]);
            }
            Event::StopContainer => {
                let updates =
                    runtime.stop_container(&pod, &container).await.expect("it is stopped");
                assert_eq!(updates, [ContainerUpdate::of("other").ignore_failure()]);
                assert_eq!(log.take(), ["stop_container c"]);
            }
            Event::UpdatePodSandbox => {
                runtime
                    .update_pod_sandbox(&pod, LinuxResources::default(), one)
                    .await
                    .expect("it is updated");
                assert_eq!(log.take(), ["update_pod_sandbox p 0 1"]);
            }
            Event::ValidateContainerAdjustment => {
                let mut request = proto::ValidateContainerAdjustmentRequest::default();
                runtime.validate(request.clone()).await.expect("nothing is adjusted");
                request.adjust = Some(ContainerAdjustment::new());
                let status = runtime.validate(request).await.expect_err("it is refused");
                assert_eq!(status.code(), Code::PermissionDenied);
                assert!(status.message().contains("no adjustments here"), "{status}");
            }
            _ => {
                runtime.notify(event, &pod, Some(&container)).await.expect("it is handled");
                let mut expected = String::new();
                for letter in event.name().chars() {
                    if letter.is_uppercase() && !expected.is_empty() {
                        expected.push('_');
                    }
                    expected.extend(letter.to_lowercase());
                }
                assert_eq!(log.take(), [name(&expected)]);
                // The same from a runtime of before v0.12.
                let request = proto::StateChangeEvent {
                    event: event.into(),
                    pod: Some(pod.clone()),
                    container: Some(container.clone()),
                };
                runtime.plugin().client().state_change(request).await.expect("it is handled");
                assert_eq!(log.take(), [name(&expected)]);
            }
        }
    }
    runtime.shutdown().await.expect("it was asked to end");
    assert_eq!(log.take(), ["shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn the_subscription_is_what_is_implemented() {
    let runtime = testing::Runtime::start(Starts).await;
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::StartContainer));
    // A mask of 0 would mean every event.
    let runtime = testing::Runtime::start(Nothing).await;
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::RemovePodSandbox));
    let runtime = Setup::default().config("narrow").start(All::default()).await.expect("it starts");
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::StartContainer));
}

#[tokio::test(start_paused = true)]
async fn no_handler_is_called_for_the_event_that_stands_for_none() {
    let all = All::default();
    let log = all.log.clone();
    let runtime = Setup::default().config("none").start(all).await.expect("it starts");
    log.take();
    let pod = PodSandbox::named("p");
    runtime.notify(Event::RemovePodSandbox, &pod, None).await.expect("it is answered");
    let request = proto::StateChangeEvent {
        event: Event::RemovePodSandbox.into(),
        pod: Some(pod),
        container: None,
    };
    runtime.plugin().client().state_change(request).await.expect("it is answered");
    assert!(log.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_old_runtime_is_asked_for_no_new_events() {
    let about = RuntimeInfo::new("containerd", "v1.7.27").nri_version("");
    let runtime = Setup::default().about(about).start(All::default()).await.expect("it starts");
    let new =
        [Event::UpdatePodSandbox, Event::PostUpdatePodSandbox, Event::ValidateContainerAdjustment];
    assert_eq!(runtime.plugin().events(), EventMask::ALL - new.into_iter().collect());
}

#[tokio::test(start_paused = true)]
async fn what_a_plugin_does_not_implement_has_an_empty_reply() {
    let runtime = testing::Runtime::start(Nothing).await;
    let client = runtime.plugin().client();
    let created = client.create_container(proto::CreateContainerRequest::default()).await;
    assert_eq!(created.expect("it is answered").adjust, Some(ContainerAdjustment::default()));
    client
        .update_container(proto::UpdateContainerRequest::default())
        .await
        .expect("it is answered");
    client.stop_container(proto::StopContainerRequest::default()).await.expect("it is answered");
    client
        .update_pod_sandbox(proto::UpdatePodSandboxRequest::default())
        .await
        .expect("it is answered");
    client.state_change(proto::StateChangeEvent::default()).await.expect("it is answered");
    let verdict = client.validate_container_adjustment(Default::default()).await;
    assert!(!verdict.expect("it is answered").reject);
}

#[tokio::test(start_paused = true)]
async fn a_panic_answers_internal_and_the_plugin_goes_on() {
    let runtime = testing::Runtime::start(All::default()).await;
    let (pod, mut container) = both();
    container.name = "panics".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("it panicked");
    assert_eq!(status.code(), Code::Internal);
    container.name = "fails".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("it failed");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not this one"));
    container.name = "c".into();
    runtime.create_container(&pod, &container).await.expect("it goes on");
}
