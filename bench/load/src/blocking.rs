//! The two processes of a contender with threads.

use std::{process::exit, thread, time::Instant};

use crate::{
    BlockingContender, Options, Role, Workload,
    meter::Meter,
    process::{
        Stop, exit_with_standard_input, raise_descriptor_limit, wait_for_end_of_input,
        wait_for_socket,
    },
};

/// Is the server or the client of a contender, as the options say.
pub fn run_blocking<C: BlockingContender>(options: Options) {
    if options.role == Role::Server {
        exit_with_standard_input();
        return C::serve(options.path);
    }
    wait_for_socket(&options.path);
    let can_concur = C::IS_CONCURRENT || options.in_flight == 1;
    match options.workload {
        Workload::Idle => hold_idle_connections::<C>(&options),
        Workload::Unary if can_concur && options.connections == 1 => make_calls::<C>(&options),
        _ => println!("skip=1"),
    }
    exit(0);
}

/// Is a server and nothing else, on the path that is the first argument.
pub fn serve_blocking_alone<C: BlockingContender>() {
    raise_descriptor_limit();
    C::serve(std::env::args().nth(1).expect("the argument is the socket's path").into());
}

fn make_calls<C: BlockingContender>(options: &Options) {
    let connection = C::connect(&options.path);
    let payload: Vec<u8> = (0..options.size).map(|index| index as u8).collect();
    assert!(C::echo(&connection, payload.clone()) == payload, "an echo differs");
    if !options.warm_up.is_zero() {
        let warm_up = Stop::AtTime(Instant::now() + options.warm_up);
        call_from_threads::<C>(&connection, options, warm_up);
    }
    let meter = Meter::start(options);
    let nanos = call_from_threads::<C>(&connection, options, Stop::of(options));
    meter.report(options, nanos.len(), nanos);
}

/// One thread per call in flight; a single caller stays on this one.
fn call_from_threads<C: BlockingContender>(
    connection: &C::Connection,
    options: &Options,
    stop: Stop,
) -> Vec<u32> {
    let payload = vec![7; options.size];
    if options.in_flight == 1 {
        return call_repeatedly::<C>(connection, &payload, stop);
    }
    let callers: Vec<_> = (0..options.in_flight)
        .map(|_| {
            let (connection, payload) = (connection.clone(), payload.clone());
            thread::spawn(move || call_repeatedly::<C>(&connection, &payload, stop))
        })
        .collect();
    callers.into_iter().flat_map(|caller| caller.join().expect("a call does not panic")).collect()
}

fn call_repeatedly<C: BlockingContender>(
    connection: &C::Connection,
    payload: &[u8],
    stop: Stop,
) -> Vec<u32> {
    let mut nanos = Vec::with_capacity(4096);
    loop {
        let start = Instant::now();
        let reply = C::echo(connection, payload.to_vec());
        let end = Instant::now();
        assert_eq!(reply.len(), payload.len());
        nanos.push((end - start).as_nanos() as u32);
        if stop.is_now(end, nanos.len()) {
            return nanos;
        }
    }
}

/// Opens connections, makes one call on each, and keeps them until standard input is closed.
fn hold_idle_connections<C: BlockingContender>(options: &Options) {
    let connections: Vec<_> = (0..options.in_flight)
        .map(|_| {
            let connection = C::connect(&options.path);
            assert_eq!(C::echo(&connection, vec![1; options.size]).len(), options.size);
            connection
        })
        .collect();
    println!("ready=1");
    wait_for_end_of_input();
    // The process ends here; closing the connections one by one would only take time.
    std::mem::forget(connections);
}
