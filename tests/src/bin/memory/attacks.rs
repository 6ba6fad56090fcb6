//! The attacks.

use std::{io, pin::Pin, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc::ServerConfig;
use ttrpc_tests::{
    conformance::*,
    harness::{MAX_DATA_LEN, call, echo_request, key, open_stream, read_frame},
    wire::{Frame, REQUEST, header},
};

use crate::victim::{Figures, LATE_REPLY, Load, REPLIES, Victim, client_bound, start_client};

/// When a peer that could not write for so long is said not to be read any more. Longer than the
/// stall timeout, after which the server reads on and refuses.
const BLOCKED: Duration = Duration::from_secs(5);

/// A reply whose frame is short, and one whose frame is long.
const SHORT: u32 = 64 << 10;
const LONG: u32 = 1 << 20;

/// Short replies for each long one. Three long ones fit into the send queue and four may wait, and by the last of these the
/// queue is full of short ones, too: of 63.
const SHORT_FOR_A_LONG: usize = 9;

type Measured = Pin<Box<dyn Future<Output = Result<Figures, String>> + Send>>;

/// An attack, on a small scale or on a large one.
pub(crate) type Attack = fn(is_short: bool) -> Measured;

/// All attacks by name.
pub(crate) const ATTACKS: [(&str, Attack); 16] = [
    ("short requests for ever, replies never read", |short| {
        Box::pin(flood(if short { 4 } else { 100 }, &[0]))
    }),
    ("short requests for replies of 64 KiB, never read", |short| {
        Box::pin(flood(if short { 2 } else { 20 }, &[SHORT]))
    }),
    ("short requests for replies of 1 MiB, never read", |short| {
        Box::pin(flood(if short { 1 } else { 4 }, &[LONG]))
    }),
    ("replies of 64 KiB and of 1 MiB in turns, never read", |short| {
        const SIZES: [u32; SHORT_FOR_A_LONG + 1] = {
            let mut sizes = [SHORT; SHORT_FOR_A_LONG + 1];
            sizes[SHORT_FOR_A_LONG] = LONG;
            sizes
        };
        Box::pin(flood(if short { 1 } else { 20 }, &SIZES))
    }),
    ("replies of 1 MiB that handlers make together, never read", |short| {
        Box::pin(reply_together(if short { 1 } else { 20 }))
    }),
    ("replies of 1 MiB of handlers without async, never read", |short| {
        Box::pin(reply_from_threads(if short { 1 } else { 4 }))
    }),
    ("requests of 1 MiB to handlers that wait", |short| {
        Box::pin(wait_with_long_requests(if short { 4 } else { 30 }))
    }),
    ("calls without end to handlers that wait", |short| {
        Box::pin(wait_with_many_calls(if short { 4 } else { 20 }))
    }),
    ("streams of 64 KiB messages that no handler takes", |short| {
        Box::pin(stream(if short { 2 } else { 30 }, 25, 64 << 10))
    }),
    ("messages of 40 KiB behind long frames, never taken", |short| {
        Box::pin(stream_behind_long_frames(if short { 1 } else { 4 }))
    }),
    ("streams of messages of one byte that no handler takes", |short| {
        // Some 60 streams fill the connection's inboxes, and each further one stalls it for about a second.
        Box::pin(if short { stream(1, 80, 1) } else { stream(20, 270, 1) })
    }),
    ("frames of 4 GiB announced, and some of it sent", |short| {
        Box::pin(announce(if short { 10 } else { 100 }))
    }),
    ("frames of 4 MiB, all but the last byte sent", |short| {
        Box::pin(begin_frames(if short { 8 } else { 64 }))
    }),
    ("idle connections", |short| Box::pin(sit_idle(if short { 500 } else { 10_000 }, 1))),
    ("idle connections that have been busy", |short| {
        Box::pin(sit_idle(if short { 100 } else { 2_000 }, 1000))
    }),
    ("client: streams for ever of which nothing is taken", |short| {
        Box::pin(stream_at_client(if short { 2 } else { 16 }))
    }),
];

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Runs one attacker per connection, each of which gives back its connection, so that all are
/// there when the others are tried.
async fn attack_with<F>(
    connections: u64,
    victim: &Victim,
    attacker: impl Fn(UnixStream) -> F,
) -> Result<Vec<UnixStream>, String>
where
    F: Future<Output = io::Result<UnixStream>> + Send + 'static,
{
    let mut attackers = JoinSet::new();
    for _ in 0..connections {
        attackers.spawn(attacker(victim.connect().await.map_err(text)?));
    }
    let mut open = Vec::new();
    while let Some(attacker) = attackers.join_next().await {
        open.push(attacker.map_err(text)?.map_err(text)?);
    }
    Ok(open)
}

/// Writes until the server has not read for long.
async fn write_until_blocked(
    io: &mut (impl AsyncWriteExt + Unpin),
    mut next: impl FnMut() -> Option<Vec<u8>>,
) -> io::Result<()> {
    while let Some(bytes) = next() {
        match timeout(BLOCKED, io.write_all(&bytes)).await {
            Ok(written) => written?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// Many frames as one piece, since the attacker is not what is measured.
fn together(frames: impl Iterator<Item = Frame>) -> Vec<u8> {
    frames.flat_map(|frame| frame.to_bytes()).collect()
}

/// Asks for replies of these sizes in turns, and reads none.
async fn flood(connections: u64, response_sizes: &'static [u32]) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |mut io| async move {
        let ids = (1..).step_by(2);
        let sizes = response_sizes.iter().cycle();
        let mut calls = ids.zip(sizes).map(|(id, size)| Frame::unary(id, REPLIES, "Reply", size));
        write_until_blocked(&mut io, || Some(together(calls.by_ref().take(500)))).await?;
        Ok(io)
    })
    .await?;
    let calls = connections * ServerConfig::default().max_calls_per_connection as u64;
    let max_calls = ServerConfig::default().max_calls as u64;
    // Even where they hold all calls of the server.
    victim.expect_service().await?;
    drop(open);
    let connections_if = |asks: bool| if asks { connections } else { 0 };
    let unread_long = connections_if(response_sizes.contains(&LONG));
    let load = Load {
        connections,
        unread: connections_if(response_sizes.iter().any(|&size| size <= SHORT)),
        unread_long,
        calls: calls.min(max_calls),
        // A call begins while the queue has room for short frames: so its reply waits if that is long.
        replying: unread_long,
        reply_len: u64::from(response_sizes.iter().copied().max().unwrap_or_default()),
        ..Load::default()
    };
    victim.figures(load).await
}

/// Connections that read no reply of [`REPLIES`]. The statuses in the place of some are short.
fn of_late_replies(connections: u64) -> Load {
    Load {
        connections,
        unread: connections,
        unread_long: connections,
        replying: connections,
        reply_len: LATE_REPLY as u64,
        ..Load::default()
    }
}

async fn reply_together(connections: u64) -> Result<Figures, String> {
    const CALLS: u64 = 800;
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |mut io| async move {
        let ids = (1..).step_by(2).take(CALLS as usize);
        io.write_all(&together(ids.map(|id| Frame::unary(id, REPLIES, "Wait", &())))).await?;
        Ok(io)
    })
    .await?;
    victim.go_on(connections * CALLS).await?;
    // Until they are waited for no more, and longer.
    sleep(BLOCKED).await;
    victim.expect_service().await?;
    drop(open);
    let calls = connections * CALLS;
    victim.figures(Load { calls, ..of_late_replies(connections) }).await
}

async fn reply_from_threads(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let calls = ServerConfig::default().max_calls_per_connection;
    let open = attack_with(connections, &victim, |mut io| async move {
        let ids = (1..).step_by(2).take(calls);
        io.write_all(&together(ids.map(|id| Frame::unary(id, REPLIES, "Make", &())))).await?;
        Ok(io)
    })
    .await?;
    // Until they are waited for no more, and longer.
    sleep(BLOCKED).await;
    victim.expect_service().await?;
    drop(open);
    let running = ServerConfig::default().max_blocking_calls as u64;
    let calls = connections * calls as u64;
    victim.figures(Load { calls, running, ..of_late_replies(connections) }).await
}

/// Reads and drops what comes.
fn read_all(mut reader: impl AsyncReadExt + Unpin + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut sink = vec![0; 16 << 10];
        while let Ok(1..) = reader.read(&mut sink).await {}
    })
}

/// Writes these pieces while the answers are read.
async fn write_and_read(
    io: UnixStream,
    next: impl FnMut() -> Option<Vec<u8>>,
) -> io::Result<UnixStream> {
    let (reader, mut writer) = io.into_split();
    let reading = tokio::spawn(async move {
        let mut reader = reader;
        let mut sink = vec![0; 16 << 10];
        // Until nothing has come for a while.
        while let Ok(Ok(1..)) = timeout(BLOCKED * 2, reader.read(&mut sink)).await {}
        reader
    });
    write_until_blocked(&mut writer, next).await?;
    let reader = reading.await.map_err(io::Error::other)?;
    reader.reunite(writer).map_err(io::Error::other)
}

async fn wait_with_long_requests(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |io| {
        let mut ids = (1..).step_by(2).take(40);
        write_and_read(io, move || {
            // A key that nobody releases.
            let request = key(&"k".repeat(1 << 20));
            ids.next().map(|id| call(id, "Wait", &request).to_bytes())
        })
    })
    .await?;
    drop(open);
    let load =
        Load { connections, requesting: connections, arriving: connections, ..Load::default() };
    let mut figures = victim.figures(load).await?;
    // The handlers hold what was decoded, and here a copy of it as a key.
    figures.bound *= 2;
    Ok(figures)
}

async fn wait_with_many_calls(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |io| {
        let mut starts = (1..).step_by(200).take(20);
        write_and_read(io, move || {
            let ids = starts.next().map(|start| (start..).step_by(2).take(100));
            ids.map(|ids| together(ids.map(|id| call(id, "Wait", &key("never")))))
        })
    })
    .await?;
    drop(open);
    let calls = (connections * 1024).min(16_384);
    victim.figures(Load { connections, calls, unread: connections, ..Load::default() }).await
}

async fn stream(connections: u64, streams: u32, len: usize) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |io| {
        let mut ids = (1..).step_by(2).take(streams as usize);
        write_and_read(io, move || {
            // As much as one inbox takes: what comes later fails the stream and frees it.
            let messages = ((1 << 20) / (len + 20)).clamp(1, 4096);
            let message = Chunk { sequence: 0, payload: vec![0; len] };
            let id = ids.next()?;
            let data = std::iter::repeat_with(|| Frame::message(id, &message)).take(messages);
            Some(together(std::iter::once(open_stream(id, "Hold")).chain(data)))
        })
    })
    .await?;
    victim.expect_service().await?;
    drop(open);
    let calls = (connections * u64::from(streams)).min(16_384);
    let load =
        Load { connections, calls, streaming: connections, unread: connections, ..Load::default() };
    victim.figures(load).await
}

/// Messages that are read together with the end of a frame which is dropped.
async fn stream_behind_long_frames(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |io| {
        let message = Frame::message(1, &Chunk { sequence: 0, payload: vec![0; 40 << 10] });
        // To a stream that is not open.
        let long = Frame::message(3, &Chunk { sequence: 0, payload: vec![0; MAX_DATA_LEN - 100] });
        let messages = [long.to_bytes(), message.to_bytes()].concat();
        let pieces = std::iter::repeat_n(messages, 25);
        let mut pieces = std::iter::once(open_stream(1, "Hold").to_bytes()).chain(pieces);
        write_and_read(io, move || pieces.next())
    })
    .await?;
    victim.expect_service().await?;
    drop(open);
    let load = Load {
        connections,
        calls: connections,
        arriving: connections,
        streaming: connections,
        unread: connections,
        ..Load::default()
    };
    victim.figures(load).await
}

async fn announce(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |mut io| async move {
        io.write_all(&header(u32::MAX, 1, REQUEST, 0)).await?;
        for _ in 0..16 {
            io.write_all(&vec![0; 1 << 20]).await?;
        }
        Ok(io)
    })
    .await?;
    victim.expect_service().await?;
    drop(open);
    // Nothing of it is kept.
    victim.figures(Load { connections, unread: 1, ..Load::default() }).await
}

async fn begin_frames(connections: u64) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let open = attack_with(connections, &victim, |mut io| async move {
        let frame = call(1, "Echo", &echo_request(vec![0; MAX_DATA_LEN - 100])).to_bytes();
        io.write_all(&frame[..frame.len() - 1]).await?;
        Ok(io)
    })
    .await?;
    victim.expect_service().await?;
    drop(open);
    victim.figures(Load { connections, arriving: connections, ..Load::default() }).await
}

/// Connections that do nothing after so many calls at once.
async fn sit_idle(connections: u64, calls: u32) -> Result<Figures, String> {
    let victim = Victim::server().await?;
    let mut open = Vec::new();
    // One after the other, so that what is busy at once is not what is measured.
    for _ in 0..connections {
        let io = victim.connect().await.map_err(text)?;
        let (mut reader, mut writer) = io.into_split();
        let ids = (1..).step_by(2).take(calls as usize);
        let frames = together(ids.map(|id| call(id, "Echo", &echo_request(vec![0; 100]))));
        let writing = tokio::spawn(async move { writer.write_all(&frames).await.map(|()| writer) });
        for _ in 0..calls {
            read_frame(&mut reader).await;
        }
        let writer = writing.await.map_err(text)?.map_err(text)?;
        open.push((reader, writer));
    }
    victim.expect_service().await?;
    let load = Load { connections, calls: u64::from(calls), ..Load::default() };
    drop(open);
    victim.figures(load).await
}

/// The client is attacked: its server sends on all its streams and never ends one.
async fn stream_at_client(streams: u64) -> Result<Figures, String> {
    let (client, listener) = start_client(streams).map_err(text)?;
    let (io, _) = listener.accept().await.map_err(text)?;
    let (mut reader, mut writer) = io.into_split();
    let mut ids = Vec::new();
    for _ in 0..streams {
        ids.push(read_frame(&mut reader).await.0);
    }
    let reading = read_all(reader);
    let at_rest = client.usage().map_err(text)?.memory;
    let message = Chunk { sequence: 0, payload: vec![0; 60 << 10] };
    // Twice what all inboxes hold, a stream after the other, and then on streams that have failed.
    for round in 0..2 {
        for id in &ids {
            for _ in 0..70 + round {
                writer.write_all(&Frame::message(*id, &message).to_bytes()).await.map_err(text)?;
            }
        }
    }
    let usage = client.usage().map_err(text)?;
    reading.abort();
    let (peak, afterwards) = (usage.peak_memory, usage.memory);
    Ok(Figures { at_rest, peak, afterwards, bound: client_bound(streams) })
}
