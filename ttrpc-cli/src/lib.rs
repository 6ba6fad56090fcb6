//! The command line `ttrpc`.

mod args;
mod call;
mod completion;
mod explore;
mod failure;
mod fields;
mod json;
mod load;
mod manual;
mod misfit;
mod nri;
mod options;
mod output;
mod placeholder;
mod repl;
mod replay;
mod schema;
mod session;
mod shims;
mod strict;
mod sync;
mod tap;
mod top;
mod trace;

use std::{io::Write, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

use args::{Arguments, Command};
use failure::Failure;

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    if let Some(code) = trace::guard::main() {
        return code;
    }
    match completion::shell::answer(Arguments::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return explain_usage(&error),
    }
    let parsed = Arguments::command().color(color()).try_get_matches();
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => return explain_usage(&error),
    };
    match arguments.global.color {
        clap::ColorChoice::Auto => {}
        clap::ColorChoice::Always => anstream::ColorChoice::AlwaysAnsi.write_global(),
        clap::ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    let json = arguments.global.json;
    if json {
        output::write_json();
    }
    let Err(failure) = run(arguments.command, json) else { return ExitCode::SUCCESS };
    match failure {
        Failure::Found | Failure::OutputClosed => {}
        _ if json => output::note_json(&failure.to_json()),
        _ => output::note(format_args!("{} {failure}", output::paint(output::BAD, "error:"))),
    }
    failure.exit_code()
}

/// What `--color` says, also where help is asked for or the rest makes no sense.
fn color() -> clap::ColorChoice {
    let arguments = std::env::args_os().skip(1).filter_map(|argument| argument.into_string().ok());
    let arguments: Vec<_> = arguments.take_while(|argument| argument != "--").collect();
    let mut behind = arguments.windows(2).filter(|pair| pair[0] == "--color").map(|pair| &*pair[1]);
    let said = arguments.iter().find_map(|argument| argument.strip_prefix("--color="));
    let said = said.or(behind.next_back()).unwrap_or_default();
    <clap::ColorChoice as clap::ValueEnum>::from_str(said, false).unwrap_or_default()
}

/// Prints help, or what is wrong with the command line: as JSON if that is asked for, though the rest
/// makes no sense.
fn explain_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || !std::env::args_os().any(|argument| argument == "--json") {
        error.exit();
    }
    let text = error.render().to_string();
    let failure = Failure::Usage(text.trim_start_matches("error: ").trim_end().to_owned());
    output::note_json(&failure.to_json());
    failure.exit_code()
}

fn run(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Completions { shell } => completion::shell::write_script(&shell),
        Command::Man => {
            let mut page = Vec::new();
            manual::write(&mut page)?;
            Ok(std::io::stdout().write_all(&page)?)
        }
        command => {
            // One thread starts faster; load and proxies alone need more.
            let needs_threads = match &command {
                Command::Load(_) | Command::Trace(_) => true,
                Command::Top(arguments) => arguments.is_proxy(),
                _ => false,
            };
            let mut builder = match needs_threads {
                true => tokio::runtime::Builder::new_multi_thread(),
                false => tokio::runtime::Builder::new_current_thread(),
            };
            let runtime = builder.enable_all().build().map_err(|error| {
                Failure::Other(format!("the asynchronous runtime does not start: {error}"))
            })?;
            let result = runtime.block_on(run_async(command, json));
            // A thread that reads the standard input is not waited for.
            runtime.shutdown_background();
            result
        }
    }
}

async fn run_async(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::List(arguments) => explore::list(&arguments, json).await,
        Command::Describe(arguments) => explore::describe(&arguments, json).await,
        Command::Schema(arguments) => explore::write_schema(&arguments, json).await,
        Command::Call(arguments) => call::run(arguments, json).await,
        Command::Explore(arguments) => repl::run(arguments, json).await,
        Command::Shims(arguments) => shims::run(arguments, json).await,
        Command::Top(arguments) => top::run(arguments, json).await,
        Command::Nri(arguments) => nri::run(arguments, json).await,
        Command::Load(arguments) => load::run(arguments, json).await,
        Command::Trace(arguments) => trace::run(arguments, json).await,
        Command::Replay(arguments) => replay::run(arguments, json).await,
        Command::Show(arguments) => replay::show(arguments, json),
        Command::Completions { .. } | Command::Man => unreachable!("need no runtime"),
    }
}
