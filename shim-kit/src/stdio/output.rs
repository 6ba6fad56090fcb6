//! The life of one of a process's outputs: while it runs, when it has ended, and afterwards.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    LET_GO_AFTER, Manner, Stage,
    copy::{Copy, Step},
    deleted, ended, made,
    sink::Sink,
};
use crate::{inotify::Inotify, log};

/// The pauses between looks at what a reader has left: nothing tells that a FIFO has become empty.
/// They double up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(50);
/// What is kept of an output while its process is made, in bytes. The process itself may have said it already, before
/// the shim knows its pid: none of that is lost.
const MAX_EARLY: usize = 4 << 20;
/// How long a program that makes a process is kept waiting when it has said so much. No process takes that long to
/// be made when it says something already. From then on, the last words are kept.
const PATIENCE_WHEN_FULL: Duration = Duration::from_secs(5);
const MAX_LAST_WORDS: usize = 64 << 10;
/// More than a terminal keeps for its master, which is some 12 KiB: whatever is behind that was
/// written after the session's leader had ended.
const MAX_REST_OF_TERMINAL: u64 = 64 << 10;

/// Where that is which a process that has ended has left to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// In the pipe, which says how much it is.
    InPipe,
    /// In the terminal, until it has nothing at the moment.
    OfTerminal,
}

/// How an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Copied, or deleted with its process.
    Done,
    /// Nobody read it while its process ran.
    LetGo,
}

/// One output.
#[derive(Debug)]
pub struct Output {
    pub copy: Copy,
    pub stage: watch::Receiver<Stage>,
    pub rest: Rest,
    pub manner: Manner,
    /// Tells of readers who come.
    pub readers: Inotify,
}

impl Output {
    /// Copies through all stages of the process. What is sent, or dropped, says that everything the
    /// process wrote is delivered or that the patience is over. `words` gets what was written if there is no process.
    pub async fn run(
        mut self,
        delivered: oneshot::Sender<()>,
        words: oneshot::Sender<Vec<u8>>,
    ) -> Fate {
        if !self.while_making().await {
            // Nobody may be interested.
            let _ = words.send(self.copy.last_words(MAX_LAST_WORDS));
            return Fate::Done;
        }
        drop(words);
        self.copy.note_fullness();
        let Some(mut last) = self.while_running().await else { return Fate::LetGo };
        let deadline = self.deadline();
        if last != Step::End {
            last = self.deliver(deadline).await;
        }
        self.taken(deadline).await;
        drop(delivered);
        self.afterwards(last).await;
        self.copy.sink.idle().await;
        Fate::Done
    }

    /// Reads while the process is made, so that the program which makes it can say as much as it wants. Says whether it
    /// was made.
    async fn while_making(&mut self) -> bool {
        let mut most = MAX_EARLY;
        loop {
            let is_full = self.copy.pending() >= most as u64 && most == MAX_EARLY;
            tokio::select! {
                biased;
                is_made = made(&mut self.stage) => return is_made,
                () = sleep(PATIENCE_WHEN_FULL), if is_full => {
                    log::warn("a program that makes a process says too much; most of it is lost");
                    most = MAX_LAST_WORDS;
                    self.copy.shorten(most);
                }
                goes_on = self.copy.keep(most), if !is_full => {
                    if !goes_on {
                        return made(&mut self.stage).await;
                    }
                }
            }
        }
    }

    /// Copies until the process or its output has ended; nothing if the output is let go.
    async fn while_running(&mut self) -> Option<Step> {
        // When it is looked whether anybody has the full FIFO of an exec open. Once somebody has,
        // the FIFO itself tells when nobody has any more.
        let mut look_at = None;
        let mut is_watched = false;
        loop {
            let never = Instant::now() + LET_GO_AFTER;
            tokio::select! {
                biased;
                () = ended(&mut self.stage) => return Some(Step::Copied),
                () = sleep_until(look_at.unwrap_or(never)), if look_at.is_some() => {
                    if !self.copy.sink.has_reader() {
                        return None;
                    }
                    (look_at, is_watched) = (None, true);
                    continue;
                }
                step = self.copy.step() => match step {
                    Step::Copied => {}
                    Step::End => return Some(Step::End),
                    // A logger that has died does not hang up the terminal.
                    Step::NoReader if matches!(self.copy.sink, Sink::Pipe(_)) => {
                        self.copy.discard();
                    }
                    Step::NoReader => {
                        self.copy.sink.hold();
                        is_watched = false;
                    }
                },
            }
            let is_full = self.copy.full_since.is_some() && !self.manner.is_lasting;
            look_at = (is_full && !is_watched).then(|| Instant::now() + LET_GO_AFTER);
        }
    }

    /// Until when the output may hold back the exit. A reader that stood still before has used up
    /// its patience, or some of it.
    fn deadline(&self) -> Instant {
        let patience = self.manner.patience;
        let deadline = match *self.stage.borrow() {
            Stage::Ended { deadline } => deadline,
            Stage::Making | Stage::Running => Instant::now() + patience,
            Stage::Failed | Stage::Deleted => Instant::now(),
        };
        let stalled = self.copy.full_since.map(|since| since + patience);
        stalled.map_or(deadline, |stalled| stalled.min(deadline))
    }

    /// Copies what a process that has ended left, as long as there is somebody to take it.
    async fn deliver(&mut self, deadline: Instant) -> Step {
        let in_source = match self.rest {
            Rest::InPipe => self.copy.source.left(),
            Rest::OfTerminal if self.source_has_bytes() => MAX_REST_OF_TERMINAL,
            Rest::OfTerminal => 0,
        };
        let goal = self.copy.copied + self.copy.pending() + in_source;
        if goal > self.copy.copied && !self.reader_is_there(deadline).await {
            return Step::NoReader;
        }
        while self.copy.copied < goal {
            let step = match self.copy.pending() {
                0 => self.copy.step_now(),
                _ => timeout_at(deadline, self.copy.step()).await.ok(),
            };
            match step {
                Some(Step::Copied) => {}
                Some(step) => return step,
                // The source has no more, or the reader has had its time.
                None => return Step::Copied,
            }
        }
        Step::Copied
    }

    /// Whether something can be read. A terminal that is asked passes on what it has kept back.
    fn source_has_bytes(&self) -> bool {
        let mut fds = [PollFd::new(&self.copy.source.file, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&at_once)).is_ok()
            && fds[0].revents().contains(PollFlags::IN)
    }

    /// Waits until the reader has taken everything: clients stop to read when they are told of the
    /// end, and what is in the FIFO then is lost.
    async fn taken(&mut self, deadline: Instant) {
        let mut pause = FIRST_LOOK;
        while self.copy.sink.left() > 0
            && Instant::now() < deadline
            && self.reader_is_there(deadline).await
        {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }

    /// Whether there is a reader, or one that was late has come. One that was there has left.
    async fn reader_is_there(&mut self, deadline: Instant) -> bool {
        let sink = &mut self.copy.sink;
        sink.has_reader()
            || (!sink.was_met()
                && timeout_at(deadline, sink.reader_comes(&self.readers)).await.is_ok()
                && sink.has_reader())
    }

    /// Goes on after the exit was told: others may write on, and a reader may come yet, until the
    /// process is deleted. What is in the FIFO lives as long as somebody has it open.
    async fn afterwards(&mut self, mut last: Step) {
        loop {
            let is_read = self.copy.sink.has_reader();
            match last {
                Step::End if is_read => return,
                Step::Copied if is_read => tokio::select! {
                    biased;
                    () = deleted(&mut self.stage) => return,
                    step = self.copy.step_while_read() => last = step,
                },
                Step::Copied | Step::End | Step::NoReader => {
                    if !self.wait_for_reader().await {
                        return;
                    }
                    if last == Step::NoReader {
                        last = Step::Copied;
                    }
                }
            }
        }
    }

    /// Waits for the next reader. Says no if there will be none.
    async fn wait_for_reader(&mut self) -> bool {
        let Manner { is_lasting, .. } = self.manner;
        let sink = &mut self.copy.sink;
        if matches!(sink, Sink::Pipe(_)) || (!is_lasting && sink.was_met()) {
            return false;
        }
        let never_met = Instant::now() + LET_GO_AFTER;
        tokio::select! {
            biased;
            () = deleted(&mut self.stage) => false,
            () = sleep_until(never_met), if !is_lasting => false,
            () = sink.reader_comes(&self.readers) => sink.has_reader(),
        }
    }
}
