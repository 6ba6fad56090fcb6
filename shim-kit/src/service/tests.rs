//! The service with a runtime whose containers are shells: no containerd, no runc, no mounts.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex as StdMutex,
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
    time::timeout,
};
use ttrpc::{Any, Code};

use super::*;
use crate::{
    descriptors,
    launch::Launch,
    proto::types,
    reaper,
    runtime::{New, Remains},
    started::{Handle, Started},
};

/// Far more than anything here takes, on a machine that is busy with other things.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A container whose first process is a shell that waits for the word to start.
pub(crate) struct Shell {
    pid: rustix::process::Pid,
    folder: PathBuf,
    gate: StdMutex<Option<fs::File>>,
    start_hangs: bool,
}

/// Runs a program that does not end by itself, and says so by a file.
async fn hang(launch: &Launch, folder: &Path) -> Status {
    let child = match launch.reaper().spawn(Command::new("sleep").arg("100000")).await {
        Ok(child) => child,
        Err(error) => return Status::unknown(error.to_string()),
    };
    fs::write(folder.join("hangs"), "").unwrap();
    let exit = child.exit().await.unwrap();
    Status::unknown(format!("the program ended with {}", exit.status))
}

#[async_trait]
impl Runtime for Shell {
    type Options = ();
    const VERSION: &'static str = "1.2.3";

    async fn create(
        new: New<'_, ()>,
        launch: &mut Launch,
    ) -> Result<(Shell, Option<Started>), Status> {
        let script = new.bundle.spec().unwrap().json()["script"].as_str().unwrap().to_owned();
        if script == "fails" {
            return Err(Status::unknown("as it should"));
        }
        assert_ne!(script, "panics", "as it should");
        if script == "create hangs" {
            return Err(hang(launch, new.bundle.path()).await);
        }
        let mut handle = None;
        if script.starts_with("inside") {
            // Something in the shim itself, which ends when it is killed.
            launch.set_cgroup("a-group-that-the-runtime-names");
            let folder = new.bundle.path().to_owned();
            let ended = async move {
                while !folder.join("all-killed").exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Exit::now(7)
            };
            handle = Some(Started::from(Handle::new(4_000_002, ended)));
        }
        let (reader, writer) = std::io::pipe().unwrap();
        let stdio = launch.pipes((0, 0)).await?;
        let mut command = Command::new("sh");
        descriptors::pass(&mut command, [reader.into()]).unwrap();
        // The gate is opened by closing it.
        command.args(["-c", &format!("read _ <&3; exec 3<&-; {script}")]);
        command.stdin(stdio.stdin).stdout(stdio.stdout).stderr(stdio.stderr);
        let child = launch.reaper().spawn(&mut command).await.unwrap();
        let gate = StdMutex::new(Some(std::os::fd::OwnedFd::from(writer).into()));
        let folder = new.bundle.path().to_owned();
        let start_hangs = script == "start hangs";
        let started = handle.unwrap_or_else(|| child.pid.into());
        Ok((Shell { pid: child.pid, folder, gate, start_hangs }, Some(started)))
    }

    async fn start(&self, launch: &mut Launch) -> Result<Option<Started>, Status> {
        if self.start_hangs {
            return Err(hang(launch, &self.folder).await);
        }
        drop(self.gate.lock().unwrap().take());
        Ok(None)
    }

    async fn exec(&self, spec: &[u8], launch: &mut Launch) -> Result<Started, Status> {
        assert_ne!(spec, br#"{"panics":true}"#, "as it should");
        match spec {
            br#"{"hangs":true}"# => Err(hang(launch, &self.folder).await),
            // Something in the shim itself, which says a word and ends with the number of its signal.
            br#"{"inside":true}"# => {
                let stdout = launch.pipes((0, 0)).await?.stdout;
                let (kill, mut killed) = tokio::sync::watch::channel(0);
                let ended = async move {
                    fs::File::from(stdout).write_all(b"said").unwrap();
                    Exit::now(128 + *killed.wait_for(|signal| *signal != 0).await.unwrap())
                };
                let handle = Handle::new(4_000_001, ended).with_kill(move |signal| {
                    kill.send_replace(signal);
                    Ok(())
                });
                Ok(handle.into())
            }
            _ => Err(Status::unimplemented("this runtime has no exec")),
        }
    }

    async fn kill(&self, signal: u32, all: bool) -> Result<(), Status> {
        if all {
            fs::write(self.folder.join("all-killed"), "").unwrap();
        }
        descriptors::kill(self.pid, signal).map_err(|_| Status::not_found("gone"))
    }

    async fn delete(&self) -> Result<(), Status> {
        // The kit runs no more programs for a container that is deleted, nor does this want to be asked again.
        assert!(!self.folder.join("deleted").exists(), "it was deleted before");
        match fs::remove_file(self.folder.join("delete-fails")) {
            Ok(()) => Err(Status::unknown("as it should")),
            Err(_) => {
                fs::write(self.folder.join("deleted"), "").unwrap();
                Ok(())
            }
        }
    }

    fn clean_up(_: Remains<'_, ()>) -> Result<(), String> {
        Ok(())
    }
}

/// A service, with children that are collected, and a bundle.
pub(crate) struct Fixture {
    pub service: TaskService<Shell>,
    pub folder: tempfile::TempDir,
    collecting: JoinHandle<()>,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Fixture {
    /// It waits for readers and execs however long the machine takes.
    pub async fn new() -> Fixture {
        let alone = reaper::COLLECTING.lock().await;
        let shim = Shim::new("default", LONG);
        let mut children = signal(SignalKind::child()).unwrap();
        let reaper = shim.reaper.clone();
        let collecting = tokio::spawn(async move {
            while children.recv().await.is_some() {
                reaper.collect();
            }
        });
        let service = TaskService::new(shim, CancellationToken::new());
        Fixture { service, folder: tempfile::tempdir().unwrap(), collecting, _alone: alone }
    }

    pub fn request(&self, script: &str) -> CreateTaskRequest {
        let spec =
            serde_json::json!({ "script": script, "linux": {"namespaces": [{"type": "pid"}]} });
        fs::write(self.folder.path().join("config.json"), spec.to_string()).unwrap();
        CreateTaskRequest {
            id: "c1".to_owned(),
            bundle: self.folder.path().to_str().unwrap().to_owned(),
            ..Default::default()
        }
    }

    pub async fn run(&self, script: &str) -> Result<u32, Status> {
        self.service.create(self.request(script)).await?;
        let request = StartRequest { id: "c1".to_owned(), ..Default::default() };
        self.service.start(request).await.map(|response| response.pid)
    }

    pub async fn wait(&self) -> WaitResponse {
        let request = WaitRequest { id: "c1".to_owned(), ..Default::default() };
        timeout(LONG, self.service.wait(request)).await.unwrap().unwrap()
    }

    async fn status(&self) -> types::Status {
        let request = StateRequest { id: "c1".to_owned(), ..Default::default() };
        self.service.state(request).await.unwrap().status()
    }

    pub async fn delete(&self) -> Result<DeleteResponse, Status> {
        let request = DeleteRequest { id: "c1".to_owned(), ..Default::default() };
        timeout(LONG, self.service.delete(request)).await.unwrap()
    }

    /// Waits until a program of the runtime's hangs.
    async fn hangs(&self) {
        let hangs = self.folder.path().join("hangs");
        let begun = async {
            while !hangs.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, begun).await.unwrap();
    }

    async fn kill(&self) -> Result<(), Status> {
        let request = KillRequest { id: "c1".to_owned(), signal: 9, ..Default::default() };
        self.service.kill(request).await
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.collecting.abort();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_container_lives_and_its_events_are_in_order() {
    let fixture = Fixture::new().await;
    let pid = fixture.run("exit 7").await.unwrap();
    assert_eq!(fixture.wait().await.exit_status, 7);
    assert_eq!(fixture.status().await, types::Status::Stopped);
    let deleted = fixture.delete().await.unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (pid, 7));
    assert_eq!(
        fixture.service.shim.outbox.topics(),
        ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"]
    );
    fixture.service.shutdown(ShutdownRequest::default()).await.unwrap();
    let request = StateRequest { id: "c1".to_owned(), ..Default::default() };
    assert_eq!(fixture.service.state(request).await.unwrap_err().code(), Code::NotFound);
}

/// The specification was believed, which asks for a pid namespace that this runtime does not make: execs
/// outlived their container.
#[tokio::test(flavor = "current_thread")]
async fn what_a_container_leaves_behind_is_ended_where_the_kernel_does_not() {
    let fixture = Fixture::new().await;
    fixture.run("exit 0").await.unwrap();
    fixture.wait().await;
    assert!(fixture.folder.path().join("all-killed").exists());
}

#[tokio::test(flavor = "current_thread")]
async fn an_id_is_taken_once_and_free_again_after_a_failure() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.run("fails").await.unwrap_err().message(), "as it should");
    fixture.run("exec sleep 1000").await.unwrap();
    let again = fixture.service.create(fixture.request("exit")).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    let twice = StartRequest { id: "c1".to_owned(), ..Default::default() };
    assert_eq!(fixture.service.start(twice).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(fixture.delete().await.unwrap_err().code(), Code::FailedPrecondition);
    fixture.kill().await.unwrap();
    assert_eq!(fixture.wait().await.exit_status, 128 + 9);
    assert_eq!(fixture.kill().await.unwrap_err().code(), Code::NotFound);
    fixture.delete().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_container_that_was_never_started_is_deleted() {
    let fixture = Fixture::new().await;
    fixture.service.create(fixture.request("exec sleep 1000")).await.unwrap();
    assert_eq!(fixture.status().await, types::Status::Created);
    assert_eq!(fixture.delete().await.unwrap().exit_status, 128 + 9);
}

/// STOPPED was held back for 20 s by a reader that stood still.
#[tokio::test(flavor = "current_thread")]
async fn a_container_is_stopped_at_once_and_its_exit_told_within_the_patience() {
    let mut fixture = Fixture::new().await;
    fixture.service.shim.patience = Duration::from_secs(3600);
    let path = fixture.folder.path().join("stdout");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    // It reads nothing.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let stdout = path.to_str().unwrap().to_owned();
    let request = CreateTaskRequest { stdout, ..fixture.request("echo said; exit 3") };
    fixture.service.create(request).await.unwrap();
    let start = StartRequest { id: "c1".to_owned(), ..Default::default() };
    fixture.service.start(start).await.unwrap();
    let stopped = async {
        while fixture.status().await != types::Status::Stopped {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, stopped).await.unwrap();
    assert_eq!(fixture.service.shim.outbox.topics().last().unwrap(), "/tasks/start");
    // Its reader leaves, so that nobody is waited for any more.
    drop(reader);
    assert_eq!(fixture.wait().await.exit_status, 3);
    fixture.delete().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_runtime_does_not_do_or_understand_is_said() {
    let fixture = Fixture::new().await;
    let options = Some(Any { type_url: "a.v1.Options".to_owned(), value: vec![] });
    let request = CreateTaskRequest { options, ..fixture.request("exit") };
    let refused = fixture.service.create(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("a.v1.Options"), "{refused}");

    fixture.run("exec sleep 1000").await.unwrap();
    let id = || "c1".to_owned();
    let pause = fixture.service.pause(PauseRequest { id: id() }).await.unwrap_err();
    assert_eq!(pause.code(), Code::Unimplemented);
    assert_eq!(fixture.status().await, types::Status::Running);
    let spec = Any { type_url: String::new(), value: b"{}".to_vec() };
    let exec = ExecProcessRequest {
        id: id(),
        exec_id: "e1".to_owned(),
        spec: Some(spec),
        ..Default::default()
    };
    fixture.service.exec(exec).await.unwrap();
    let start = StartRequest { id: id(), exec_id: "e1".to_owned() };
    assert_eq!(fixture.service.start(start).await.unwrap_err().code(), Code::Unimplemented);
    // Who waits for it does not wait for ever.
    let wait = WaitRequest { id: id(), exec_id: "e1".to_owned() };
    assert_eq!(fixture.service.wait(wait).await.unwrap().exit_status, 255);
    // containerd's own tests ask for this, and for what follows.
    let request = StateRequest { id: id(), exec_id: "e1".to_owned() };
    assert_eq!(fixture.service.state(request).await.unwrap().status(), types::Status::Created);
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
    assert!(fixture.service.shim.outbox.topics().contains(&"/tasks/exec-added".to_owned()));
}

/// It was 255; containerd's own tests ask for what its shim says.
#[tokio::test(flavor = "current_thread")]
async fn an_exec_that_was_never_started_is_deleted_without_a_failure() {
    let fixture = Fixture::new().await;
    fixture.run("exec sleep 1000").await.unwrap();
    let spec = Some(Any { type_url: String::new(), value: b"{}".to_vec() });
    let (id, exec_id) = ("c1".to_owned(), "e1".to_owned());
    let exec = ExecProcessRequest { id, exec_id, spec, ..ExecProcessRequest::default() };
    fixture.service.exec(exec).await.unwrap();
    let delete = DeleteRequest { id: "c1".to_owned(), exec_id: "e1".to_owned() };
    let deleted = fixture.service.delete(delete).await.unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (0, 0));
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn an_exec_of_a_container_that_has_stopped_is_not_started() {
    let fixture = Fixture::new().await;
    fixture.run("exec sleep 1000").await.unwrap();
    let spec = Some(Any { type_url: String::new(), value: b"{}".to_vec() });
    let (id, exec_id) = ("c1".to_owned(), "e1".to_owned());
    let exec = ExecProcessRequest { id, exec_id, spec, ..ExecProcessRequest::default() };
    fixture.service.exec(exec).await.unwrap();
    fixture.kill().await.unwrap();
    fixture.wait().await;
    let start = StartRequest { id: "c1".to_owned(), exec_id: "e1".to_owned() };
    let refused = fixture.service.start(start).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("init process is not running"), "{refused}");
    let request = StateRequest { id: "c1".to_owned(), exec_id: "e1".to_owned() };
    assert_eq!(fixture.service.state(request).await.unwrap().status(), types::Status::Created);
    fixture.delete().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_shim_ends_when_it_is_told_to_and_has_no_containers() {
    let fixture = Fixture::new().await;
    fixture.run("exec sleep 1000").await.unwrap();
    fixture.service.shutdown(ShutdownRequest::default()).await.unwrap();
    assert!(!fixture.service.shutdown.is_cancelled());
    assert!(fixture.service.to_string().contains("container c1: RUNNING"));
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
    fixture.service.shutdown(ShutdownRequest::default()).await.unwrap();
    assert!(fixture.service.shutdown.is_cancelled());
}

/// The client of a creation that hung was gone. containerd deleted the container, was told that there
/// was none, and left a shim and its program behind for ever.
#[tokio::test(flavor = "current_thread")]
async fn a_creation_that_hangs_is_ended_by_delete() {
    let fixture = Fixture::new().await;
    let (service, request) = (fixture.service.clone(), fixture.request("create hangs"));
    let creating = tokio::spawn(async move { service.create(request).await });
    fixture.hangs().await;
    assert_eq!(fixture.delete().await.unwrap_err().code(), Code::NotFound);
    assert!(fixture.service.containers().is_empty(), "the id is free");
    let failed = timeout(LONG, creating).await.unwrap().unwrap().unwrap_err();
    assert!(failed.message().contains("ended with 137"), "{failed}");
}

/// containerd was slower to make the container than its client to leave, and asked the shim to end
/// before the creation had failed: nobody asked again.
#[tokio::test(flavor = "current_thread")]
async fn a_shim_that_was_to_end_while_it_made_a_container_ends_when_that_fails() {
    let fixture = Fixture::new().await;
    let (service, request) = (fixture.service.clone(), fixture.request("create hangs"));
    let creating = tokio::spawn(async move { service.create(request).await });
    fixture.hangs().await;
    fixture.service.shutdown(ShutdownRequest::default()).await.unwrap();
    assert!(!fixture.service.shutdown.is_cancelled());
    let _ = fixture.delete().await;
    timeout(LONG, fixture.service.shutdown.cancelled()).await.unwrap();
    creating.await.unwrap().unwrap_err();
}

/// A program that hung outlived the container it was run for, and the shim with it; so did one whose turn came
/// only then.
#[tokio::test(flavor = "current_thread")]
async fn execs_that_hang_or_wait_end_with_their_container() {
    let mut fixture = Fixture::new().await;
    fixture.service.shim.patience = Duration::from_millis(300);
    fixture.run("exec sleep 1000").await.unwrap();
    // More than are made at a time.
    let count = 2 * std::thread::available_parallelism().unwrap().get() + 2;
    let mut starting = Vec::new();
    for number in 0..count {
        let spec = Some(Any { type_url: String::new(), value: br#"{"hangs":true}"#.to_vec() });
        let (id, exec_id) = ("c1".to_owned(), format!("e{number}"));
        let start = StartRequest { id: id.clone(), exec_id: exec_id.clone() };
        let exec = ExecProcessRequest { id, exec_id, spec, ..ExecProcessRequest::default() };
        fixture.service.exec(exec).await.unwrap();
        let service = fixture.service.clone();
        starting.push(tokio::spawn(async move { service.start(start).await }));
    }
    fixture.hangs().await;
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
    for start in starting {
        timeout(LONG, start).await.unwrap().unwrap().unwrap_err();
    }
    assert_eq!(fixture.service.shim.reaper.counts().0, 0);
}

/// The exit of a container that was killed while its start hung was never told.
#[tokio::test(flavor = "current_thread")]
async fn a_start_that_hangs_does_not_hold_back_the_end_for_ever() {
    let mut fixture = Fixture::new().await;
    fixture.service.shim.start_after_end = Duration::from_millis(300);
    fixture.service.create(fixture.request("start hangs")).await.unwrap();
    let service = fixture.service.clone();
    let start = StartRequest { id: "c1".to_owned(), ..StartRequest::default() };
    let starting = tokio::spawn(async move { service.start(start).await });
    fixture.hangs().await;
    fixture.kill().await.unwrap();
    assert_eq!(fixture.wait().await.exit_status, 128 + 9);
    timeout(LONG, starting).await.unwrap().unwrap().unwrap_err();
    fixture.delete().await.unwrap();
}

/// Two calls at once deleted the container twice, and told so twice.
#[tokio::test(flavor = "current_thread")]
async fn a_container_is_deleted_once() {
    let fixture = Fixture::new().await;
    fixture.run("exit 0").await.unwrap();
    fixture.wait().await;
    let (one, two) = tokio::join!(fixture.delete(), fixture.delete());
    assert_eq!(one.unwrap(), two.unwrap());
    let topics = fixture.service.shim.outbox.topics();
    assert_eq!(topics.iter().filter(|topic| *topic == "/tasks/delete").count(), 1);
}

/// `Remains::pid` was nothing unless the runtime had written a file that the kit named.
#[tokio::test(flavor = "current_thread")]
async fn the_first_process_is_kept_for_who_cleans_up() {
    let fixture = Fixture::new().await;
    let pid = fixture.run("exec sleep 1000").await.unwrap();
    let kept = Bundle::new(fixture.folder.path()).pid().unwrap();
    assert_eq!(kept.as_raw_nonzero().get().unsigned_abs(), pid);
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

/// A deletion that failed since the root file system was in use could never succeed: its container was deleted.
#[tokio::test(flavor = "current_thread")]
async fn a_deletion_goes_on_where_it_failed() {
    let fixture = Fixture::new().await;
    let folder = fixture.folder.path();
    let tmpfs =
        types::Mount { r#type: "tmpfs".to_owned(), source: "t".to_owned(), ..Default::default() };
    let below = types::Mount { target: "/data".to_owned(), ..tmpfs.clone() };
    let mut request = fixture.request("exit 7");
    request.rootfs = vec![tmpfs];
    match fixture.service.create(request.clone()).await {
        Err(status) if status.message().contains("not permitted") => {
            println!("skipped: {status}");
            return;
        }
        created => drop(created.unwrap()),
    }
    // As an rbind of a tree would have.
    let rootfs = folder.join("rootfs");
    fs::create_dir(rootfs.join("data")).unwrap();
    crate::mount::mount_all(&[below], &rootfs, &fixture.service.shim.reaper).await.unwrap();
    fixture
        .service
        .start(StartRequest { id: "c1".to_owned(), ..Default::default() })
        .await
        .unwrap();
    fixture.wait().await;

    fs::write(folder.join("delete-fails"), "").unwrap();
    assert_eq!(fixture.delete().await.unwrap_err().message(), "as it should");
    let in_use = fs::File::create(rootfs.join("data/file")).unwrap();
    let busy = fixture.delete().await.unwrap_err();
    assert!(busy.message().contains("cannot unmount the rootfs"), "{busy}");
    assert_eq!(fixture.status().await, types::Status::Stopped);
    drop(in_use);
    assert_eq!(fixture.delete().await.unwrap().exit_status, 7);
    fs::remove_dir(rootfs).unwrap();
    let topics = fixture.service.shim.outbox.topics();
    assert_eq!(topics.iter().filter(|topic| *topic == "/tasks/delete").count(), 1);
}

/// A containerd that was killed while it deleted a container could use its id no more.
#[tokio::test(flavor = "current_thread")]
async fn a_container_that_is_deleted_can_be_asked_for_until_the_shim_is_to_shut_down() {
    let fixture = Fixture::new().await;
    let service = &fixture.service;
    let pid = fixture.run("exit 7").await.unwrap();
    fixture.wait().await;
    let deleted = fixture.delete().await.unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (pid, 7));
    assert_eq!(fixture.status().await, types::Status::Stopped);
    assert_eq!(fixture.wait().await.exit_status, 7);
    assert_eq!(fixture.delete().await.unwrap(), deleted);
    assert_eq!(fixture.kill().await.unwrap_err().code(), Code::NotFound);

    // Another container's is no word on this one.
    let shutdown =
        |id: &str| service.shutdown(ShutdownRequest { id: id.to_owned(), ..Default::default() });
    shutdown("c2").await.unwrap();
    assert_eq!(fixture.delete().await.unwrap(), deleted);
    // The id may be used again.
    fs::remove_file(fixture.folder.path().join("deleted")).unwrap();
    fixture.run("exit 8").await.unwrap();
    assert_eq!(fixture.wait().await.exit_status, 8);
    fixture.delete().await.unwrap();
    assert_eq!(service.shim.outbox.topics().len(), 8, "no event comes twice");
    shutdown("c1").await.unwrap();
    assert_eq!(fixture.delete().await.unwrap_err().code(), Code::NotFound);
    assert!(service.shutdown.is_cancelled());
}

/// `../../x` was taken.
#[tokio::test(flavor = "current_thread")]
async fn ids_that_containerd_would_refuse_are_refused() {
    let fixture = Fixture::new().await;
    let request = CreateTaskRequest { id: "../c1".to_owned(), ..fixture.request("exit 0") };
    let refused = fixture.service.create(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    fixture.run("exec sleep 1000").await.unwrap();
    for exec_id in ["../../x", "a/b", ""] {
        let spec = Some(Any { type_url: String::new(), value: b"{}".to_vec() });
        let (id, exec_id) = ("c1".to_owned(), exec_id.to_owned());
        let exec = ExecProcessRequest { id, exec_id, spec, ..ExecProcessRequest::default() };
        let refused = fixture.service.exec(exec).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

/// Who waited for the process waited for ever, and a sandbox's place stayed taken.
#[tokio::test(flavor = "current_thread")]
async fn a_runtime_that_panics_has_failed() {
    let fixture = Fixture::new().await;
    let refused = fixture.run("panics").await.unwrap_err();
    assert!(refused.message().contains("as it should"), "{refused}");
    fixture.run("exec sleep 1000").await.unwrap();
    let spec = Some(Any { type_url: String::new(), value: br#"{"panics":true}"#.to_vec() });
    let (id, exec_id) = ("c1".to_owned(), "e1".to_owned());
    let exec = ExecProcessRequest { id, exec_id, spec, ..ExecProcessRequest::default() };
    fixture.service.exec(exec).await.unwrap();
    let start = StartRequest { id: "c1".to_owned(), exec_id: "e1".to_owned() };
    let refused = fixture.service.start(start).await.unwrap_err();
    assert!(refused.message().contains("as it should"), "{refused}");
    let wait = WaitRequest { id: "c1".to_owned(), exec_id: "e1".to_owned() };
    let told = timeout(LONG, fixture.service.wait(wait)).await.unwrap();
    assert_eq!(told.unwrap().exit_status, 255);
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

/// One container's output at a FIFO that nobody reads stopped the shim of the whole pod.
#[tokio::test(flavor = "current_thread")]
async fn an_output_that_nobody_takes_keeps_no_call_waiting() {
    let mut fixture = Fixture::new().await;
    fixture.service.shim.patience = Duration::from_millis(300);
    let path = fixture.folder.path().join("a fifo");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    let stdout = format!("file://{}", path.to_str().unwrap().replace(' ', "%20"));
    let script = "while :; do echo said; done";
    let request = CreateTaskRequest { stdout, ..fixture.request(script) };
    fixture.service.create(request).await.unwrap();
    fixture
        .service
        .start(StartRequest { id: "c1".to_owned(), ..Default::default() })
        .await
        .unwrap();
    let fifo = fs::File::options().read(true).write(true).open(&path).unwrap();
    let begun = async {
        while rustix::io::ioctl_fionread(&fifo).unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, begun).await.unwrap();
    assert_eq!(fixture.status().await, types::Status::Running);
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

/// Runtimes whose processes are no children of the shim's could not use the kit.
#[tokio::test(flavor = "current_thread")]
async fn what_is_no_child_of_the_shims_runs_is_signalled_and_ends() {
    let fixture = Fixture::new().await;
    let stdout = fixture.folder.path().join("said").to_str().unwrap().to_owned();
    fs::write(&stdout, "").unwrap();
    fixture.run("exec sleep 1000").await.unwrap();
    let spec = Some(Any { type_url: String::new(), value: br#"{"inside":true}"#.to_vec() });
    let (id, exec_id) = ("c1".to_owned(), "e1".to_owned());
    let exec = ExecProcessRequest {
        id: id.clone(),
        exec_id: exec_id.clone(),
        spec,
        stdout: stdout.clone(),
        ..ExecProcessRequest::default()
    };
    fixture.service.exec(exec).await.unwrap();
    let start = StartRequest { id: id.clone(), exec_id: exec_id.clone() };
    assert_eq!(fixture.service.start(start).await.unwrap().pid, 4_000_001);
    let kill = KillRequest { id: id.clone(), exec_id: exec_id.clone(), signal: 15, all: false };
    fixture.service.kill(kill).await.unwrap();
    let wait = WaitRequest { id, exec_id };
    let told = timeout(LONG, fixture.service.wait(wait)).await.unwrap().unwrap();
    assert_eq!(told.exit_status, 128 + 15);
    assert_eq!(fs::read_to_string(stdout).unwrap(), "said");
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}

/// The end of a virtual machine, or of a module in the shim, is seen by no reaper. Its group is the one that the runtime
/// has named.
#[tokio::test(flavor = "current_thread")]
async fn a_container_whose_first_process_is_no_child_of_the_shims_lives_and_ends() {
    let fixture = Fixture::new().await;
    let script = "inside() { :; }; exec sleep 100000";
    assert_eq!(fixture.run(script).await.unwrap(), 4_000_002);
    assert_eq!(fixture.status().await, types::Status::Running);
    let request = StatsRequest { id: "c1".to_owned() };
    let stats = fixture.service.stats(request).await.unwrap().stats.unwrap();
    assert!(stats.type_url.starts_with("io.containerd.cgroups."), "{}", stats.type_url);
    let request =
        KillRequest { id: "c1".to_owned(), signal: 9, all: true, ..KillRequest::default() };
    fixture.service.kill(request).await.unwrap();
    assert_eq!(fixture.wait().await.exit_status, 7);
    assert_eq!(fixture.status().await, types::Status::Stopped);
    let deleted = fixture.delete().await.unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (4_000_002, 7));
}

/// A FIFO where none is opened without waiting for the file system. `None` if there is no such place.
fn slow_fifo() -> Option<(tempfile::TempDir, String)> {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: nothing can be made in /dev/shm");
        return None;
    };
    let path = folder.path().join("stdin").to_str().unwrap().to_owned();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    Some((folder, path))
}

/// A client writes and closes as soon as Start is answered.
#[tokio::test(flavor = "current_thread")]
async fn stdin_has_a_reader_when_start_is_answered() {
    let Some((folder, stdin)) = slow_fifo() else { return };
    let output = folder.path().join("output");
    for _ in 0..20 {
        let fixture = Fixture::new().await;
        let script = format!("exec cat >{}", output.display());
        let request = CreateTaskRequest { stdin: stdin.clone(), ..fixture.request(&script) };
        fixture.service.create(request).await.unwrap();
        let request = StartRequest { id: "c1".to_owned(), ..Default::default() };
        fixture.service.start(request).await.unwrap();
        let mut client = fs::File::options().read(true).write(true).open(&stdin).unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let request = CloseIoRequest { id: "c1".to_owned(), stdin: true, ..Default::default() };
        fixture.service.close_io(request).await.unwrap();
        fixture.wait().await;
        assert_eq!(fs::read_to_string(&output).unwrap(), "hello");
        fixture.delete().await.unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_execs_stdin_has_a_reader_when_start_is_answered() {
    let Some((_folder, stdin)) = slow_fifo() else { return };
    let fixture = Fixture::new().await;
    fixture.run("exec sleep 1000").await.unwrap();
    for number in 0..20 {
        let spec = Some(Any { type_url: String::new(), value: br#"{"inside":true}"#.to_vec() });
        let (id, exec_id) = ("c1".to_owned(), format!("e{number}"));
        let exec = ExecProcessRequest {
            id: id.clone(),
            exec_id: exec_id.clone(),
            stdin: stdin.clone(),
            spec,
            ..ExecProcessRequest::default()
        };
        fixture.service.exec(exec).await.unwrap();
        let start = StartRequest { id: id.clone(), exec_id: exec_id.clone() };
        fixture.service.start(start).await.unwrap();
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::open(&stdin, flags, rustix::fs::Mode::empty()).unwrap();
        let kill = KillRequest { id: id.clone(), exec_id: exec_id.clone(), signal: 9, all: false };
        fixture.service.kill(kill).await.unwrap();
        fixture.service.wait(WaitRequest { id, exec_id }).await.unwrap();
    }
    fixture.kill().await.unwrap();
    fixture.wait().await;
    fixture.delete().await.unwrap();
}
