//! Random schedules: every call ends, in the way that the model says; nothing is left behind; order
//! within a stream is kept. The same schedules catch designs that can deadlock.

mod ids;
mod late;
mod strategy;
mod tokens;

use std::{env, time::Duration};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestRng, TestRunner},
};
use tokio::runtime::Builder;
use ttrpc_tests::schedules::{
    CallKind, Consumer, Design, LedgerFault, Limits, Messages, PlannedCall, Schedule, ServerFault,
    Violation, client::ClientFault, run,
};

/// Schedules that a normal run tries; `TTRPC_SCHEDULE_CASES` says otherwise.
const CASES: u32 = 2000;

/// Attempts to make a schedule that failed smaller, which takes some ten seconds.
const MAX_SHRINKS: u32 = 1000;

fn cases() -> u32 {
    match env::var("TTRPC_SCHEDULE_CASES") {
        Ok(cases) => cases.parse().expect("TTRPC_SCHEDULE_CASES is a number"),
        Err(_) => CASES,
    }
}

/// Runs random schedules until one shows what `is_violation` looks for, and gives that one back.
fn search(
    design: Design,
    rng: TestRng,
    config: Config,
    is_violation: impl Fn(&Violation) -> bool,
) -> Option<String> {
    let config = Config { failure_persistence: None, ..config };
    let found = TestRunner::new_with_rng(config, rng).run(&strategy::schedules(), |schedule| {
        match run(&schedule, design) {
            Err(violation) if is_violation(&violation) => {
                Err(TestCaseError::fail(format!("{violation:?}")))
            }
            _ => Ok(()),
        }
    });
    found.err().map(|error| error.to_string())
}

fn must_hold(design: Design, cases: u32, is_violation: impl Fn(&Violation) -> bool) {
    let config = Config { cases, max_shrink_iters: MAX_SHRINKS, ..Config::default() };
    let (seed, rng) = fresh_seed(&config);
    if let Some(error) = search(design, rng, config, is_violation) {
        panic!("{design:?}, with the seed {seed}: {error}");
    }
}

fn must_deadlock(design: Design) {
    must_be_caught(design, is_deadlock);
}

fn must_be_caught(design: Design, is_violation: impl Fn(&Violation) -> bool) {
    let config = Config { cases: cases(), max_shrink_iters: 0, ..Config::default() };
    // The same schedules in each run: chance has no part in whether one of them catches it.
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let found = search(design, rng, config, is_violation);
    assert!(found.is_some(), "{design:?} was not caught in {} schedules", cases());
}

fn is_deadlock(violation: &Violation) -> bool {
    matches!(violation, Violation::Deadlock(_))
}

/// Seeds a run anew: a library that is right fails with none. A failure prints the seed.
fn fresh_seed(config: &Config) -> (u64, TestRng) {
    let seed = fastrand::u64(..);
    let bytes: Vec<u8> = seed.to_le_bytes().into_iter().cycle().take(32).collect();
    (seed, TestRng::from_seed(config.rng_algorithm, &bytes))
}

/// Tries a property with many plans, each on a runtime of its own whose clock is paused.
fn in_virtual_time<S: Strategy, F>(plans: S, property: impl Fn(S::Value) -> F)
where
    F: Future<Output = Result<(), TestCaseError>>,
{
    let config = Config { cases: cases() / 4, failure_persistence: None, ..Config::default() };
    let (seed, rng) = fresh_seed(&config);
    let found = TestRunner::new_with_rng(config, rng).run(&plans, |plan| {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime with nothing but a clock can be built").block_on(property(plan))
    });
    if let Err(error) = found {
        panic!("with the seed {seed}: {error}");
    }
}

#[test]
fn the_library_ends_every_call_as_it_must() {
    must_hold(Design::Library, cases(), |_| true);
}

/// Found by chance, once in some millions of schedules: the socket takes all up to the end of a frame, and the call
/// whose Request lies behind it is given up meanwhile. The connection failed, with the calls of others.
#[test]
fn a_call_given_up_where_the_socket_became_full_harms_no_other() {
    let none = Messages { count: 0, size: 0 };
    let kinds = [
        (CallKind::Sleep(Duration::from_millis(899)), None),
        (CallKind::Echo { request: 0, reply: 0 }, None),
        (CallKind::Hold(Messages { count: 1, size: 0 }), None),
        (CallKind::Collect(none), Some(Duration::from_millis(1))),
        (CallKind::Echo { request: 0, reply: 0 }, None),
    ];
    let calls = kinds.map(|(kind, deadline)| PlannedCall {
        connection: 0,
        at: Duration::ZERO,
        kind,
        deadline,
        dropped_after: None,
    });
    let limits = Limits {
        client_calls: 5,
        handlers: 4,
        request_bytes: 28,
        all_handlers: 1000,
        all_request_bytes: 1 << 30,
        all_inbox_bytes: 1 << 30,
        queue_frames: 2,
        queue_bytes: 2791,
        inbox_messages: 1,
        inbox_bytes: 218,
        stall_timeout: Duration::from_secs(1),
    };
    let schedule = Schedule {
        pipe_bytes: 50,
        connections: 1,
        limits,
        is_intercepted: false,
        calls: calls.into(),
    };
    assert_eq!(run(&schedule, Design::Library), Ok(()));
}

/// Found by chance, once in some millions of schedules: the client's receiver waits for a slow consumer time and again,
/// so that the other stream's handler keeps its place, too, and a call that waits for one may be refused.
#[test]
fn a_slow_consumer_holds_up_the_other_streams_of_its_connection() {
    let kinds = [
        CallKind::Generate(Messages { count: 15, size: 17 }, Consumer::Eager),
        CallKind::Generate(
            Messages { count: 10, size: 18 },
            Consumer::Slow(Duration::from_millis(125)),
        ),
        CallKind::Echo { request: 0, reply: 0 },
    ];
    let calls = kinds.map(|kind| PlannedCall {
        connection: 0,
        at: Duration::ZERO,
        kind,
        deadline: None,
        dropped_after: None,
    });
    let limits = Limits {
        client_calls: 14,
        handlers: 2,
        request_bytes: 35884,
        all_handlers: 1000,
        all_request_bytes: 1 << 30,
        all_inbox_bytes: 1 << 30,
        queue_frames: 2,
        queue_bytes: 11601,
        inbox_messages: 1,
        inbox_bytes: 1,
        stall_timeout: Duration::from_secs(1),
    };
    let schedule = Schedule {
        pipe_bytes: 1,
        connections: 1,
        limits,
        is_intercepted: false,
        calls: calls.into(),
    };
    assert_eq!(run(&schedule, Design::Library), Ok(()));
}

#[test]
fn an_observer_that_misses_an_end_or_takes_one_for_two_is_caught() {
    for fault in [LedgerFault::MissesGivenUp, LedgerFault::RepeatsDeadlines] {
        must_be_caught(Design::Ledger(fault), |violation| matches!(violation, Violation::Wrong(_)));
    }
}

#[test]
fn a_client_that_sends_and_receives_in_one_task_is_caught() {
    must_deadlock(Design::Client(ClientFault::OneTask));
}

#[test]
fn a_lock_that_is_held_across_a_write_is_caught() {
    must_deadlock(Design::Client(ClientFault::LockAcrossWrite));
}

#[test]
fn a_receive_loop_that_waits_for_a_consumer_without_end_is_caught() {
    must_deadlock(Design::Client(ClientFault::WaitsForConsumer));
}

#[test]
fn a_receiver_that_pauses_at_the_handler_limit_is_caught() {
    must_deadlock(Design::Server(ServerFault::PausesAtHandlerLimit));
}

/// It is the faults that are caught, and not something else about the small client and server.
#[test]
fn without_their_faults_the_small_client_and_server_do_not_deadlock() {
    must_hold(Design::Client(ClientFault::None), cases() / 4, is_deadlock);
    must_hold(Design::Server(ServerFault::None), cases() / 4, is_deadlock);
}
