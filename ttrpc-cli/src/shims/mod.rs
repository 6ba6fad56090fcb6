//! `ttrpc shims`: which shim on this machine does not answer.

mod process;
mod query;
mod report;
mod scan;
pub mod snapshot;
mod sockets;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueHint};
use tokio::signal::unix::{SignalKind, signal};
use ttrpc::Code;
use ttrpc_reflection::proto::debug::{DebugClient, SnapshotRequest};

use crate::{failure::Failure, json::Json, options::parse_duration, output, schema, session};
use query::{Answer, Questions, Report};
use scan::Shim;

/// Ask every shim of this machine whether it is alive
///
/// Shims are found below containerd's state directories and asked at the same time. One that does not
/// answer in time is listed first, with what can be seen of it from outside; then the exit code is 1. PENDING counts connections that a shim has not accepted, UNREAD the bytes that it has not
/// read. A shim that is stopped keeps each run's connection in its backlog; --watch makes one, and asks
/// again when that is answered.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc shims
  ttrpc shims --watch
  ttrpc shims --json | jq -r '.[] | select(.answer != \"answered\") | .pid'
  ttrpc shims debug web")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<ShimsCommand>,
    #[command(flatten)]
    location: Location,
    /// How long a shim may take to answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_timeout, global = true)]
    timeout: Duration,
    /// Ask again and again, this long after each answer, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse_duration, num_args = 0..=1)]
    #[arg(default_missing_value = "2s", require_equals = true)]
    watch: Option<Duration>,
}

/// Where to look for shims.
#[derive(Debug, Args)]
pub struct Location {
    /// containerd's state directory; may be repeated
    #[arg(long, value_name = "DIR", default_value = "/run/containerd", value_hint = ValueHint::DirPath)]
    #[arg(global = true)]
    state: Vec<PathBuf>,
    /// Only shims of this namespace
    #[arg(short, long, value_name = "NAME", global = true)]
    namespace: Option<String>,
}

impl Location {
    /// That there are no shims, and where they were looked for.
    fn without_shims(&self) -> String {
        let states: Vec<_> = self.state.iter().map(|state| state.display().to_string()).collect();
        let namespace = match &self.namespace {
            Some(namespace) => format!(" in namespace {namespace}"),
            None => String::new(),
        };
        format!(
            "no shims{namespace} below {}; --state names containerd's state directory if it is another",
            states.join(", ")
        )
    }
}

/// A time above 0: who waits for ever does not find what hangs.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("no shim answers in no time; give it some, such as 300ms".to_owned()),
        timeout => Ok(timeout),
    }
}

#[derive(Debug, Subcommand)]
enum ShimsCommand {
    /// Ask a shim what it is waiting for, if it has the service ttrpc.debug.v1.Debug
    Debug {
        /// A container or sandbox, by its id or the start of it
        id: String,
    },
}

/// Asks all shims, or one for its snapshot.
///
/// # Errors
/// [`Failure::Found`] if a shim did not answer in time.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    if let Some(ShimsCommand::Debug { id }) = arguments.command {
        return match arguments.watch {
            Some(_) => Err(Failure::Usage("--watch is for all shims, and not for one".to_owned())),
            None => debug(&id, &arguments.location, arguments.timeout, json).await,
        };
    }
    let mut questions = Questions::default();
    let Some(interval) = arguments.watch else {
        return once(&arguments, &mut questions, json).await;
    };
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
    loop {
        let round = async {
            let found = once(&arguments, &mut questions, json).await;
            match found {
                Ok(()) | Err(Failure::Found) => tokio::time::sleep(interval).await,
                Err(_) => {}
            }
            found
        };
        tokio::select! {
            found = round => match found {
                Ok(()) | Err(Failure::Found) => {}
                failed => return failed,
            },
            _ = interrupts.recv() => return Ok(()),
        }
    }
}

/// Asks all shims once, within this time.
async fn ask(
    location: &Location,
    timeout: Duration,
    questions: &mut Questions,
) -> Result<Vec<Report>, Failure> {
    let shims = find(location)?;
    // Before anybody is asked, and without what was asked before: what waits then is not ours.
    let sockets = sockets::list(&process::own_sockets());
    Ok(questions.ask_all(shims, timeout, &sockets).await)
}

/// Asks all shims once and prints what they are.
async fn once(arguments: &Arguments, questions: &mut Questions, json: bool) -> Result<(), Failure> {
    let mut reports = ask(&arguments.location, arguments.timeout, questions).await?;
    reports.sort_by_cached_key(report::rank);
    let columns = output::columns();
    // One screen, drawn anew each time.
    let screen = output::rows().filter(|_| arguments.watch.is_some());
    if json {
        let reports: Vec<_> = reports.iter().map(report::to_json).collect();
        output::line(serde_json::Value::Array(reports))?;
    } else {
        let lines = match reports.is_empty() {
            true => report::wrap(&arguments.location.without_shims(), columns),
            false => report::lines(&reports, columns, screen),
        };
        match screen {
            Some(_) => output::screen(&lines.join("\n"))?,
            None => output::line(lines.join("\n"))?,
        }
    }
    match reports.iter().any(|report| matches!(report.answer, Answer::TimedOut(_))) {
        true => Err(Failure::Found),
        false => Ok(()),
    }
}

fn find(location: &Location) -> Result<Vec<Shim>, Failure> {
    let mut shims = Vec::new();
    for state in &location.state {
        scan::add(state, location.namespace.as_deref(), &mut shims).map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::PermissionDenied => "; only root may look there",
                std::io::ErrorKind::NotFound => {
                    "; --state names containerd's state directory if it is another"
                }
                _ => "",
            };
            Failure::Other(format!("cannot look for shims in {}: {error}{hint}", state.display()))
        })?;
    }
    Ok(shims)
}

/// Where shims are asked that speak ttrpc.
///
/// # Errors
/// If it is not known where to look.
pub fn addresses(location: &Location) -> Result<Vec<String>, Failure> {
    let shims = find(location)?.into_iter().filter(|shim| shim.protocol == "ttrpc");
    Ok(shims.filter_map(|shim| shim.address).collect())
}

/// Prints the snapshot of one shim.
async fn debug(
    id: &str,
    location: &Location,
    timeout: Duration,
    json: bool,
) -> Result<(), Failure> {
    let shims = find(location)?;
    let has_id = |shim: &&Shim, is_wanted: &dyn Fn(&str) -> bool| {
        shim.containers.iter().any(|container| is_wanted(&container.id))
    };
    let mut found: Vec<_> =
        shims.iter().filter(|shim| has_id(shim, &|known| known == id)).collect();
    if found.is_empty() {
        found = shims.iter().filter(|shim| has_id(shim, &|known| known.starts_with(id))).collect();
    }
    let shim = match &found[..] {
        [shim] => shim,
        [] if shims.is_empty() => return Err(Failure::Other(location.without_shims())),
        [] => {
            return Err(Failure::Other(format!(
                "no shim has a container `{id}`; `ttrpc shims` prints those that there are"
            )));
        }
        _ => {
            let ids: Vec<_> = found
                .iter()
                .flat_map(|shim| &shim.containers)
                .map(|container| format!("{}/{}", container.namespace, container.id))
                .collect();
            return Err(Failure::Usage(format!("`{id}` may be any of {}", ids.join(", "))));
        }
    };
    let address = shim.address.as_deref().ok_or_else(|| {
        Failure::Connect(format!(
            "the address of the shim of `{id}` is not known: its bundle names none"
        ))
    })?;
    let client = session::connect(address, Some(timeout)).await?;
    let answer =
        DebugClient::new(client).snapshot(SnapshotRequest::default()).timeout(timeout).await;
    let snapshot = answer.map_err(|status| Failure::Call {
        hint: match status.code() {
            Code::Unimplemented => Some(
                "this shim has no debug service; `ttrpc shims` shows what can be seen from outside"
                    .to_owned(),
            ),
            Code::DeadlineExceeded if !status.is_from_peer() => Some(format!(
                "it did not answer within {timeout:?}; `ttrpc shims` shows what can be seen of it \
                 from outside, and --timeout gives it longer"
            )),
            _ => None,
        },
        status,
        details: Vec::new(),
    })?;
    if !json {
        return Ok(output::line(snapshot::text(&snapshot))?);
    }
    let kind = schema::builtin().pool().get_message_by_name("ttrpc.debug.v1.SnapshotResponse");
    let kind = kind.expect("the schema is built in");
    let bytes = prost::Message::encode_to_vec(&snapshot).into();
    let value = Json::new(schema::builtin()).decode(&kind, bytes).map_err(Failure::Other)?;
    Ok(output::line(value)?)
}

/// A watch, on the paused clock: each round is over when nothing moves any more, however busy the machine is.
#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{
            fd::OwnedFd,
            unix::net::{UnixListener, UnixStream},
        },
        path::Path,
        process::{Child, Command, Stdio},
    };

    use tempfile::TempDir;

    use super::*;

    /// The bundle of a shim with this socket, and where it is.
    fn bundle(folder: &TempDir, socket: &Path) -> Location {
        let bundle = folder.path().join("io.containerd.runtime.v2.task/default/hanging");
        fs::create_dir_all(&bundle).unwrap();
        fs::write(bundle.join("address"), format!("unix://{}", socket.display())).unwrap();
        Location { state: vec![folder.path().to_owned()], namespace: None }
    }

    /// A process that has this descriptor and does nothing with it, until this is dropped.
    struct Other(Child);

    impl Other {
        fn with(descriptor: impl Into<OwnedFd>) -> Self {
            let stdin = Stdio::from(descriptor.into());
            Other(Command::new("sleep").arg("100000").stdin(stdin).spawn().unwrap())
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// A round of a watch of the only shim, which does not answer. Nothing is known of its sockets where the kernel
    /// does not tell.
    async fn round(location: &Location, questions: &mut Questions) -> Option<sockets::Server> {
        let asked = ask(location, Duration::from_secs(2), questions).await;
        let [report] = &asked.unwrap_or_default()[..] else { panic!("there is one shim") };
        assert!(matches!(report.answer, Answer::TimedOut("Connect")), "{report:?}");
        assert_eq!(report.sockets.is_some(), sockets::are_told());
        report.sockets.clone()
    }

    /// containerd needs the backlog to connect again.
    #[tokio::test(start_paused = true)]
    async fn a_watch_asks_a_shim_that_hangs_once_and_does_not_count_itself() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("hanging.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let _other = Other::with(UnixStream::connect(&socket).unwrap());
        let (location, mut questions) = (bundle(&folder, &socket), Questions::default());
        for _ in 0..4 {
            if let Some(seen) = round(&location, &mut questions).await {
                assert_eq!(seen.pending, 1, "the other client: {seen:?}");
            }
        }
        listener.set_nonblocking(true).unwrap();
        let waiting = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(waiting, 2, "the other client, and the watch");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_does_not_count_its_own_request_as_unread() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("deaf.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (location, mut questions) = (bundle(&folder, &socket), Questions::default());
        round(&location, &mut questions).await;
        let _first = listener.accept().unwrap();
        for _ in 0..3 {
            if let Some(seen) = round(&location, &mut questions).await {
                assert_eq!((seen.unread, seen.connections), (0, 0), "{seen:?}");
            }
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "it connected once");
    }
}
