//! The daemon as its supervisor and its clients see it: a socket that is passed, notifications, signals.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use tempfile::TempDir;
use ttrpc::{Client, client::ConnectOptions};

mod greeter {
    #![allow(dead_code, reason = "tests are clients")]
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{GreeterClient, HelloRequest};

/// Only where something hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name]).arg(pid.to_string()).status();
    assert!(sent.expect("there is kill").success());
}

/// What a supervisor has: a socket for notifications, and one to pass on.
struct Supervisor {
    folder: TempDir,
    notified: UnixDatagram,
}

impl Supervisor {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notified = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        notified.set_read_timeout(Some(PATIENCE)).unwrap();
        Supervisor { folder, notified }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("greeter.sock")
    }

    fn start(&self, command: &mut Command) -> Process {
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        Process(command.spawn().unwrap())
    }

    fn daemon(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_greeter-daemon"));
        command.arg("--address").arg(self.socket()).args(arguments);
        self.start(&mut command)
    }

    /// The next notification that contains this, whatever comes before it.
    fn expect(&self, text: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let len = self.notified.recv(&mut bytes).expect("it is notified");
            let said = String::from_utf8_lossy(&bytes[..len]).into_owned();
            if said.contains(text) {
                return said;
            }
        }
    }
}

async fn connect(socket: &Path) -> GreeterClient {
    let options = ConnectOptions::new().retry_for(PATIENCE);
    GreeterClient::new(options.connect(&socket.display().to_string()).await.unwrap())
}

async fn greet(greeter: &GreeterClient) -> String {
    let request = HelloRequest { name: "Ann".into() };
    greeter.say_hello(request).await.unwrap().message
}

#[tokio::test]
async fn it_reports_readiness_and_a_stop() {
    let supervisor = Supervisor::new();
    let mut daemon = supervisor.daemon(&[]);
    supervisor.expect("READY=1");
    let client = Client::connect(&supervisor.socket().display().to_string()).await.unwrap();
    assert_eq!(greet(&GreeterClient::new(client)).await, "Hello, Ann!");
    daemon.signal("TERM");
    supervisor.expect("STOPPING=1");
    assert!(daemon.0.wait().unwrap().success());
}

#[tokio::test]
async fn it_serves_the_socket_that_systemd_passes() {
    let activate = "systemd-socket-activate";
    if Command::new(activate).arg("--version").output().is_err() {
        println!("skipped: there is no {activate}");
        return;
    }
    let supervisor = Supervisor::new();
    let mut command = Command::new(activate);
    let daemon = env!("CARGO_BIN_EXE_greeter-daemon");
    command.arg("--listen").arg(supervisor.socket());
    command.args(["--fdname=greeter", "--setenv=NOTIFY_SOCKET", daemon]);
    let mut daemon = supervisor.start(&mut command);
    // The first client activates the daemon, whose process is then that of the tool.
    let greeter = connect(&supervisor.socket()).await;
    assert_eq!(greet(&greeter).await, "Hello, Ann!");
    supervisor.expect("READY=1");
    daemon.signal("TERM");
    assert!(daemon.0.wait().unwrap().success());
}

#[test]
fn the_watchdog_hears_of_it_while_it_answers_its_own_calls_and_not_when_it_is_stopped() {
    let supervisor = Supervisor::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_greeter-daemon"));
    command.arg("--address").arg(supervisor.socket()).env("WATCHDOG_USEC", "20000");
    let daemon = supervisor.start(&mut command);
    for _ in 0..3 {
        supervisor.expect("WATCHDOG=1");
    }
    // The control: a process that runs no task sends none. What it had sent before is read first.
    daemon.signal("STOP");
    supervisor.notified.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while supervisor.notified.recv(&mut [0; 64]).is_ok() {}
    supervisor.notified.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.signal("CONT");
    supervisor.expect("WATCHDOG=1");
}

#[tokio::test]
async fn a_reload_hands_the_socket_on_and_no_client_notices() {
    let supervisor = Supervisor::new();
    let mut daemon = supervisor.daemon(&[]);
    supervisor.expect("READY=1");
    let greeter = connect(&supervisor.socket()).await;
    assert_eq!(greet(&greeter).await, "Hello, Ann!");
    daemon.signal("HUP");
    supervisor.expect("RELOADING=1");
    let said = supervisor.expect("MAINPID=");
    let pid = said.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
    let successor: u32 = pid.parse().unwrap();
    assert_ne!(successor, daemon.0.id());
    assert!(daemon.0.wait().unwrap().success(), "the predecessor ends well");
    assert_eq!(greet(&connect(&supervisor.socket()).await).await, "Hello, Ann!");
    signal(successor, "TERM");
    supervisor.expect("STOPPING=1");
}

#[test]
fn prometheus_gets_its_metrics() {
    let supervisor = Supervisor::new();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _daemon = supervisor.daemon(&["--metrics", &port.to_string()]);
    supervisor.expect("READY=1");
    // The exporter starts after that.
    let mut http = loop {
        match TcpStream::connect(port) {
            Ok(http) => break http,
            Err(_) => std::thread::yield_now(),
        }
    };
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("ttrpc_calls_ended_total"), "{answer}");
}

#[test]
fn the_operators_page_shows_the_units() {
    let page = include_str!("../../../docs/operate/running.md");
    assert!(page.contains(include_str!("../systemd/greeter.socket")));
    assert!(page.contains(include_str!("../systemd/greeter.service")));
}
