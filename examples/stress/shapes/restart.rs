//! A server that is killed (SIGKILL) under load, and started again.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use ttrpc::{Client, Code};
use ttrpc_tests::conformance::ConformanceClient;

use super::{End, Shape, Stage, echo};
use crate::{
    options::Options,
    process::ServerProcess,
    report::{Outcome, Verdict, count, time},
    watch::{Display, PATIENCE},
};

/// How long a server lives.
const LIFE: Duration = Duration::from_millis(400);

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let mut stage = Stage::set(Shape::Restart, options, false).await?;
    let Some(mut server) = stage.server.take() else {
        let reason = "another's server is not killed".to_owned();
        return Ok(Outcome::without_run(Shape::Restart, Verdict::Skipped, reason));
    };
    let end = End::new(Shape::Restart, options);
    let start = Instant::now();
    let work = async {
        let (mut lives, mut slowest) = (0, Duration::ZERO);
        while lives == 0 || end.at.map_or(lives < 3, |at| Instant::now() < at) {
            let client = stage.connect()?;
            let callers = spawn_callers(&stage, &client);
            sleep(LIFE).await;
            server.kill().await?;
            let killed = Instant::now();
            // Callers that are not told stand still, which is watched.
            callers.join_all().await;
            slowest = slowest.max(killed.elapsed());
            lives += 1;
            // It finds the socket file of the one that was killed.
            let address = stage.address.clone();
            server = ServerProcess::start(&stage.options, &address, false).await?;
        }
        let client = ConformanceClient::new(stage.connect()?);
        echo(&client, options).await.map_err(io::Error::other)?;
        Ok::<_, io::Error>((lives, slowest))
    };
    let (lives, slowest) = match display.watch(&stage.scene, PATIENCE, work).await {
        Ok(result) => result?,
        Err(stuck) => return Ok(stage.stuck(&stuck)),
    };
    let tally = &stage.scene.tally;
    let lost = tally.ended_with(Code::Unavailable);
    let verdict = if lives > 0 && lost > 0 { Verdict::Pass } else { Verdict::Inconclusive };
    let evidence = format!(
        "the server was killed and started again {lives} times; {} calls were pending then and \
         ended with UNAVAILABLE within {}, {} others were answered",
        count(lost),
        time(slowest),
        count(tally.ended_with(Code::Ok)),
    );
    Ok(Outcome::new(&stage.scene, start.elapsed(), verdict, evidence))
}

/// Callers that go on until their connection is lost.
fn spawn_callers(stage: &Stage, client: &Client) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..stage.options.callers {
        let client = ConformanceClient::new(client.clone());
        let (options, tally) = (stage.options.clone(), stage.scene.tally.clone());
        callers.spawn(async move {
            loop {
                let begun = tally.begin();
                let result = echo(&client, &options).await;
                begun.end(&result);
                match result {
                    Ok(()) => {}
                    Err(status) if status.code() == Code::Unavailable => return,
                    Err(status) => tally.wrong(format!("a call failed: {status}")),
                }
            }
        });
    }
    callers
}
