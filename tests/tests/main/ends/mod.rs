//! Calls end once, and nothing is left of them in any table, on whatever path they end. That a process keeps
//! no task and no descriptor either is shown by the test binary `leaks`.

mod early_ends;
mod late_sends;
mod many;
mod paths;
mod runtimes;
mod signals;

use ttrpc::Client;
use ttrpc_tests::harness::{TestServer, eventually};

async fn nothing_is_left(server: &TestServer, client: &Client) {
    eventually("the client's table is empty", || client.calls_in_flight() == 0).await;
    server.is_idle().await;
}
