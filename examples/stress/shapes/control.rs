//! The control: the same load through a client of the design of ttrpc 1.0, which must deadlock.
//!
//! If it did not, the load would not show anything about a client that does not deadlock either.

use std::{
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use ttrpc::{Status, prost::Message};
use ttrpc_tests::{
    conformance::{ConformanceClient, EchoRequest, EchoResponse},
    schedules::client::{ClientFault, FrameClient, FrameLimits},
    wire::Request,
};

use super::{End, Shape, Stage};
use crate::{
    options::Options,
    report::{Outcome, Verdict, bytes, count},
    watch::{Display, Stuck},
};

/// After this long without any motion, with both directions full, the control has deadlocked.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it may stand still otherwise, since the machine does not run the server.
const PAUSES: usize = 30;

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Control, options, true).await?;
    let limits = FrameLimits {
        queue_frames: options.queue_frames,
        inbox_frames: 1,
        stall_timeout: options.stall_timeout(),
    };
    let start = Instant::now();
    let end = Arc::new(End::new(Shape::Control, options));
    let mut callers = JoinSet::new();
    for _ in 0..options.connections {
        let client = FrameClient::new(stage.connect_socket()?, ClientFault::OneTask, limits);
        let client = Arc::new(client);
        for _ in 0..options.callers.div_ceil(options.connections) {
            let (client, end, options) = (client.clone(), end.clone(), options.clone());
            let tally = stage.scene.tally.clone();
            callers.spawn(async move {
                while end.may_begin() {
                    let begun = tally.begin();
                    begun.end(&echo(&client, &options).await);
                }
            });
        }
    }
    let mut ending = pin!(callers.join_all());
    let mut pauses = 0;
    let ended = loop {
        match display.watch(&stage.scene, PATIENCE, ending.as_mut()).await {
            Err(stuck) if !is_deadlocked(&stuck, options) && pauses < PAUSES => pauses += 1,
            ended => break ended,
        }
    };
    let (verdict, evidence) = match &ended {
        Err(stuck) if is_deadlocked(stuck, options) => (Verdict::Pass, deadlock(stuck)),
        Err(_) => (Verdict::Fail, "it stopped, but not because both directions were full".into()),
        Ok(_) if options.connect.is_some() => (
            Verdict::Inconclusive,
            "it did not deadlock: this server reads on while its own writes are blocked".into(),
        ),
        Ok(_) if !is_enough(&stage, options) => (
            Verdict::Inconclusive,
            "it did not deadlock, but neither is this enough load for it".into(),
        ),
        Ok(_) => (Verdict::Fail, "it did not deadlock, so the load shows nothing".into()),
    };
    let took = ended.as_ref().map_or_else(|stuck| stuck.after, |_| start.elapsed());
    let outcome = Outcome::new(&stage.scene, took, verdict, evidence);
    Ok(match ended {
        Ok(_) => outcome,
        Err(stuck) => outcome.counted(stuck.count),
    })
}

/// Whether both directions are full, or the one that can be seen of a server that is not ours.
fn is_deadlocked(stuck: &Stuck, options: &Options) -> bool {
    stuck.is_full_both_ways() || options.connect.is_some() && stuck.client.blocked_now > 0
}

/// Whether the load must deadlock: enough callers to fill the queues of both sides, for as long as
/// that takes, and sockets that were full.
fn is_enough(stage: &Stage, options: &Options) -> bool {
    let was_full =
        [Some(stage.scene.meter.figures()), stage.scene.server_figures()].into_iter().flatten();
    options.calls.is_none()
        && options.callers.div_ceil(options.connections) > 4 * options.queue_frames
        && { was_full }.all(|figures| figures.was_full())
}

fn deadlock(stuck: &Stuck) -> String {
    let unsent = match stuck.server {
        Some(server) => format!(
            "both senders blocked with {} and {} unsent",
            bytes(stuck.client.unsent_bytes),
            bytes(server.unsent_bytes),
        ),
        None => format!("its sender blocked with {} unsent", bytes(stuck.client.unsent_bytes)),
    };
    format!(
        "it deadlocked after {} calls and {} ms, as it must: {} calls pending, {unsent}",
        count(stuck.count.ended),
        stuck.after.as_millis(),
        count(stuck.count.pending),
    )
}

async fn echo(client: &FrameClient, options: &Options) -> Result<EchoResponse, Status> {
    let request = EchoRequest {
        payload: vec![7; options.request_size as usize],
        response_size: options.reply_size,
    };
    let request = Request {
        service: ConformanceClient::NAME.to_owned(),
        method: "Echo".to_owned(),
        payload: request.encode_to_vec(),
        ..Request::default()
    };
    client.unary::<EchoRequest, EchoResponse>(request).await
}
