//! Watching a shape while it runs: the live line, and whether anything still moves.

use std::{
    cell::Cell,
    future::Future,
    io::{IsTerminal, stdout},
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use ttrpc::Client;

use crate::{
    meter::{Figures, Meter},
    report::{bytes, count, say, time},
    shapes::Shape,
    tally::{Count, Tally},
};

/// How often a shape is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// The most that the time between two looks counts. A process that the machine did not run meanwhile
/// could not see anything move.
const MAX_COUNTED: Duration = Duration::from_millis(100);

/// After this long without a call that ends and without a byte that moves, while calls are pending, a
/// shape is taken for deadlocked. Only time in which this process ran counts, see `MAX_COUNTED`; the server's
/// may have had to wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What can be seen of a shape while it runs.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Which shape it is.
    pub shape: Shape,
    /// What the callers see.
    pub tally: Arc<Tally>,
    /// What the client's sockets do.
    pub meter: Arc<Meter>,
    /// What the server's sockets do, if it is a server of ours that is measured.
    pub server: Option<watch::Receiver<Figures>>,
    /// The clients, whose queues are looked at.
    pub clients: Arc<Mutex<Vec<Client>>>,
}

impl Scene {
    /// What the server's sockets do, as it last said.
    pub fn server_figures(&self) -> Option<Figures> {
        self.server.as_ref().map(|server| *server.borrow())
    }

    /// Looks at the clients' queues.
    fn sample(&self) {
        for client in &*self.clients.lock().expect("no holder panics") {
            self.meter.note_queue(&client.snapshot().queue);
        }
    }

    /// What changes when anything moves.
    fn motion(&self) -> [u64; 5] {
        let (client, server) = (self.meter.figures(), self.server_figures().unwrap_or_default());
        let ended = self.tally.so_far().ended;
        [ended, client.read_bytes, client.written_bytes, server.read_bytes, server.written_bytes]
    }
}

/// Nothing moved for the whole patience, while calls were pending.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// From the start until the last motion.
    pub after: Duration,
    /// Calls that had ended, and those that were pending.
    pub count: Count,
    /// What the client's sockets did.
    pub client: Figures,
    /// What the server's sockets did.
    pub server: Option<Figures>,
}

impl Stuck {
    /// Whether both sides wait for a socket that is full: the deadlock of ttrpc 1.0.
    pub fn is_full_both_ways(&self) -> bool {
        let is_full = |figures: Figures| figures.blocked_now > 0 && figures.unsent_bytes > 0;
        is_full(self.client) && self.server.is_some_and(is_full)
    }
}

/// The live line on a terminal, and plain lines elsewhere.
#[derive(Debug)]
pub struct Display {
    is_terminal: bool,
    last_line: Cell<Instant>,
}

impl Default for Display {
    fn default() -> Self {
        Display { is_terminal: stdout().is_terminal(), last_line: Cell::new(Instant::now()) }
    }
}

impl Display {
    /// Does the work while showing it. Gives up on it when nothing has moved for `patience`.
    pub async fn watch<T>(
        &self,
        scene: &Scene,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Stuck> {
        let mut work = pin!(work);
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let live = self.live_line();
        let start = Instant::now();
        let mut last_look = start;
        let mut moved = (start, scene.motion());
        let mut still = Duration::ZERO;
        loop {
            tokio::select! {
                result = &mut work => return Ok(result),
                _ = looks.tick() => {}
            }
            scene.sample();
            let motion = scene.motion();
            let count = scene.tally.so_far();
            let now = Instant::now();
            still += now.duration_since(mem::replace(&mut last_look, now)).min(MAX_COUNTED);
            if motion != moved.1 || count.pending == 0 {
                moved = (now, motion);
                still = Duration::ZERO;
            }
            if still > patience {
                return Err(Stuck {
                    after: moved.0 - start,
                    count,
                    client: scene.meter.figures(),
                    server: scene.server_figures(),
                });
            }
            self.show(live.as_ref(), scene, start);
        }
    }

    /// A line that is drawn over and that goes when it is dropped, if there is a terminal for it.
    fn live_line(&self) -> Option<ProgressBar> {
        self.is_terminal.then(|| {
            // The message is cut to the terminal's width.
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            bar.with_style(style.expect("the template is valid"))
                .with_finish(ProgressFinish::AndClear)
        })
    }

    fn show(&self, live: Option<&ProgressBar>, scene: &Scene, start: Instant) {
        if let Some(live) = live {
            live.set_message(line(scene, start.elapsed()));
            live.tick();
        } else if self.last_line.get().elapsed() >= LINE_INTERVAL {
            self.last_line.set(Instant::now());
            say(&line(scene, start.elapsed()));
        }
    }
}

fn line(scene: &Scene, elapsed: Duration) -> String {
    let (client, server) = (scene.meter.figures(), scene.server_figures().unwrap_or_default());
    let so_far = scene.tally.so_far();
    let per_second = so_far.ended as f64 / elapsed.as_secs_f64().max(1e-3);
    format!(
        "{}: {} calls, {}/s, {} unsent, blocked {}, slowest {}",
        scene.shape.name(),
        count(so_far.ended),
        count(per_second as u64),
        bytes(client.unsent_bytes + server.unsent_bytes),
        time(client.blocked + server.blocked),
        time(so_far.slowest),
    )
}
