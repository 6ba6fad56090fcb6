//! Where a call's requests come from: the command line, a file, or the standard input.

use std::{
    fs,
    io::{self, BufRead},
    thread,
};

use prost_reflect::{MessageDescriptor, MethodDescriptor};
use serde_json::{Deserializer, Map, Value};
use tokio::sync::mpsc;

use super::is_terminal;
use crate::{
    failure::Failure,
    fields::{self, Fields},
    json::Json,
    output,
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
            [] if method.is_client_streaming() => return Ok(Requests::from_input(&kind)),
            [] => vec![Value::Object(Map::new())],
            [only] if *only == "-" && fields.is_empty() => return Ok(Requests::from_input(&kind)),
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
        if !fields.is_empty() {
            let [Value::Object(object)] = &mut values[..] else {
                return Err(Failure::usage("name=value fields go with one JSON object"));
            };
            let mut on_top = Fields::on(object, &kind);
            for field in fields {
                on_top.set(field).map_err(Failure::Usage)?;
            }
        }
        // Mistakes are told before anything is sent.
        for value in &values {
            json.read(&kind, value.clone())
                .map_err(|error| Failure::Usage(format!("the request does not fit: {error}")))?;
        }
        Ok(Requests { given: values.into_iter(), input: None, are_typed: false })
    }

    fn from_input(kind: &MessageDescriptor) -> Self {
        let (sender, receiver) = mpsc::channel(READ_AHEAD);
        let are_typed = is_terminal();
        let kind = kind.clone();
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
        match self.next().await? {
            None => Ok(first),
            Some(_) => Err(Failure::usage("the method takes one request, and there are several")),
        }
    }
}

/// The values of an argument: JSON itself, or a file.
fn parse_all(argument: &str) -> Result<Vec<Value>, Failure> {
    let (what, text) = match argument.strip_prefix('@') {
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?;
            (path, text)
        }
        None => ("the request", argument.to_owned()),
    };
    let values: Result<Vec<Value>, _> = Deserializer::from_str(&text).into_iter().collect();
    match values {
        Ok(values) if values.is_empty() => Err(Failure::Usage(format!("{what} is empty"))),
        Ok(values) => Ok(values),
        Err(error) => Err(Failure::Usage(format!(
            "{what} is no JSON: {error}; it is JSON, @FILE, - or name=value"
        ))),
    }
}

/// Values one after the other, each as soon as it is whole.
fn read_values(sender: &mpsc::Sender<Result<Value, String>>) {
    for value in Deserializer::from_reader(io::stdin().lock()).into_iter() {
        let value = value.map_err(|error: serde_json::Error| error.to_string());
        let is_end = value.is_err();
        // The call may be over.
        if sender.blocking_send(value).is_err() || is_end {
            return;
        }
    }
}

/// Lines of a terminal: JSON, or fields as on the command line.
fn read_typed(kind: &MessageDescriptor, sender: &mpsc::Sender<Result<Value, String>>) {
    let name = kind.full_name();
    output::note(format_args!(
        "type each {name} as a line of JSON or of name=value; Ctrl-D ends the stream"
    ));
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match parse_line(kind, line) {
            Ok(value) => {
                if sender.blocking_send(Ok(value)).is_err() {
                    return;
                }
            }
            Err(error) => output::note(error),
        }
    }
}

fn parse_line(kind: &MessageDescriptor, line: &str) -> Result<Value, String> {
    if line.starts_with(['{', '[', '"']) {
        return serde_json::from_str(line).map_err(|error| error.to_string());
    }
    let mut object = Map::new();
    let mut fields = Fields::on(&mut object, kind);
    for word in line.split_whitespace() {
        fields.set(word)?;
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;

    #[test]
    fn a_typed_line_is_json_or_fields() {
        let kind = builtin().pool().get_message_by_name("containerd.types.Mount").unwrap();
        let expected = serde_json::json!({ "type": "bind", "source": "/a" });
        assert_eq!(parse_line(&kind, "type=bind source=/a").unwrap(), expected);
        assert_eq!(parse_line(&kind, "{\"type\":\"bind\",\"source\":\"/a\"}").unwrap(), expected);
        assert!(parse_line(&kind, "{").is_err());
        assert!(parse_line(&kind, "nonsense").is_err());
    }

    #[test]
    fn several_values_in_one_argument_are_several_requests() {
        assert_eq!(parse_all("{} {\"a\":1}\n[]").unwrap().len(), 3);
        assert!(parse_all("").is_err());
        assert!(parse_all("{").is_err());
        assert!(parse_all("@/no/such/file").unwrap_err().to_string().contains("/no/such/file"));
    }
}
