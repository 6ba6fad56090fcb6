//! What a line of a session asks for.

use crate::strict;

/// The names of all commands, for completion.
pub const NAMES: &[&str] = &[
    "call", "calls", "cancel", "close", "describe", "exit", "help", "last", "list", "metadata",
    "quit", "send", "template", "timeout", "wait",
];

/// What `help` prints.
pub const HELP: &str = "\
METHOD [JSON | name=value …]   Call a method; with `?` its fields are asked for, with `&` at the end the call
                               runs in the background. Tab completes methods, fields and enum values.
call METHOD …                  Call a method whose name is that of a command
list [SERVICE]                 List services, or the methods of one
describe [NAME]                Show services, methods and messages as .proto text
template METHOD                Print a JSON request to fill in
calls                          List calls in flight
wait [N]                       Wait for one call in flight, or for all
cancel N                       Cancel a call
send N JSON | name=value …     Send a request on a stream in the background
close N                        Close the stream of requests of a call
last [N]                       Print the last reply, or that of a call
metadata [KEY:VALUE | KEY:]    Show, set or remove metadata of later calls
timeout [TIME]                 Show or set how long a call may take; 0 for ever
quit                           End the session; so does Ctrl-D

A value `$` is the last reply, `$.field.inner` or `$.list.0` a part of it, `$3.field` a part of call 3's.
Ctrl-C cancels a call; Ctrl-D ends the stream of requests that is typed.";

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Nothing,
    Help,
    Quit,
    List(Option<String>),
    Describe(Option<String>),
    Template(String),
    Call { method: String, data: Data, in_background: bool },
    Calls,
    Wait(Option<u32>),
    Cancel(u32),
    Send(u32, String),
    Close(u32),
    Last(Option<u32>),
    Metadata(Option<String>),
    Timeout(Option<String>),
}

/// Where a call's requests come from.
#[derive(Debug, PartialEq, Eq)]
pub enum Data {
    /// Each field is asked for.
    Prompted,
    /// Arguments as those of `ttrpc call`.
    Given(Vec<String>),
}

/// Reads a line.
///
/// # Errors
/// With what would be right.
pub fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = first_word(line);
    let one = || match rest {
        "" => None,
        rest => Some(rest.to_owned()),
    };
    let needed = |what: &str| one().ok_or_else(|| format!("`{name}` needs {what}"));
    let number = |text: &str| {
        text.trim_start_matches('#')
            .parse::<u32>()
            .map_err(|_| format!("`{text}` is no call: `calls` prints their numbers"))
    };
    Ok(match name {
        "" => Command::Nothing,
        "help" => Command::Help,
        "quit" | "exit" => Command::Quit,
        "list" => Command::List(one()),
        "describe" => Command::Describe(one()),
        "template" => Command::Template(needed("a method")?),
        "calls" => Command::Calls,
        "wait" => Command::Wait(one().map(|text| number(&text)).transpose()?),
        "cancel" => Command::Cancel(number(&needed("the number of a call")?)?),
        "close" => Command::Close(number(&needed("the number of a call")?)?),
        "last" => Command::Last(one().map(|text| number(&text)).transpose()?),
        "send" => {
            let (call, request) = first_word(rest);
            if call.is_empty() {
                return Err("`send` needs the number of a call, and a request".to_owned());
            }
            Command::Send(number(call)?, request.to_owned())
        }
        "metadata" => Command::Metadata(one()),
        "timeout" => Command::Timeout(one()),
        "call" if rest.is_empty() => return Err("`call` needs a method".to_owned()),
        "call" => {
            let (method, data) = first_word(rest);
            call(method, data)?
        }
        method => call(method, rest)?,
    })
}

fn call(method: &str, data: &str) -> Result<Command, String> {
    let alone = data.strip_suffix('&').map(str::trim_end);
    let (data, in_background) = (alone.unwrap_or(data), alone.is_some());
    let data = match data {
        "?" => Data::Prompted,
        "" => Data::Given(Vec::new()),
        json if is_json(json) => Data::Given(vec![json.to_owned()]),
        words => {
            let words = shlex::split(words);
            Data::Given(words.ok_or_else(|| "a quotation mark is not closed".to_owned())?)
        }
    };
    Ok(Command::Call { method: method.to_owned(), data, in_background })
}

fn first_word(line: &str) -> (&str, &str) {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (word, rest.trim())
}

/// Whether a request is JSON, and not fields.
fn is_json(text: &str) -> bool {
    text.starts_with(['{', '[', '"'])
}

/// Whether a line, or the request of a stream, is whole: no bracket and no quotation mark is open.
pub fn is_whole(line: &str, is_request: bool) -> bool {
    let mut data = line.trim();
    if !is_request {
        // A method's name, also behind `call`, and what `send` has.
        for skipped in [&["call", "send"][..], &[]] {
            let (word, rest) = first_word(data);
            if skipped.is_empty() || skipped.contains(&word) {
                data = rest;
            }
        }
    }
    match is_json(data) {
        true => !strict::stream(serde_json::de::StrRead::new(data))
            .any(|value| value.is_err_and(|error| error.is_eof())),
        false => shlex::split(data).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(method: &str, words: &[&str], in_background: bool) -> Command {
        let data = Data::Given(words.iter().map(|word| (*word).to_owned()).collect());
        Command::Call { method: method.to_owned(), data, in_background }
    }

    #[test]
    fn a_line_is_a_command_or_a_method_with_its_request() {
        let of = |line| parse(line).unwrap();
        assert_eq!(of("  "), Command::Nothing);
        assert_eq!(of("list  Greeter "), Command::List(Some("Greeter".to_owned())));
        assert_eq!(of("Say name='a b' n=1"), given("Say", &["name=a b", "n=1"], false));
        assert_eq!(of("Say {\"name\": \"a b\"} &"), given("Say", &["{\"name\": \"a b\"}"], true));
        assert_eq!(of("Say&"), given("Say&", &[], false));
        assert_eq!(of("Say &"), given("Say", &[], true));
        assert_eq!(of("call list a=1"), given("list", &["a=1"], false));
        assert_eq!(of("wait #3"), Command::Wait(Some(3)));
        assert_eq!(of("send 3 {\"a\": 1}"), Command::Send(3, "{\"a\": 1}".to_owned()));
        let asked =
            Command::Call { method: "Say".to_owned(), data: Data::Prompted, in_background: false };
        assert_eq!(of("Say ?"), asked);
        for wrong in ["template", "cancel", "cancel x", "send", "call", "Say 'a"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_with_an_open_bracket_or_quotation_mark_goes_on() {
        for open in ["Say {", "Say {\"a\":", "Say 'a", "call Say [", "send 3 {\"a\""] {
            assert!(!is_whole(open, false), "{open}");
        }
        for whole in ["", "Say", "Say a=1", "Say {} {}", "Say {]", "call Say {}"] {
            assert!(is_whole(whole, false), "{whole}");
        }
        assert!(!is_whole("{", true) && is_whole("{}", true) && is_whole("a=1", true));
    }
}
