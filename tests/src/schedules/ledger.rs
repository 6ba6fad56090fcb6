//! What observers are told while a schedule runs: every call that has begun ends once.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use ttrpc::{
    Code,
    observer::{CallEnd, CallInfo, ConnectionEnd, ConnectionInfo, EndCause, Observer, Side},
};

use super::play::Ending;

/// What is wrong with a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerFault {
    /// Nothing.
    None,
    /// It misses the ends of calls that their callers give up.
    MissesGivenUp,
    /// It takes each end by a deadline for two.
    RepeatsDeadlines,
}

/// The observer of all clients and of the server of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    sums: Arc<Mutex<Sums>>,
    fault: LedgerFault,
}

#[derive(Debug, Default)]
struct Sums {
    client: SideSums,
    server: SideSums,
    /// What may never happen, and has.
    wrong: Vec<String>,
}

#[derive(Debug, Default)]
struct SideSums {
    begun: usize,
    ended: usize,
    ended_well: usize,
    open: HashSet<usize>,
    connections_opened: usize,
    connections_closed: usize,
}

/// What the callers of a schedule know of their calls.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) made: AtomicUsize,
    pub(super) ended: AtomicUsize,
    pub(super) well: AtomicUsize,
    /// These may have ended well before.
    pub(super) dropped: AtomicUsize,
}

impl Counts {
    pub(super) fn end(&self, ending: &Ending) {
        self.ended.fetch_add(1, SeqCst);
        match ending {
            Ending::Well => self.well.fetch_add(1, SeqCst),
            Ending::Dropped => self.dropped.fetch_add(1, SeqCst),
            Ending::With(_) | Ending::Wrong(_) => 0,
        };
    }

    pub(super) fn are_quiet(&self) -> bool {
        self.made.load(SeqCst) == self.ended.load(SeqCst)
    }
}

/// What a call carries from its begin to its end.
struct Ticket(usize);

impl Sums {
    fn side(&mut self, side: Side) -> &mut SideSums {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn begin(&mut self, call: &CallInfo<'_>) {
        let sums = self.side(call.side);
        sums.begun += 1;
        let number = sums.begun;
        sums.open.insert(number);
        if call.extensions.insert(Ticket(number)).is_some() {
            self.wrong.push(format!("{:?} {} begins twice", call.side, call.method));
        }
    }

    fn end(&mut self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let ticket = call.extensions.get::<Ticket>();
        let sums = self.side(call.side);
        sums.ended += 1;
        sums.ended_well += usize::from(end.is_ok());
        if !ticket.is_some_and(|ticket| sums.open.remove(&ticket.0)) {
            self.wrong.push(format!("{:?} {} ends and was not open", call.side, call.method));
        }
        if !fits(end.code, end.cause) {
            let CallEnd { code, cause, .. } = end;
            self.wrong
                .push(format!("{:?} {} ends with {code} for {cause}", call.side, call.method));
        }
    }
}

/// Whether a call of a schedule may end with this code for this cause.
fn fits(code: Code, cause: EndCause) -> bool {
    match cause {
        EndCause::Replied => code == Code::Ok,
        EndCause::DeadlineHere | EndCause::DeadlineAtPeer => code == Code::DeadlineExceeded,
        // A client that is told of a server's limit, or a handler whose message found no room.
        EndCause::Failed | EndCause::Limit => code == Code::ResourceExhausted,
        EndCause::GivenUp => code == Code::Cancelled,
        _ => false,
    }
}

impl Observer for Ledger {
    fn connection_opened(&self, connection: &ConnectionInfo<'_>) {
        self.lock().side(connection.side).connections_opened += 1;
    }

    fn connection_closed(&self, connection: &ConnectionInfo<'_>, _: &ConnectionEnd<'_>) {
        let mut sums = self.lock();
        let side = sums.side(connection.side);
        side.connections_closed += 1;
        let is_last = side.connections_closed == side.connections_opened;
        if is_last && side.begun != side.ended {
            sums.wrong.push(format!("{:?}: calls outlive all connections", connection.side));
        }
    }

    fn call_begun(&self, call: &CallInfo<'_>) {
        self.lock().begin(call);
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let mut sums = self.lock();
        match (self.fault, end.cause) {
            (LedgerFault::MissesGivenUp, EndCause::GivenUp) => {}
            (LedgerFault::RepeatsDeadlines, EndCause::DeadlineHere) => {
                sums.end(call, end);
                sums.end(call, end);
            }
            _ => sums.end(call, end),
        }
    }
}

impl Ledger {
    pub(super) fn new(fault: LedgerFault) -> Self {
        Ledger { sums: Arc::default(), fault }
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().expect("no observer panics")
    }

    /// Checks the sums at a moment at which none of the calls that were made is under way.
    ///
    /// # Errors
    /// A sentence about what does not match.
    pub(super) fn check_quiet(&self, counts: &Counts) -> Result<(), String> {
        let [made, well, dropped] =
            [&counts.made, &counts.well, &counts.dropped].map(|count| count.load(SeqCst));
        let sums = self.lock();
        if let Some(wrong) = sums.wrong.first() {
            return Err(wrong.clone());
        }
        for (side, SideSums { begun, ended, open, .. }) in
            [("client", &sums.client), ("server", &sums.server)]
        {
            if begun != ended || !open.is_empty() {
                return Err(format!("{side}: {begun} calls have begun and {ended} ended"));
            }
        }
        let SideSums { begun, ended_well, .. } = sums.client;
        if begun != made {
            return Err(format!("{made} calls were made, and {begun} told"));
        }
        if !(well..=well + dropped).contains(&ended_well) {
            return Err(format!("{well} calls ended well, and {ended_well} are told so"));
        }
        Ok(())
    }

    /// Checks that every connection that was opened has been closed.
    ///
    /// # Errors
    /// A sentence about what does not match.
    pub(super) fn check_closed(&self, of_clients: usize, of_server: usize) -> Result<(), String> {
        let sums = self.lock();
        for (connections, sums) in [(of_clients, &sums.client), (of_server, &sums.server)] {
            let SideSums { connections_opened: opened, connections_closed: closed, .. } = sums;
            if (*opened, *closed) != (connections, connections) {
                return Err(format!("{connections} connections, {opened} opened, {closed} closed"));
            }
        }
        Ok(())
    }
}
