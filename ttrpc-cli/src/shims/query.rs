//! Asking shims, all at the same time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{sync::Semaphore, task::JoinSet, time::timeout_at};
use ttrpc::{Client, ClientConfig, Code, Error, Status};

use super::{
    process::{self, Facts},
    scan::{Container, Shim},
    sockets::{self, Server, Sockets},
};
use crate::session;

/// Shims that are asked at a time, each with a descriptor.
const MAX_AT_A_TIME: usize = 256;

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

/// Asks these shims, each within the limit.
pub async fn all(shims: Vec<Shim>, limit: Duration, sockets: &Sockets) -> Vec<Report> {
    let places = Arc::new(Semaphore::new(MAX_AT_A_TIME));
    let mut asked = JoinSet::new();
    for shim in shims {
        let sockets =
            shim.address.as_deref().and_then(|address| sockets::of_address(sockets, address));
        let (sockets, places) = (sockets.cloned(), places.clone());
        asked.spawn(async move {
            let _place = places.acquire().await;
            let mut report = query(shim, limit).await;
            report.sockets = sockets;
            report
        });
    }
    let mut reports = asked.join_all().await;
    look_from_outside(&mut reports);
    reports
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

async fn query(shim: Shim, limit: Duration) -> Report {
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
        report.answer = Answer::NotAsked("it has told no address".to_owned());
        return report;
    };
    if report.shim.protocol != "ttrpc" {
        report.answer = Answer::NotAsked(format!("it speaks {}", report.shim.protocol));
        return report;
    }
    let start = Instant::now();
    let deadline = start + limit;
    report.answer = match timeout_at(deadline.into(), session::open(&address)).await {
        Err(_) => Answer::TimedOut("connecting"),
        Ok(Err(error)) => Answer::Refused(cause(&error)),
        Ok(Ok(connection)) => {
            let client = Client::from_connection(connection, ClientConfig::default());
            query_task(&client, &mut report, start, deadline).await
        }
    };
    report
}

/// Asks who answers, and then for the state of each container.
async fn query_task(
    client: &Client,
    report: &mut Report,
    start: Instant,
    deadline: Instant,
) -> Answer {
    let service = match report.shim.version {
        3 => "containerd.task.v3.Task",
        _ => "containerd.task.v2.Task",
    };
    let left = || deadline.saturating_duration_since(Instant::now());
    let id = report.containers.first().map(|container| container.container.id.clone());
    let request = Request { id: id.unwrap_or_default() };
    let who = client.unary::<_, ConnectResponse>(service, "Connect", request).timeout(left());
    match who.await {
        Ok(who) => {
            report.process = i32::try_from(who.shim_pid).ok().and_then(Facts::of);
        }
        Err(status) => match silence(&status, "Connect") {
            Some(answer) => return answer,
            // It says that it does not know the container, but it says so.
            None => report.process = None,
        },
    }
    let answered = Answer::Answered(start.elapsed());
    let mut states = JoinSet::new();
    for (index, container) in report.containers.iter().enumerate() {
        let request = Request { id: container.container.id.clone() };
        let call = client.unary::<_, StateResponse>(service, "State", request).timeout(left());
        states.spawn(async move { (index, call.await) });
    }
    let mut answer = answered;
    for (index, state) in states.join_all().await {
        let container = &mut report.containers[index];
        match state {
            Ok(state) => {
                container.status = Some(status_name(state.status).to_owned());
                container.pid = Some(state.pid).filter(|&pid| pid > 0);
            }
            Err(status) => match silence(&status, "State") {
                Some(silence) => answer = silence,
                None => container.status = Some(status.code().name().to_owned()),
            },
        }
    }
    answer
}

/// What it means that a call ended without an answer of the shim; `None` if there was one.
fn silence(status: &Status, method: &'static str) -> Option<Answer> {
    match status.code() {
        Code::DeadlineExceeded => Some(Answer::TimedOut(method)),
        Code::Unavailable => Some(Answer::Refused(status.message().to_owned())),
        _ => None,
    }
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
