//! Running a schedule.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    io::duplex,
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use ttrpc::{
    Client, ClientConfig, Connection, Server, ServerConfig,
    client::ConnectOptions,
    server::{ServerBuilder, ServerHandle},
};

use super::{
    caller::Caller,
    client::{ClientFault, FrameClient, FrameLimits},
    ledger::{Counts, Ledger, LedgerFault},
    model,
    play::{Ending, HOLD_KEY, play},
    schedule::{CallKind, Limits, PlannedCall, Schedule},
    server::{FrameServer, ServerFault},
};
use crate::{
    conformance::{ConformanceClient, ConformanceServer, EchoRequest, Empty, KeyRequest},
    harness::PassesThrough,
    service::ConformanceService,
};

/// Virtual time after which a schedule is deadlocked: hundreds of times what any schedule takes. When
/// no task can run the paused clock jumps here at once.
const WATCHDOG: Duration = Duration::from_secs(3600);

/// Bytes of the connection over which keys are released when all else has ended.
const SIDE_PIPE_BYTES: usize = 64 << 10;

/// What runs a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The library's client and server.
    Library,
    /// A small client with the library's server.
    Client(ClientFault),
    /// The library's client with a small server.
    Server(ServerFault),
    /// The library's client and server with an observer that is wrong.
    Ledger(LedgerFault),
}

impl Design {
    /// Whether the library is on both sides.
    fn is_library(self) -> bool {
        matches!(self, Design::Library | Design::Ledger(_))
    }
}

/// What was wrong with a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// Nothing moved any more while calls were pending: these, by their place in the schedule.
    Deadlock(Vec<usize>),
    /// A call ended in a way in which it may not, or something was left behind.
    Wrong(String),
}

/// Runs a schedule to its end in virtual time.
///
/// # Errors
/// What was wrong with it.
pub fn run(schedule: &Schedule, design: Design) -> Result<(), Violation> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime with nothing but a clock can be built");
    runtime.block_on(async {
        let stage = Stage::set(schedule, design);
        let result = stage.run_calls(schedule).await;
        if design.is_library() {
            result?;
            return stage.end_cleanly(schedule).await;
        }
        // A small client or server is not what is tested: only whether it is stuck.
        match result {
            Err(Violation::Deadlock(pending)) => Err(Violation::Deadlock(pending)),
            _ => Ok(()),
        }
    })
}

/// Both sides of the connections, and of one more between them.
struct Stage {
    design: Design,
    callers: Vec<Arc<Caller>>,
    /// The connection beside: a key that is waited for can be released whatever the others do.
    side: Client,
    /// The library's server, and what it serves.
    server: Option<(ServerHandle, Arc<ConformanceService>)>,
    serving: JoinSet<()>,
    counts: Arc<Counts>,
    ledger: Ledger,
}

impl Stage {
    fn set(schedule: &Schedule, design: Design) -> Self {
        let ledger = Ledger::new(match design {
            Design::Ledger(fault) => fault,
            _ => LedgerFault::None,
        });
        let limits = schedule.limits;
        let pipes = (0..schedule.connections.max(1)).map(|_| duplex(schedule.pipe_bytes));
        let (near, far): (Vec<_>, Vec<_>) = pipes.unzip();
        let (side_near, side_far) = duplex(SIDE_PIPE_BYTES);
        let mut serving = JoinSet::new();
        let mut library = None;
        if let Design::Server(fault) = design {
            let server = FrameServer::new(fault, limits);
            for io in far.into_iter().chain([side_far]) {
                serving.spawn(server.clone().serve(io));
            }
        } else {
            let service = Arc::new(ConformanceService::default());
            let builder = library_server(limits, service.clone()).observe(ledger.clone());
            let builder = match schedule.is_intercepted {
                true => builder.intercept(PassesThrough),
                false => builder,
            };
            let connections = far.into_iter().chain([side_far]);
            let builder = connections.fold(builder, ServerBuilder::io);
            let server = builder.build().expect("one service and some connections can be served");
            library = Some((server.handle(), service));
            serving.spawn(async { server.serve().await.expect("there is no listener to fail") });
        }
        let caller = |io| match design {
            Design::Client(fault) => {
                let limits = FrameLimits {
                    queue_frames: limits.queue_frames,
                    inbox_frames: limits.inbox_messages,
                    stall_timeout: limits.stall_timeout,
                };
                Caller::Frames(FrameClient::new(io, fault, limits))
            }
            _ => {
                let options = ConnectOptions::new().config(client_config(limits));
                let client = options.observe(ledger.clone()).from_connection(Connection::new(io));
                Caller::Library(match schedule.is_intercepted {
                    true => client.with_interceptor(PassesThrough),
                    false => client,
                })
            }
        };
        let callers = near.into_iter().map(|io| Arc::new(caller(io))).collect();
        let side = Client::from_io(side_near, ClientConfig::default());
        let counts = Arc::default();
        Stage { design, callers, side, server: library, serving, counts, ledger }
    }

    /// Makes all calls and checks how they end.
    async fn run_calls(&self, schedule: &Schedule) -> Result<(), Violation> {
        let others_ended = CancellationToken::new();
        let mut calls = JoinSet::new();
        for (index, call) in schedule.calls.iter().enumerate() {
            let caller = self.callers[call.connection % self.callers.len()].clone();
            let others_ended = others_ended.clone();
            let call = call.clone();
            let counts = self.counts.clone();
            calls
                .spawn(async move { (index, run_call(caller, call, others_ended, &counts).await) });
        }
        let mut pending: Vec<usize> = (0..schedule.calls.len()).collect();
        let waits = |index: &usize| schedule.calls[*index].kind.waits_for_others();
        loop {
            if pending.iter().all(waits) && !others_ended.is_cancelled() {
                others_ended.cancel();
                self.release_all(schedule).await?;
            }
            let Ok(ended) = timeout(WATCHDOG, calls.join_next()).await else {
                return Err(Violation::Deadlock(pending));
            };
            let Some(ended) = ended else { return Ok(()) };
            let (index, (ending, took)) = ended.expect("a caller does not panic");
            pending.retain(|other| *other != index);
            model::check(schedule, index, &ending, took)
                .map_err(|what| Violation::Wrong(format!("call {index}: {what}")))?;
            self.check_ledger()?;
        }
    }

    /// Checks what observers were told, if this is a quiet moment. Of a small client or server they know nothing.
    fn check_ledger(&self) -> Result<(), Violation> {
        let in_flight = self.server.as_ref().map_or(0, |(server, _)| server.calls_in_flight());
        if self.design.is_library() && self.counts.are_quiet() && in_flight == 0 {
            self.ledger.check_quiet(&self.counts).map_err(Violation::Wrong)?;
        }
        Ok(())
    }

    /// Releases every key: on the connections a release may have been refused, or there was none. The
    /// library's server is told directly, since its limits are those of all connections together.
    async fn release_all(&self, schedule: &Schedule) -> Result<(), Violation> {
        let mut keys = vec![HOLD_KEY.to_owned()];
        for call in &schedule.calls {
            if let CallKind::Wait(key) = call.kind {
                keys.push(key.to_string());
            }
        }
        if let Some((_, service)) = &self.server {
            keys.iter().for_each(|key| service.release(key));
            return Ok(());
        }
        let side = Caller::Library(self.side.clone());
        for key in keys {
            let released = side.unary::<_, Empty>("Release", KeyRequest { key }, None);
            match timeout(WATCHDOG, released).await {
                Ok(Ok(Empty {})) => {}
                Ok(Err(status)) => {
                    return Err(Violation::Wrong(format!("the other connection: {status}")));
                }
                Err(_) => return Err(Violation::Deadlock(Vec::new())),
            }
        }
        Ok(())
    }

    /// Nothing may be left of the calls, and then nothing of the connections.
    async fn end_cleanly(self, schedule: &Schedule) -> Result<(), Violation> {
        let Stage { callers, side, server, mut serving, counts, ledger, .. } = self;
        let Some((server, _)) = server else {
            unreachable!("only the library is asked to end cleanly");
        };
        let in_flight = |caller: &Arc<Caller>| match &**caller {
            Caller::Library(client) => client.calls_in_flight(),
            Caller::Frames(_) => unreachable!("only the library is asked to end cleanly"),
        };
        let left = || [callers.iter().map(in_flight).sum(), server.calls_in_flight()];
        let settled = async {
            while left() != [0; 2] {
                sleep(Duration::from_millis(1)).await;
            }
        };
        if timeout(WATCHDOG, settled).await.is_err() {
            return Err(Violation::Wrong(format!(
                "calls of client and server, and handlers, left behind: {:?}",
                left()
            )));
        }
        ledger.check_quiet(&counts).map_err(Violation::Wrong)?;
        // The one beside has served nothing, and is served as the others are.
        let request = EchoRequest { payload: vec![1], response_size: 0 };
        let alive = timeout(WATCHDOG, ConformanceClient::new(side.clone()).echo(request));
        if !matches!(alive.await, Ok(Ok(reply)) if reply.payload == [1]) {
            return Err(Violation::Wrong("the server does not serve on".to_owned()));
        }
        drop((callers, side));
        let ended = async { while serving.join_next().await.is_some() {} };
        if timeout(WATCHDOG, ended).await.is_err() {
            return Err(Violation::Wrong("the server outlives its connections".to_owned()));
        }
        // The one beside is not observed by its client.
        let connections = schedule.connections.max(1);
        ledger.check_closed(connections, connections + 1).map_err(Violation::Wrong)?;
        match Handle::current().metrics().num_alive_tasks() {
            0 => Ok(()),
            tasks => Err(Violation::Wrong(format!("{tasks} tasks left behind"))),
        }
    }
}

/// Makes a call when its time has come, and drops it when its time is over.
async fn run_call(
    caller: Arc<Caller>,
    call: PlannedCall,
    others_ended: CancellationToken,
    counts: &Counts,
) -> (Ending, Duration) {
    sleep(call.at).await;
    counts.made.fetch_add(1, SeqCst);
    let start = Instant::now();
    // The small client knows no deadlines of its own.
    let deadline = call.deadline.filter(|_| matches!(*caller, Caller::Frames(_)));
    let dropped_after = call.dropped_after.into_iter().chain(deadline).min();
    let played = play(caller, call, others_ended);
    let ending = match dropped_after {
        Some(time) => timeout(time, played).await.unwrap_or(Ending::Dropped),
        None => played.await,
    };
    counts.end(&ending);
    (ending, start.elapsed())
}

fn library_server(limits: Limits, service: Arc<ConformanceService>) -> ServerBuilder {
    let config = ServerConfig {
        max_calls_per_connection: limits.handlers,
        request_bytes_per_connection: limits.request_bytes,
        max_calls: limits.all_handlers,
        request_bytes: limits.all_request_bytes,
        inbox_bytes: limits.all_inbox_bytes,
        send_queue_frames: limits.queue_frames,
        send_queue_bytes: limits.queue_bytes,
        stream_inbox_messages: limits.inbox_messages,
        stream_inbox_bytes: limits.inbox_bytes,
        stall_timeout: limits.stall_timeout,
        ..ServerConfig::default()
    };
    Server::builder().add_service(ConformanceServer::from_arc(service)).config(config)
}

fn client_config(limits: Limits) -> ClientConfig {
    ClientConfig::default()
        .max_calls(limits.client_calls)
        .send_queue_frames(limits.queue_frames)
        .send_queue_bytes(limits.queue_bytes)
        .stream_inbox_messages(limits.inbox_messages)
        .stream_inbox_bytes(limits.inbox_bytes)
        .stall_timeout(limits.stall_timeout)
}
