//! Speed: every workload, contenders in turn.

use std::io;

use crate::{
    bench::Bench,
    plan::{
        Contender, Cpus, IN_FLIGHT_64, KIB_4, MIB_1, SEQUENTIAL, STREAM, Setting, WORKLOADS,
        Workload,
    },
    process::{Client, Figures, Server, move_to},
    report::{Report, median, number},
};

/// One run of one contender.
pub(crate) struct Run {
    pub(crate) contender: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) figures: Figures,
}

/// Adds the tables of all settings.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    let mut all = Vec::new();
    for setting in Setting::ALL {
        all.push((setting, run_all(bench, setting)?));
    }
    if let Some((setting, runs)) = all.iter().find(|(setting, _)| setting.cpus == Cpus::All) {
        add_first_rows(runs, *setting, &mut bench.report);
    }
    for (setting, runs) in all {
        add_tables(&runs, setting, &mut bench.report);
        bench.goals.add_speed(&runs, setting);
    }
    Ok(())
}

/// What users ask first, of those whom they compare. The tables have all.
fn add_first_rows(runs: &[Run], setting: Setting, report: &mut Report) {
    let compared: Vec<_> = ["ours", "ttrpc-rust", "tonic", "go-ttrpc"]
        .into_iter()
        .filter(|name| names(runs).contains(name))
        .collect();
    let questions = [
        ("one call at a time, median µs", SEQUENTIAL),
        ("64 calls in flight, calls/s", IN_FLIGHT_64),
        ("64 calls of 4 KiB in flight, calls/s", KIB_4),
        ("4 calls of 1 MiB in flight, MB/s", MIB_1),
        ("messages of a stream a second", STREAM),
    ];
    report.heading(2, "In short");
    report.text(&format!("{}.\n", setting.title));
    let mut head = vec![String::new()];
    head.extend(compared.iter().map(|name| (*name).to_owned()));
    let mut rows = vec![head];
    for (question, title) in questions {
        let workload = WORKLOADS.iter().find(|workload| workload.title == title);
        let mut row = vec![question.to_owned()];
        row.extend(compared.iter().map(|name| {
            number(workload.and_then(|workload| figure(runs, name, title, workload.figure)))
        }));
        rows.push(row);
    }
    report.table(&rows);
}

/// Runs every workload. The order of contenders turns from round to round, so that what disturbs
/// the machine for a while disturbs all of them.
fn run_all(bench: &Bench, setting: Setting) -> io::Result<Vec<Run>> {
    let (rounds, contenders) = (bench.pace.rounds, &bench.contenders);
    let mut runs = Vec::new();
    for round in 0..rounds {
        eprintln!("{}: round {} of {rounds}", setting.title, round + 1);
        for workload in &WORKLOADS {
            for index in 0..contenders.len() {
                let contender = contenders[(index + round) % contenders.len()];
                if let Some(figures) = run(bench, contender, workload, setting)? {
                    runs.push(Run { contender: contender.name, workload: workload.title, figures });
                }
            }
        }
    }
    Ok(runs)
}

fn run(
    bench: &Bench,
    contender: &Contender,
    workload: &Workload,
    setting: Setting,
) -> io::Result<Option<Figures>> {
    move_to(setting.cpus);
    let program = bench.programs.peer(contender);
    let server = Server::start(&program, contender, setting.is_current_thread, &[])?;
    let (pid, millis) = (server.pid().to_string(), bench.pace.millis.to_string());
    let mut options = workload.options.to_vec();
    options.extend(["--server-pid", &pid]);
    if !workload.is_counted {
        options.extend(["--millis", &millis]);
    }
    let is_current_thread = setting.is_current_thread;
    let client =
        Client { program: &program, contender, is_current_thread, prefix: &[], options: &options };
    let mut figures = client.run(&server)?;
    if let (Some(figures), Some(peak)) = (&mut figures, server.status("VmHWM")) {
        figures.insert("server_peak_kib", peak);
    }
    Ok(figures)
}

/// The median of a figure over the runs of a contender.
pub(crate) fn figure(runs: &[Run], contender: &str, workload: &str, name: &str) -> Option<f64> {
    let mine = runs.iter().filter(|run| run.contender == contender && run.workload == workload);
    median(mine.filter_map(|run| run.figures.get(name)))
}

fn add_tables(runs: &[Run], setting: Setting, report: &mut Report) {
    report.heading(2, setting.title);
    let mut head = vec![String::new()];
    head.extend(WORKLOADS.iter().map(|workload| workload.title.to_owned()));
    head.push("CPU µs per call: 1".into());
    head.push("64 in flight".into());
    let mut rows = vec![head];
    for contender in names(runs) {
        let mut row = vec![contender.to_owned()];
        for workload in &WORKLOADS {
            row.push(number(figure(runs, contender, workload.title, workload.figure)));
        }
        row.push(number(cpu(runs, contender, WORKLOADS[0].title)));
        row.push(number(cpu(runs, contender, IN_FLIGHT_64)));
        rows.push(row);
    }
    report.table(&rows);
}

/// CPU time per call of both processes, in microseconds.
pub(crate) fn cpu(runs: &[Run], contender: &str, workload: &str) -> Option<f64> {
    let of = |name| figure(runs, contender, workload, name);
    Some(of("client_cpu_us")? + of("server_cpu_us")?)
}

/// The contenders that have run, in the order of the first round.
fn names(runs: &[Run]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for run in runs {
        if !names.contains(&run.contender) {
            names.push(run.contender);
        }
    }
    names
}
