//! Streams in both directions at once, through the smallest buffers.

use std::{io, sync::Arc, time::Instant};

use tokio::task::JoinSet;
use ttrpc::Status;
use ttrpc_tests::conformance::{Chunk, ConformanceClient, GenerateRequest};

use super::{End, Shape, Stage};
use crate::{
    options::Options,
    report::{Outcome, Verdict, count},
    tally::Tally,
    watch::{Display, PATIENCE},
};

/// Messages of a stream.
const MESSAGES: u64 = 32;

/// Callers with a stream each; there are fewer of them than of unary callers, since each keeps
/// many frames under way.
const CALLERS: usize = 48;

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    let stage = Stage::set(Shape::Streams, options, true).await?;
    let clients = stage.connect_all()?;
    let end = Arc::new(End::new(Shape::Streams, options));
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for index in 0..options.callers.min(CALLERS) {
        let client = ConformanceClient::new(clients[index % clients.len()].clone());
        let (tally, end) = (stage.scene.tally.clone(), end.clone());
        let (request_size, reply_size) = (options.request_size as usize, options.reply_size);
        callers.spawn(async move {
            while end.may_begin() {
                let begun = tally.begin();
                let result = match index % 3 {
                    0 => exchange(&client, request_size, &tally).await,
                    1 => generate(&client, reply_size, &tally).await,
                    _ => collect(&client, request_size, &tally).await,
                };
                if let Err(status) = &result {
                    tally.wrong(format!("a stream failed: {status}"));
                }
                begun.end(&result);
            }
        });
    }
    let ended = display.watch(&stage.scene, PATIENCE, callers.join_all()).await;
    let took = start.elapsed();
    if let Err(stuck) = ended {
        return Ok(stage.stuck(&stuck));
    }
    let (client, server) = (stage.scene.meter.figures(), stage.fresh_server_figures().await);
    let was_full = client.was_full() && server.is_none_or(|server| server.was_full());
    let verdict = if was_full { Verdict::Pass } else { Verdict::Inconclusive };
    let streams = stage.scene.tally.so_far().ended;
    let evidence = format!(
        "{} streams of {MESSAGES} messages each, up, down and both ways, came whole and in order; \
         writes refused by the kernel: {} of the client, {} of the server",
        count(streams),
        count(client.refused_writes),
        count(server.map_or(0, |server| server.refused_writes)),
    );
    Ok(Outcome::new(&stage.scene, took, verdict, evidence))
}

async fn exchange(client: &ConformanceClient, size: usize, tally: &Tally) -> Result<(), Status> {
    let (mut requests, mut replies) = client.exchange().await?;
    let send = async {
        for sequence in 0..MESSAGES {
            requests.send(Chunk { sequence, payload: vec![7; size] }).await?;
        }
        requests.finish();
        Ok(())
    };
    let receive = async {
        let mut next = 0;
        while let Some(chunk) = replies.recv().await? {
            check(&chunk, next, size, tally);
            next += 1;
        }
        check_count(next, tally);
        Ok(())
    };
    tokio::try_join!(send, receive).map(drop)
}

async fn generate(client: &ConformanceClient, size: u32, tally: &Tally) -> Result<(), Status> {
    let request = GenerateRequest { count: MESSAGES, size, ..GenerateRequest::default() };
    let mut replies = client.generate(request).await?;
    let mut next = 0;
    while let Some(chunk) = replies.recv().await? {
        check(&chunk, next, size as usize, tally);
        next += 1;
    }
    check_count(next, tally);
    Ok(())
}

async fn collect(client: &ConformanceClient, size: usize, tally: &Tally) -> Result<(), Status> {
    let (mut requests, summary) = client.collect().await?;
    for sequence in 0..MESSAGES {
        requests.send(Chunk { sequence, payload: vec![7; size] }).await?;
    }
    requests.finish();
    let summary = summary.await?;
    if !summary.in_order || summary.bytes != MESSAGES * size as u64 {
        tally.wrong(format!("a stream of requests arrived as {summary:?}"));
    }
    check_count(summary.chunks, tally);
    Ok(())
}

fn check(chunk: &Chunk, expected: u64, size: usize, tally: &Tally) {
    if chunk.sequence != expected || chunk.payload.len() != size {
        let (sequence, len) = (chunk.sequence, chunk.payload.len());
        tally.wrong(format!("message {sequence} of {len} bytes came as number {expected}"));
    }
}

fn check_count(messages: u64, tally: &Tally) {
    if messages != MESSAGES {
        tally.wrong(format!("a stream ended well after {messages} messages of {MESSAGES}"));
    }
}
