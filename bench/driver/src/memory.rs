//! Memory and size of the smallest servers.

use std::{fs, io, thread, time::Duration};

use crate::{
    bench::Bench,
    build::Programs,
    plan::{Contender, Cpus, Minimal},
    process::{Client, Server, move_to},
    report::number,
};

/// Idle connections over which memory is divided.
const CONNECTIONS: f64 = 1000.0;

/// How long memory may take to settle.
const SETTLE: Duration = Duration::from_millis(700);

/// What was measured of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) size_kib: f64,
    pub(crate) idle_kib: Option<f64>,
    pub(crate) connection_kib: Option<f64>,
}

/// Adds the table of sizes and memory.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    move_to(Cpus::All);
    bench.report.heading(2, "Size and memory of the smallest server");
    bench.report.text(
        "Link-time optimisation, panics abort, stripped. A connection is idle after one call; 1000 \
         of them.\n",
    );
    let head = ["", "program, KiB", "idle server, KiB resident", "idle connection, KiB"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for contender in bench.contenders.clone() {
        let Some(minimal) = contender.minimal else { continue };
        eprintln!("memory of {}", contender.name);
        let memory = measure_one(contender, minimal, &bench.programs)?;
        bench.goals.add_memory(contender.name, memory);
        let figures = [Some(memory.size_kib), memory.idle_kib, memory.connection_kib];
        let mut row = vec![contender.name.to_owned()];
        row.extend(figures.map(number));
        rows.push(row);
    }
    bench.report.table(&rows);
    Ok(())
}

fn measure_one(contender: &Contender, minimal: Minimal, programs: &Programs) -> io::Result<Memory> {
    let program = programs.minimal(minimal.program);
    let server = Server::start_minimal(&program)?;
    thread::sleep(SETTLE);
    let idle_kib = server.status("VmRSS");
    let count = CONNECTIONS.to_string();
    let (peer, options) = (programs.peer(contender), ["--workload", "idle", "--in-flight", &count]);
    let client = Client::new(&peer, contender, &options);
    let full_kib = client.hold(&server, || {
        thread::sleep(SETTLE);
        server.status("VmRSS")
    })?;
    let connection_kib = idle_kib.zip(full_kib).map(|(idle, full)| (full - idle) / CONNECTIONS);
    let size_kib = fs::metadata(&program)?.len() as f64 / 1024.0;
    Ok(Memory { size_kib, idle_kib, connection_kib })
}
