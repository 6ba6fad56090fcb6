//! The server, and what happens to it.

use std::{collections::BTreeMap, env, fs, io, path::PathBuf, process::Command, time::Duration};

use tokio::{net::UnixStream, task::spawn_blocking, time::sleep};
use ttrpc_tests::process::Process;

/// The longest pause between two things that happen.
const CALM: u64 = 400;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Killed,
    /// It is told to end, and lets calls finish.
    Terminated,
    /// Another server takes its name, and its connections end later.
    Replaced,
    /// It goes on after a while, which may be longer than a keepalive waits.
    Stopped,
    StoppedAndKilled,
    /// It is stopped, and connections that nobody accepts fill its backlog.
    FullBacklog,
}

const EVENTS: [Event; 6] = [
    Event::Killed,
    Event::Terminated,
    Event::Replaced,
    Event::Stopped,
    Event::StoppedAndKilled,
    Event::FullBacklog,
];

/// The server that is mistreated.
pub struct Victim {
    command: Vec<String>,
    folder: PathBuf,
    process: Process,
    random: fastrand::Rng,
    happened: BTreeMap<Event, u32>,
    /// The most connections that waited in a backlog.
    backlog: usize,
}

impl Victim {
    pub async fn start(command: Vec<String>, random: fastrand::Rng) -> Result<Self, String> {
        let folder = env::temp_dir().join(format!("ttrpc-storm-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let process = start(&command, &folder, "server").await?;
        Ok(Victim { command, folder, process, random, happened: BTreeMap::new(), backlog: 0 })
    }

    pub fn address(&self) -> String {
        address(&self.folder, "server")
    }

    /// The ids that were executed.
    pub fn executed(&self) -> io::Result<Vec<u64>> {
        let bytes = fs::read(self.folder.join("executed"))?;
        Ok(bytes.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("8"))).collect())
    }

    pub fn report(&self) -> String {
        format!("{:?}, {} connections in a backlog", self.happened, self.backlog)
    }

    /// Leaves the server alone for a while, and then does something to it, after which it serves again.
    pub async fn mistreat(&mut self) -> Result<(), String> {
        sleep(Duration::from_millis(self.random.u64(0..CALM))).await;
        let event = EVENTS[self.random.usize(..EVENTS.len())];
        *self.happened.entry(event).or_default() += 1;
        match event {
            Event::Killed => self.process.kill(),
            Event::Terminated => {
                self.process.terminate();
                // It may have its own idea of what that means.
                for _ in 0..500 {
                    if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                        break;
                    }
                    sleep(Duration::from_millis(2)).await;
                }
                self.process.kill();
            }
            Event::Replaced => return self.replace().await,
            Event::Stopped => {
                self.process.stop();
                sleep(Duration::from_millis(self.random.u64(0..1500))).await;
                self.process.resume();
                return Ok(());
            }
            Event::StoppedAndKilled => {
                self.process.stop();
                sleep(Duration::from_millis(self.random.u64(0..1000))).await;
                self.process.kill();
            }
            Event::FullBacklog => return self.fill_backlog().await,
        }
        sleep(Duration::from_millis(self.random.u64(0..300))).await;
        self.process = start(&self.command, &self.folder, "server").await?;
        Ok(())
    }

    async fn replace(&mut self) -> Result<(), String> {
        let next = start(&self.command, &self.folder, "next").await?;
        let (from, to) = (self.folder.join("next"), self.folder.join("server"));
        fs::rename(from, to).map_err(|error| error.to_string())?;
        sleep(Duration::from_millis(self.random.u64(0..200))).await;
        self.process.kill();
        self.process = next;
        Ok(())
    }

    /// So that its clients find it full, their connections are broken by a kill.
    async fn fill_backlog(&mut self) -> Result<(), String> {
        let next = start(&self.command, &self.folder, "next").await?;
        next.stop();
        let path = self.folder.join("next");
        let mut waiting = Vec::new();
        while let Ok(connection) = UnixStream::connect(&path).await {
            waiting.push(connection);
        }
        self.backlog = self.backlog.max(waiting.len());
        fs::rename(&path, self.folder.join("server")).map_err(|error| error.to_string())?;
        self.process.kill();
        self.process = next;
        sleep(Duration::from_millis(self.random.u64(0..1000))).await;
        drop(waiting);
        self.process.resume();
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn address(folder: &std::path::Path, name: &str) -> String {
    format!("unix://{}", folder.join(name).display())
}

/// Starts a server, in place of one that is dead. Waits until it listens.
async fn start(
    command: &[String],
    folder: &std::path::Path,
    name: &str,
) -> Result<Process, String> {
    let _ = fs::remove_file(folder.join(name));
    let mut started = Command::new(&command[0]);
    started.args(&command[1..]).args(["--listen", &address(folder, name)]);
    started.arg("--executed").arg(folder.join("executed"));
    let started = spawn_blocking(move || Process::start_server(&mut started)).await;
    started.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
