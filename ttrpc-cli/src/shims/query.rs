//! Asking shims, all at the same time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use ttrpc::{Client, ClientConfig, Code, Error};

use super::{
    process::{self, Facts},
    scan::{Container, Shim},
    sockets::{self, Server, Sockets},
};
use crate::{session, sync::lock};

/// Shims that are asked at a time, each with a descriptor.
const MAX_AT_A_TIME: usize = 256;

/// What a question waits for before there is a connection.
const CONNECTING: &str = "connecting";

/// What a shim did when it was asked.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It answered everything.
    Answered(Duration),
    /// It took a connection, or let it wait, and did not answer this in time.
    TimedOut(&'static str),
    /// There is nobody to answer.
    Refused(String),
    /// It cannot be asked: it has no address, or speaks gRPC.
    NotAsked(String),
}

/// What is known of a container.
#[derive(Clone, Debug)]
pub struct ContainerReport {
    pub container: Container,
    /// `RUNNING` and the like, or what the shim said instead.
    pub status: Option<String>,
    pub pid: Option<u32>,
}

/// What is known of a shim.
#[derive(Clone, Debug)]
pub struct Report {
    pub shim: Shim,
    pub answer: Answer,
    pub process: Option<Facts>,
    /// Where its threads wait, if it did not answer.
    pub waits: Vec<(String, usize)>,
    pub sockets: Option<Server>,
    pub containers: Vec<ContainerReport>,
}

/// The part of `ConnectResponse` that is needed.
#[derive(Clone, PartialEq, Message)]
struct ConnectResponse {
    #[prost(uint32, tag = "1")]
    shim_pid: u32,
}

/// The part of `StateResponse` that is needed.
#[derive(Clone, PartialEq, Message)]
struct StateResponse {
    #[prost(uint32, tag = "3")]
    pid: u32,
    #[prost(int32, tag = "4")]
    status: i32,
}

/// Of Connect and of State with the container's first process.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    id: String,
}

/// Asks shims, once or again and again.
#[derive(Debug, Default)]
pub struct Questions {
    /// Those that were not answered, by address. A shim is asked nothing more before it has answered: what
    /// it does not accept and not read would fill its backlog, which containerd needs.
    open: HashMap<String, Question>,
}

impl Questions {
    /// Asks these shims, each within the limit.
    pub async fn ask_all(
        &mut self,
        shims: Vec<Shim>,
        limit: Duration,
        sockets: &Sockets,
    ) -> Vec<Report> {
        let places = Arc::new(Semaphore::new(MAX_AT_A_TIME));
        let mut asked = JoinSet::new();
        for shim in shims {
            let address = shim.address.as_deref();
            let sockets = address.and_then(|address| sockets::of_address(sockets, address));
            let (sockets, places) = (sockets.cloned(), places.clone());
            let open = address.and_then(|address| self.open.remove(address));
            asked.spawn(async move {
                let _place = places.acquire().await;
                let (mut report, open) = ask(shim, limit, open).await;
                report.sockets = sockets;
                (report, open)
            });
        }
        // Those to shims that are gone.
        self.open.clear();
        let mut reports = Vec::new();
        for (report, open) in asked.join_all().await {
            if let (Some(address), Some(open)) = (report.shim.address.clone(), open) {
                self.open.insert(address, open);
            }
            reports.push(report);
        }
        look_from_outside(&mut reports);
        reports
    }
}

/// Adds what `/proc` tells.
fn look_from_outside(reports: &mut [Report]) {
    let listener = |report: &Report| report.sockets.as_ref().and_then(|sockets| sockets.listener);
    let unknown: Vec<_> =
        reports.iter().filter(|report| report.process.is_none()).filter_map(listener).collect();
    let owners = process::owners(&unknown);
    for report in reports {
        if report.process.is_none() {
            let owner = listener(report).and_then(|inode| owners.get(&inode));
            report.process = owner.and_then(|&pid| Facts::of(pid));
        }
        if let (Answer::TimedOut(_), Some(process)) = (&report.answer, &report.process) {
            report.waits = process::waits(process.pid);
        }
    }
}

/// Asks a shim within the limit, unless an earlier question is open: then that one has as much time
/// again. Returns the question if it is not answered.
async fn ask(shim: Shim, limit: Duration, open: Option<Question>) -> (Report, Option<Question>) {
    let containers = shim
        .containers
        .iter()
        .map(|container| ContainerReport { container: container.clone(), status: None, pid: None })
        .collect();
    let mut report = Report {
        shim,
        answer: Answer::NotAsked(String::new()),
        process: None,
        waits: Vec::new(),
        sockets: None,
        containers,
    };
    let Some(address) = report.shim.address.clone() else {
        report.answer = Answer::NotAsked(match report.shim.is_damaged {
            true => "its bootstrap.json is damaged".to_owned(),
            false => "its bundle names no address".to_owned(),
        });
        return (report, None);
    };
    if report.shim.protocol != "ttrpc" {
        report.answer = Answer::NotAsked(format!("it speaks {}", report.shim.protocol));
        return (report, None);
    }
    if let Some(mut open) = open
        && open.answer_within(limit).await.is_none()
    {
        report.take(open.seen());
        return (report, Some(open));
    }
    // What an earlier question was answered late may be old, or that the connection has ended.
    let mut question = Question::ask(address, &report.shim);
    let answer = question.answer_within(limit).await;
    let seen = question.seen();
    // Of an attempt to connect nothing is left behind.
    let is_open = answer.is_none() && seen.stage != CONNECTING;
    report.take(seen);
    if let Some(answer) = answer {
        report.answer = answer;
    }
    (report, is_open.then_some(question))
}

impl Report {
    /// What a question has found out, as if it were not answered.
    fn take(&mut self, mut seen: Seen) {
        self.answer = Answer::TimedOut(seen.stage);
        self.process = seen.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Facts::of);
        for known in &mut self.containers {
            if let Some((status, pid)) = seen.states.remove(&known.container.id) {
                (known.status, known.pid) = (Some(status), pid);
            }
        }
    }
}

/// What a question has found out so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// What it waits for.
    stage: &'static str,
    pid: Option<u32>,
    /// By the container's id: its status and its process.
    states: HashMap<String, (String, Option<u32>)>,
}

/// What is asked of one shim, on a connection of its own. It goes on until it is dropped.
#[derive(Debug)]
struct Question {
    seen: Arc<Mutex<Seen>>,
    asking: JoinHandle<Answer>,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

impl Question {
    fn ask(address: String, shim: &Shim) -> Self {
        let seen = Arc::new(Mutex::new(Seen { stage: CONNECTING, ..Seen::default() }));
        let service = match shim.version {
            ..3 => "containerd.task.v2.Task",
            // Newer ones than are known here speak at least this.
            3.. => "containerd.task.v3.Task",
        };
        let ids = shim.containers.iter().map(|container| container.id.clone()).collect();
        let asking = tokio::spawn(query(address, service, ids, seen.clone()));
        Question { seen, asking }
    }

    /// `None` if it takes longer.
    async fn answer_within(&mut self, limit: Duration) -> Option<Answer> {
        let answered = timeout(limit, &mut self.asking).await.ok()?;
        Some(answered.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
    }

    fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

/// Asks who answers, and then for the state of each container, however long it takes.
async fn query(
    address: String,
    service: &'static str,
    ids: Vec<String>,
    seen: Arc<Mutex<Seen>>,
) -> Answer {
    let start = Instant::now();
    let client = match session::open(&address).await {
        Ok(connection) => Client::from_connection(connection, ClientConfig::default()),
        Err(error) => return Answer::Refused(cause(&error)),
    };
    lock(&seen).stage = "Connect";
    let request = Request { id: ids.first().cloned().unwrap_or_default() };
    match client.unary::<_, ConnectResponse>(service, "Connect", request).await {
        Ok(who) => lock(&seen).pid = Some(who.shim_pid),
        // It may say that it does not know the container, but it says so.
        Err(status) if status.code() != Code::Unavailable => {}
        Err(status) => return Answer::Refused(status.message().to_owned()),
    }
    let answered = Answer::Answered(start.elapsed());
    lock(&seen).stage = "State";
    let mut states = JoinSet::new();
    for id in ids {
        let call = client.unary::<_, StateResponse>(service, "State", Request { id: id.clone() });
        let seen = seen.clone();
        states.spawn(async move {
            let state = match call.await {
                Ok(state) => {
                    let pid = Some(state.pid).filter(|&pid| pid > 0);
                    (status_name(state.status).to_owned(), pid)
                }
                Err(status) if status.code() != Code::Unavailable => {
                    (status.code().name().to_owned(), None)
                }
                Err(status) => return Some(Answer::Refused(status.message().to_owned())),
            };
            lock(&seen).states.insert(id, state);
            None
        });
    }
    states.join_all().await.into_iter().flatten().next().unwrap_or(answered)
}

fn cause(error: &Error) -> String {
    match error {
        Error::Connect { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}

/// `containerd.v1.types.Status`.
fn status_name(status: i32) -> &'static str {
    match status {
        1 => "CREATED",
        2 => "RUNNING",
        3 => "STOPPED",
        4 => "PAUSED",
        5 => "PAUSING",
        _ => "UNKNOWN",
    }
}
