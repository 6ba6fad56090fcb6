//! Random schedules of two peers that call each other through multiplexers: whatever the sizes and limits, every call
//! ends. With the clock paused a deadlock is seen at once, and two wrong designs show that it would be.

use std::{env, sync::Arc, time::Duration};

use bytes::BytesMut;
use fastrand::Rng;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex, split},
    sync::{OnceCell, mpsc},
    task::JoinSet,
    time::timeout,
};
use ttrpc::{
    Client, ClientConfig, Connection, Server, ServerConfig, Status,
    server::{Routes, Service},
};

use super::*;

/// How logical connections are read.
#[derive(Clone, Copy, Debug)]
enum Design {
    /// The library's.
    Right,
    /// Wrong: the trunk reader waits for room in the queue of one connection.
    WaitsForAFullQueue,
    /// Wrong: both connections share one queue, which is read in order.
    OneQueue,
}

/// Keeps the tasks of either design.
enum Guard {
    Right(#[expect(dead_code, reason = "its tasks live as long")] Mux),
    Wrong(#[expect(dead_code, reason = "its tasks live as long")] JoinSet<()>),
}

impl Design {
    fn start(self, trunk: tokio::io::DuplexStream) -> (Guard, [Connection; 2]) {
        let config = MuxConfig::default().unsent_bytes(1);
        let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
        match self {
            Design::Right => {
                let (mux, connections) = Mux::start(Connection::new(trunk), config, ids);
                (Guard::Right(mux), connections)
            }
            Design::WaitsForAFullQueue | Design::OneQueue => wrong(self, trunk),
        }
    }
}

/// A multiplexer of a wrong design: writes as it should, and reads through queues of two frames.
fn wrong(design: Design, trunk: tokio::io::DuplexStream) -> (Guard, [Connection; 2]) {
    let (mut reader, mut writer) = split(trunk);
    let mut tasks = JoinSet::new();
    let (to_write, mut frames) = mpsc::channel::<BytesMut>(2);
    tasks.spawn(async move {
        while let Some(frame) = frames.recv().await {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
    });
    let (one_queue, mut in_order) = mpsc::channel::<(u32, Vec<u8>)>(2);
    let mut queues = Vec::new();
    let connections = [ConnId::PLUGIN, ConnId::RUNTIME].map(|id| {
        let (queue, mut unread) = mpsc::channel::<Vec<u8>>(2);
        queues.push(queue);
        let (program, ours) = duplex(64);
        let (mut from_program, mut to_program) = split(ours);
        tasks.spawn(async move {
            while let Some(bytes) = unread.recv().await {
                if to_program.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let to_write = to_write.clone();
        tasks.spawn(async move {
            let mut buffer = [0; 64];
            while let Ok(len @ 1..) = from_program.read(&mut buffer).await {
                if to_write.send(layout::frame(id, &buffer[..len])).await.is_err() {
                    break;
                }
            }
        });
        Connection::new(program)
    });
    let queues = Arc::new(queues);
    let to = queues.clone();
    tasks.spawn(async move {
        while let Ok(id) = reader.read_u32().await {
            let Ok(len) = reader.read_u32().await else { break };
            let mut payload = vec![0; len as usize];
            if reader.read_exact(&mut payload).await.is_err() {
                break;
            }
            let sent = match design {
                Design::OneQueue => one_queue.send((id, payload)).await.is_ok(),
                _ => to[id as usize - 1].send(payload).await.is_ok(),
            };
            if !sent {
                break;
            }
        }
    });
    tasks.spawn(async move {
        while let Some((id, payload)) = in_order.recv().await {
            if queues[id as usize - 1].send(payload).await.is_err() {
                break;
            }
        }
    });
    (Guard::Wrong(tasks), connections)
}

/// Echoes, after a call of the peer that many times deep, one in each direction.
struct Echo {
    peer: Arc<OnceCell<Client>>,
}

impl Service for Echo {
    fn into_routes(self) -> Routes {
        let service = Arc::new(self);
        Routes::new("echo").unary("Echo", &service, |echo, _ctx, request: Vec<u8>| {
            Box::pin(async move {
                let Some((depth @ 1.., payload)) = request.split_first() else {
                    return Ok(request);
                };
                let mut nested = vec![depth - 1];
                nested.extend_from_slice(payload);
                let peer = echo.peer.get().ok_or_else(|| Status::internal("nobody to call"))?;
                peer.unary::<_, Vec<u8>>("echo", "Echo", nested).await?;
                Ok(request)
            })
        })
    }
}

/// One side: it serves one logical connection and calls over the other.
fn side(
    design: Design,
    trunk: tokio::io::DuplexStream,
    serves: usize,
    calls: usize,
    tasks: &mut JoinSet<()>,
) -> (Guard, Client) {
    let (guard, connections) = design.start(trunk);
    let mut connections = connections.map(Some);
    let served = connections[serves].take().expect("two");
    let called = connections[1 - serves].take().expect("two");
    let peer = Arc::new(OnceCell::new());
    // Nothing that stalls is refused in time: waits end by themselves or never.
    let config = ServerConfig::default().max_calls(calls).stall_timeout(Duration::from_secs(3600));
    let server = Server::builder().config(config).add_service(Echo { peer: peer.clone() });
    let server = server.connection(served).build().expect("it has a connection");
    tasks.spawn(async move { server.serve().await.expect("it has no listener") });
    let client = Client::from_connection(called, ClientConfig::default());
    peer.set(client.clone()).expect("it is set once");
    (guard, client)
}

/// Calls from both sides, some of them nested, through the smallest pipe. Returns whether all ended.
async fn all_calls_end(design: Design, rng: &mut Rng) -> bool {
    let (here, there) = duplex(rng.usize(1..200));
    let mut tasks = JoinSet::new();
    // The plugin's side has few permits, so that it stops reading; the runtime's side never nests further.
    let permits = rng.usize(1..4);
    let (_here, plugin) = side(design, here, 0, permits, &mut tasks);
    let (_there, runtime) = side(design, there, 1, 1000, &mut tasks);
    let mut calls = JoinSet::new();
    for _ in 0..rng.usize(5..40) {
        // The runtime's client calls the plugin, whose handlers call back: one level, as in NRI.
        let (client, depth) = if rng.bool() { (runtime.clone(), 1) } else { (plugin.clone(), 0) };
        let mut payload = vec![depth];
        payload.resize(1 + rng.usize(0..600), 7);
        calls.spawn(async move { client.unary::<_, Vec<u8>>("echo", "Echo", payload).await });
    }
    let ended = async {
        while let Some(reply) = calls.join_next().await {
            reply.expect("no call panics").expect("every call is answered");
        }
    };
    timeout(Duration::from_secs(600), ended).await.is_ok()
}

fn run(design: Design, seeds: std::ops::Range<u64>) -> Vec<u64> {
    let stuck = seeds.filter(|&seed| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("threads are left");
        !runtime.block_on(all_calls_end(design, &mut Rng::with_seed(seed)))
    });
    stuck.collect()
}

/// Schedules that a normal run tries; `TTRPC_SCHEDULE_CASES` says otherwise.
const CASES: u64 = 200;

#[test]
fn every_call_ends_in_every_schedule() {
    let cases = match env::var("TTRPC_SCHEDULE_CASES") {
        Ok(cases) => cases.parse().expect("TTRPC_SCHEDULE_CASES is a number"),
        Err(_) => CASES,
    };
    assert_eq!(run(Design::Right, 0..cases), Vec::<u64>::new());
}

#[test]
fn negative_control_a_reader_that_waits_for_a_full_queue_deadlocks() {
    assert!(
        (3..18).contains(&run(Design::WaitsForAFullQueue, 0..20).len()),
        "some schedules get stuck, not all"
    );
}

#[test]
fn negative_control_one_queue_for_both_deadlocks() {
    assert!(
        (3..18).contains(&run(Design::OneQueue, 0..20).len()),
        "some schedules get stuck, not all"
    );
}
