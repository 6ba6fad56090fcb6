//! `ttrpc top`: what servers do and wait for, as it happens.

mod local;
mod model;
mod source;
mod table;
#[cfg(feature = "top")]
mod view;

use std::{io::IsTerminal, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum, ValueHint};
use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use ttrpc_reflection::proto::debug::Sort;

use crate::{
    failure::Failure,
    options::{MetadataOption, TimeoutOption, parse_duration},
    output,
    shims::{self, Location},
    trace::{Ends, Placed, Position},
};
use model::{News, Server};
use source::Asked;

/// Samples that wait to be shown.
const READ_AHEAD: usize = 64;

/// Show what servers do and wait for, as it happens
///
/// Three tables show methods with rates, failures and latencies, connections with their queues and stalls, and the
/// oldest calls with what they wait for. They come from the service ttrpc.debug.v1.Debug. Of a server without counters, its
/// snapshot is shown.
///
/// For a server without that service, --wrap or --listen makes this a proxy, as `ttrpc trace` is. --recording plays what
/// that has recorded.
///
/// Keys: q ends, Tab changes the table, s sorts, / filters, Space freezes, Enter shows one row in full.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc top /run/greeter.sock
  ttrpc top --shims
  ttrpc top --wrap unix:///run/containerd/s/4f2a
  ttrpc top --recording shim.trace --speed 10
  ttrpc top /run/greeter.sock --once --json | jq '.[].calls[0]'")]
pub struct Arguments {
    /// Where servers listen
    #[arg(required_unless_present_any = ["shims", "listen", "wrap", "recording"], value_name = "ADDRESS")]
    #[arg(value_hint = ValueHint::AnyPath)]
    addresses: Vec<String>,
    /// All shims of this machine, too
    #[arg(long)]
    shims: bool,
    #[command(flatten)]
    location: Location,
    #[command(flatten)]
    position: Position,
    /// Play what `ttrpc trace --record` has kept
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    recording: Option<PathBuf>,
    /// How many times faster than it was; 0 for no pauses at all
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "recording", value_parser = parse_speed)]
    speed: f64,
    /// The time between samples, from 100ms to 10s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Connections and calls that are asked for, of each
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    limit: u32,
    /// Which connections come first if a server has more than --limit
    #[arg(long, value_name = "ORDER", default_value = "stalled")]
    sort: Order,
    /// Write what there is once, after two samples of each server, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    metadata: MetadataOption,
    #[command(flatten)]
    timeout: TimeoutOption,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    Age,
    Calls,
    Queue,
    Stalled,
}

impl From<Order> for Sort {
    fn from(order: Order) -> Self {
        match order {
            Order::Age => Sort::Age,
            Order::Calls => Sort::Calls,
            Order::Queue => Sort::Queue,
            Order::Stalled => Sort::Stalled,
        }
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    let range = Duration::from_millis(100)..=Duration::from_secs(10);
    match range.contains(&interval) {
        true => Ok(interval),
        false => Err("an interval is from 100ms to 10s".to_owned()),
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed == 0.0 || (1e-3..=1e6).contains(&speed) => Ok(speed),
        _ => Err("a speed is 0, or from 0.001 to 1000000".to_owned()),
    }
}

impl Arguments {
    /// Whether bytes are passed on.
    pub fn is_proxy(&self) -> bool {
        self.position.is_given()
    }
}

/// Shows servers until it is ended.
///
/// # Errors
/// If there are no shims, the terminal cannot be used, or with --once no server has told anything.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let mut addresses = arguments.addresses.clone();
    if arguments.shims {
        addresses.extend(shims::addresses(&arguments.location)?);
    }
    let (position, recording) = (&arguments.position, arguments.recording.as_deref());
    if addresses.is_empty() && !position.is_given() && recording.is_none() {
        return Err(Failure::Other("there is no shim whose address is known".to_owned()));
    }
    let asked = Asked {
        interval: arguments.interval,
        timeout: arguments.timeout.limit(),
        limit: arguments.limit,
        sort: arguments.sort.into(),
        metadata: arguments.metadata.metadata,
    };
    let mut ends = Ends::new()?;
    let tracing = match position.is_given() {
        true => {
            let placed = Placed::open(position, local::counter(), None)?;
            output::note(format_args!("clients of {} are seen", placed.listened));
            Some((placed.listened.clone(), placed.accept()))
        }
        false => None,
    };
    let mut servers: Vec<_> = addresses.iter().cloned().map(Server::new).collect();
    let (sender, news) = mpsc::channel(READ_AHEAD);
    for (index, address) in addresses.into_iter().enumerate() {
        tokio::spawn(source::follow(address, index, asked.clone(), sender.clone()));
    }
    if let Some((listened, tracing)) = &tracing {
        let (proxy, index) = (tracing.proxy.clone(), servers.len());
        servers.push(Server::new(listened.clone()));
        tokio::spawn(local::follow(proxy, index, asked.clone(), sender.clone()));
    }
    if let Some(path) = recording {
        let index = servers.len();
        servers.push(Server::new(path.display().to_string()));
        let pace = match arguments.once {
            true => local::Pace::Sums,
            false => local::Pace::Speed(arguments.speed),
        };
        local::play(path, index, &asked, pace, sender.clone())?;
    }
    let shown = show(servers, news, &asked, arguments.once, json);
    let Some((_, mut tracing)) = tracing else { return shown.await };
    let shown = tokio::select! {
        shown = shown => shown,
        () = ends.any() => Ok(()),
    };
    tracing.put_back();
    tracing.pass_on_the_rest(&mut ends).await;
    shown
}

async fn show(
    mut servers: Vec<Server>,
    news: mpsc::Receiver<(usize, News)>,
    asked: &Asked,
    is_once: bool,
    json: bool,
) -> Result<(), Failure> {
    if is_once {
        return once(&mut servers, news, json).await;
    }
    #[cfg(feature = "top")]
    if !json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return live(servers, news).await;
    }
    each(servers, news, asked.interval, json).await
}

/// Waits for two samples of each server, or for what there is in their place.
async fn once(
    servers: &mut [Server],
    mut news: mpsc::Receiver<(usize, News)>,
    json: bool,
) -> Result<(), Failure> {
    let mut missing: Vec<_> = servers.iter().map(|_| 2_u32).collect();
    while missing.iter().any(|missing| *missing > 0) {
        let Some((index, told)) = news.recv().await else { break };
        missing[index] = match told {
            News::Sample(_) => missing[index].saturating_sub(1),
            News::Snapshot(_) | News::Trouble(_) => 0,
        };
        servers[index].take(told);
    }
    write(servers, json)?;
    match servers.iter().all(|server| server.trouble.is_some()) {
        true => Err(Failure::Found),
        false => Ok(()),
    }
}

/// Writes everything after each interval, until Ctrl-C.
async fn each(
    mut servers: Vec<Server>,
    mut news: mpsc::Receiver<(usize, News)>,
    interval: Duration,
    json: bool,
) -> Result<(), Failure> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
    let mut ticks = tokio::time::interval(interval);
    loop {
        tokio::select! {
            Some((index, told)) = news.recv() => servers[index].take(told),
            _ = ticks.tick() => write(&servers, json)?,
            _ = interrupts.recv() => return Ok(()),
        }
    }
}

fn write(servers: &[Server], json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<_> = servers.iter().map(Server::to_json).collect();
        return Ok(output::line(output::json(&Value::Array(all)))?);
    }
    for line in table::lines(servers, output::columns()) {
        output::line(line)?;
    }
    Ok(())
}

/// Draws until somebody ends it.
#[cfg(feature = "top")]
async fn live(
    mut servers: Vec<Server>,
    mut news: mpsc::Receiver<(usize, News)>,
) -> Result<(), Failure> {
    use ratatui::crossterm::event::{self, Event};
    let cannot =
        |error: std::io::Error| Failure::Other(format!("the terminal cannot be used: {error}"));
    // Dropped, or after a panic, the terminal is as it was.
    struct Restored;
    impl Drop for Restored {
        fn drop(&mut self) {
            ratatui::restore();
            output::hold_notes(false);
        }
    }
    output::hold_notes(true);
    if anstream::stdout().current_choice() == anstream::ColorChoice::Never {
        ratatui::crossterm::style::force_color_output(false);
    }
    let mut terminal = ratatui::try_init().map_err(cannot)?;
    let _restored = Restored;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let (sender, mut events) = mpsc::channel(READ_AHEAD);
    // Nobody waits for this thread when the program ends.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut view = view::View::default();
    while !view.is_over {
        terminal.draw(|frame| view.draw(frame, &servers)).map_err(cannot)?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if key.is_press() => view.press(key),
                Some(_) => {}
                None => return Ok(()),
            },
            Some((index, told)) = news.recv() => {
                if !view.is_frozen {
                    servers[index].take(told);
                }
            }
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
    Ok(())
}
