//! Calls that this library's client gives up with `cancel_at_server`, in front of any server.
//!
//! The connection is tapped: what goes to and fro passes frame by frame, and calls of `Cancel` and their answers are noted.
//! They come first of all cases: they count the calls of a server that has no others.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
    task::JoinSet,
};
use ttrpc::{client::ConnectOptions, prost::Message};
use ttrpc_conformance::{Case, Chunk, Connection, Options, Outcome, Trial, fail, unique_key};

use super::{server, wire_cases::read_frame};
use crate::{
    conformance::ConformanceClient,
    harness::code,
    wire::{Frame, REQUEST, Request},
};

const CONTROL: &str = "ttrpc.control.v1.Control";

/// How many calls a case gives up, one after the other.
const ROUNDS: u64 = 3;

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "own/given_up_call",
        expected: "the handler of a call that is given up ends, or the server is asked once to cancel and does not know how; the connection lives on",
        needs_streams: false,
        play: |trial| Box::pin(call(trial)),
    },
    Case {
        name: "own/given_up_stream",
        expected: "the handler of a stream that is given up ends, or the server is asked once to cancel and does not know how; the connection lives on",
        needs_streams: true,
        play: |trial| Box::pin(stream(trial)),
    },
];

/// The ids of the calls of `Cancel`.
type Asked = Arc<Mutex<HashSet<u32>>>;

/// A client whose connection is tapped.
struct Tapped {
    trial: Trial,
    connection: Arc<dyn Connection>,
    asked: Asked,
    /// The codes of the answers to `Cancel`.
    answers: mpsc::UnboundedReceiver<i32>,
    is_refused: bool,
    _passing: JoinSet<io::Result<()>>,
}

impl Tapped {
    async fn connect(trial: Trial) -> Outcome<Self> {
        let (from_server, to_server) = server::socket(&trial).await?.into_split();
        let (here, there) = UnixStream::pair().map_err(|error| error.to_string())?;
        let (from_client, to_client) = there.into_split();
        let client =
            ConnectOptions::new().cancel_at_server().from_connection(ttrpc::Connection::new(here));
        let asked = Asked::default();
        let (answered, answers) = mpsc::unbounded_channel();
        let mut passing = JoinSet::new();
        let ids = asked.clone();
        passing.spawn(pass(from_client, to_server, move |frame| {
            if is_cancel(frame) {
                ids.lock().unwrap_or_else(PoisonError::into_inner).insert(frame.id);
            }
        }));
        let ids = asked.clone();
        passing.spawn(pass(from_server, to_client, move |frame| {
            let is_asked = ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&frame.id);
            if let Some(response) = frame.try_as_response().filter(|_| is_asked) {
                // Nobody listens where the case has ended.
                let _ = answered.send(response.status.map_or(0, |status| status.code));
            }
        }));
        let connection = Arc::new(ConformanceClient::new(client));
        Ok(Tapped { trial, connection, asked, answers, is_refused: false, _passing: passing })
    }

    /// Checks what follows when a call has been given up, the first of which is round 1.
    async fn after(&mut self, round: u64, cancelled_before: u64) -> Outcome<()> {
        if !self.is_refused {
            let answer = self.trial.within("the answer to Cancel", self.answers.recv()).await?;
            match answer {
                Some(0) => self.ends_handlers(cancelled_before + round).await?,
                Some(code::UNIMPLEMENTED | code::NOT_FOUND | code::INVALID_ARGUMENT)
                    if round == 1 && !self.trial.is_strict() =>
                {
                    self.is_refused = true;
                }
                answer => return fail(format!("call {round} of Cancel was answered {answer:?}")),
            }
        }
        // Each goes after a call of `Cancel`, if there is one.
        for _ in 0..2 {
            self.trial.alive(&self.connection, "after a call was given up").await?;
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        let expected = if self.is_refused { 1 } else { round };
        if asked == expected {
            Ok(())
        } else {
            fail(format!("{asked} calls of Cancel in {round} rounds"))
        }
    }

    async fn ends_handlers(&self, count: u64) -> Outcome<()> {
        self.until("Stats counts the handler as cancelled", |stats| stats.calls_cancelled >= count)
            .await
    }

    async fn until(
        &self,
        what: &str,
        holds: impl Fn(&ttrpc_conformance::Statistics) -> bool,
    ) -> Outcome<()> {
        self.trial.until(what, || async { Ok(holds(&self.connection.stats().await?)) }).await
    }

    fn outcome(&self) -> Outcome {
        Ok(if self.is_refused { "asked once, of no use" } else { "every handler ended" }.to_owned())
    }
}

/// Passes frames on, each once it has been seen.
async fn pass(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut see: impl FnMut(&Frame),
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    while let Some(frame) = read_frame(&mut from).await {
        see(&frame);
        to.write_all(&frame.to_bytes()).await?;
    }
    to.shutdown().await
}

fn is_cancel(frame: &Frame) -> bool {
    frame.kind == REQUEST
        && Request::decode(&frame.data[..]).is_ok_and(|request| request.service == CONTROL)
}

/// Unary calls.
async fn call(trial: Trial) -> Outcome {
    // A server that has played this case before has released that key.
    let key = unique_key("given up");
    let mut tapped = Tapped::connect(trial).await?;
    tapped.until("Stats shows no call but itself", |stats| stats.calls_in_flight <= 1).await?;
    let before = tapped.connection.stats().await?.calls_cancelled;
    for round in 1..=ROUNDS {
        let (connection, key) = (tapped.connection.clone(), key.clone());
        let begun = connection.stats().await?;
        let mut call = JoinSet::new();
        call.spawn(async move { connection.wait(&Options::default(), &key).await });
        tapped.trial.until_begun(&tapped.connection, &begun, 1).await?;
        call.shutdown().await;
        tapped.after(round, before).await?;
    }
    tapped.connection.release(&key).await?;
    tapped.until("Stats shows no call but itself", |stats| stats.calls_in_flight <= 1).await?;
    tapped.outcome()
}

/// Streams in both directions.
async fn stream(trial: Trial) -> Outcome {
    let mut tapped = Tapped::connect(trial).await?;
    let before = tapped.connection.stats().await?.calls_cancelled;
    for round in 1..=ROUNDS {
        let (mut requests, mut replies) = tapped.connection.exchange().await?;
        requests.send(Chunk { sequence: 0, payload: b"running".to_vec() }).await?;
        // Whichever chunk it is, the handler runs.
        tapped.trial.within("a chunk", replies.next()).await??;
        // The other way round the stream of requests would have its end before.
        drop(replies);
        drop(requests);
        tapped.after(round, before).await?;
    }
    tapped.outcome()
}
