//! Where a call's requests come from: the command line, a file, or the standard input.

use std::{
    fs,
    io::{self, BufRead},
    thread,
};

use prost_reflect::{MessageDescriptor, MethodDescriptor};
use serde_json::{
    Map, Value,
    de::{IoRead, StrRead},
};
use tokio::sync::mpsc;

use super::{is_terminal, prompt};
use crate::{
    failure::Failure,
    fields::{self, Fields},
    json::Json,
    output, strict,
};

/// Requests that are read ahead of the call.
const READ_AHEAD: usize = 16;

/// JSON values, as they come.
pub struct Requests {
    /// What was given at once.
    given: std::vec::IntoIter<Value>,
    /// What a thread reads from the standard input.
    input: Option<mpsc::Receiver<Result<Value, String>>>,
    are_typed: bool,
}

impl Requests {
    /// From the arguments behind the method's name. Without any, a stream's requests come from the
    /// standard input, and a single one is empty.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the arguments make no sense together.
    pub fn from_arguments(
        arguments: &[String],
        method: &MethodDescriptor,
        json: Json<'_>,
    ) -> Result<Self, Failure> {
        let kind = method.input();
        let (fields, others): (Vec<_>, Vec<_>) =
            arguments.iter().partition(|argument| fields::is_field(argument));
        let mut values = match &others[..] {
            [] if !fields.is_empty() => vec![Value::Object(Map::new())],
            [] if method.is_client_streaming() => return Ok(Requests::from_input(method)),
            [] => vec![Value::Object(Map::new())],
            [only] if *only == "-" && fields.is_empty() => return Ok(Requests::from_input(method)),
            [only] if *only == "-" => {
                return Err(Failure::usage("name=value fields do not go with `-`"));
            }
            [only] => parse_all(only)?,
            _ => {
                return Err(Failure::usage(
                    "the request is one argument of JSON, @FILE or -, and any number of \
                     name=value; quote the JSON",
                ));
            }
        };
        fields::put_on(&mut values, &kind, fields).map_err(Failure::Usage)?;
        // Mistakes are told before anything is sent.
        for value in &values {
            json.read(&kind, value.clone())
                .map_err(|error| Failure::Usage(format!("the request does not fit: {error}")))?;
        }
        Ok(Requests::from_values(values))
    }

    /// From somebody who types them elsewhere, one after the other.
    pub fn from_channel(receiver: mpsc::Receiver<Result<Value, String>>) -> Self {
        Requests { given: Vec::new().into_iter(), input: Some(receiver), are_typed: true }
    }

    /// These, and no more.
    pub fn from_values(values: Vec<Value>) -> Self {
        Requests { given: values.into_iter(), input: None, are_typed: false }
    }

    fn from_input(method: &MethodDescriptor) -> Self {
        let (sender, receiver) = mpsc::channel(READ_AHEAD);
        let are_typed = is_terminal();
        let kind = method.input();
        if are_typed {
            let name = kind.full_name();
            output::note(match method.is_client_streaming() {
                true => format!(
                    "type each {name} as JSON or as a line of name=value; Ctrl-D ends the stream"
                ),
                false => format!("type the {name} as JSON or as a line of name=value"),
            });
        }
        // Not one of the runtime's threads: nobody waits for it when the call is over.
        thread::spawn(move || match are_typed {
            true => read_typed(&kind, &sender),
            false => read_values(&sender),
        });
        Requests { given: Vec::new().into_iter(), input: Some(receiver), are_typed }
    }

    /// Whether somebody types them, who may try again after a mistake.
    pub fn are_typed(&self) -> bool {
        self.are_typed
    }

    /// The next one.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no JSON.
    pub async fn next(&mut self) -> Result<Option<Value>, Failure> {
        if let Some(value) = self.given.next() {
            return Ok(Some(value));
        }
        let Some(input) = &mut self.input else { return Ok(None) };
        input
            .recv()
            .await
            .transpose()
            .map_err(|error| Failure::Usage(format!("the standard input holds no JSON: {error}")))
    }

    /// The request of a method that takes one.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is none, or another behind it.
    pub async fn only(&mut self) -> Result<Value, Failure> {
        let Some(first) = self.next().await? else {
            return Err(Failure::usage("the method takes one request, and there is none"));
        };
        if self.are_typed {
            return Ok(first);
        }
        match self.next().await? {
            None => Ok(first),
            Some(_) => Err(Failure::usage("the method takes one request, and there are several")),
        }
    }
}

/// What a request is called that is an argument itself.
const REQUEST: &str = "the request";

/// The values of an argument: JSON itself, or a file.
///
/// # Errors
/// [`Failure::Usage`] for what is none.
pub fn parse_all(argument: &str) -> Result<Vec<Value>, Failure> {
    let (what, text) = match argument.strip_prefix('@') {
        Some("") => return Err(Failure::usage("`@` names no file: a request in one is @FILE")),
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?;
            (path, text)
        }
        None => (REQUEST, argument.to_owned()),
    };
    let values: Result<Vec<Value>, _> =
        strict::stream(StrRead::new(strict::unmarked(&text))).collect();
    match values {
        Ok(values) if values.is_empty() => Err(Failure::Usage(format!("{what} is empty"))),
        Ok(values) => Ok(values),
        Err(_) if what == REQUEST && !text.trim_start().starts_with(['{', '[', '"']) => {
            Err(Failure::Usage(format!(
                "`{text}` is no request: it is JSON, @FILE, - for the standard input, or fields as name=value"
            )))
        }
        Err(error) => Err(Failure::Usage(format!(
            "{what} is no JSON: {error}; it is JSON, @FILE, - or name=value"
        ))),
    }
}

/// Values one after the other, each as soon as it is whole.
fn read_values(sender: &mpsc::Sender<Result<Value, String>>) {
    for value in strict::stream(IoRead::new(strict::unmarked_stream(io::stdin().lock()))) {
        let value = value.map_err(|error: serde_json::Error| error.to_string());
        let is_end = value.is_err();
        // The call may be over.
        if sender.blocking_send(value).is_err() || is_end {
            return;
        }
    }
}

/// Lines of a terminal: JSON, or fields as on the command line. What is not whole goes on in the next line; an empty
/// line gives it up.
fn read_typed(kind: &MessageDescriptor, sender: &mpsc::Sender<Result<Value, String>>) {
    let mut typed = String::new();
    let mut lines = io::stdin().lock().lines();
    loop {
        prompt::show(if typed.is_empty() { "> " } else { "… " });
        let Some(Ok(line)) = lines.next() else { return prompt::remove() };
        prompt::typed();
        let is_empty = line.trim().is_empty();
        if is_empty && typed.is_empty() {
            continue;
        }
        typed.push_str(&line);
        typed.push('\n');
        match parse_typed(kind, typed.trim()) {
            Ok(None) if !is_empty => continue,
            Ok(None) => output::note("what was typed is not whole, and left out"),
            Ok(Some(value)) => {
                if sender.blocking_send(Ok(value)).is_err() {
                    return;
                }
            }
            Err(error) => output::note(error),
        }
        typed.clear();
    }
}

/// What was typed so far; `None` if more has to follow.
fn parse_typed(kind: &MessageDescriptor, text: &str) -> Result<Option<Value>, String> {
    if text.starts_with(['{', '[', '"']) {
        return match strict::from_str(text) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_eof() => Ok(None),
            Err(error) => Err(error.to_string()),
        };
    }
    let Some(words) = shlex::split(text) else { return Ok(None) };
    let mut object = Map::new();
    let mut fields = Fields::on(&mut object, kind);
    for word in words {
        fields.set(&word)?;
    }
    Ok(Some(Value::Object(object)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;

    #[test]
    fn what_is_typed_is_json_or_words_as_a_shell_has_them() {
        let kind = builtin().pool().get_message_by_name("containerd.types.Mount").unwrap();
        let typed = |text| parse_typed(&kind, text).unwrap();
        let expected = serde_json::json!({ "type": "bind", "source": "/a b" });
        for text in [
            "type=bind source='/a b'",
            "type=bind source=\"/a b\"",
            "type=bind source=/a\\ b",
            "{\"type\":\"bind\",\"source\":\"/a b\"}",
            "{\"type\":\"bind\",\n\n\"source\":\"/a b\"}",
        ] {
            assert_eq!(typed(text), Some(expected.clone()), "{text}");
        }
        for part in ["{", "{\"type\":", "[1,", "type=\"a", "type=a\\"] {
            assert_eq!(typed(part), None, "{part}");
        }
        assert!(parse_typed(&kind, "{]").is_err());
        assert!(parse_typed(&kind, "nonsense").is_err());
    }

    #[test]
    fn several_values_in_one_argument_are_several_requests() {
        assert_eq!(parse_all("{} {\"a\":1}\n[]").unwrap().len(), 3);
        assert!(parse_all("").is_err());
        assert!(parse_all("{").is_err());
        assert!(parse_all("@/no/such/file").unwrap_err().to_string().contains("/no/such/file"));
    }
}
