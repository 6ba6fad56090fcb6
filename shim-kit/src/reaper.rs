//! Children: starting them, and learning how they ended.
//!
//! The daemon is a subreaper. What runc leaves behind (a container's first process, every exec)
//! becomes its child, and the kernel tells of all ends with SIGCHLD alone. A process may end before
//! the shim has read its pid from runc's pid file, so an end that nobody waits for is kept as long
//! as something is being started that it could belong to.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::sync::oneshot;

use crate::{descriptors, spawn};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, or 128 and the signal's number.
    pub status: u32,
    /// The moment when its parent learned of it.
    pub at: SystemTime,
}

impl Exit {
    /// An end at this moment.
    pub fn now(status: u32) -> Exit {
        Exit { status, at: SystemTime::now() }
    }

    fn new(status: WaitStatus) -> Exit {
        let code = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 255,
        };
        Exit { status: u32::try_from(code).unwrap_or(255), at: SystemTime::now() }
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Child {
    /// Its pid, which is its own at least until its end is collected.
    pub pid: Pid,
    ended: Ended,
}

impl Child {
    /// Sends a signal, unless its end was waited for.
    ///
    /// # Errors
    /// Those of kill(2).
    pub(crate) fn kill(&self, signal: u32) -> io::Result<()> {
        match self.ended.is_empty() {
            true => descriptors::kill(self.pid, signal),
            false => Ok(()),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the reaper is gone.
    pub async fn exit(self) -> io::Result<Exit> {
        self.ended.await.map_err(|_| io::Error::other("the reaper is gone"))
    }
}

/// Resolves when the process has ended.
pub type Ended = oneshot::Receiver<Exit>;

/// Who waits for which pid, and which ends nobody has asked for yet. Pure: no process is touched.
#[derive(Debug, Default)]
struct Exits {
    /// Counts starts and ends, to tell which came first.
    now: u64,
    /// Starts under way, by when they began.
    starting: BTreeSet<u64>,
    /// With the family of each.
    waiting: HashMap<i32, (u64, oneshot::Sender<Exit>)>,
    /// Ends that may belong to a start under way, with when they came.
    unclaimed: HashMap<i32, (u64, Exit)>,
}

impl Exits {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn begin(&mut self) -> u64 {
        let began = self.tick();
        self.starting.insert(began);
        began
    }

    /// Forgets the ends that are older than every start under way.
    fn finish(&mut self, began: u64) {
        self.starting.remove(&began);
        match self.starting.first() {
            Some(oldest) => self.unclaimed.retain(|_, (came, _)| *came > *oldest),
            None => self.unclaimed.clear(),
        }
    }

    fn watch(&mut self, pid: i32, family: u64) -> Ended {
        let (sender, ended) = oneshot::channel();
        self.waiting.insert(pid, (family, sender));
        ended
    }

    /// Waits for a process that was started since `began`. An end that came before belonged to
    /// another process of the same pid.
    fn claim(&mut self, began: u64, pid: i32) -> Ended {
        match self.unclaimed.remove(&pid) {
            Some((came, exit)) if came > began => {
                let (sender, ended) = oneshot::channel();
                // The receiver is here.
                let _ = sender.send(exit);
                ended
            }
            _ => self.watch(pid, NO_FAMILY),
        }
    }

    fn report(&mut self, pid: i32, exit: Exit) {
        match self.waiting.remove(&pid) {
            // Nobody waits any more where the container was deleted meanwhile.
            Some((_, waiter)) => drop(waiter.send(exit)),
            None if self.starting.is_empty() => {}
            None => {
                let came = self.tick();
                self.unclaimed.insert(pid, (came, exit));
            }
        }
    }
}

/// That of children which are the shim's own, and of processes that others have made.
const NO_FAMILY: u64 = 0;

/// Starts children and learns of their ends. Clones are the same reaper.
///
/// A container has a reaper of its own: what is started with it is killed when the container is deleted, also
/// while it is being made. So a program that hangs does not outlive what it was started for.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    exits: Arc<Mutex<Exits>>,
    family: u64,
    /// Whether this family has no more children.
    is_closed: Arc<AtomicBool>,
}

impl Reaper {
    fn exits(&self) -> MutexGuard<'_, Exits> {
        self.exits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reaper whose children are told apart from all others'.
    pub(crate) fn with_family(&self) -> Reaper {
        let family = self.exits().tick();
        Reaper { exits: self.exits.clone(), family, is_closed: Arc::default() }
    }

    /// Kills this family's children. From here on there are no others.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.kill_family(libc::SIGKILL.unsigned_abs());
    }

    /// Sends a signal to all children of this family that live. None of their pids can be another process's:
    /// their ends have not been collected.
    pub(crate) fn kill_family(&self, signal: u32) {
        for (pid, (family, _)) in &self.exits().waiting {
            if *family == self.family
                && let Some(pid) = Pid::from_raw(*pid)
            {
                // It may have ended.
                let _ = descriptors::kill(pid, signal);
            }
        }
    }

    /// Starts a child, and waits until it has become the program; the thread goes on meanwhile. If this is
    /// dropped the child goes its way.
    ///
    /// # Errors
    /// Those of starting a program, with its name; also if the container is deleted.
    pub async fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        descriptors::restore_limit(command);
        self.start(command).await.map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("cannot run {program}: {error}"))
        })
    }

    async fn start(&self, command: &mut Command) -> io::Result<Child> {
        let (child, report) = {
            // Held so that its end cannot be collected before it is waited for.
            let mut exits = self.exits();
            if self.is_closed.load(Ordering::Relaxed) {
                return Err(io::Error::other("its container is deleted"));
            }
            let (pid, report) = spawn::fork(command)?;
            (Child { pid, ended: exits.watch(pid.as_raw_nonzero().get(), self.family) }, report)
        };
        report.wait().await?;
        Ok(child)
    }

    /// Says that something is being started whose pid is not known yet.
    pub(crate) fn begin(&self) -> Starting {
        Starting { began: self.exits().begin(), reaper: self.clone() }
    }

    /// Collects all children that have ended. To be called on every SIGCHLD.
    pub(crate) fn collect(&self) {
        let mut exits = self.exits();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    exits.report(pid.as_raw_nonzero().get(), Exit::new(status));
                }
                Err(rustix::io::Errno::INTR) => {}
                // None has ended, or there is none.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Processes that are waited for, and ends that are kept for a start under way.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let exits = self.exits();
        (exits.waiting.len(), exits.unclaimed.len())
    }
}

/// Something is being started; ends are kept until this is dropped.
#[derive(Debug)]
pub(crate) struct Starting {
    began: u64,
    reaper: Reaper,
}

impl Starting {
    /// Waits for the process that was started, now that its pid is known.
    pub fn claim(&self, pid: Pid) -> Ended {
        self.reaper.exits().claim(self.began, pid.as_raw_nonzero().get())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.reaper.exits().finish(self.began);
    }
}

/// Held by a test that collects children: all children of a process are collected, so that one test
/// at a time may.
#[cfg(test)]
pub(crate) static COLLECTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::process::CommandExt,
    };

    use super::*;

    fn exit(status: u32) -> Exit {
        Exit { status, at: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn an_end_reaches_who_waits_for_the_pid() {
        let mut exits = Exits::default();
        let (mut one, mut two) = (exits.watch(1, 7), exits.watch(2, 7));
        exits.report(2, exit(7));
        assert_eq!(two.try_recv(), Ok(exit(7)));
        assert!(one.try_recv().is_err());
        exits.report(1, exit(0));
        assert_eq!(one.try_recv(), Ok(exit(0)));
        assert!(exits.waiting.is_empty());
    }

    #[test]
    fn an_end_before_the_pid_is_known_is_kept() {
        let mut exits = Exits::default();
        let began = exits.begin();
        exits.report(5, exit(3));
        assert_eq!(exits.claim(began, 5).try_recv(), Ok(exit(3)));
        exits.finish(began);
        assert!(exits.unclaimed.is_empty() && exits.waiting.is_empty());
    }

    #[test]
    fn an_end_from_before_the_start_belongs_to_another_process() {
        let mut exits = Exits::default();
        let other = exits.begin();
        exits.report(5, exit(1));
        let began = exits.begin();
        let mut ended = exits.claim(began, 5);
        assert!(ended.try_recv().is_err(), "the pid was used again");
        exits.report(5, exit(2));
        assert_eq!(ended.try_recv(), Ok(exit(2)));
        exits.finish(began);
        exits.finish(other);
    }

    #[test]
    fn ends_of_strangers_are_not_kept_for_ever() {
        let mut exits = Exits::default();
        exits.report(1, exit(0));
        assert!(exits.unclaimed.is_empty(), "nothing is being started");

        // Starts that overlap without end keep only what came since the oldest of them.
        let mut previous = exits.begin();
        for pid in 0..1000 {
            exits.report(pid, exit(0));
            let next = exits.begin();
            exits.finish(previous);
            previous = next;
            assert!(exits.unclaimed.len() <= 1);
        }
        exits.finish(previous);
        assert!(exits.unclaimed.is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn children_are_collected() {
        let _alone = COLLECTING.lock().await;
        let reaper = Reaper::default();
        let mut signals =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
        let child = reaper.spawn(Command::new("sh").args(["-c", "kill -9 $$"])).await.unwrap();
        let mut ended = std::pin::pin!(child.exit());
        let exit = loop {
            tokio::select! {
                _ = signals.recv() => reaper.collect(),
                exit = &mut ended => break exit.unwrap(),
            }
        };
        assert_eq!(exit.status, 128 + 9);
        assert_eq!(reaper.counts(), (0, 0));
    }

    /// What a child did before it became its program was waited for with everything else.
    #[allow(unsafe_code, reason = "a child is to wait before it starts")]
    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_is_slow_to_start_keeps_nobody_waiting() {
        let _alone = COLLECTING.lock().await;
        let (mut gate, mut open) = io::pipe().unwrap();
        let mut command = Command::new("true");
        // SAFETY: between fork and exec, system calls are made and nothing is allocated.
        unsafe { command.pre_exec(move || gate.read_exact(&mut [0])) };
        let reaper = Reaper::default();
        let mut signals =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
        let mut starting = std::pin::pin!(reaper.spawn(&mut command));
        tokio::select! {
            biased;
            _ = &mut starting => unreachable!("the gate is shut"),
            () = tokio::task::yield_now() => {}
        }
        open.write_all(&[0]).unwrap();
        let mut ended = std::pin::pin!(starting.await.unwrap().exit());
        let exit = loop {
            tokio::select! {
                _ = signals.recv() => reaper.collect(),
                exit = &mut ended => break exit.unwrap(),
            }
        };
        assert_eq!(exit.status, 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_family_is_killed_and_no_other() {
        let _alone = COLLECTING.lock().await;
        let reaper = Reaper::default();
        let (one, two) = (reaper.with_family(), reaper.with_family());
        let mut signals =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
        let sleep = || {
            let mut command = Command::new("sleep");
            command.arg("100000");
            command
        };
        let (killed, spared) =
            (one.spawn(&mut sleep()).await.unwrap(), two.spawn(&mut sleep()).await.unwrap());
        let own = reaper.spawn(&mut sleep()).await.unwrap();
        one.kill_family(9);
        let mut ended = std::pin::pin!(killed.exit());
        let exit = loop {
            tokio::select! {
                _ = signals.recv() => reaper.collect(),
                exit = &mut ended => break exit.unwrap(),
            }
        };
        assert_eq!(exit.status, 128 + 9);
        assert_eq!(reaper.counts().0, 2);
        one.close();
        let refused = one.clone().spawn(&mut sleep()).await.unwrap_err();
        assert!(refused.to_string().contains("its container is deleted"), "{refused}");
        for mut child in [spared, own] {
            assert!(child.ended.try_recv().is_err());
            descriptors::kill(child.pid, 9).unwrap();
            while child.ended.try_recv().is_err() {
                signals.recv().await;
                reaper.collect();
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_is_missing_is_named() {
        let _alone = COLLECTING.lock().await;
        let error = Reaper::default().spawn(&mut Command::new("/missing/runc")).await.unwrap_err();
        assert!(error.to_string().contains("cannot run /missing/runc"), "{error}");
    }
}
