//! Lines for containerd's log. The daemon writes them into the FIFO `log` in its bundle, which
//! containerd reads; the short-lived invocations write to stderr.

use std::{
    fmt::{Debug, Display, Write as _},
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::OnceLock,
    time::SystemTime,
};

use rustix::fs::OFlags;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use ttrpc::prost_types::Timestamp;

/// Where lines go.
struct Log {
    fifo: Option<File>,
    is_debug: bool,
    /// Which container the shim was started for.
    id: String,
}

static LOG: OnceLock<Log> = OnceLock::new();
static RUNTIME: OnceLock<&str> = OnceLock::new();

/// Says which runtime's lines these are.
pub(crate) fn set_runtime(name: &'static str) {
    // The first name counts.
    let _ = RUNTIME.set(name);
}

/// Opens the FIFO. Opened for reading as well, it can be written to while containerd is away, and
/// its reader may come and go; a line that finds it full is lost, since logging must never wait.
pub(crate) fn open(fifo: &Path, id: &str, is_debug: bool) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(fifo)?;
    // Opened once per process; a second time would change nothing.
    let _ = LOG.set(Log { fifo: Some(file), is_debug, id: id.to_owned() });
    let _ = tracing::subscriber::set_global_default(Library);
    Ok(())
}

/// Logs a failure that containerd also learns from an answer, or that it need not know.
pub fn warn(message: impl Display) {
    write("warning", message);
}

/// What ends this process. Where there is no log yet, containerd puts the text into the error of its own, so
/// that it is no line of a log.
pub(crate) fn fatal(name: &str, error: impl Display) {
    match LOG.get() {
        Some(_) => write("error", error),
        None => eprintln!("{name}: {error}"),
    }
}

/// Logs something that happens once in a shim's life.
pub(crate) fn info(message: impl Display) {
    write("info", message);
}

/// Logs something that happens often. Only with `-debug`.
pub fn debug(message: impl Display) {
    if LOG.get().is_some_and(|log| log.is_debug) {
        write("debug", message);
    }
}

/// What the library has to say: warnings, and everything with `-debug`.
struct Library;

impl Subscriber for Library {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_debug = LOG.get().is_some_and(|log| log.is_debug);
        metadata.is_event()
            && *metadata.level() <= if is_debug { Level::DEBUG } else { Level::WARN }
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let is_warning = *event.metadata().level() <= Level::WARN;
        write(if is_warning { "warning" } else { "debug" }, line.0.trim_start());
    }

    // Spans are not enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message and fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        // A string takes everything.
        let _ = written;
    }

    // The library has no such fields, and the code that writes them is long.
    fn record_f64(&mut self, _: &Field, _: f64) {}
    fn record_i128(&mut self, _: &Field, _: i128) {}
    fn record_u128(&mut self, _: &Field, _: u128) {}
}

fn write(level: &str, message: impl Display) {
    let line = |id: &str| {
        let time = Timestamp::from(SystemTime::now());
        let message = message.to_string();
        let runtime = RUNTIME.get().unwrap_or(&"");
        format!("time=\"{time}\" level={level} msg={message:?} id={id:?} runtime={runtime}\n")
    };
    // Nobody is left to be told of a line that cannot be written.
    let _ = match LOG.get() {
        Some(Log { fifo: Some(file), id, .. }) => (&*file).write_all(line(id).as_bytes()),
        _ => io::stderr().write_all(line("").as_bytes()),
    };
}
