//! How the end of a call is told, and that of a server, in the orders in which shuttle has its threads run; see
//! [`transport`](crate::transport)'s.

use std::sync::Arc;

use shuttle::{future::block_on, thread::spawn};
use tokio::time::Instant;

use super::{
    connection_task::OpenConnection, end_signal::EndSignal, shutdown::Lifecycle,
    tests::idle_connection,
};
use crate::{
    ServerConfig,
    transport::{
        interleavings::{join, try_all},
        lock,
    },
};

#[test]
fn a_token_fires_whenever_it_was_asked_for() {
    let model = || {
        let end = Arc::new(EndSignal::default());
        let fires = end.clone();
        let asks = [EndSignal::token, EndSignal::graceful_token].map(|ask| {
            let end = end.clone();
            spawn(move || block_on(ask(&end).cancelled()))
        });
        join(asks.into_iter().chain([spawn(move || fires.fire())]));
        assert!(end.is_over() && end.is_graceful());
    };
    try_all(model);
}

#[test]
fn a_handler_that_begins_hears_of_the_end() {
    let model = || {
        let end = Arc::new(EndSignal::default());
        let (fires, begins) = (end.clone(), end.clone());
        let handler = move || {
            if !begins.is_over() {
                block_on(begins.token().cancelled());
            }
        };
        join([spawn(handler), spawn(move || fires.fire())]);
        assert!(end.is_over(), "a call that is over does not begin");
    };
    try_all(model);
}

#[test]
fn a_server_that_is_shut_down_while_it_starts_does_not_run() {
    let model = || {
        let lifecycle = Arc::new(Lifecycle::default());
        let (starts, drains, waits) = (lifecycle.clone(), lifecycle.clone(), lifecycle.clone());
        join([
            spawn(move || {
                starts.start();
            }),
            spawn(move || drains.drain(Instant::now())),
            spawn(move || block_on(waits.draining())),
        ]);
        assert!(!lifecycle.is_running());
    };
    try_all(model);
}

#[test]
fn a_server_that_drains_has_seen_a_connection_or_refuses_it() {
    let model = || {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let shared = connection.server.clone();
        shared.lifecycle.start();
        let opens = spawn(move || OpenConnection::new(connection));
        shared.lifecycle.drain(Instant::now());
        let has_seen = lock(&shared.connections).len() == 1;
        let is_open = opens.join().expect("it does not panic").is_ok();
        assert!(has_seen || !is_open);
    };
    try_all(model);
}
