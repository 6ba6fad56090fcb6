//! All cases under their names, and running one of them.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use ttrpc_conformance::CASES;

use super::{
    Outcome, Play, Row, Trial, Verdict, fail, given_up, server,
    wire_cases::{self, WireCase},
};

/// A named case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name by which it is chosen.
    pub name: String,
    /// What a server that passes does.
    pub expected: String,
    needs_streams: bool,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Api(fn(Trial) -> Play),
    Wire(Arc<WireCase>),
}

/// Every case: those of this library's client alone under `own/`, those of the API, and those of the wire under `wire/`.
pub fn all_cases() -> Vec<Case> {
    let api = given_up::CASES.iter().chain(CASES).map(|case| Case {
        name: case.name.to_owned(),
        expected: case.expected.to_owned(),
        needs_streams: case.needs_streams,
        kind: Kind::Api(case.play),
    });
    let wire = wire_cases::all().into_iter().map(|case| Case {
        name: format!("wire/{}", case.name),
        expected: case.expected(),
        needs_streams: case.needs_streams(),
        kind: Kind::Wire(Arc::new(case)),
    });
    api.chain(wire).collect()
}

/// Runs a case, on a task of its own so that a panic in it is a failure of it and of nothing else.
pub async fn run_case(case: &Case, trial: &Trial, limit: Duration) -> Row {
    let began = Instant::now();
    let (played, for_play) = (case.clone(), trial.clone());
    let mut task = tokio::spawn(async move { play(&played, for_play).await });
    let outcome = match timeout(limit, &mut task).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => fail(format!("the case panicked: {error}")),
        Err(_) => {
            task.abort();
            fail(format!("no end within {limit:?}, at: {}", trial.last_step()))
        }
    };
    Row {
        case: case.name.clone(),
        expected: case.expected.clone(),
        millis: began.elapsed().as_millis() as u64,
        outcome,
    }
}

async fn play(case: &Case, trial: Trial) -> Outcome {
    let outcome = match &case.kind {
        Kind::Api(play) => play(trial.clone()).await,
        Kind::Wire(wire) => wire.play(&trial).await,
    };
    match outcome {
        Err(Verdict::Fail(observed)) if case.needs_streams => {
            match server::lacks_streams(&trial).await? {
                Some(reason) => Err(Verdict::Unsupported(reason)),
                None => Err(Verdict::Fail(observed)),
            }
        }
        outcome => outcome,
    }
}

/// Whether a name matches one of the patterns between bars, in which a star stands for any text.
pub fn matches(patterns: &str, name: &str) -> bool {
    patterns.split('|').any(|pattern| matches_one(pattern, name))
}

fn matches_one(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            let ends = left.char_indices().map(|(at, _)| at).chain([left.len()]);
            ends.into_iter().any(|at| matches_one(rest, &left[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars_and_bars() {
        assert!(matches("*", "wire/ids_even"));
        assert!(matches("wire/*|empty_unary", "empty_unary"));
        assert!(matches("wire/*_even", "wire/ids_even"));
        assert!(!matches("wire/*_even", "wire/ids_even_too"));
        assert!(!matches("empty", "empty_unary"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all_cases().into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
