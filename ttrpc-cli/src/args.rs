//! The command line.

use clap::{Args, ColorChoice, Parser, Subcommand};

use crate::{call, explore, load, nri, repl, replay, shims, top, trace};

/// Look at ttrpc services and call them.
///
/// ttrpc is containerd's RPC protocol: it is what containerd speaks with its shims. An ADDRESS is a path,
/// unix:///path, unix://@abstract, vsock://CID:PORT, hvsock:///path:PORT or tcp://HOST:PORT.
#[derive(Debug, Parser)]
#[command(name = "ttrpc", version, after_help = EXAMPLES, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: Global,
}

const EXAMPLES: &str = "\
Examples:
  ttrpc list /run/greeter.sock
  ttrpc call /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc shims
  ttrpc call unix:///run/containerd/s/4f2a Task/State id=web

Exit codes: 0 success, 1 failure, 2 usage, 3 cannot connect, 64 + code for a call that failed
(69 is NOT_FOUND), 130 interrupted.";

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Write JSON for machines, errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    List(explore::List),
    Describe(explore::Describe),
    Schema(explore::WriteSchema),
    Call(call::Arguments),
    Explore(repl::Arguments),
    Shims(shims::Arguments),
    Top(top::Arguments),
    Nri(nri::Arguments),
    Load(load::Arguments),
    Trace(trace::Arguments),
    Replay(replay::Arguments),
    Show(replay::ShowArguments),
    /// Write completions for a shell
    ///
    /// The script asks this program. For at most half a second, this program asks the server that the command line
    /// names, so that services, methods and the fields of requests are completed, too.
    #[command(after_help = "Examples:
  ttrpc completions bash > /etc/bash_completion.d/ttrpc
  ttrpc completions zsh > /usr/local/share/zsh/site-functions/_ttrpc
  ttrpc completions fish > ~/.config/fish/completions/ttrpc.fish")]
    Completions {
        /// The shell
        #[arg(value_parser = ["bash", "fish", "zsh"])]
        shell: String,
    },
    /// Write the manual page
    #[command(after_help = "Example:\n  ttrpc man > /usr/local/share/man/man1/ttrpc.1")]
    Man,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
