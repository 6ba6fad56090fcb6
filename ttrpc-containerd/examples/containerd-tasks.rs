//! Lists the tasks of this machine as their shims know them: `cargo run -p ttrpc-containerd --example containerd-tasks`.

use std::process::ExitCode;

use ttrpc_containerd::{shims, task::v3::StateRequest};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("containerd-tasks: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::args().nth(1);
    for shim in shims::find(state.as_deref().unwrap_or(shims::DEFAULT_STATE))? {
        let task = shim.connect().await?;
        let state = task.state(StateRequest { id: shim.id.clone(), ..Default::default() }).await?;
        println!("{}\t{}\t{}\t{:?}", shim.namespace, shim.id, state.pid, state.status());
    }
    Ok(())
}
