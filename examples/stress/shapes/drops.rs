//! Callers that drop their calls at random.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc::{Client, Status};
use ttrpc_tests::conformance::{ConformanceClient, Empty, GenerateRequest};

use super::{End, Shape, Stage, echo};
use crate::{
    options::Options,
    report::{Outcome, Verdict, count},
    watch::{Display, PATIENCE},
};

/// The longest time after which a call is dropped.
const MAX_PATIENCE: Duration = Duration::from_millis(200);

/// How often it is looked whether the server has ended what it was doing.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How often it is looked before something that is left is said to stay: a minute and more.
const SETTLE_LOOKS: usize = 3000;

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Drops, options, false).await?;
    let clients = stage.connect_all()?;
    let start = Instant::now();
    let callers = spawn_callers(&stage, &clients);
    let tally = &stage.scene.tally;
    let work = async {
        callers.join_all().await;
        settle(&clients).await
    };
    let settled = match display.watch(&stage.scene, PATIENCE, work).await {
        Ok(settled) => settled,
        Err(stuck) => return Ok(stage.stuck(&stuck)),
    };
    if let Err(what) = settled {
        tally.wrong(what);
    }
    let so_far = tally.so_far();
    let dropped = so_far.codes.get("given up").copied().unwrap_or(0);
    let verdict = if dropped > 0 { Verdict::Pass } else { Verdict::Inconclusive };
    let evidence = format!(
        "{} of {} calls were dropped by their callers at random; afterwards no call is left in the \
         client's table or at the server, and the connection works",
        count(dropped),
        count(so_far.ended),
    );
    Ok(Outcome::new(&stage.scene, start.elapsed(), verdict, evidence))
}

fn spawn_callers(stage: &Stage, clients: &[Client]) -> JoinSet<()> {
    let end = Arc::new(End::new(Shape::Drops, &stage.options));
    let mut callers = JoinSet::new();
    for index in 0..stage.options.callers {
        let client = ConformanceClient::new(clients[index % clients.len()].clone());
        let (end, tally) = (end.clone(), stage.scene.tally.clone());
        let options = stage.options.clone();
        let mut random = Rng::with_seed(options.seed.wrapping_add(index as u64));
        callers.spawn(async move {
            while end.may_begin() {
                let patience =
                    Duration::from_micros(random.u64(0..MAX_PATIENCE.as_micros() as u64));
                let is_stream = random.u8(0..4) == 0;
                let call = async {
                    let begun = tally.begin();
                    let result = match is_stream {
                        true => generate(&client, &options).await,
                        false => echo(&client, &options).await,
                    };
                    if let Err(status) = &result {
                        tally.wrong(format!("a call failed: {status}"));
                    }
                    begun.end(&result);
                };
                // A call that lasts too long is dropped, which the tally sees.
                let _ = timeout(patience, call).await;
            }
        });
    }
    callers
}

async fn generate(client: &ConformanceClient, options: &Options) -> Result<(), Status> {
    let request =
        GenerateRequest { count: 8, size: options.reply_size, ..GenerateRequest::default() };
    let mut replies = client.generate(request).await?;
    while replies.recv().await?.is_some() {}
    Ok(())
}

/// Waits until nothing is left of the calls, on either side.
async fn settle(clients: &[Client]) -> Result<(), String> {
    // What it takes is due to the machine: no more than a long time is a failure.
    let mut looks = 0..SETTLE_LOOKS;
    let mut look = async || match looks.next() {
        Some(_) => {
            sleep(LOOK_INTERVAL).await;
            Ok(())
        }
        None => Err("calls that were dropped are still in flight".to_owned()),
    };
    for client in clients {
        while client.calls_in_flight() > 0 {
            look().await?;
        }
    }
    let client = ConformanceClient::new(clients[0].clone());
    loop {
        let stats = client.stats(Empty {}).await.map_err(|status| status.to_string())?;
        // The call that asks is in flight itself.
        if stats.calls_in_flight <= 1 {
            return Ok(());
        }
        look().await?;
    }
}
