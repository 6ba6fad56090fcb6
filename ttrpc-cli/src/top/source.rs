//! What servers tell, again and again.

use std::{convert::Infallible, time::Duration};

use tokio::{sync::mpsc, time::sleep};
use ttrpc::{Client, Code, Status};
use ttrpc_reflection::proto::debug::{DebugClient, Sample, SnapshotRequest, Sort, WatchRequest};

use super::model::News;
use crate::{failure::Failure, output, session};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub interval: Duration,
    pub timeout: Option<Duration>,
    pub limit: u32,
    pub sort: Sort,
    pub metadata: Vec<(String, String)>,
}

impl Asked {
    fn snapshot(&self) -> SnapshotRequest {
        SnapshotRequest {
            max_connections: self.limit,
            max_calls: self.limit,
            sort: self.sort.into(),
            after_connection: 0,
        }
    }
}

/// Tells the news of a server until nobody takes them: it is connected to again when it has gone.
pub async fn follow(
    address: String,
    index: usize,
    asked: Asked,
    news: mpsc::Sender<(usize, News)>,
) {
    loop {
        let Err(trouble) = follow_once(&address, index, &asked, &news).await;
        if news.send((index, News::Trouble(trouble))).await.is_err() {
            return;
        }
        sleep(asked.interval).await;
    }
}

/// Follows one connection to its end.
async fn follow_once(
    address: &str,
    index: usize,
    asked: &Asked,
    news: &mpsc::Sender<(usize, News)>,
) -> Result<Infallible, String> {
    let client = session::connect(address, asked.timeout).await;
    let client = client.map_err(|failure: Failure| failure.to_string())?;
    let client = session::with_defaults(client, asked.metadata.clone(), None);
    let ended = watch(&client, index, asked, news).await.err();
    let ended = ended.unwrap_or_else(|| Status::unavailable("the server ended the watch"));
    if ended.code() != Code::Unimplemented {
        return Err(trouble(&ended));
    }
    // No counters, or an older service: snapshots alone.
    let debug = DebugClient::new(client);
    loop {
        let call = debug.snapshot(asked.snapshot());
        let answer = match asked.timeout {
            Some(timeout) => call.timeout(timeout).await,
            None => call.await,
        };
        let snapshot = answer.map_err(|status| trouble(&status))?;
        let sample = Sample { snapshot: Some(snapshot), ..Sample::default() };
        let _ = news.send((index, News::Snapshot(sample))).await;
        sleep(asked.interval).await;
    }
}

async fn watch(
    client: &Client,
    index: usize,
    asked: &Asked,
    news: &mpsc::Sender<(usize, News)>,
) -> Result<(), Status> {
    let interval = asked.interval.try_into().ok();
    let request = WatchRequest { interval, snapshot: Some(asked.snapshot()) };
    let mut samples = DebugClient::new(client.clone()).watch(request).await?;
    // Longer than the server's longest interval.
    let limit = asked.timeout.map(|timeout| timeout + asked.interval);
    loop {
        let next = samples.recv();
        let sample = match limit {
            Some(limit) => match tokio::time::timeout(limit, next).await {
                Ok(sample) => sample?,
                Err(_) => return Err(Status::deadline_exceeded("no sample came in time")),
            },
            None => next.await?,
        };
        let Some(sample) = sample else { return Ok(()) };
        // Nobody takes it when the program ends.
        let _ = news.send((index, News::Sample(sample))).await;
    }
}

fn trouble(status: &Status) -> String {
    let text = output::plain_line(status);
    match status.code() {
        Code::Unimplemented => format!("{text}: it has no debug service"),
        _ => text,
    }
}
