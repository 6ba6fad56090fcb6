//! The command line, as containerd writes it: flags in the manner of Go, then what to do.

use std::path::PathBuf;

use crate::ids;

/// What a shim is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the daemon and print its address: `start`.
    Start,
    /// Clean up after a daemon that died: `delete`.
    Delete,
    /// Be the daemon: no word at all.
    Serve,
    /// Live until stdin ends, in a namespace that is wanted: `hold`. The shim calls this itself.
    Hold,
    /// Be the first process of a pod: `pause`. The shim has its containers call this.
    Pause,
    /// Print a `RuntimeInfo`: `-info`.
    Info,
    /// Print the version: `-v`.
    Version,
}

/// The command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// What to do.
    pub action: Action,
    /// containerd's namespace that the containers are in.
    pub namespace: String,
    /// The container's id.
    pub id: String,
    /// containerd's gRPC socket; makes this containerd's shims differ from another's.
    pub address: String,
    /// The bundle where it is not the working folder.
    pub bundle: Option<PathBuf>,
    /// Whether to log more.
    pub debug: bool,
}

impl Args {
    /// Parses everything behind the program's name.
    ///
    /// # Errors
    /// A sentence about the first thing that is wrong.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Args, String> {
        let mut args = Args {
            action: Action::Serve,
            namespace: String::new(),
            id: String::new(),
            address: String::new(),
            bundle: None,
            debug: false,
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
                args.action = action(&word)?;
                break;
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            args.take(name, value, &mut words)?;
        }
        args.check()
    }

    fn take(
        &mut self,
        name: &str,
        value: Option<String>,
        words: &mut impl Iterator<Item = String>,
    ) -> Result<(), String> {
        let mut text =
            || value.clone().or_else(|| words.next()).ok_or(format!("flag -{name} needs a value"));
        let is_on = !matches!(value.as_deref(), Some("false" | "0" | "f" | "F"));
        match name {
            "namespace" => self.namespace = text()?,
            "id" => self.id = text()?,
            "address" => self.address = text()?,
            "bundle" => self.bundle = Some(text()?.into()),
            // Names that containerd may pass and that mean nothing here: events go over ttrpc, and
            // the socket is handed over.
            "publish-binary" | "socket" | "debug-socket" => drop(text()?),
            "debug" => self.debug = is_on,
            "v" | "version" if is_on => self.action = Action::Version,
            "info" if is_on => self.action = Action::Info,
            "v" | "version" | "info" => {}
            _ => return Err(format!("unknown flag -{name}")),
        }
        Ok(())
    }

    fn check(self) -> Result<Args, String> {
        if matches!(self.action, Action::Version | Action::Info | Action::Hold | Action::Pause) {
            return Ok(self);
        }
        if self.namespace.is_empty() {
            return Err("the flag -namespace is missing".to_owned());
        }
        if self.id.is_empty() {
            return Err("the flag -id is missing".to_owned());
        }
        for (what, id) in [("namespace", &self.namespace), ("container", &self.id)] {
            ids::check(what, id).map_err(|status| status.message().to_owned())?;
        }
        Ok(self)
    }
}

fn action(word: &str) -> Result<Action, String> {
    match word {
        "start" => Ok(Action::Start),
        "delete" => Ok(Action::Delete),
        "hold" => Ok(Action::Hold),
        "pause" => Ok(Action::Pause),
        _ => Err(format!("unknown action {word}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_invocations_of_containerd_are_understood() {
        let line = "-namespace default -address /run/c.sock -publish-binary /usr/bin/containerd \
                    -id c1 -debug start";
        let args = parse(line).unwrap();
        assert_eq!(args.action, Action::Start);
        assert_eq!((args.namespace.as_str(), args.id.as_str()), ("default", "c1"));
        assert_eq!(args.address, "/run/c.sock");
        assert!(args.debug);

        let args = parse("-namespace k8s.io -id c1 -bundle /run/b/c1 delete").unwrap();
        assert_eq!(args.action, Action::Delete);
        assert_eq!(args.bundle, Some("/run/b/c1".into()));

        let args = parse("-namespace k8s.io -id c1 -address /run/c.sock").unwrap();
        assert_eq!(args.action, Action::Serve);
        assert!(!args.debug);
    }

    #[test]
    fn flags_may_be_written_in_all_the_ways_that_go_allows() {
        let args = parse("--namespace=n -id=c1 --debug=false start").unwrap();
        assert_eq!((args.namespace.as_str(), args.id.as_str()), ("n", "c1"));
        assert!(!args.debug);
        assert_eq!(parse("-v").unwrap().action, Action::Version);
        assert_eq!(parse("--info").unwrap().action, Action::Info);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, reason) in [
            ("-id c1 start", "-namespace"),
            ("-namespace n start", "-id"),
            ("-namespace n -id", "needs a value"),
            ("-namespace n -id a/../b start", "the id of the container"),
            ("-namespace ../n -id c1 delete", "the id of the namespace"),
            ("-namespace n -id c1 stop", "unknown action stop"),
            ("-namespace n -id c1 -colour red", "unknown flag -colour"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line:?}: {error}");
        }
    }
}
