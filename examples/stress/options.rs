//! What the user may ask for.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::Parser;
use rustix::process::{Resource, getrlimit};

use crate::shapes::Shape;

/// Bytes of a message that are left for everything but its payload: the limit of a frame is 4 MiB.
const MAX_PAYLOAD_LEN: u32 = (4 << 20) - 1024;

/// More callers than this are not what a machine can hold.
const MAX_CALLERS: usize = 1_000_000;

/// The most bytes that a socket or a queue may be asked to hold.
const MAX_BUFFER_BYTES: usize = 64 << 20;

/// The most frames that a queue may be asked to hold.
const MAX_QUEUE_FRAMES: usize = 1 << 16;

/// The most bytes of messages that all callers together may hold.
const MAX_IN_FLIGHT_BYTES: u64 = 4 << 30;

/// Less than this, and a busy machine makes handlers stand still; more, and standing still is taken
/// for a deadlock.
const STALL_TIMEOUT_MILLIS: RangeInclusive<u64> = 50..=4000;

/// The stall timeout where nothing stands still by itself: more than the machine takes, and less than
/// the time after which standing still is taken for a deadlock.
pub const LONG_STALL_TIMEOUT_MILLIS: u64 = 30_000;

/// Descriptors that are needed beside those of connections.
const OTHER_DESCRIPTORS: u64 = 32;

/// Shows that ttrpc calls cannot deadlock
///
/// Fills every buffer between a client and a server on real Unix sockets, and says for each shape of load
/// whether everything ended as it must. A control, a
/// client that sends and receives in one task, has to deadlock under the same load.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ttrpc-stress",
    version,
    after_help = "Exit codes: 0 every verdict is as it must be, 1 one is not, 2 nonsense was asked \
                  for, 3 inconclusive: the buffers never filled, or the run was interrupted."
)]
pub struct Options {
    /// Shapes of load to run, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SHAPES", default_values_t = Shape::ALL)]
    pub shapes: Vec<Shape>,

    /// Seconds that all shapes together take, more or less.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub duration: f64,

    /// Calls after which a shape ends, instead of its share of the duration [default: no limit].
    #[arg(long, value_name = "CALLS", conflicts_with = "duration")]
    pub calls: Option<u64>,

    /// Callers at a time, over all connections.
    #[arg(long, value_name = "CALLERS", default_value_t = 300)]
    pub callers: usize,

    /// Connections that the callers share.
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 1)]
    pub connections: usize,

    /// Calls in flight on a connection; further callers wait for their turn.
    #[arg(long, value_name = "CALLS", default_value_t = 1024)]
    pub in_flight: usize,

    /// Bytes of payload of a request, at most 4193280.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    pub request_size: u32,

    /// Bytes of payload of a reply; 0 for as many as the request has.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    pub reply_size: u32,

    /// SO_SNDBUF of both sides' sockets in bytes; the kernel raises it to its minimum.
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    pub send_buffer: usize,

    /// Frames that the outgoing queue of either side holds.
    #[arg(long, value_name = "FRAMES", default_value_t = 8)]
    pub queue_frames: usize,

    /// Bytes that the outgoing queue of either side holds.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    pub queue_bytes: usize,

    /// Calls that the server handles at a time on one connection.
    #[arg(long, value_name = "CALLS", default_value_t = 256)]
    pub handlers: usize,

    /// Milliseconds that a handler or a consumer may make no progress before calls are refused;
    /// from 50 to 4000. In the shapes `unread` and `wait-release`, where some do; elsewhere 30000.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 300)]
    pub stall_timeout: u64,

    /// Seed of everything that is drawn at random.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,

    /// Writes all results and options to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Loads the server at this address, which must serve the conformance service, instead of one
    /// of its own. What only a server of its own can show is left out.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listen")]
    pub connect: Option<String>,

    /// Serves the conformance service at this address, until it is interrupted.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,

    /// Ends with standard input: the harness holds the other end.
    #[arg(long, hide = true, requires = "listen")]
    pub supervised: bool,

    /// Reports on standard output what the server's sockets do.
    #[arg(long, hide = true, requires = "supervised")]
    pub measured: bool,
}

impl Options {
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            (self.callers, "--callers"),
            (self.connections, "--connections"),
            (self.in_flight, "--in-flight"),
            (self.send_buffer, "--send-buffer"),
            (self.queue_frames, "--queue-frames"),
            (self.queue_bytes, "--queue-bytes"),
            (self.handlers, "--handlers"),
            (self.calls.unwrap_or(1) as usize, "--calls"),
        ];
        if let Some((_, name)) = counts.iter().find(|(count, _)| *count == 0) {
            return Err(format!("{name} must be at least 1."));
        }
        let at_most = [
            (self.callers, MAX_CALLERS, "--callers"),
            (self.send_buffer, MAX_BUFFER_BYTES, "--send-buffer"),
            (self.queue_bytes, MAX_BUFFER_BYTES, "--queue-bytes"),
            (self.queue_frames, MAX_QUEUE_FRAMES, "--queue-frames"),
        ];
        if let Some((_, max, name)) = at_most.iter().find(|(count, max, _)| count > max) {
            return Err(format!("{name} may be at most {max}."));
        }
        for (size, name) in
            [(self.request_size, "--request-size"), (self.reply_size, "--reply-size")]
        {
            if size > MAX_PAYLOAD_LEN {
                return Err(format!(
                    "{name} may be at most {MAX_PAYLOAD_LEN} bytes, since a frame holds 4 MiB."
                ));
            }
        }
        let bytes =
            self.callers as u64 * (u64::from(self.request_size) + u64::from(self.reply_size));
        if bytes > MAX_IN_FLIGHT_BYTES {
            return Err(format!(
                "{} callers with requests and replies of these sizes would hold {bytes} bytes, more \
                 than {MAX_IN_FLIGHT_BYTES}.",
                self.callers
            ));
        }
        // The harness knows what it asks its servers for.
        if !self.supervised && !STALL_TIMEOUT_MILLIS.contains(&self.stall_timeout) {
            return Err(format!(
                "--stall-timeout must be from {} to {} milliseconds.",
                STALL_TIMEOUT_MILLIS.start(),
                STALL_TIMEOUT_MILLIS.end()
            ));
        }
        if self.connections > self.callers {
            return Err(format!(
                "{} connections need at least as many callers, and there are {}.",
                self.connections, self.callers
            ));
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if self.connections as u64 + OTHER_DESCRIPTORS > descriptors {
            return Err(format!(
                "{} connections are too many for the limit of {descriptors} descriptors (ulimit -n).",
                self.connections
            ));
        }
        if !(self.duration > 0.0 && self.duration <= 1e6) {
            return Err("--duration must be more than 0 and at most 1,000,000 seconds.".to_owned());
        }
        Ok(())
    }

    /// How long a shape runs.
    pub fn share(&self, shape: Shape) -> Duration {
        let total: u32 = self.shapes.iter().map(|shape| shape.weight()).sum();
        Duration::from_secs_f64(self.duration * f64::from(shape.weight()) / f64::from(total))
    }

    /// How long a handler or a consumer may stand still.
    pub fn stall_timeout(&self) -> Duration {
        Duration::from_millis(self.stall_timeout)
    }
}
