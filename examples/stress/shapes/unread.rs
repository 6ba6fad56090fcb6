//! Streams that nobody reads, on either side, beside unary calls.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use ttrpc::{Client, Code, Status};
use ttrpc_tests::conformance::{Chunk, ConformanceClient, GenerateRequest};

use super::{End, Shape, Stage, echo};
use crate::{
    options::Options,
    report::{Outcome, Verdict, count, time},
    watch::{Display, PATIENCE},
};

/// Unary callers beside the streams.
const CALLERS: usize = 16;

/// How often it is looked whether the stream of replies has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What the slowest call may take beside the stall timeouts: the machine may be busy. Far less than for
/// ever, which is what a call takes that waits for a stream that is not given up.
const MARGIN: Duration = Duration::from_secs(600);

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Unread, options, true).await?;
    let connection = stage.connect()?;
    let client = ConformanceClient::new(connection.clone());
    let end = Arc::new(End::new(Shape::Unread, options));
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..options.callers.min(CALLERS) {
        let (client, end, options) = (client.clone(), end.clone(), options.clone());
        let tally = stage.scene.tally.clone();
        callers.spawn(async move {
            while end.may_begin() {
                let begun = tally.begin();
                let result = echo(&client, &options).await;
                if let Err(status) = &result {
                    tally.wrong(format!("a call beside the streams failed: {status}"));
                }
                begun.end(&result);
            }
        });
    }
    let beside = async {
        let unread = unread_replies(&connection, options);
        let untaken = untaken_requests(&client, options);
        let (unread, untaken, _) = tokio::join!(unread, untaken, callers.join_all());
        (unread, untaken)
    };
    let ended = display.watch(&stage.scene, PATIENCE, beside).await;
    let took = start.elapsed();
    let (unread, untaken) = match ended {
        Ok(ended) => ended,
        Err(stuck) => return Ok(stage.stuck(&stuck)),
    };
    let slowest = stage.scene.tally.so_far().slowest;
    let verdict = judge(&stage, [("unread", unread), ("untaken", untaken)], slowest);
    let evidence = format!(
        "a stream of replies that nobody read and one of requests that no handler took failed with \
         RESOURCE_EXHAUSTED; {} calls beside them went on, the slowest took {}, with a stall \
         timeout of {}",
        count(stage.scene.tally.so_far().ended),
        time(slowest),
        time(options.stall_timeout()),
    );
    Ok(Outcome::new(&stage.scene, took, verdict, evidence))
}

fn judge(stage: &Stage, streams: [(&str, Status); 2], slowest: Duration) -> Verdict {
    let tally = &stage.scene.tally;
    for (name, status) in streams {
        if status.code() != Code::ResourceExhausted {
            tally.wrong(format!("the {name} stream ended with {status}"));
        }
    }
    // Both streams may hold the connection up once each before they are given up.
    if slowest > stage.options.stall_timeout() * 2 + MARGIN {
        tally.wrong("a call beside the streams waited for them");
    }
    if tally.ended_with(Code::Ok) == 0 { Verdict::Inconclusive } else { Verdict::Pass }
}

/// A stream of more replies than any buffer holds, of which none is read before the stream has ended.
/// Gives back how it did.
async fn unread_replies(connection: &Client, options: &Options) -> Status {
    let client = ConformanceClient::new(connection.clone());
    let size = options.reply_size.max(1);
    let count = 4 * (options.queue_bytes as u64 / u64::from(size) + options.queue_frames as u64);
    let request = GenerateRequest { count, size, ..GenerateRequest::default() };
    let mut replies = match client.generate(request).await {
        Ok(replies) => replies,
        Err(status) => return status,
    };
    // The one stream of this method on the connection.
    while connection.snapshot().calls.iter().any(|call| call.method == "Generate") {
        sleep(LOOK_INTERVAL).await;
    }
    loop {
        match replies.recv().await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::unknown("the whole stream was kept"),
            Err(status) => return status,
        }
    }
}

/// A stream of requests whose handler takes none. Gives back how it ended.
async fn untaken_requests(client: &ConformanceClient, options: &Options) -> Status {
    let (mut requests, summary) = match client.hold().await {
        Ok(stream) => stream,
        Err(status) => return status,
    };
    let payload = vec![7; options.request_size as usize];
    for sequence in 0.. {
        if requests.send(Chunk { sequence, payload: payload.clone() }).await.is_err() {
            break;
        }
    }
    match summary.await {
        Ok(_) => Status::unknown("the handler took the requests"),
        Err(status) => status,
    }
}
