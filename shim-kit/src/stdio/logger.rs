//! Output that goes to a program: `binary://` and `binary-v2://`.
//!
//! The program gets the process's stdout as descriptor 3 and its stderr as descriptor 4, and says on
//! descriptor 5 that it is ready: by closing it, and with `binary-v2` by writing a byte before. It
//! is told the container by `CONTAINER_ID` and `CONTAINER_NAMESPACE`. Its arguments are the URI's
//! query, each key followed by its value.
//!
//! It ends when it has read everything. One that is not ready in time is killed, and one that goes on after the
//! process was deleted is ended.

use std::{
    ffi::OsString,
    fs::File,
    os::fd::OwnedFd,
    pin::pin,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::timeout,
};
use ttrpc::Status;

use super::{Stage, deleted, nonblocking, pipe};
use crate::{
    descriptors,
    reaper::{Child, Reaper},
};

/// How long a logger may take until it is ready.
const READY: Duration = Duration::from_secs(10);
/// How long it may take to end once its process is deleted, and once it was asked to.
const LAST_WORDS: Duration = Duration::from_secs(12);

const TERM: u32 = libc::SIGTERM.unsigned_abs();
const KILL: u32 = libc::SIGKILL.unsigned_abs();

/// A logger, with its ends for the process.
#[derive(Debug)]
pub(crate) struct Logger {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub program: Child,
}

/// A program that takes output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: OsString,
    pub args: Vec<OsString>,
    /// Whether it has to say explicitly that it is ready.
    pub is_strict: bool,
}

impl Program {
    /// Starts the logger and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or ends or waits too long before it is ready.
    pub async fn start(self, reaper: &Reaper, namespace: &str, id: &str) -> Result<Logger, Status> {
        let (stdout_reader, stdout) = pipe((0, 0))?;
        let (stderr_reader, stderr) = pipe((0, 0))?;
        let (ready, ready_writer) = pipe((0, 0))?;
        let mut command = Command::new(&self.path);
        command.args(&self.args).env_clear();
        command.env("CONTAINER_ID", id).env("CONTAINER_NAMESPACE", namespace);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let unstarted = |error| Status::internal(format!("cannot start the logger: {error}"));
        descriptors::pass(&mut command, [stdout_reader, stderr_reader, ready_writer])
            .map_err(unstarted)?;
        let program = reaper.spawn(&mut command).await.map_err(unstarted)?;
        // The command holds the logger's ends.
        drop(command);
        let said = timeout(READY, read_byte(ready)).await;
        let fault = match said {
            Err(_) => "was not ready in 10 seconds".to_owned(),
            Ok(Err(error)) => format!("cannot be heard: {error}"),
            Ok(Ok(0)) if self.is_strict => "ended before it was ready".to_owned(),
            Ok(Ok(_)) => return Ok(Logger { stdout, stderr, program }),
        };
        // It may have ended.
        let _ = program.kill(KILL);
        Err(Status::internal(format!("the logger {} {fault}", self.path.display())))
    }
}

/// Waits until a logger has ended, and ends it if it goes on for long after its process was deleted.
pub(super) async fn see_off(program: Child, mut stage: watch::Receiver<Stage>) {
    let (pid, mut ended) = (program.pid, pin!(program.exit()));
    tokio::select! {
        biased;
        _ = &mut ended => return,
        () = deleted(&mut stage) => {}
    }
    for signal in [TERM, KILL] {
        if timeout(LAST_WORDS, &mut ended).await.is_ok() {
            return;
        }
        // Its end has not been collected, so that the pid is no other's.
        let _ = descriptors::kill(pid, signal);
    }
}

async fn read_byte(pipe: OwnedFd) -> std::io::Result<usize> {
    use std::io::Read;
    nonblocking(&pipe).map_err(|status| std::io::Error::other(status.to_string()))?;
    let pipe = descriptors::watch(File::from(pipe), Interest::READABLE)?;
    loop {
        let mut guard = pipe.readable().await?;
        if let Ok(read) = guard.try_io(|pipe: &AsyncFd<File>| pipe.get_ref().read(&mut [0])) {
            return read;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use super::*;
    use crate::reaper::COLLECTING;

    /// Far more than anything here takes, on a machine that is busy with other things.
    const LONG: Duration = Duration::from_secs(600);

    fn collect_all(reaper: &Reaper) {
        let begin = Instant::now();
        while reaper.counts().0 > 0 {
            assert!(begin.elapsed() < LONG, "a program goes on");
            thread::sleep(Duration::from_millis(5));
            reaper.collect();
        }
    }

    /// It was left behind for ever.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_logger_that_is_never_ready_is_killed() {
        let _alone = COLLECTING.lock().await;
        let reaper = Reaper::default();
        let args = vec!["100000".into()];
        let program = Program { path: "sleep".into(), args, is_strict: false };
        let refused = program.start(&reaper, "default", "c1").await.unwrap_err();
        assert!(refused.message().contains("the logger sleep was not ready"), "{refused}");
        collect_all(&reaper);
    }

    /// One that did not mind the end of what it read lived as long as the machine.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_logger_that_goes_on_is_ended() {
        let _alone = COLLECTING.lock().await;
        for script in ["exec sleep 100000", "trap '' TERM; exec sleep 100000"] {
            let reaper = Reaper::default();
            let program = reaper.spawn(Command::new("sh").args(["-c", script])).await.unwrap();
            let (tell, stage) = watch::channel(Stage::Running);
            let mut seen_off = tokio::spawn(see_off(program, stage));
            assert!(timeout(LONG, &mut seen_off).await.is_err(), "its process goes on");
            tell.send_replace(Stage::Deleted);
            seen_off.await.unwrap();
            collect_all(&reaper);
        }
    }
}
