//! What peers do that mean no good, or are broken.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{sleep, timeout},
};
use ttrpc_tests::{
    conformance::*,
    harness::{MAX_DATA_LEN, call, chunk, echo_request, open_stream},
    wire::{Frame, REQUEST, header},
};

/// How long a peer that has done its worst stays.
fn a_while() -> Duration {
    Duration::from_millis(fastrand::u64(0..3000))
}

/// Attacks in one of several ways. What the server does to the attacker is its own affair.
///
/// # Errors
/// If the server can not be reached, or gives the one peer here that is merely slow no answer.
pub(crate) async fn attack(address: &str) -> Result<(), String> {
    let io = UnixStream::connect(address).await.map_err(|error| format!("an attack: {error}"))?;
    match fastrand::u8(0..7) {
        0 => never_read(io).await,
        1 => announce_much(io).await,
        2 => write_garbage(io).await,
        3 => flood_a_handler(io).await,
        4 => break_off(io).await,
        5 => sit_idle(address).await,
        _ => return go_slowly(io).await,
    }
    Ok(())
}

/// Small requests until the server reads no more.
async fn never_read(mut io: UnixStream) {
    let request = EchoRequest { payload: Vec::new(), response_size: 1000 };
    for number in 0.. {
        let frame = call(2 * number + 1, "Echo", &request).to_bytes();
        match timeout(Duration::from_millis(500), io.write_all(&frame)).await {
            Ok(Ok(())) => {}
            _ => break,
        }
    }
    sleep(a_while()).await;
}

/// Four gibibytes are announced, eight mebibytes come.
async fn announce_much(mut io: UnixStream) {
    let _ = io.write_all(&header(u32::MAX, 1, REQUEST, 0)).await;
    let zeros = vec![0; 64 << 10];
    for _ in 0..128 {
        let _ = io.write_all(&zeros).await;
    }
    sleep(a_while()).await;
}

async fn write_garbage(mut io: UnixStream) {
    let bytes: Vec<u8> = (0..fastrand::usize(0..50_000)).map(|_| fastrand::u8(..)).collect();
    let _ = timeout(a_while(), io.write_all(&bytes)).await;
}

/// Streams of messages that no handler takes.
async fn flood_a_handler(io: UnixStream) {
    let (mut reader, mut writer) = io.into_split();
    let reading = tokio::spawn(async move {
        let mut sink = vec![0; 4096];
        while let Ok(1..) = reader.read(&mut sink).await {}
    });
    let flood = async {
        for stream in 0..20 {
            let id = 2 * stream + 1;
            writer.write_all(&open_stream(id, "Hold").to_bytes()).await?;
            let message = Chunk { sequence: 0, payload: vec![0; 64 << 10] };
            for _ in 0..100 {
                writer.write_all(&Frame::message(id, &message).to_bytes()).await?;
            }
        }
        std::io::Result::Ok(())
    };
    let _ = timeout(Duration::from_secs(5), flood).await;
    sleep(a_while()).await;
    reading.abort();
}

/// Ends in the middle of a long frame.
async fn break_off(mut io: UnixStream) {
    let frame = call(1, "Echo", &echo_request(vec![0; MAX_DATA_LEN / 2])).to_bytes();
    let _ = io.write_all(&frame[..fastrand::usize(0..frame.len())]).await;
    sleep(a_while() / 10).await;
}

async fn sit_idle(address: &str) {
    let mut connections = Vec::new();
    for _ in 0..50 {
        connections.extend(UnixStream::connect(address).await);
    }
    sleep(a_while()).await;
}

/// A byte at a time in each direction.
async fn go_slowly(mut io: UnixStream) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("a slow peer: {error}");
    for byte in call(1, "Collect", &Empty {}).to_bytes() {
        io.write_all(&[byte]).await.map_err(wrong)?;
        sleep(Duration::from_millis(10)).await;
    }
    // `Collect` is a stream, and this was no stream's Request: a refusal comes.
    let mut bytes = Vec::new();
    while bytes.len() < 10 || bytes.len() < 10 + usize::from(bytes[3]) {
        bytes.push(io.read_u8().await.map_err(wrong)?);
        sleep(Duration::from_millis(10)).await;
    }
    let _ = io.write_all(&Frame::message(9, &chunk(0)).to_bytes()).await;
    Ok(())
}
