//! The multiplexer over a pipe in memory, with the clock paused: a test in which nobody can go on ends at once.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};
use ttrpc::{Connection, server::Peer};

use super::*;

const BOTH: [ConnId; 2] = [ConnId::PLUGIN, ConnId::RUNTIME];

/// A ttrpc frame with this much data.
fn message(len: usize) -> Vec<u8> {
    let mut frame = u32::try_from(len).expect("it is short").to_be_bytes().to_vec();
    frame.extend([0, 0, 0, 1, 1, 0]);
    frame.extend((0..len).map(|at| (at % 251) as u8));
    frame
}

fn start(trunk: DuplexStream) -> (Mux, [Connection; 2]) {
    Mux::start(Connection::new(trunk), MuxConfig::default(), BOTH)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("somebody can go on")
}

/// Reads mux frames until there are so many bytes of payload.
async fn frames(trunk: &mut DuplexStream, mut bytes: usize) -> Vec<(u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while bytes > 0 {
        let id = trunk.read_u32().await.expect("it is open");
        let mut payload = vec![0; trunk.read_u32().await.expect("it is open") as usize];
        trunk.read_exact(&mut payload).await.expect("it is open");
        bytes = bytes.checked_sub(payload.len()).expect("no more is sent than was written");
        frames.push((id, payload));
    }
    frames
}

async fn mux_frame(trunk: &mut DuplexStream, id: u32, payload: &[u8]) {
    trunk.write_u32(id).await.expect("it is open");
    trunk.write_u32(u32::try_from(payload.len()).expect("it is short")).await.expect("it is open");
    trunk.write_all(payload).await.expect("it is open");
}

fn source(error: &io::Error) -> &MuxError {
    error.get_ref().and_then(|error| error.downcast_ref()).expect("the multiplexer's error is kept")
}

#[test]
fn connection_0_is_reserved() {
    assert_eq!(ConnId::new(0), None);
    assert_eq!(ConnId::new(1), Some(ConnId::PLUGIN));
    assert_eq!(ConnId::new(7).map(ConnId::number), Some(7));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "named twice")]
async fn a_logical_connection_is_opened_once() {
    let _ = Mux::start(Connection::new(duplex(1).0), MuxConfig::default(), [ConnId::PLUGIN; 2]);
}

#[tokio::test(start_paused = true)]
async fn logical_connections_have_the_peer_of_the_trunk() {
    let trunk = Connection::new(duplex(1).0).with_peer(Peer::unknown().with_name("node 7"));
    let (_mux, connections) = Mux::start(trunk, MuxConfig::default(), BOTH);
    for connection in &connections {
        assert!(format!("{:?}", connection.peer()).contains("node 7"));
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_all_lengths_arrive_both_ways_on_both_connections() {
    for pipe in [1, 7, 100, 1 << 20] {
        let (here, there) = duplex(pipe);
        let (_here, [a, b]) = start(here);
        let (_there, [c, d]) = start(there);
        let lens = [0, 1, 10, 4085, 4086, 4087, 4095, 4096, 4097, 65_536];
        let lens = &lens[..if pipe < 100 { 9 } else { 10 }];
        let transfers = [(a, c), (d, b)].into_iter().map(|(mut from, mut to)| async move {
            let all: Vec<u8> = lens.iter().flat_map(|&len| message(len)).collect();
            let mut read = vec![0; all.len()];
            let write = async {
                for len in lens {
                    from.write_all(&message(*len)).await.expect("it is open");
                }
                from.flush().await.expect("it is open");
            };
            let (_, got) = tokio::join!(write, to.read_exact(&mut read));
            got.expect("it is open");
            assert!(read == all, "what arrives is what was sent");
        });
        let mut transfers = transfers;
        let (one, other) = (transfers.next().expect("two"), transfers.next().expect("two"));
        within(async { tokio::join!(one, other) }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_takes_two_mux_frames_and_short_ones_share_one() {
    let (here, mut there) = duplex(1 << 23);
    let (_mux, [mut plugin, _runtime]) = start(here);
    for len in [4087, 4097, 65_536, 4 << 20] {
        plugin.write_all(&message(len)).await.expect("it is open");
        let frames = within(frames(&mut there, 10 + len)).await;
        let lens: Vec<_> = frames.iter().map(|(id, payload)| (*id, payload.len())).collect();
        assert_eq!(lens, [(1, 10), (1, len)]);
    }
    // While one frame is written the others gather.
    let many: Vec<u8> = (0..300).flat_map(|_| message(30)).collect();
    plugin.write_all(&many).await.expect("it is open");
    let frames = within(frames(&mut there, many.len())).await;
    assert!(frames.len() <= 4, "{} frames", frames.len());
    assert!(frames.iter().all(|(_, payload)| payload.len() <= 4096));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_message_and_the_begin_of_the_next_never_share_a_long_mux_frame() {
    let (here, mut there) = duplex(64);
    let (_mux, [mut plugin, _runtime]) = start(here);
    let lens: Vec<usize> = (0..200).map(|_| fastrand::usize(0..10_000)).collect();
    let all: Vec<u8> = lens.iter().flat_map(|&len| message(len)).collect();
    let write = async { plugin.write_all(&all).await.expect("it is open") };
    let read = frames(&mut there, all.len());
    let ((), frames) = within(async { tokio::join!(write, read) }).await;
    // Read as Go's buffered reader does: a long frame fits only where all of it is one payload's rest.
    let mut frames = frames.into_iter().map(|(_, payload)| payload);
    let mut buffered = Vec::new();
    for len in lens {
        while buffered.len() < 10 {
            let frame = frames.next().expect("all was sent");
            assert!(frame.len() <= 4096, "a header is read into 4,096 bytes");
            buffered.extend(frame);
        }
        buffered.drain(..10);
        let mut missing = len;
        while missing > 0 {
            if buffered.is_empty() {
                let frame = frames.next().expect("all was sent");
                assert!(frame.len() <= missing.max(4096), "it fits what is read");
                buffered.extend(frame);
            }
            missing -= buffered.drain(..buffered.len().min(missing)).len();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn any_cut_is_read() {
    let (here, mut there) = duplex(1 << 20);
    let (_mux, [_plugin, mut runtime]) = start(here);
    let all: Vec<u8> = [5, 5000, 0, 70_000].into_iter().flat_map(message).collect();
    for cut in [1, 9, 11, 4096, 4097, all.len()] {
        for payload in all.chunks(cut) {
            // One for nobody, and an empty one, between all.
            mux_frame(&mut there, 9, b"lost").await;
            mux_frame(&mut there, 2, b"").await;
            mux_frame(&mut there, 2, payload).await;
            if cut < 4096 {
                let mut read = vec![0; payload.len()];
                within(runtime.read_exact(&mut read)).await.expect("it is open");
                assert!(read == payload);
            }
        }
        if cut >= 4096 {
            let mut read = vec![0; all.len()];
            within(runtime.read_exact(&mut read)).await.expect("it is open");
            assert!(read == all);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_hundred_unread_messages_on_one_connection_do_not_delay_the_other() {
    let (here, mut there) = duplex(100);
    let (mux, [mut plugin, mut runtime]) = start(here);
    let writes = async {
        for _ in 0..300 {
            mux_frame(&mut there, 1, &message(1000)).await;
        }
        mux_frame(&mut there, 2, &message(3)).await;
    };
    let mut reply = [0; 13];
    let (_, read) = within(async { tokio::join!(writes, runtime.read_exact(&mut reply)) }).await;
    read.expect("it is open");
    assert_eq!(mux.snapshot()[0].unread_bytes, 300 * 1010);
    let mut rest = vec![0; 300 * 1010];
    within(plugin.read_exact(&mut rest)).await.expect("it is open");
    assert_eq!(mux.snapshot()[0].unread_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_unread_is_bounded_and_the_error_names_the_bound() {
    let (here, mut there) = duplex(1 << 20);
    let config = MuxConfig::default().unread_bytes(5 << 20);
    let (mux, [mut plugin, mut runtime]) = Mux::start(Connection::new(here), config, BOTH);
    let flood = async {
        let payload = message(1 << 20);
        for _ in 0..6 {
            there.write_u32(1).await?;
            there.write_u32(u32::try_from(payload.len()).expect("it is short")).await?;
            there.write_all(&payload).await?;
        }
        io::Result::Ok(())
    };
    let (_, why) = within(async { tokio::join!(flood, mux.closed()) }).await;
    assert!(
        matches!(why, MuxError::Unread { connection: ConnId::PLUGIN, limit } if limit == 5 << 20)
    );
    let text = why.to_string();
    assert!(text.contains("5242880") && text.contains("unread_bytes"), "{text}");
    assert!(text.contains("the plugin's connection"), "{text}");
    // What had arrived can be read, then both end with the reason.
    let mut unread = Vec::new();
    let error = within(plugin.read_to_end(&mut unread)).await.expect_err("the trunk has ended");
    assert!(matches!(source(&error), MuxError::Unread { .. }));
    assert!(unread.len() > 4 << 20);
    let error = within(runtime.read(&mut [0])).await.expect_err("the trunk has ended");
    assert!(matches!(source(&error), MuxError::Unread { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_sender_waits_for_a_peer_that_does_not_read_and_the_other_connection_is_read() {
    let (here, mut there) = duplex(4096);
    let config = MuxConfig::default().unsent_bytes(1000);
    let (mux, [mut plugin, mut runtime]) = Mux::start(Connection::new(here), config, BOTH);
    let write = async {
        loop {
            plugin.write_all(&message(500)).await.expect("it is open");
        }
    };
    timeout(Duration::from_secs(1), write).await.expect_err("nobody reads");
    assert!(mux.snapshot()[0].unsent_bytes < 4096 + 1000 + 600);
    mux_frame(&mut there, 2, &message(1)).await;
    within(runtime.read_exact(&mut [0; 11])).await.expect("it is open");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_half_written_holds_up_only_its_own_connection() {
    let (here, mut there) = duplex(1 << 20);
    let (_mux, [mut plugin, mut runtime]) = start(here);
    plugin.write_all(&message(100_000)[..50_000]).await.expect("it is open");
    drop(plugin);
    runtime.write_all(&message(3)).await.expect("it is open");
    let frames = within(frames(&mut there, 13)).await;
    assert_eq!(frames, [(2, message(3))]);
    // What arrives for a connection that was dropped is dropped.
    mux_frame(&mut there, 1, &message(9)).await;
    mux_frame(&mut there, 2, &message(1)).await;
    within(runtime.read_exact(&mut [0; 11])).await.expect("it is open");
}

#[tokio::test(start_paused = true)]
async fn the_connections_take_turns() {
    let (here, mut there) = duplex(16);
    let config = MuxConfig::default().unsent_bytes(1 << 20);
    let (_mux, [mut plugin, mut runtime]) = Mux::start(Connection::new(here), config, BOTH);
    for _ in 0..20 {
        plugin.write_all(&message(5000)).await.expect("it is open");
    }
    runtime.write_all(&message(3)).await.expect("it is open");
    let frames = within(frames(&mut there, 20 * 5010 + 13)).await;
    let at = frames.iter().position(|(id, _)| *id == 2).expect("it was sent");
    assert!(at <= 26, "it waits for one batch, not for all: it came as number {at}");
}

#[tokio::test(start_paused = true)]
async fn both_connections_end_with_the_trunk_and_the_reason_is_kept() {
    let (here, there) = duplex(100);
    let (mux, [mut plugin, mut runtime]) = start(here);
    drop(there);
    assert!(matches!(within(mux.closed()).await, MuxError::Closed));
    for connection in [&mut plugin, &mut runtime] {
        assert_eq!(within(connection.read(&mut [0])).await.expect("it has ended well"), 0);
        let error = connection.write_all(&message(1)).await.expect_err("it has ended");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trunk_that_ends_in_a_frame_is_an_error() {
    let (here, mut there) = duplex(100);
    let (mux, [mut plugin, _runtime]) = start(here);
    there.write_all(&[0, 0, 0, 1, 0, 0, 0, 9, 1, 2]).await.expect("it is open");
    drop(there);
    assert!(matches!(within(mux.closed()).await, MuxError::Truncated));
    let error = within(plugin.read_to_end(&mut Vec::new())).await.expect_err("it was cut");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test(start_paused = true)]
async fn a_longer_payload_than_gos_is_an_error() {
    let (here, mut there) = duplex(100);
    let (mux, _connections) = start(here);
    there.write_u32(1).await.expect("it is open");
    there.write_u32(4_194_315).await.expect("it is open");
    let why = within(mux.closed()).await;
    assert!(matches!(why, MuxError::FrameTooLong { connection: 1, len: 4_194_315 }), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_message_longer_than_ttrpcs_is_refused_here() {
    let (here, _there) = duplex(100);
    let (_mux, [mut plugin, _runtime]) = start(here);
    let mut header = message(0);
    header[..4].copy_from_slice(&((4_u32 << 20) + 1).to_be_bytes());
    let error = plugin.write_all(&header).await.expect_err("it is too long");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[tokio::test(start_paused = true)]
async fn a_mux_that_is_dropped_ends_its_connections_and_the_trunk() {
    let (here, mut there) = duplex(100);
    let (mux, [mut plugin, _runtime]) = start(here);
    drop(mux);
    let error = within(plugin.read(&mut [0])).await.expect_err("it was closed");
    assert!(matches!(source(&error), MuxError::ClosedLocally));
    assert_eq!(within(there.read(&mut [0])).await.expect("it has ended well"), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_writes_what_was_handed_over() {
    let (here, mut there) = duplex(100);
    let (mux, [mut plugin, _runtime]) = start(here);
    plugin.write_all(&message(9000)).await.expect("it is open");
    let mut read = Vec::new();
    let ((), got) =
        within(async { tokio::join!(mux.shutdown(), there.read_to_end(&mut read)) }).await;
    got.expect("it has ended well");
    assert_eq!(read.len(), 2 * 8 + 9010);
}
