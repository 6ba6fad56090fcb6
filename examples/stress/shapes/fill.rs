//! Fills the write buffers of both sides, for real.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use ttrpc::Client;
use ttrpc_tests::conformance::ConformanceClient;

use super::{End, Shape, Stage, echo};
use crate::{
    meter::Figures,
    options::Options,
    report::{Outcome, Verdict, bytes, count, time},
    watch::{Display, PATIENCE, Scene},
};

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Fill, options, true).await?;
    let clients = stage.connect_all()?;
    let start = Instant::now();
    let callers = spawn_callers(&stage, &clients);
    let ended = display.watch(&stage.scene, PATIENCE, callers.join_all()).await;
    let took = start.elapsed();
    if let Err(stuck) = ended {
        return Ok(stage.stuck(&stuck));
    }
    for client in &clients {
        if client.calls_in_flight() != 0 {
            stage.scene.tally.wrong("a client keeps calls that have ended in its table");
        }
    }
    let server = stage.fresh_server_figures().await;
    Ok(judge(&stage.scene, server, took))
}

/// Callers that make one call after another until the end.
fn spawn_callers(stage: &Stage, clients: &[Client]) -> JoinSet<()> {
    let end = Arc::new(End::new(Shape::Fill, &stage.options));
    let mut callers = JoinSet::new();
    for index in 0..stage.options.callers {
        let client = ConformanceClient::new(clients[index % clients.len()].clone());
        let (end, options, tally) = (end.clone(), stage.options.clone(), stage.scene.tally.clone());
        callers.spawn(async move {
            while end.may_begin() {
                let begun = tally.begin();
                let result = echo(&client, &options).await;
                if let Err(status) = &result {
                    tally.wrong(format!("a call failed: {status}"));
                }
                begun.end(&result);
            }
        });
    }
    callers
}

fn judge(scene: &Scene, server: Option<Figures>, took: Duration) -> Outcome {
    let client = scene.meter.figures();
    let was_full = client.was_full() && server.is_none_or(|server| server.was_full());
    let verdict = if was_full { Verdict::Pass } else { Verdict::Inconclusive };
    let side = |name: &str, figures: Figures| {
        format!(
            "{name}: {} writes refused by the kernel with up to {} unsent (SIOCOUTQ), up to {} \
             frames of {} queued, sender blocked {}",
            count(figures.refused_writes),
            bytes(figures.most_unsent_bytes),
            count(figures.most_queued_frames),
            bytes(figures.most_queued_bytes),
            time(figures.blocked),
        )
    };
    let server = match server {
        Some(server) => side("server", server),
        None => "server: not ours, not measured".to_owned(),
    };
    let calls = count(scene.tally.so_far().ended);
    let evidence = format!("{calls} calls; {}; {server}", side("client", client));
    Outcome::new(scene, took, verdict, evidence)
}
