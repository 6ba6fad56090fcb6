//! Callers with short deadlines, while the server has stopped to read (SIGSTOP).

use std::{
    future::IntoFuture,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use ttrpc::{Client, Code};
use ttrpc_tests::conformance::{ConformanceClient, EchoRequest};

use super::{End, Shape, Stage, echo};
use crate::{
    options::Options,
    report::{Outcome, Verdict, bytes, count, time},
    watch::{Display, PATIENCE},
};

/// The deadline of every call.
const DEADLINE: Duration = Duration::from_millis(300);

/// A call has ended before a timer that begins at its deadline has run for this long. Both are timers of
/// the same runtime, which fires the earlier one first however late it is.
const MARGIN: Duration = Duration::from_millis(200);

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Deadlines, options, true).await?;
    let Some(server) = &stage.server else {
        let reason = "another's server is not stopped".to_owned();
        return Ok(Outcome::without_run(Shape::Deadlines, Verdict::Skipped, reason));
    };
    let client = stage.connect()?;
    // The connection works before the server stops.
    let echoes = ConformanceClient::new(client.clone());
    echo(&echoes, options).await.map_err(io::Error::other)?;
    server.pause().await?;
    let start = Instant::now();
    let callers = spawn_callers(&stage, &client);
    let ended = display.watch(&stage.scene, PATIENCE, callers.join_all()).await;
    let took = start.elapsed();
    let stopped = stage.scene.meter.figures();
    server.go_on()?;
    if let Err(stuck) = ended {
        return Ok(stage.stuck(&stuck));
    }
    let tally = &stage.scene.tally;
    if client.calls_in_flight() != 0 {
        tally.wrong("the client keeps calls that have ended in its table");
    }
    // What was queued before is served first, and then the connection is as good as new.
    let again = async {
        let begun = tally.begin();
        let result = echo(&echoes, options).await;
        begun.end(&result);
        result
    };
    match display.watch(&stage.scene, PATIENCE, again).await {
        Ok(Ok(())) => {}
        Ok(Err(status)) => tally.wrong(format!("after the stop a call failed: {status}")),
        Err(_) => tally.wrong("after the stop nothing is answered"),
    }
    let verdict = if stopped.was_full() && stopped.blocked_now > 0 {
        Verdict::Pass
    } else {
        Verdict::Inconclusive
    };
    let evidence = format!(
        "{} calls with a deadline of {} ended at it while nothing was read and {} lay unsent, the \
         slowest after {}; then the server went on and so did the connection",
        count(tally.ended_with(Code::DeadlineExceeded)),
        time(DEADLINE),
        bytes(stopped.unsent_bytes),
        time(tally.so_far().slowest),
    );
    Ok(Outcome::new(&stage.scene, took, verdict, evidence))
}

fn spawn_callers(stage: &Stage, client: &Client) -> JoinSet<()> {
    let end = Arc::new(End::new(Shape::Deadlines, &stage.options));
    let mut callers = JoinSet::new();
    for index in 0..stage.options.callers {
        let client = ConformanceClient::new(client.clone());
        let (end, tally) = (end.clone(), stage.scene.tally.clone());
        let payload = vec![7; stage.options.request_size as usize];
        callers.spawn(async move {
            // Calls do not all begin and end at once.
            sleep(DEADLINE * (index % 16) as u32 / 16).await;
            while end.may_begin() {
                let request = EchoRequest { payload: payload.clone(), response_size: 0 };
                let begun = tally.begin();
                let mut call = client.echo(request).timeout(DEADLINE).into_future();
                let late = async {
                    sleep(DEADLINE).await;
                    sleep(MARGIN).await;
                };
                let result = tokio::select! {
                    biased;
                    result = &mut call => result,
                    () = late => {
                        tally.wrong(format!("a call is pending {} after its deadline", time(MARGIN)));
                        call.await
                    }
                };
                match &result {
                    Ok(_) => tally.wrong("a call was answered by a server that is stopped"),
                    Err(status) if status.code() == Code::DeadlineExceeded => {}
                    Err(status) => tally.wrong(format!("a call failed: {status}")),
                }
                begun.end(&result);
            }
        });
    }
    callers
}
