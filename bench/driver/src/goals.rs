//! What the project wants to reach, and what it has reached.

use std::collections::HashMap;

use ttrpc_plot::Curve;

use crate::{
    costs::Costs,
    fairness::{self, Seen},
    growth, instructions,
    memory::Memory,
    plan::{
        CALLERS_FLOOR, Cpus, FLOOR, IN_FLIGHT_16, IN_FLIGHT_64, IN_FLIGHT_256, INCUMBENT, KIB_4,
        MIB_1, OURS, SEQUENTIAL, STREAM, Setting, WORKLOADS,
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

const INSTRUCTIONS_ALONE: &str = "instructions a call, 1 in flight, both sides";
const INSTRUCTIONS_TOGETHER: &str = "instructions a call, 64 in flight, both sides";
const ALONE: &str = "1 call: p50 to `raw-batch`'s";
const FEW: &str = "16 in flight: calls/s to the floor's";
const TOGETHER: &str = "64 in flight: calls/s to the floor's";
const MANY: &str = "256 in flight: calls/s to the floor's";
const OVERLOAD: &str = "1,024 in flight: calls/s to its own best";
const SINGLE_TOGETHER: &str = "64 in flight, current-thread: calls/s to the floor's";
const SINGLE_MANY: &str = "256 in flight, current-thread: calls/s to the floor's";
const ALL_TOGETHER: &str = "64 in flight, all CPUs: calls/s to the floor's";
const ALL_MANY: &str = "256 in flight, all CPUs: calls/s to the floor's";
const CPU: &str = "CPU per call at 64 to the floor's";
const SMALL: &str = "4 KiB × 64: calls/s to the floor's";
const LARGE: &str = "1 MiB × 4: MB/s to the floor's";
const STREAMING: &str = "stream: messages/s to the floor's";
const CONNECTIONS_10: &str = "10 connections, one call each: calls/s to the floor's";
const CONNECTIONS_100: &str = "100 connections: calls/s to the floor's";
const CONNECTIONS_1000: &str = "1,000 connections: calls/s to the floor's";
const SYSTEM_CALLS: &str = "system calls per call at 64";
const ALLOCATIONS: &str = "allocations per call at 64";
const CONNECTION: &str = "idle connection, KiB";
const IDLE: &str = "idle server, resident to ttrpc-rust's";
const SIZE: &str = "smallest server, KiB";

const P99: &str = "half of the highest rate: p99 to the floor's";
const P999: &str = "half of the highest rate: p99.9 to the floor's";
const BESIDE_1: &str = "polite p99 beside 1 connection of 1,024 calls to 16 calls";
const BESIDE_4: &str = "polite p99 beside 4 connections of 1,024 calls to 16 calls";
const BESIDE_16: &str = "polite p99 beside 16 connections of 1,024 calls to 16 calls";
const BESIDE_16_MS: &str = "polite p99 beside 16 connections of 1,024 calls, ms";
const BESIDE_64_MS: &str = "polite p99 beside 64 connections of 1,024 calls, ms";
const GREEDY_RATE: &str = "64 connections of 1,024 calls: calls/s to those of 4";
const BESIDE_LARGE: &str = "64 bytes beside 4 MiB: p99 to two messages of 4 MiB on the wire";

static GOALS: [Goal; 32] = [
    goal(INSTRUCTIONS_ALONE, Lower, 15_500.0, 13_000.0),
    goal(INSTRUCTIONS_TOGETHER, Lower, 8_000.0, 6_500.0),
    goal(ALONE, Lower, 1.10, 1.03),
    goal(FEW, Higher, 0.90, 0.98),
    goal(TOGETHER, Higher, 0.85, 0.95),
    goal(MANY, Higher, 0.82, 0.95),
    goal(OVERLOAD, Higher, 0.9, 1.0),
    goal(SINGLE_TOGETHER, Higher, 0.70, 0.85),
    goal(SINGLE_MANY, Higher, 0.70, 0.85),
    goal(ALL_TOGETHER, Higher, 0.9, 1.0),
    goal(ALL_MANY, Higher, 0.9, 1.0),
    goal(CPU, Lower, 1.2, 1.05),
    goal(SMALL, Higher, 0.85, 0.95),
    goal(LARGE, Higher, 0.85, 0.95),
    goal(STREAMING, Higher, 0.65, 0.85),
    goal(CONNECTIONS_10, Higher, 0.85, 0.95),
    goal(CONNECTIONS_100, Higher, 0.85, 0.95),
    goal(CONNECTIONS_1000, Higher, 0.85, 0.95),
    goal(SYSTEM_CALLS, Lower, 1.0, 0.4),
    goal(ALLOCATIONS, Lower, 7.0, 5.0),
    goal(CONNECTION, Lower, 3.0, 2.0),
    goal(IDLE, Lower, 0.9, 0.85),
    goal(SIZE, Lower, 650.0, 600.0),
    goal(P99, Lower, 1.3, 1.1),
    goal(P999, Lower, 1.3, 1.1),
    goal(BESIDE_1, Lower, 3.0, 2.0),
    goal(BESIDE_4, Lower, 3.0, 2.0),
    goal(BESIDE_16, Lower, 3.0, 2.0),
    goal(BESIDE_16_MS, Lower, 10.0, 10.0),
    goal(BESIDE_64_MS, Lower, 40.0, 40.0),
    goal(GREEDY_RATE, Higher, 0.9, 0.9),
    goal(BESIDE_LARGE, Lower, 1.0, 1.0),
];

/// The figures that goals are about, as far as they were measured.
#[derive(Default)]
pub(crate) struct Figures {
    reached: HashMap<&'static str, f64>,
    idle_kib: HashMap<&'static str, f64>,
    latency_us: HashMap<&'static str, [Option<f64>; 2]>,
    /// What the polite client saw, by greedy connections and calls in flight on each.
    polite: HashMap<(u32, u32), Seen>,
    /// Two messages of 4 MiB on the wire.
    two_large_us: Option<f64>,
}

impl Figures {
    fn add(&mut self, title: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.reached.insert(title, value);
        }
    }

    /// Adds what the runs of one setting say.
    pub(crate) fn add_speed(&mut self, runs: &[Run], setting: Setting) {
        let of = |contender, workload| {
            let shown = WORKLOADS.iter().find(|known| known.title == workload)?.figure;
            figure(runs, contender, workload, shown)
        };
        let to = |floor, workload| Some(of(OURS, workload)? / of(floor, workload)?);
        let to_floor = |workload| to(CALLERS_FLOOR, workload);
        match (setting.is_current_thread, setting.cpus) {
            (true, _) => {
                self.add(SINGLE_TOGETHER, to_floor(IN_FLIGHT_64));
                self.add(SINGLE_MANY, to_floor(IN_FLIGHT_256));
            }
            (false, Cpus::All) => {
                self.add(ALL_TOGETHER, to_floor(IN_FLIGHT_64));
                self.add(ALL_MANY, to_floor(IN_FLIGHT_256));
            }
            (false, Cpus::One) => {
                self.add(ALONE, to(FLOOR, SEQUENTIAL));
                self.add(FEW, to_floor(IN_FLIGHT_16));
                self.add(TOGETHER, to_floor(IN_FLIGHT_64));
                self.add(MANY, to_floor(IN_FLIGHT_256));
                self.add(SMALL, to_floor(KIB_4));
                self.add(LARGE, to_floor(MIB_1));
                self.add(STREAMING, to_floor(STREAM));
                let of = |contender| cpu(runs, contender, IN_FLIGHT_64);
                self.add(CPU, of(OURS).zip(of(CALLERS_FLOOR)).map(|(ours, floor)| ours / floor));
            }
        }
    }

    /// Adds what the curves along one axis say.
    pub(crate) fn add_curves(&mut self, axis: &str, curves: &[Curve]) {
        let points =
            |name| curves.iter().find(|curve| curve.name == name).map(|curve| &curve.points);
        let at = |name, at: f64| Some(points(name)?.iter().find(|point| point.0 == at)?.1);
        if axis == growth::CALLS_IN_FLIGHT {
            let best = points(OURS).and_then(|points| points.iter().map(|p| p.1).reduce(f64::max));
            self.add(OVERLOAD, at(OURS, 1024.0).zip(best).map(|(value, best)| value / best));
        }
        if axis == growth::CONNECTIONS {
            for (title, count) in
                [(CONNECTIONS_10, 10.0), (CONNECTIONS_100, 100.0), (CONNECTIONS_1000, 1000.0)]
            {
                let pair = at(OURS, count).zip(at(CALLERS_FLOOR, count));
                self.add(title, pair.map(|(ours, floor)| ours / floor));
            }
        }
    }

    pub(crate) fn add_instructions(&mut self, contender: &str, load: &str, costs: Costs) {
        match load {
            instructions::ALONE if contender == OURS => self.add(INSTRUCTIONS_ALONE, costs.sum()),
            instructions::TOGETHER if contender == OURS => {
                self.add(INSTRUCTIONS_TOGETHER, costs.sum());
            }
            _ => {}
        }
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

    /// Adds the p99 and the p99.9 at half of the highest rate.
    pub(crate) fn add_latency(
        &mut self,
        contender: &'static str,
        p99: Option<f64>,
        p999: Option<f64>,
    ) {
        self.latency_us.insert(contender, [p99, p999]);
        let of = |name, index: usize| *self.latency_us.get(name)?.get(index)?;
        let to_floor = |index| Some(of(OURS, index)? / of(CALLERS_FLOOR, index)?);
        let ratios = [to_floor(0), to_floor(1)];
        self.add(P99, ratios[0]);
        self.add(P999, ratios[1]);
    }

    /// Adds what a polite client saw beside so many connections with so many calls in flight each.
    pub(crate) fn add_fairness(
        &mut self,
        contender: &str,
        connections: u32,
        calls: u32,
        seen: Seen,
    ) {
        if contender != OURS {
            return;
        }
        self.polite.insert((connections, calls), seen);
        let [few, many] = fairness::IN_FLIGHT;
        let p99 = |connections, calls| self.polite.get(&(connections, calls))?.p99_us;
        let to_few = |connections| Some(p99(connections, many)? / p99(connections, few)?);
        let millis = |connections| Some(p99(connections, many)? / 1e3);
        let rate = |connections| self.polite.get(&(connections, many))?.greedy_rate;
        let figures = [
            (BESIDE_1, to_few(1)),
            (BESIDE_4, to_few(4)),
            (BESIDE_16, to_few(16)),
            (BESIDE_16_MS, millis(16)),
            (BESIDE_64_MS, millis(64)),
            (GREEDY_RATE, rate(64).zip(rate(4)).map(|(many, few)| many / few)),
        ];
        for (title, value) in figures {
            self.add(title, value);
        }
    }

    /// Adds the times of a small call beside large ones, and that of a large call of the floor.
    pub(crate) fn add_beside_large(&mut self, contender: &str, p50: Option<f64>, p99: Option<f64>) {
        match contender {
            FLOOR => self.two_large_us = p50,
            OURS => {
                self.add(BESIDE_LARGE, p99.zip(self.two_large_us).map(|(p99, two)| p99 / two));
            }
            _ => {}
        }
    }

    /// Adds the table of goals, if anything of it was measured.
    pub(crate) fn report(&self, report: &mut Report) {
        if self.reached.is_empty() {
            return;
        }
        report.heading(2, "Goals");
        report.text(
            "One CPU, two workers, 64 bytes, one connection, unless said. The floor is `mux-defer` in the same run.\n",
        );
        let head = ["", "reached", "wanted", "aimed at", "verdict"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for goal in &GOALS {
            let Some(&reached) = self.reached.get(goal.title) else { continue };
            rows.push(vec![
                goal.title.to_owned(),
                number(Some(reached)),
                goal.bound(goal.least),
                goal.bound(goal.aim),
                goal.verdict(reached).to_owned(),
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
