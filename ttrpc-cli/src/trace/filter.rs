//! Which calls a trace or a recording tells.

use std::time::Duration;

use clap::Args;

use super::call::{Call, End, Ended};
use crate::options::parse_duration;

/// Calls that are told and counted. A recording has all of them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct Filter {
    /// Only calls of this service or method, by its full or short name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// No calls of this service or method, such as ServerReflection; may be repeated
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,
    /// Only calls of this connection; may be repeated
    #[arg(long, value_name = "NUMBER")]
    connection: Vec<u32>,
    /// Only calls that failed
    #[arg(long)]
    failed: bool,
    /// Only calls that took longer
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower: Option<Duration>,
    /// Only calls with more bytes of messages, both ways together
    #[arg(long, value_name = "BYTES")]
    larger: Option<u64>,
}

impl Filter {
    /// Whether a call is one that is told, as far as that is known before its end.
    pub fn takes(&self, call: &Call) -> bool {
        let is_named = |name: &String| is_named(call, name);
        let is_left_out = self.without.iter().any(is_named)
            || !(self.only.is_empty() || self.only.iter().any(is_named));
        let is_connection =
            self.connection.is_empty() || self.connection.contains(&call.connection);
        !is_left_out && is_connection
    }

    /// Whether a call that has ended is told.
    pub fn takes_ended(&self, ended: &Ended) -> bool {
        let is_well = matches!(ended.end, End::Answered(None));
        let bytes = ended.call.client.bytes + ended.call.server.bytes;
        self.takes(&ended.call)
            && !(self.failed && is_well)
            && self.slower.is_none_or(|limit| ended.duration() > limit)
            && self.larger.is_none_or(|limit| bytes > limit)
    }
}

/// Whether a name is that of a call's service or method, or the end of it.
fn is_named(call: &Call, name: &str) -> bool {
    let ends = |full: &str| {
        full == name || full.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
    };
    call.method == name || ends(&call.service) || ends(&call.name())
}

#[cfg(test)]
mod tests {
    use ttrpc::Status;

    use super::*;
    use crate::trace::call::Traffic;

    fn ended(method: &str, end: End) -> Ended {
        let call = Call {
            connection: 3,
            stream: 1,
            service: "jobs.v1.Jobs".to_owned(),
            method: method.to_owned(),
            metadata: Vec::new(),
            timeout: None,
            begun: Duration::from_secs(1),
            client: Traffic { messages: 1, bytes: 60, first: None },
            server: Traffic { messages: 1, bytes: 60, first: None },
            kept: 0,
        };
        Ended { call, end, ended: Duration::from_secs(2) }
    }

    #[test]
    fn calls_are_told_by_name_connection_failure_slowness_and_size() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let all = Filter::default;
        let run = ended("Run", End::Answered(None));
        let gone = ended("Run", End::Answered(Some(Status::not_found(""))));
        for name in ["Run", "Jobs", "Jobs/Run", "v1.Jobs", "jobs.v1.Jobs", "jobs.v1.Jobs/Run"] {
            assert!(Filter { only: names(&[name]), ..all() }.takes_ended(&run), "{name}");
            assert!(!Filter { without: names(&[name]), ..all() }.takes_ended(&run), "{name}");
        }
        for name in ["un", "obs", "run", "Jobs/Wait", ""] {
            assert!(!Filter { only: names(&[name]), ..all() }.takes_ended(&run), "{name}");
            assert!(Filter { without: names(&[name]), ..all() }.takes_ended(&run), "{name}");
        }
        assert!(!Filter { connection: vec![1, 2], ..all() }.takes_ended(&run));
        assert!(Filter { connection: vec![1, 3], ..all() }.takes_ended(&run));
        let failed = Filter { failed: true, ..all() };
        assert_eq!((failed.takes_ended(&run), failed.takes_ended(&gone)), (false, true));
        for (slower, takes) in [(999, true), (1000, false)] {
            let slower = Some(Duration::from_millis(slower));
            assert_eq!(Filter { slower, ..all() }.takes_ended(&run), takes);
        }
        for (larger, takes) in [(119, true), (120, false)] {
            assert_eq!(Filter { larger: Some(larger), ..all() }.takes_ended(&run), takes);
        }
    }
}
