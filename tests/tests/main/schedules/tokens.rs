//! Everybody who holds a part of a call hears of its end, in whatever way it comes.
//!
//! Handlers hand their cancellation token to a task outside of the call, and end at random moments in random
//! ways. When every call has ended, every token has fired.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::{collection::vec, option, prelude::*};
use tokio::{
    io::duplex,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use ttrpc::{Client, ClientConfig, Server, Status, server::Routes};
use ttrpc_tests::{harness::*, wire::Watchdog};

use super::in_virtual_time;

const NAME: &str = "test.Tokens";

/// How a handler goes on when it has waited.
#[derive(Clone, Copy, Debug)]
enum How {
    Returns,
    Fails,
    Panics,
    /// Only its deadline, or the end of its connection, ends it.
    Stays,
}

/// A call, and what becomes of it; times in milliseconds.
#[derive(Clone, Debug)]
struct Plan {
    how: How,
    after: u64,
    deadline: Option<u64>,
    dropped_after: Option<u64>,
}

fn plans(hows: &'static [How]) -> impl Strategy<Value = Vec<Plan>> {
    let how = proptest::sample::select(hows);
    let plan = (how, 0u64..2000, option::of(1u64..2000), option::weighted(0.2, 0u64..2000));
    let plan = plan.prop_map(|(how, after, deadline, dropped_after)| Plan {
        how,
        after,
        deadline,
        dropped_after,
    });
    vec(plan, 1..12)
}

/// Tokens that handlers have handed out.
type Tokens = Mutex<Vec<CancellationToken>>;

fn routes(tokens: &Arc<Tokens>) -> Routes {
    // A request says how, and after what time.
    Routes::new(NAME).unary("Run", tokens, |tokens: &Tokens, ctx, request: u32| {
        tokens.lock().unwrap().push(ctx.cancellation_token());
        Box::pin(async move {
            sleep(Duration::from_millis(u64::from(request / 4))).await;
            match request % 4 {
                0 => Ok(()),
                1 => Err(Status::not_found("as asked")),
                // Without the hook, which would tell of each one.
                2 => std::panic::resume_unwind(Box::new("as asked")),
                _ => std::future::pending().await,
            }
        })
    })
}

async fn all_tokens_fire(plans: Vec<Plan>) -> Result<(), TestCaseError> {
    let _watchdog = Watchdog::default();
    let tokens = Arc::<Tokens>::default();
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes(&tokens))).io(there);
    let server = server.build().expect("there is a connection to serve");
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    let mut calls = JoinSet::new();
    for plan in plans {
        let client = client.clone();
        calls.spawn(async move {
            let how = match plan.how {
                How::Returns => 0,
                How::Fails => 1,
                How::Panics => 2,
                How::Stays => 3,
            };
            let call = client.unary::<u32, ()>(NAME, "Run", 4 * plan.after as u32 + how);
            let deadline = plan.deadline.unwrap_or(5000);
            let call = call.timeout(Duration::from_millis(deadline)).into_future();
            let patience = Duration::from_millis(plan.dropped_after.unwrap_or(10_000));
            let _ = timeout(patience, call).await;
        });
    }
    calls.join_all().await;
    eventually("the handlers end", || handle.calls_in_flight() == 0).await;
    let fired = || tokens.lock().unwrap().iter().all(CancellationToken::is_cancelled);
    let waiting = async {
        while !fired() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let all = timeout(Duration::from_secs(60), waiting).await;
    prop_assert!(all.is_ok(), "a token never fires");
    client.close();
    serving.await.expect("serving does not panic").expect("serving does not fail");
    Ok(())
}

#[test]
fn the_token_of_a_call_that_is_cut_off_fires() {
    in_virtual_time(plans(&[How::Stays]), all_tokens_fire);
}

#[test]
fn the_token_of_a_call_that_ends_in_whatever_way_fires() {
    let hows = &[How::Returns, How::Fails, How::Panics, How::Stays];
    in_virtual_time(plans(hows), all_tokens_fire);
}
