//! What the project wants to reach, and what it has reached.

use std::collections::HashMap;

use crate::{
    costs::Costs,
    memory::Memory,
    plan::{
        FLOOR, IN_FLIGHT_64, IN_FLIGHT_256, INCUMBENT, KIB_4, MIB_1, MIB_2, OURS, PING_PONG,
        SEQUENTIAL, STREAM, WORKLOADS,
    },
    report::{Report, number},
    speed::{Run, cpu, figure},
};

/// Which way is better.
#[derive(Clone, Copy)]
enum Better {
    Lower,
    Higher,
}
use Better::{Higher, Lower};

/// A figure with what it has to be and what it should be.
struct Goal {
    title: &'static str,
    better: Better,
    least: f64,
    aim: f64,
}

const fn goal(title: &'static str, better: Better, least: f64, aim: f64) -> Goal {
    Goal { title, better, least, aim }
}

const ALONE: &str = "1 call: p50 to the floor's";
const TOGETHER: &str = "64 in flight: calls/s to ttrpc-rust's";
const TOGETHER_ALL_CPUS: &str = "64 in flight on all CPUs: calls/s to ttrpc-rust's";
const MANY: &str = "256 in flight: calls/s to ttrpc-rust's";
const CPU: &str = "CPU per call at 64 to ttrpc-rust's";
const SYSTEM_CALLS: &str = "system calls per call at 64";
const ALLOCATIONS: &str = "allocations per call at 64";
const SMALL: &str = "4 KiB × 64: calls/s to ttrpc-rust's";
const LARGE: &str = "1 MiB × 4: MB/s to ttrpc-rust's";
const STREAMING: &str = "stream: messages/s to tonic's";
const ROUNDS: &str = "ping-pong: p50 to the floor's";
const CONNECTION: &str = "idle connection, KiB";
const IDLE: &str = "idle server, resident to ttrpc-rust's";
const SIZE: &str = "smallest server, KiB";
const PEAK: &str = "64 calls of 2 MiB: peak of the server, MiB";

static GOALS: [Goal; 15] = [
    goal(ALONE, Lower, 1.15, 1.05),
    goal(TOGETHER, Higher, 5.0, 8.0),
    goal(TOGETHER_ALL_CPUS, Higher, 2.5, 4.0),
    goal(MANY, Higher, 6.0, 10.0),
    goal(CPU, Lower, 0.25, 0.15),
    goal(SYSTEM_CALLS, Lower, 1.0, 0.4),
    goal(ALLOCATIONS, Lower, 14.0, 8.0),
    goal(SMALL, Higher, 3.0, 4.0),
    goal(LARGE, Higher, 2.5, 4.0),
    goal(STREAMING, Higher, 1.0, 2.5),
    goal(ROUNDS, Lower, 1.2, 1.1),
    goal(CONNECTION, Lower, 5.0, 3.0),
    goal(IDLE, Lower, 1.0, 0.9),
    goal(SIZE, Lower, 700.0, 560.0),
    goal(PEAK, Lower, 55.0, 30.0),
];

/// The figures that goals are about, as far as they were measured.
#[derive(Default)]
pub(crate) struct Figures {
    reached: HashMap<&'static str, f64>,
    idle_kib: HashMap<&'static str, f64>,
}

impl Figures {
    fn add(&mut self, title: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.reached.insert(title, value);
        }
    }

    /// Adds what the runs of one setting, with the multi-threaded runtime, say.
    pub(crate) fn add_speed(&mut self, runs: &[Run], is_one_cpu: bool) {
        let of = |contender, workload| {
            let shown = WORKLOADS.iter().find(|known| known.title == workload)?.figure;
            figure(runs, contender, workload, shown)
        };
        let to = |other, workload| Some(of(OURS, workload)? / of(other, workload)?);
        if !is_one_cpu {
            return self.add(TOGETHER_ALL_CPUS, to(INCUMBENT, IN_FLIGHT_64));
        }
        self.add(ALONE, to(FLOOR, SEQUENTIAL));
        self.add(TOGETHER, to(INCUMBENT, IN_FLIGHT_64));
        self.add(MANY, to(INCUMBENT, IN_FLIGHT_256));
        self.add(SMALL, to(INCUMBENT, KIB_4));
        self.add(LARGE, to(INCUMBENT, MIB_1));
        self.add(STREAMING, to("tonic", STREAM));
        self.add(ROUNDS, to(FLOOR, PING_PONG));
        let cpus = cpu(runs, OURS, IN_FLIGHT_64).zip(cpu(runs, INCUMBENT, IN_FLIGHT_64));
        self.add(CPU, cpus.map(|(ours, theirs)| ours / theirs));
        let peak = figure(runs, OURS, MIB_2, "server_peak_kib");
        self.add(PEAK, peak.map(|kib| kib / 1024.0));
    }

    pub(crate) fn add_costs(&mut self, contender: &str, system_calls: Costs, allocations: Costs) {
        if contender == OURS {
            self.add(SYSTEM_CALLS, system_calls.sum());
            self.add(ALLOCATIONS, allocations.sum());
        }
    }

    pub(crate) fn add_memory(&mut self, contender: &'static str, memory: Memory) {
        self.idle_kib.extend(memory.idle_kib.map(|kib| (contender, kib)));
        if contender == OURS {
            self.add(CONNECTION, memory.connection_kib);
            self.add(SIZE, Some(memory.size_kib));
        }
        let idle = self.idle_kib.get(OURS).zip(self.idle_kib.get(INCUMBENT));
        self.add(IDLE, idle.map(|(ours, theirs)| ours / theirs));
    }

    /// Adds the table of goals, if anything of it was measured.
    pub(crate) fn report(&self, report: &mut Report) {
        if self.reached.is_empty() {
            return;
        }
        report.heading(2, "Goals");
        report.text("One CPU, two workers, 64 bytes, one connection, unless said.\n");
        let head = ["", "reached", "wanted", "aimed at", "verdict"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for goal in &GOALS {
            let reached = self.reached.get(goal.title).copied();
            rows.push(vec![
                goal.title.to_owned(),
                number(reached),
                goal.bound(goal.least),
                goal.bound(goal.aim),
                reached.map_or("–", |value| goal.verdict(value)).to_owned(),
            ]);
        }
        report.table(&rows);
    }
}

impl Goal {
    fn bound(&self, value: f64) -> String {
        let sign = match self.better {
            Lower => "≤",
            Higher => "≥",
        };
        format!("{sign} {}", number(Some(value)))
    }

    fn verdict(&self, value: f64) -> &'static str {
        let meets = |bound| match self.better {
            Lower => value <= bound,
            Higher => value >= bound,
        };
        if meets(self.aim) {
            "aim reached"
        } else if meets(self.least) {
            "good enough"
        } else {
            "missed"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_knows_which_way_is_better() {
        let ratio = goal("", Higher, 5.0, 8.0);
        assert_eq!(ratio.verdict(8.0), "aim reached");
        assert_eq!(ratio.verdict(5.5), "good enough");
        assert_eq!(ratio.verdict(4.9), "missed");
        let cost = goal("", Lower, 1.0, 0.4);
        assert_eq!(cost.verdict(0.3), "aim reached");
        assert_eq!(cost.verdict(1.1), "missed");
    }
}
