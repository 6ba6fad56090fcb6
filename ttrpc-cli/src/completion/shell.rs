//! Dynamic completion: a shell asks this program, which asks the server that the command line names.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use clap::{ArgMatches, Command, FromArgMatches};
use clap_complete::{
    CompleteEnv, CompletionCandidate,
    env::{EnvCompleter, Fish, Shells, Zsh},
};

use super::Candidate;
use crate::{
    failure::Failure,
    options::{MetadataOption, SchemaOptions, parse_duration},
    schema::{self, Schema},
    session,
};

/// Shells set this to their name when they ask.
const VARIABLE: &str = "TTRPC_COMPLETE";

/// How long connecting to a server, and its answer, may take: somebody waits at the keyboard.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Names another time, for servers that are far away.
const TIMEOUT_VARIABLE: &str = "TTRPC_COMPLETE_TIMEOUT";

const SHELLS: Shells<'static> = Shells(&[&Bash, &Fish, &Zsh]);

/// The program's command line.
static PROGRAM: OnceLock<fn() -> Command> = OnceLock::new();

/// Completes a line of this command if a shell has started the program for that.
///
/// # Errors
/// If the standard output cannot be written.
pub fn answer(program: fn() -> Command) -> clap::error::Result<bool> {
    let program = PROGRAM.get_or_init(|| program);
    let complete = CompleteEnv::with_factory(program).var(VARIABLE).shells(SHELLS);
    complete.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref())
}

/// Writes the script that has a shell ask this program.
///
/// # Errors
/// If it cannot be written, and [`Failure::Usage`] for a shell that has none.
pub fn write_script(shell: &str) -> Result<(), Failure> {
    let completer =
        SHELLS.completer(shell).ok_or_else(|| Failure::usage("the shell is bash, fish or zsh"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "ttrpc", "ttrpc", "ttrpc", &mut script)?;
    Ok(io::stdout().write_all(&script)?)
}

/// Methods of the server that the command line names.
pub fn methods(word: &OsStr) -> Vec<CompletionCandidate> {
    complete(word, |schema, _, word| super::methods(schema, word))
}

/// Services of the server.
pub fn services(word: &OsStr) -> Vec<CompletionCandidate> {
    complete(word, |schema, _, word| super::services(schema, word))
}

/// Services, methods and messages of the server.
pub fn symbols(word: &OsStr) -> Vec<CompletionCandidate> {
    complete(word, |schema, _, word| super::symbols(schema, word))
}

/// Fields of the method that the command line names.
pub fn fields(word: &OsStr) -> Vec<CompletionCandidate> {
    complete(word, |schema, matches, word| {
        let name = matches.try_get_one::<String>("method").ok().flatten();
        let found = name.and_then(|name| schema.find_methods(name).ok());
        // Of several, such as versions of a service, the last is the newest.
        let method = found.and_then(|mut found| found.methods.pop());
        method.map_or(Vec::new(), |method| super::fields(&method.input(), word))
    })
}

fn complete(
    word: &OsStr,
    of: impl Fn(&Schema, &ArgMatches, &str) -> Vec<Candidate>,
) -> Vec<CompletionCandidate> {
    let found = word.to_str().and_then(|word| {
        let matches = command(&typed_words())?;
        let schema = schema_of(&matches)?;
        Some(of(&schema, &matches, word))
    });
    let candidate = |candidate: Candidate| {
        let help = Some(candidate.help).filter(|help| !help.is_empty());
        CompletionCandidate::new(candidate.value).help(help.map(Into::into))
    };
    found.unwrap_or_default().into_iter().map(candidate).collect()
}

/// The words of a line that bash has handed over as one.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// The command line so far, from the program's name to the word before the one that is completed.
fn typed_words() -> Vec<OsString> {
    if let Some(words) = LINE.get() {
        return words.split_last().map_or(Vec::new(), |(_, before)| before.to_vec());
    }
    let mut words: Vec<_> =
        std::env::args_os().skip_while(|argument| argument != "--").skip(1).collect();
    // zsh passes words that follow, too, and says which one it is.
    let at = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|at| at.parse().ok());
    words.truncate(at.unwrap_or(words.len().saturating_sub(1)));
    words
}

/// What a command's arguments are as far as they are typed.
fn command(words: &[OsString]) -> Option<ArgMatches> {
    let command = PROGRAM.get()?().ignore_errors(true);
    let (_, matches) = command.try_get_matches_from(words).ok()?.remove_subcommand()?;
    Some(matches)
}

/// The schema of the server, or of the files, that a command line names. What is not told in time is not completed.
fn schema_of(matches: &ArgMatches) -> Option<Schema> {
    let options = SchemaOptions::from_arg_matches(matches).unwrap_or_default();
    if let Some(schema) = session::named_schema(&options).ok()? {
        return Some(schema);
    }
    let address = matches.try_get_one::<String>("address").ok().flatten()?;
    if address == "-" {
        return Some(schema::builtin().clone());
    }
    let MetadataOption { metadata } = MetadataOption::from_arg_matches(matches).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let named = std::env::var(TIMEOUT_VARIABLE).ok();
    let limit = named.and_then(|text| parse_duration(&text).ok()).unwrap_or(TIMEOUT);
    let asked = async {
        let client = session::connect(address, Some(limit)).await.ok()?;
        let client = session::with_defaults(client, metadata, None);
        session::find_schema(&client, &options, Some(limit)).await.ok()
    };
    let schema = runtime.block_on(async { tokio::time::timeout(limit, asked).await.ok()? });
    runtime.shutdown_background();
    schema
}

/// bash takes `:` and `=` for ends of words, so that an address is several; it hands over the line as it was typed.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        _: &str,
        _: &str,
        completer: &str,
        script: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(
            script,
            r#"_ttrpc() {{
    local IFS=$'\n'
    COMPREPLY=($({variable}=bash {completer} -- "${{COMP_LINE:0:COMP_POINT}}" "$2" 2>/dev/null))
    [[ "${{COMPREPLY-}}" != *[=/.:] ]] || compopt -o nospace
}}
complete -o bashdefault -o default -F _ttrpc ttrpc"#
        )
    }

    fn write_complete(
        &self,
        command: &mut Command,
        arguments: Vec<OsString>,
        folder: Option<&Path>,
        output: &mut dyn Write,
    ) -> io::Result<()> {
        let [line, word] = &arguments[..] else { return Ok(()) };
        let words = split(&line.to_string_lossy());
        let whole = words.last().map(|word| word.to_string_lossy().into_owned());
        let whole = whole.unwrap_or_default();
        // What is before the last end of a word stays on the line.
        let kept = whole.strip_suffix(&*word.to_string_lossy()).unwrap_or_default().len();
        let at = words.len().saturating_sub(1);
        let words = LINE.get_or_init(|| words).clone();
        for candidate in clap_complete::engine::complete(command, words, at, folder)? {
            let value = candidate.get_value().to_string_lossy();
            writeln!(output, "{}", value.get(kept..).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Words as a shell has them. The last one is empty where a new one begins, and may lack its closing quote.
fn split(line: &str) -> Vec<OsString> {
    let closed = ["", "\"", "'"].iter().find_map(|quote| shlex::split(&format!("{line}{quote}")));
    let mut words = closed.unwrap_or_default();
    if line.ends_with(char::is_whitespace) && shlex::split(line).is_some() {
        words.push(String::new());
    }
    words.into_iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_a_shell_does_it() {
        let of = |line| split(line).into_iter().map(|word| word.into_string().unwrap());
        let of = |line| of(line).collect::<Vec<_>>();
        assert_eq!(of("ttrpc call unix:///a.sock "), ["ttrpc", "call", "unix:///a.sock", ""]);
        assert_eq!(of("ttrpc call 'a b"), ["ttrpc", "call", "a b"]);
        assert_eq!(of("ttrpc call a\"b"), ["ttrpc", "call", "ab"]);
        assert_eq!(of(""), [""; 0]);
    }
}
