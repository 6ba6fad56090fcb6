//! What a load is to do.

use std::time::Duration;

use super::{data::Data, schedule::Schedule};
use crate::session::Target;

/// When calls begin.
#[derive(Clone, Debug)]
pub enum Pace {
    /// Each when one before it has ended.
    Closed,
    /// At fixed times.
    Open {
        /// Calls a second.
        rate: Schedule,
    },
}

#[derive(Debug)]
pub struct Plan {
    pub methods: Vec<Method>,
    /// Which method each of so many calls is of; then the same again.
    pub turns: Vec<Turn>,
    /// Calls in flight.
    pub concurrency: Schedule,
    pub connections: usize,
    pub pace: Pace,
    pub duration: Duration,
    pub calls: u64,
}

/// A method that is called.
#[derive(Debug)]
pub struct Method {
    pub target: Target,
    pub name: String,
    pub is_client_streaming: bool,
    pub is_server_streaming: bool,
    pub data: Data,
    /// Requests that a stream has; those of the data without.
    pub messages: Option<usize>,
    /// How many calls of so many in all are of this method.
    pub weight: u32,
}

/// The method of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub method: usize,
    /// How many calls of the method are before it among the turns.
    before: u32,
}

/// Spreads methods evenly, each as often as its weight says.
pub fn turns(weights: &[u32]) -> Vec<Turn> {
    let all: u64 = weights.iter().copied().map(u64::from).sum();
    let mut made = vec![0_u32; weights.len()];
    (1..=all)
        .map(|so_far| {
            // The one that is furthest behind its share.
            let behind = |at: &usize| {
                let due = u64::from(weights[*at]) * so_far;
                (due.cast_signed() - (u64::from(made[*at]) * all).cast_signed(), usize::MAX - at)
            };
            let method = (0..weights.len()).max_by_key(behind).unwrap_or(0);
            let turn = Turn { method, before: made[method] };
            made[method] += 1;
            turn
        })
        .collect()
}

impl Plan {
    /// The method of a call, and how many calls of that method are before it.
    pub fn method_of(&self, number: u64) -> (usize, u64) {
        let turns = self.turns.len() as u64;
        let turn = self.turns[usize::try_from(number % turns).unwrap_or(0)];
        let rounds = number / turns;
        (turn.method, rounds * u64::from(self.methods[turn.method].weight) + u64::from(turn.before))
    }

    pub fn max_concurrency(&self) -> usize {
        self.concurrency.max() as usize
    }

    /// What the load is called.
    pub fn name(&self) -> String {
        let names: Vec<_> = self.methods.iter().map(|method| &*method.name).collect();
        names.join(", ")
    }

    pub fn has_streams(&self) -> bool {
        self.methods.iter().any(|method| method.is_client_streaming || method.is_server_streaming)
    }

    /// Steps of the rate or of the concurrency.
    pub fn steps(&self) -> Option<usize> {
        self.varies().and_then(Schedule::steps)
    }

    /// The rate or the concurrency, if it is not the same all the time.
    pub fn varies(&self) -> Option<&Schedule> {
        let schedule = match &self.pace {
            Pace::Closed => &self.concurrency,
            Pace::Open { rate } => rate,
        };
        (!schedule.is_constant()).then_some(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_take_turns_as_their_weights_say() {
        let of =
            |weights: &[u32]| turns(weights).iter().map(|turn| turn.method).collect::<Vec<_>>();
        assert_eq!(of(&[1]), [0]);
        assert_eq!(of(&[1, 1]), [0, 1]);
        assert_eq!(of(&[3, 1]), [0, 0, 1, 0]);
        let many = of(&[70, 20, 10]);
        let count = |method| many.iter().filter(|turn| **turn == method).count();
        assert_eq!((count(0), count(1), count(2)), (70, 20, 10));
        assert!(many[..10].contains(&2), "they are spread: {many:?}");
        assert_eq!(turns(&[2, 1])[2].before, 1);
    }
}
