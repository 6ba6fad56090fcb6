//! What is read from others, and what no program should have to look up.

use std::sync::{Arc, Mutex};

use ttrpc::{Client, Context, Server, Status, async_trait, prost::Message};
use ttrpc_containerd::{
    FILE_DESCRIPTOR_SET, FILES, SHIM_FILE_DESCRIPTOR_SET, any, bootstrap, cgroups, cri,
    events::{Event, TaskExit, publish},
    namespace::{self, Namespace},
    runc, sandbox,
    task::{Tasks, v2, v3},
    types,
};

#[test]
fn an_any_is_read_under_its_bare_name_and_behind_a_domain() {
    let options = runc::Options { root: "/r".to_owned(), ..Default::default() };
    let mut packed = any::pack(&options);
    assert_eq!(packed.type_url, "containerd.runc.v1.Options");
    assert_eq!(any::unpack(&packed).unwrap(), Some(options.clone()));
    packed.type_url.insert_str(0, "type.googleapis.com/");
    assert_eq!(any::unpack(&packed).unwrap(), Some(options));
    assert_eq!(any::unpack::<runc::CheckpointOptions>(&packed).unwrap(), None);
    packed.value = vec![0xff];
    assert!(any::unpack::<runc::Options>(&packed).is_err());
    assert_eq!(any::pack_json(any::SPEC, "{}").value, b"{}");
}

/// The messages of the shim's kit had fewer fields: what passed through them was lost.
#[test]
fn no_field_of_containerds_is_lost_on_the_way() {
    let sandbox = types::Sandbox {
        sandbox_id: "p1".to_owned(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        sandboxer: "shim".to_owned(),
        ..Default::default()
    };
    let request = sandbox::UpdateSandboxRequest { sandbox: Some(sandbox), ..Default::default() };
    let passed_on = sandbox::UpdateSandboxRequest::decode(&*request.encode_to_vec()).unwrap();
    assert_eq!(passed_on, request);
    let result = bootstrap::BootstrapResult {
        extensions: vec![bootstrap::Extension { value: None }],
        ..Default::default()
    };
    assert_eq!(bootstrap::BootstrapResult::decode(&*result.encode_to_vec()).unwrap(), result);
    assert!(cgroups::v2::Metrics::default().encode_to_vec().is_empty());
    assert!(cri::PodSandboxConfig::default().encode_to_vec().is_empty());
}

#[test]
fn descriptors_and_files_have_all_protocols() {
    let has = |name: &[u8]| FILE_DESCRIPTOR_SET.windows(name.len()).any(|found| found == name);
    for package in ["containerd.task.v2", "containerd.task.v3", "containerd.runtime.sandbox.v1"] {
        assert!(has(package.as_bytes()), "{package}");
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    assert_eq!(FILES.len(), std::fs::read_dir(folder).unwrap().count());
    assert_eq!(<TaskExit as Event>::TOPIC, "/tasks/exit");
}

/// Keeps the namespaces that it is called for.
struct Events(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl publish::Events for Events {
    async fn forward(&self, ctx: &Context, _: publish::ForwardRequest) -> Result<(), Status> {
        self.0.lock().unwrap().push(namespace::of(ctx).unwrap_or("none").to_owned());
        Ok(())
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_client_says_its_namespace_with_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("s").to_str().unwrap().to_owned();
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let server = Server::builder().add_service(publish::EventsServer::new(Events(heard.clone())));
    let serving = tokio::spawn(server.bind(&address).unwrap().serve());
    let client = Client::connect(&address).await.unwrap();
    let in_pods = client.clone().with_interceptor(Namespace::new("k8s.io"));
    for client in [client.clone(), in_pods] {
        publish::EventsClient::new(client)
            .forward(publish::ForwardRequest::default())
            .await
            .unwrap();
    }
    assert_eq!(*heard.lock().unwrap(), ["none", "k8s.io"]);
    // It serves no tasks, in either version.
    for (version, name) in [(2, v2::TaskClient::NAME), (3, v3::TaskClient::NAME)] {
        let tasks = Tasks::new(client.clone(), version);
        let refused = tasks.connect(v3::ConnectRequest::default()).await.unwrap_err();
        assert!(refused.message().contains(name), "{refused}");
    }
    serving.abort();
}

#[test]
fn the_descriptors_of_a_shim_are_those_of_what_it_serves_without_usual_names_in_json() {
    let has =
        |set: &[u8], name: &str| set.windows(name.len()).any(|found| found == name.as_bytes());
    for served in ["containerd.task.v2", "containerd.runtime.sandbox.v1", "SandboxStatusRequest"] {
        assert!(has(SHIM_FILE_DESCRIPTOR_SET, served), "{served}");
    }
    for left_out in ["TaskExecAdded", "BootstrapParams", "execId", "exitStatus"] {
        assert!(has(FILE_DESCRIPTOR_SET, left_out), "{left_out}");
        assert!(!has(SHIM_FILE_DESCRIPTOR_SET, left_out), "{left_out}");
    }
}
