//! The line that is typed: a thread of its own, so that replies arrive meanwhile.

use std::{
    fs::DirBuilder,
    io::{self, BufRead, IsTerminal},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc as blocking,
    },
    thread,
};

use prost_reflect::MessageDescriptor;
use rustyline::{
    Behavior, CompletionType, Config, Editor as Rustyline, ExternalPrinter, Helper,
    completion::{Completer, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::{mpsc, oneshot};

use super::{command, state::State};
use crate::{
    completion::{self, Candidate},
    failure::Failure,
    output,
};

/// Lines that wait to be printed above the one that is typed.
const MAX_WAITING: usize = 64;

/// Lines of the history.
const MAX_HISTORY: usize = 1000;

/// More candidates are printed without what they are.
const MAX_EXPLAINED: usize = 30;

/// What was typed.
#[derive(Debug)]
pub enum Line {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of a file.
    End,
}

/// What a line may hold.
#[derive(Clone, Debug)]
pub enum Context {
    Command,
    /// A request of a stream.
    Request(MessageDescriptor),
    /// One of these, or something else.
    Value(Vec<String>),
}

struct Question {
    prompt: String,
    context: Context,
    answer: oneshot::Sender<Result<Line, String>>,
}

/// Reads lines, and prints above the one that is typed.
#[derive(Debug)]
pub struct Editor {
    questions: blocking::Sender<Question>,
    is_reading: AtomicBool,
    /// `None` where the terminal has no lines that could be printed above.
    above: Option<mpsc::Sender<String>>,
    pub is_terminal: bool,
}

impl Editor {
    /// Starts the thread that reads.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn start(state: Arc<State>, history: Option<PathBuf>) -> Result<Self, Failure> {
        let (is_terminal, is_shown) = (io::stdin().is_terminal(), io::stdout().is_terminal());
        let config = Config::builder()
            // Of replies that go elsewhere the line that is typed is no part.
            .behavior(if is_terminal && !is_shown { Behavior::PreferTerm } else { Behavior::Stdio })
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .max_history_size(MAX_HISTORY)
            .map_err(cannot)?;
        let mut rustyline = Rustyline::with_config(config.build()).map_err(cannot)?;
        rustyline.set_helper(Some(Help { state, context: Context::Command }));
        let history = history.filter(|_| is_terminal).filter(|path| prepare(path));
        if let Some(path) = &history {
            // There is none at first, and one that cannot be read is no reason not to go on.
            let _ = rustyline.load_history(path);
        }
        let printer = rustyline.create_external_printer().ok().filter(|_| is_shown);
        let above = printer.map(|mut printer| {
            let (sender, mut lines) = mpsc::channel::<String>(MAX_WAITING);
            // It may wait for the next line to be read.
            thread::spawn(move || {
                while let Some(line) = lines.blocking_recv() {
                    let _ = printer.print(line + "\n");
                }
            });
            sender
        });
        let (questions, asked) = blocking::channel();
        // Nobody waits for it when the session is over.
        thread::spawn(move || match is_terminal {
            true => answer(rustyline, &asked, history.as_deref()),
            false => answer_from_file(&asked),
        });
        Ok(Editor { questions, is_reading: AtomicBool::new(false), above, is_terminal })
    }

    /// Reads a line.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub async fn read(&self, prompt: &str, context: Context) -> Result<Line, Failure> {
        let (answer, answered) = oneshot::channel();
        let question = Question { prompt: prompt.to_owned(), context, answer };
        self.is_reading.store(true, Relaxed);
        let _ = self.questions.send(question);
        let line = answered.await;
        self.is_reading.store(false, Relaxed);
        match line {
            Ok(line) => line.map_err(Failure::Other),
            Err(_) => Ok(Line::End),
        }
    }

    /// Prints a line, above the one that is typed if there is one.
    ///
    /// # Errors
    /// If nobody reads it.
    pub async fn print(&self, text: String) -> Result<(), Failure> {
        match &self.above {
            Some(above) if self.is_reading.load(Relaxed) => {
                let _ = above.send(output::for_terminal(&text)).await;
                Ok(())
            }
            _ => Ok(output::line(text)?),
        }
    }
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::Other(format!("the terminal cannot be used: {error}"))
}

/// Makes the folder of the history; whether it is there.
fn prepare(path: &Path) -> bool {
    let folder =
        path.parent().map(|folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
    folder.is_some_and(|made| made.is_ok())
}

fn answer(
    mut rustyline: Rustyline<Help, DefaultHistory>,
    questions: &blocking::Receiver<Question>,
    history: Option<&Path>,
) {
    for Question { prompt, context, answer } in questions {
        let is_command = matches!(context, Context::Command);
        if let Some(help) = rustyline.helper_mut() {
            help.context = context;
        }
        let line = match rustyline.readline(&prompt) {
            Ok(text) => {
                if is_command && rustyline.add_history_entry(&text).unwrap_or(false) {
                    let _ = history.map(|path| rustyline.append_history(path));
                }
                Ok(Line::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(format!("the terminal cannot be read: {error}")),
        };
        let _ = answer.send(line);
    }
}

/// Reads what is no terminal.
fn answer_from_file(questions: &blocking::Receiver<Question>) {
    let mut lines = io::stdin().lock().lines();
    for Question { context, answer, .. } in questions {
        let mut text = String::new();
        let line = loop {
            match lines.next() {
                Some(Ok(line)) => text.push_str(&line),
                Some(Err(error)) => {
                    break Err(format!("the standard input cannot be read: {error}"));
                }
                None if text.is_empty() => break Ok(Line::End),
                // It is not whole, which is told.
                None => break Ok(Line::Text(text)),
            }
            if context.is_whole(&text) {
                break Ok(Line::Text(text));
            }
            text.push('\n');
        };
        let _ = answer.send(line);
    }
}

impl Context {
    /// Whether a line ends here.
    fn is_whole(&self, line: &str) -> bool {
        match self {
            Context::Command => command::is_whole(line, false),
            Context::Request(_) => command::is_whole(line, true),
            Context::Value(_) => true,
        }
    }
}

/// Completes lines, and has them go on until they are whole.
struct Help {
    state: Arc<State>,
    context: Context,
}

impl Helper for Help {}
impl Hinter for Help {
    type Hint = String;
}
impl Highlighter for Help {}

impl Validator for Help {
    fn validate(&self, line: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let is_whole = self.context.is_whole(line.input());
        Ok(if is_whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Help {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let line = &line[..position];
        let begin = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let found = match &self.context {
            Context::Command => self.state.complete(&line[..begin], &line[begin..]),
            Context::Request(kind) => completion::fields(kind, &line[begin..]),
            Context::Value(values) => values
                .iter()
                .filter(|value| value.starts_with(&line[begin..]))
                .map(|value| Candidate { value: value.clone(), help: String::new() })
                .collect(),
        };
        let is_explained = found.len() <= MAX_EXPLAINED;
        let is_only = found.len() == 1;
        let pair = |candidate: Candidate| {
            let is_open = candidate.value.ends_with(['=', '.', '/']);
            let end = if is_only && !is_open { " " } else { "" };
            let display = match is_explained && !candidate.help.is_empty() {
                true => format!("{}  {}", candidate.value, candidate.help),
                false => candidate.value.clone(),
            };
            Pair { display, replacement: candidate.value + end }
        };
        Ok((begin, found.into_iter().map(pair).collect()))
    }
}
