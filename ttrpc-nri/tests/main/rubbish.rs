//! Peers that violate the protocol, at each step: nobody waits for one longer than for one that is slow, and nobody else is harmed.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use ttrpc_nri::{Stub, proto::ConfigureRequest};

use crate::{
    adaptation::{Pins, adaptation, connect, request},
    hand::{PATIENCE, PLUGIN},
    plugins::Starts,
    raw::{self, Frame, REQUEST, RESPONSE, Raw, mux},
};

/// What a peer writes in the place of the answer to this frame, or in its own place.
type Rubbish = fn(&Frame) -> Vec<u8>;

const RUBBISH: &[(&str, Rubbish)] = &[
    ("nothing", |_| Vec::new()),
    ("text", |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ("half of a mux header", |_| vec![0, 0, 0]),
    ("half of a mux frame", |of| mux(of.conn, &[0; 100])[..50].to_vec()),
    ("the longest length", |of| [&of.conn.to_be_bytes()[..], &[0xff; 4]].concat()),
    ("a connection that is none", |of| mux(7, &raw::frame(of.id, RESPONSE, &[]))),
    ("empty mux frames", |of| mux(of.conn, &[]).repeat(1000)),
    ("zeros", |of| mux(of.conn, &[0; 1000])),
    ("ones", |of| mux(of.conn, &[0xff; 1000])),
    ("half of a ttrpc frame", |of| mux(of.conn, &raw::frame(of.id, RESPONSE, &[0; 99])[..50])),
    ("a message that is none", |of| mux(of.conn, &raw::frame(of.id, RESPONSE, &[0xff; 50]))),
    // A Response with the status 99.
    ("a status that is none", |of| {
        mux(of.conn, &raw::frame(of.id, RESPONSE, &[1 << 3 | 2, 2, 1 << 3, 99]))
    }),
    ("the answer to another call", |of| mux(of.conn, &raw::frame(of.id + 2, RESPONSE, &[]))),
    ("the answer to no call", |of| mux(of.conn, &raw::frame(0, RESPONSE, &[]))),
    ("two answers", |of| mux(of.conn, &raw::frame(of.id, RESPONSE, &[])).repeat(2)),
    ("data of a stream", |of| mux(of.conn, &raw::frame(of.id, 3, b"data"))),
    ("a frame of no type", |of| mux(of.conn, &raw::frame(of.id, 9, b"data"))),
    ("a request that is none", |of| mux(of.conn, &raw::frame(of.id, REQUEST, &[0xff; 50]))),
    ("an answer of the other direction", |of| {
        mux(3 - of.conn, &raw::frame(of.id, RESPONSE, b"data"))
    }),
];

/// The times of a registration and of a request, and two requests more.
const LONGEST: Duration = Duration::from_secs(4 * PATIENCE.as_secs());

#[tokio::test(start_paused = true)]
async fn a_plugin_that_answers_with_rubbish_harms_no_other_plugin() {
    for step in ["RegisterPlugin", "Configure", "Synchronize", "CreateContainer"] {
        for (what, rubbish) in RUBBISH {
            let of = format!("{what} at {step}");
            let (_fake, adaptation) = adaptation();
            let mut tasks = JoinSet::new();
            connect(&adaptation, &mut tasks, "90", "healthy", Pins("1")).await;
            let (connection, mut plugin) = Raw::new();
            tasks.spawn(async move {
                if step == "RegisterPlugin" {
                    let frame = Frame { conn: 2, id: 1, data: Vec::new() };
                    plugin.write_all(&rubbish(&frame)).await;
                } else {
                    plugin.register().await;
                }
                while let Some(frame) = plugin.next().await {
                    if frame.conn == 1 && frame.calls(step) {
                        plugin.write_all(&rubbish(&frame)).await;
                    } else if frame.conn == 1 {
                        plugin.answer(&frame, 0).await;
                    }
                }
            });
            let passes = async {
                let added = adaptation.add(connection).await;
                // It may fail with what the plugin answers.
                let _ = adaptation.create_container(request()).await;
                added
            };
            let added = timeout(LONGEST, passes).await.unwrap_or_else(|_| panic!("{of}: it waits"));
            let is_in = adaptation.plugins().len() == 2;
            assert!(!is_in || added.is_ok(), "{of}: {added:?}");
            if !is_in {
                let created = adaptation.create_container(request()).await;
                let created = created.unwrap_or_else(|status| panic!("{of}: {status}"));
                let adjusted = created.adjust.expect("there is a plugin");
                assert_eq!(adjusted.linux_resources().cpuset_cpus(), Some("1"), "{of}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_ends_with_its_connection_whatever_rubbish_its_runtime_writes() {
    for step in ["RegisterPlugin", "Configure", "StartContainer"] {
        for (what, rubbish) in RUBBISH {
            let of = format!("{what} at {step}");
            let (connection, mut runtime) = Raw::new();
            let stub = Stub::new(Starts).name("a").index("10").connection(connection);
            let stub = tokio::spawn(stub.run());
            let register = runtime.next().await.expect("it registers");
            let mut next = Frame { conn: 1, id: 1, data: Vec::new() };
            match step {
                "RegisterPlugin" => runtime.write_all(&rubbish(&register)).await,
                _ => {
                    runtime.answer(&register, 0).await;
                    if step == "StartContainer" {
                        let configure =
                            raw::request(PLUGIN, "Configure", &ConfigureRequest::default());
                        runtime.write(1, &raw::frame(1, REQUEST, &configure)).await;
                        runtime.next().await.expect("it is configured");
                        next.id = 3;
                    }
                    runtime.write_all(&rubbish(&next)).await;
                }
            }
            // It reads all, and then waits or ends.
            let hour = Duration::from_secs(3600);
            while let Ok(Some(_)) = timeout(hour, runtime.next()).await {}
            drop(runtime);
            let ended = timeout(hour, stub).await.unwrap_or_else(|_| panic!("{of}: it never ends"));
            ended.expect("it does not panic").expect_err(&of);
        }
    }
}
