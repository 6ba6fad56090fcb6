//! Replies that come in time and are taken late.
//!
//! What ended in time may be read at any time after, whatever was tried meanwhile. Deadline, reply, sends and
//! the moment at which the reply is taken are drawn at random; the server is played, so that each moment is
//! exact.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tokio::time::{Instant, sleep_until};
use ttrpc::{ClientConfig, Code, Status};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Watchdog},
};

use super::in_virtual_time;

/// Two moments that are as close as this may come in either order: timers go by milliseconds.
const GRAIN: Duration = Duration::from_millis(3);

/// What happens on a stream, each at so many milliseconds after it was opened.
#[derive(Clone, Debug)]
struct Plan {
    is_exchange: bool,
    deadline: u64,
    /// The server's end of the stream.
    end: u64,
    /// Whether the server ends it well.
    is_good: bool,
    sends: Vec<u64>,
    /// When the caller looks at how it ended.
    taken: u64,
}

impl Plan {
    fn ends_in_time(&self) -> bool {
        self.end < self.deadline
    }

    /// From when on sends fail. When the server has closed its side of an exchange well, the other side is
    /// open until the deadline.
    fn sends_end(&self) -> u64 {
        match self.is_exchange && self.is_good && self.ends_in_time() {
            true => self.deadline,
            false => self.end.min(self.deadline),
        }
    }

    fn without_late_sends(mut self) -> Self {
        let end = self.sends_end();
        self.sends.retain(|at| *at < end);
        self
    }
}

fn plans(is_exchange: bool) -> impl Strategy<Value = Plan> {
    let moments = (1u64..1000, 0u64..1500, any::<bool>(), vec(0u64..2000, 0..6), 0u64..3000);
    let is_clear = |plan: &Plan| {
        let apart = |a: u64, b: u64| u128::from(a.abs_diff(b)) > GRAIN.as_millis();
        let is_clear = |at: u64| apart(at, plan.end) && apart(at, plan.deadline);
        apart(plan.end, plan.deadline)
            && plan.sends.iter().chain([&plan.taken]).all(|at| is_clear(*at))
    };
    moments
        .prop_map(move |(deadline, end, is_good, mut sends, taken)| {
            sends.sort_unstable();
            Plan { is_exchange, deadline, end, is_good, sends, taken }
        })
        .prop_filter("moments that are told apart", is_clear)
}

/// Whether the caller may see this end. One that came too late may be seen by a caller that looks at its
/// call for the first time after it: until then, nobody waits for the deadline.
fn may_be_seen(plan: &Plan, code: Code) -> bool {
    let end = if plan.is_good { Code::Ok } else { Code::NotFound };
    match plan.ends_in_time() {
        true => code == end,
        false => code == Code::DeadlineExceeded || (plan.taken > plan.end && code == end),
    }
}

fn code_of<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// The server's part: reads all that comes, and ends the stream at its moment.
async fn serve(mut peer: Played, plan: Plan, start: Instant, good: fn(u32) -> Frame) {
    let id = peer.receive().await.id;
    let ends = sleep_until(start + Duration::from_millis(plan.end));
    tokio::pin!(ends);
    loop {
        tokio::select! {
            frame = peer.try_receive() => if frame.is_none() { return },
            () = &mut ends => break,
        }
    }
    let end = if plan.is_good { good(id) } else { Frame::failure(id, code::NOT_FOUND, "gone") };
    peer.send(end).await;
    while peer.try_receive().await.is_some() {}
}

/// Sends at each moment: well before the end, and with an error after it.
async fn send(
    mut requests: ttrpc::client::StreamSender<Chunk>,
    plan: Plan,
    start: Instant,
) -> Result<(), TestCaseError> {
    let end = plan.sends_end();
    for at in plan.sends {
        sleep_until(start + Duration::from_millis(at)).await;
        let sent = requests.send(chunk(at)).await;
        prop_assert_eq!(sent.is_ok(), at < end, "a send at {} ms: {:?}", at, sent);
    }
    Ok(())
}

async fn collect(plan: Plan) -> Result<(), TestCaseError> {
    let _watchdog = Watchdog::default();
    let (client, conformance, peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    let good = |id| Frame::reply(id, &CollectResponse { chunks: 7, ..Default::default() });
    let serving = tokio::spawn(serve(peer, plan.clone(), start, good));
    let call = conformance.collect().timeout(Duration::from_millis(plan.deadline));
    let (requests, reply) = call.await.expect("there is room");
    let sending = send(requests, plan.clone(), start);
    let taking = async {
        sleep_until(start + Duration::from_millis(plan.taken)).await;
        code_of(reply.await)
    };
    let (sent, code) = tokio::join!(sending, taking);
    sent?;
    prop_assert!(may_be_seen(&plan, code), "it ended with {}", code);
    prop_assert_eq!(client.calls_in_flight(), 0);
    client.close();
    serving.await.expect("the server does not panic");
    Ok(())
}

async fn exchange(plan: Plan) -> Result<(), TestCaseError> {
    let _watchdog = Watchdog::default();
    let (client, conformance, peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    let serving = tokio::spawn(serve(peer, plan.clone(), start, Frame::end));
    let call = conformance.exchange().timeout(Duration::from_millis(plan.deadline));
    let (requests, mut replies) = call.await.expect("there is room");
    let sending = send(requests, plan.clone(), start);
    let taking = async {
        sleep_until(start + Duration::from_millis(plan.taken)).await;
        code_of(replies.recv().await)
    };
    let (sent, code) = tokio::join!(sending, taking);
    sent?;
    prop_assert!(may_be_seen(&plan, code), "it ended with {}", code);
    drop(replies);
    client.close();
    serving.await.expect("the server does not panic");
    Ok(())
}

#[test]
fn a_reply_in_time_may_be_taken_late() {
    in_virtual_time(plans(false).prop_map(Plan::without_late_sends), collect);
}

#[test]
fn the_end_of_an_exchange_in_time_may_be_seen_late() {
    in_virtual_time(plans(true).prop_map(Plan::without_late_sends), exchange);
}

#[test]
fn a_reply_in_time_outlives_sends_after_the_deadline() {
    in_virtual_time(plans(false), collect);
}

#[test]
fn the_end_of_an_exchange_in_time_outlives_sends_after_the_deadline() {
    in_virtual_time(plans(true), exchange);
}
