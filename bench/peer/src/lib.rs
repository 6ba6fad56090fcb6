//! Server or client of any contender.

use bench_load::{Options, run, run_blocking};

/// Is what the command line says; [`Options`] has it all.
///
/// # Panics
/// If anything goes wrong.
pub fn run_contender() {
    let options = Options::from_command_line();
    match options.contender.as_str() {
        "ours" => run::<contender_ours::Ours>(options),
        "ours-observed" => run::<contender_ours::OursObserved>(options),
        "ours-intercepted" => run::<contender_ours::OursIntercepted>(options),
        "ours-blocking" => run_blocking::<contender_ours::OursBlocking>(options),
        "raw-blocking" => run_blocking::<contender_raw::Blocking>(options),
        "raw-batch" => run::<contender_raw::Batch>(options),
        "mux-inline" => run::<contender_raw::MuxInline>(options),
        "mux-spawn" => run::<contender_raw::MuxSpawn>(options),
        "mux-defer" => run::<contender_raw::MuxDefer>(options),
        "ttrpc-rust" => run::<contender_ttrpc_rust::TtrpcRust>(options),
        "ttrpc-rust-sync" => run_blocking::<contender_ttrpc_rust_sync::TtrpcRustSync>(options),
        "trapeze" => run::<contender_trapeze::Trapeze>(options),
        "tonic" => run::<contender_tonic::Tonic>(options),
        "tarpc" => run::<contender_tarpc::Tarpc>(options),
        other => panic!("no contender is called {other:?}"),
    }
}
