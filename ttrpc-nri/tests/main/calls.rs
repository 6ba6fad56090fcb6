//! A plugin's own calls to its runtime.

use std::sync::Arc;

use tokio::{io::duplex, net::UnixStream};
use ttrpc::{Code, Connection, async_trait};
use ttrpc_nri::{
    ContainerEviction, ContainerUpdate, PluginId, Status, Stub,
    runtime::{PluginConnection, RuntimeInfo, UpdateContainers},
    testing,
};

use crate::{
    hand::accept,
    plugins::{All, Caller, both},
};

#[tokio::test(start_paused = true)]
async fn containers_may_be_updated_from_inside_of_a_handler() {
    let mut runtime = testing::Runtime::start(All::default()).await;
    let (pod, mut container) = both();
    container.name = "updates others".into();
    runtime.create_container(&pod, &container).await.expect("it is created");
    let (updates, evictions) = runtime.next_update().await.expect("the plugin runs");
    assert_eq!((updates, evictions), (vec![ContainerUpdate::of("other")], vec![]));
}

#[tokio::test]
async fn a_call_to_the_runtime_has_the_answer_of_the_runtime() {
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let (plugin, runtime) = Caller::new();
    let stub = tokio::spawn(Stub::new(plugin).name("caller").index("05").connection(here).run());
    let connection = accept(there).await.expect("it registers");
    let runtime = runtime.await.expect("it is configured");
    let status = runtime.update_containers(vec![]).await.expect_err("the runtime refuses");
    assert_eq!(status.message(), "nothing for 05-caller");
    connection.close();
    let status = runtime.evict(vec![]).await.expect_err("the connection has ended");
    assert_eq!(status.code(), Code::Unavailable);
    stub.await.expect("it does not panic").expect_err("nobody asked it to end");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_runtime_does_not_answer_has_a_deadline() {
    let (here, there) = duplex(1 << 16);
    let (plugin, runtime) = Caller::new();
    let _stub = tokio::spawn(
        Stub::new(plugin).name("caller").index("05").connection(Connection::new(here)).run(),
    );
    let about = Arc::new(RuntimeInfo::new("test", "1"));
    let _connection =
        PluginConnection::external(Connection::new(there), about, Arc::new(NeverUpdates))
            .await
            .expect("it registers");
    let runtime = runtime.await.expect("it is configured");
    // More calls than may be in flight: those that wait for a permit have the same deadline.
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let runtime = runtime.clone();
            tokio::spawn(async move { runtime.update_containers(vec![]).await })
        })
        .collect();
    for call in calls {
        let status = call.await.expect("it does not panic").expect_err("nobody answers");
        assert_eq!(status.code(), Code::DeadlineExceeded);
    }
}

/// Never answers.
struct NeverUpdates;

#[async_trait]
impl UpdateContainers for NeverUpdates {
    async fn update_containers(
        &self,
        _: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        std::future::pending().await
    }
}
