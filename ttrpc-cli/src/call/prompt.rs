//! What stands before the line that somebody types, beside replies that come meanwhile.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::output;

/// To the beginning of the line, which is then empty.
const ERASE: &str = "\r\u{1b}[K";

/// The prompt that is on the terminal. Locked while something is written around it.
static SHOWN: Mutex<Option<&'static str>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<&'static str>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(text: &str) {
    // Nobody is told if that fails, as with notes.
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Asks for a line, where the standard error is a terminal, too.
pub fn show(prompt: &'static str) {
    if !output::is_json() && io::stderr().is_terminal() {
        let mut shown = lock();
        *shown = Some(prompt);
        write(prompt);
    }
}

/// The line was typed: the prompt stands in a line that is over.
pub fn typed() {
    lock().take();
}

/// No more is typed.
pub fn remove() {
    if lock().take().is_some() {
        write(ERASE);
    }
}

/// Prints in a line of its own, and puts the prompt behind it. What has been typed of a line is still to be read, but
/// no longer to be seen.
pub fn beside<T>(print: impl FnOnce() -> T) -> T {
    let shown = lock();
    let Some(prompt) = shown.filter(|_| io::stdout().is_terminal()) else { return print() };
    write(ERASE);
    let result = print();
    write(prompt);
    result
}
