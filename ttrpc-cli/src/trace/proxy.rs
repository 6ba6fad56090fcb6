//! Bytes from one socket to the other, and what is seen of them.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    sync::watch,
    time::{interval, sleep},
};
use ttrpc::{Connection as Io, client::ConnectOptions, server::Acceptor};
use ttrpc_reflection::proto::debug::Sample;

use super::{
    call::{Call, Side},
    mux::{Logical, Splitter},
    observe::Connection,
    record::Recorder,
    report::Reporter,
    sample::Open,
};
use crate::{failure::Failure, output, sync::lock};

/// What is read at a time.
const BUFFER_LEN: usize = 64 << 10;

/// A table is not drawn more often.
const MIN_TABLE_INTERVAL: Duration = Duration::from_millis(100);

/// How often pending calls are looked at.
const PENDING_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait when no more descriptors are to be had.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is followed of a client's connection: one, or of NRI two that are logical.
#[derive(Debug)]
struct Followed {
    splitter: Splitter,
    first: Arc<Mutex<Connection>>,
    second: Option<Arc<Mutex<Connection>>>,
}

/// All connections of a trace.
#[derive(Debug)]
pub struct Proxy {
    upstream: String,
    start: Instant,
    reporter: Reporter,
    recorder: Option<Mutex<Recorder>>,
    /// Each with the time at which it was opened.
    connections: Mutex<Vec<(Duration, Weak<Mutex<Connection>>)>>,
    connections_so_far: AtomicU32,
    /// How many are open.
    open: watch::Sender<u32>,
}

impl Proxy {
    pub fn new(upstream: String, reporter: Reporter, recorder: Option<Mutex<Recorder>>) -> Self {
        Proxy {
            upstream,
            start: Instant::now(),
            reporter,
            recorder,
            connections: Mutex::default(),
            connections_so_far: AtomicU32::new(0),
            open: watch::Sender::new(0),
        }
    }

    /// Passes clients on for as long as this is polled. Connections end with their peers.
    pub async fn accept(self: &Arc<Self>, mut clients: Acceptor) {
        while let Some(accepted) = clients.accept().await {
            match accepted {
                Ok(client) => self.pass_on(client),
                Err(error) => {
                    output::note(format_args!("a client cannot be accepted: {error}"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Passes a client on until its connection ends.
    pub fn pass_on(self: &Arc<Self>, client: Io) {
        let id = self.next_id();
        self.open.send_modify(|open| *open += 1);
        let proxy = self.clone();
        tokio::spawn(async move {
            // Once: the server's clients wait, or are turned away, as they would without a trace.
            match ConnectOptions::new().open(&proxy.upstream).await {
                Ok(server) => proxy.serve(id, client, server).await,
                Err(error) => {
                    output::note(format_args!("c{id}: the server takes no connection: {error}"));
                }
            }
            proxy.open.send_modify(|open| *open -= 1);
        });
    }

    fn next_id(&self) -> u32 {
        self.connections_so_far.fetch_add(1, Relaxed) + 1
    }

    async fn serve(&self, id: u32, client: Io, server: Io) {
        let followed = Mutex::new(self.followed(id));
        let ((client_read, client_write), (server_read, server_write)) =
            (split(client), split(server));
        let requests = self.pump(Side::Client, client_read, server_write, &followed);
        let answers = self.pump(Side::Server, server_read, client_write, &followed);
        let ((), ()) = tokio::join!(requests, answers);
        let Followed { first, second, .. } = &*lock(&followed);
        for connection in [Some(first), second.as_ref()].into_iter().flatten() {
            let mut connection = lock(connection);
            let ended = connection.close(self.start.elapsed());
            ended.iter().for_each(|ended| self.reporter.ended(ended));
            self.record(|recorder, now| recorder.closed(connection.id, now));
        }
    }

    /// Starts to follow a connection.
    fn followed(&self, id: u32) -> Followed {
        Followed { splitter: Splitter::default(), first: self.connection(id), second: None }
    }

    fn connection(&self, id: u32) -> Arc<Mutex<Connection>> {
        let connection = Arc::new(Mutex::new(self.reporter.connection(id)));
        self.enlist(&connection);
        connection
    }

    pub fn open_connections(&self) -> u32 {
        *self.open.borrow()
    }

    /// Waits until none is open.
    pub async fn connections_ended(&self) {
        // The sender is here.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Has the connection's calls looked at.
    fn enlist(&self, connection: &Arc<Mutex<Connection>>) {
        let mut connections = lock(&self.connections);
        connections.retain(|(_, known)| known.strong_count() > 0);
        connections.push((self.start.elapsed(), Arc::downgrade(connection)));
    }

    /// Passes on what one side says until it ends or the other side is gone.
    async fn pump(
        &self,
        side: Side,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        followed: &Mutex<Followed>,
    ) {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let len = match from.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(len) => len,
            };
            // Before it is passed on, so that no answer is seen before its request.
            self.tell(side, &buffer[..len], &mut lock(followed));
            if to.write_all(&buffer[..len]).await.is_err() {
                break;
            }
        }
        // The other side sees the end as it was. Closing fails if it is gone.
        let _ = to.shutdown().await;
    }

    /// Tells what passes, by logical connection.
    fn tell(&self, side: Side, bytes: &[u8], followed: &mut Followed) {
        let Followed { splitter, first, second } = followed;
        splitter.split(side, bytes, &mut |logical: Logical, side: Side, bytes: &[u8]| match logical {
            Logical::First => self.see(side, bytes, first),
            Logical::Second => {
                let second = second.get_or_insert_with(|| {
                    let (id, of) = (self.next_id(), lock(first).id);
                    output::note(format_args!(
                        "c{of} is of NRI: its calls are the runtime's, and those of its plugin are c{id}'s"
                    ));
                    self.connection(id)
                });
                self.see(side, bytes, second);
            }
        });
    }

    /// Tells what passes. The connection is locked until all is told, so that [`Proxy::close`] finds a call
    /// either under way or told.
    fn see(&self, side: Side, bytes: &[u8], connection: &Mutex<Connection>) {
        let now = self.start.elapsed();
        let mut connection = lock(connection);
        let frames = connection.feed(side, bytes);
        let mut ended = Vec::new();
        for frame in &frames {
            ended.extend(self.reporter.observe(&mut connection, frame, now));
        }
        for frame in &frames {
            self.record(|recorder, _| recorder.frame(connection.id, frame, now));
        }
        ended.iter().for_each(|ended| self.reporter.ended(ended));
    }

    fn record(&self, write: impl FnOnce(&mut Recorder, Duration)) {
        if let Some(recorder) = &self.recorder {
            write(&mut lock(recorder), self.start.elapsed());
        }
    }

    fn connections(&self) -> Vec<(Duration, Arc<Mutex<Connection>>)> {
        let connections = lock(&self.connections);
        let open = connections.iter().map(|(opened, known)| Some((*opened, known.upgrade()?)));
        open.flatten().collect()
    }

    /// What there is now.
    pub fn sample(&self, limit: usize) -> Sample {
        let now = self.start.elapsed();
        let connections = self.connections();
        let connections: Vec<_> = connections
            .iter()
            .map(|(opened, connection)| {
                let connection = lock(connection);
                Open::of(&connection, *opened)
            })
            .collect();
        self.reporter.sample(connections, now, limit)
    }

    /// Shows the table again and again.
    pub async fn follow(&self, every: Duration, json: bool) {
        let mut ticks = interval(every.max(MIN_TABLE_INTERVAL));
        loop {
            ticks.tick().await;
            if json {
                let now = self.start.elapsed();
                let pending: Vec<Call> = (self.connections().iter())
                    .flat_map(|(_, connection)| {
                        let connection = lock(connection);
                        connection.pending().into_iter().cloned().collect::<Vec<_>>()
                    })
                    .collect();
                let _ = output::line(self.reporter.summary(&pending, now));
                continue;
            }
            let (columns, rows) = (output::columns(), output::rows());
            let in_flight: u64 = (self.connections().iter())
                .map(|(_, connection)| lock(connection).pending().len() as u64)
                .sum();
            let mut lines = vec![format!(
                "{}, {}, {} in flight",
                output::duration(self.start.elapsed()),
                output::count(self.open_connections(), "connection"),
                output::count(in_flight, "call"),
            )];
            lines.extend(self.reporter.table(columns));
            // Whoever read it is gone; the trace goes on for its clients.
            let _ = match rows {
                Some(rows) => {
                    lines.truncate(rows.saturating_sub(1).max(1));
                    output::screen(&lines.join("\n"))
                }
                None => output::line(lines.join("\n") + "\n"),
            };
        }
    }

    /// Tells once of each call that is pending for longer than this.
    pub async fn watch_pending(&self, limit: Duration) {
        let mut told = HashSet::new();
        let mut ticks = interval(PENDING_INTERVAL);
        loop {
            ticks.tick().await;
            let now = self.start.elapsed();
            let connections = self.connections();
            let mut old = HashSet::new();
            for (_, connection) in connections {
                let connection = lock(&connection);
                let is_old = |call: &&&Call| now.saturating_sub(call.begun) > limit;
                for call in connection.pending().iter().filter(is_old) {
                    let name = (call.connection, call.stream, call.begun);
                    if !told.contains(&name) && self.reporter.tells(call) {
                        output::note(Reporter::pending(call, now));
                    }
                    old.insert(name);
                }
            }
            told = old;
        }
    }

    /// Ends what is told and recorded, at one moment for all connections. Returns the calls that are under
    /// way then, and the moment.
    fn close(&self) -> (Vec<Call>, Duration) {
        let connections = self.connections();
        let locked: Vec<_> = connections.iter().map(|(_, connection)| lock(connection)).collect();
        let now = self.start.elapsed();
        self.reporter.close();
        self.record(|recorder, _| recorder.close(now));
        (locked.iter().flat_map(|connection| connection.pending()).cloned().collect(), now)
    }

    /// Writes the table and the end of the recording.
    ///
    /// # Errors
    /// If either cannot be written.
    pub fn finish(&self, json: bool) -> Result<(), Failure> {
        let (pending, now) = self.close();
        let lines = self.reporter.finish(&pending, now, output::columns());
        match json {
            true => output::line(self.reporter.summary(&pending, now))?,
            false => {
                for line in lines {
                    output::line(line)?;
                }
            }
        }
        match &self.recorder {
            Some(recorder) => lock(recorder).finish(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use ttrpc::proto::frame::Flags;

    use super::{super::observe::tests, *};
    use crate::{
        schema::builtin,
        trace::{messages::Messages, report::Format},
    };

    #[test]
    fn a_call_that_ends_after_the_trace_is_pending_and_no_line_is_missing() {
        let messages = Arc::new(Messages::new(builtin().clone(), &[]));
        let reporter = Reporter::start(messages, Format::Json);
        let proxy = Proxy::new("a.sock".to_owned(), reporter, None);
        let connection = Arc::new(Mutex::new(proxy.reporter.connection(1)));
        proxy.enlist(&connection);
        let request = tests::request(Flags::NONE, Some(&"x".to_owned()));
        proxy.see(Side::Client, &request, &connection);
        let (pending, _) = proxy.close();
        assert_eq!(pending.len(), 1);
        proxy.see(Side::Server, &tests::response("abc"), &connection);
        let summary = proxy.reporter.summary(&pending, Duration::ZERO);
        assert_eq!(
            summary["methods"],
            json!([]),
            "the call is pending, and not told as ended, too"
        );
        assert_eq!(summary["linesDropped"], 0);
    }
}
