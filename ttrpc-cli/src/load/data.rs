//! The requests of a load: several in turn, and such as are made anew for each call.

use std::{fs, sync::Arc, time::SystemTime};

use bytes::Bytes;
use prost_reflect::MethodDescriptor;
use serde::de::IgnoredAny;
use ttrpc::Status;

use crate::{failure::Failure, fields, json::Json, output, schema::Schema, strict};

/// The longest text that a template makes of one function.
const MAX_RANDOM_LEN: usize = 1 << 20;

/// Requests, each for a call, in turn.
#[derive(Debug)]
pub struct Data {
    /// The messages of a call.
    calls: Vec<Vec<Message>>,
}

#[derive(Debug)]
enum Message {
    Same(Bytes),
    /// Made for each call.
    Made(Box<Made>),
}

/// A request with templates.
#[derive(Debug)]
struct Made {
    json: Template,
    fields: Vec<Template>,
    method: MethodDescriptor,
    schema: Arc<Schema>,
}

impl Data {
    /// Of `--data` arguments and fields on top of each.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what does not fit the method.
    pub fn new(
        given: &[String],
        fields: &[String],
        method: &MethodDescriptor,
        schema: &Arc<Schema>,
        is_literal: bool,
    ) -> Result<Self, Failure> {
        if let Some(other) = fields.iter().find(|field| !fields::is_field(field)) {
            return Err(Failure::Usage(format!("`{other}` is not name=value; JSON is for --data")));
        }
        let template = |text: &String| Template::parse(text, is_literal).map_err(Failure::Usage);
        let fields: Vec<_> = fields.iter().map(template).collect::<Result<_, _>>()?;
        let nothing = ["{}".to_owned()];
        let given = if given.is_empty() { &nothing[..] } else { given };
        let mut calls = Vec::new();
        for text in given {
            let mut messages = Vec::new();
            for piece in split(&read(text)?, is_literal)? {
                let made = Made {
                    json: template(&piece)?,
                    fields: fields.clone(),
                    method: method.clone(),
                    schema: schema.clone(),
                };
                // Mistakes are told before the first call.
                let bytes = made.make(0).map_err(|error| {
                    Failure::Usage(format!("the request does not fit: {error}"))
                })?;
                let is_same = made.json.is_constant() && fields.iter().all(Template::is_constant);
                messages.push(match is_same {
                    true => Message::Same(bytes),
                    false => Message::Made(Box::new(made)),
                });
            }
            if messages.is_empty() {
                return Err(Failure::usage("--data holds no request"));
            }
            match method.is_client_streaming() {
                true => calls.push(messages),
                false => calls.extend(messages.into_iter().map(|message| vec![message])),
            }
        }
        Ok(Data { calls })
    }

    /// The messages of the call with this number, again from the first after the last; with a count so many.
    ///
    /// # Errors
    /// If a template makes what does not fit.
    pub fn of_call(&self, number: u64, count: Option<usize>) -> Result<Vec<Bytes>, Status> {
        let at = usize::try_from(number % self.calls.len() as u64).unwrap_or(0);
        let messages = &self.calls[at];
        let count = count.unwrap_or(messages.len());
        let make = |message: &Message| match message {
            Message::Same(bytes) => Ok(bytes.clone()),
            Message::Made(made) => made.make(number).map_err(|error| {
                Status::invalid_argument(format!("the template makes no request: {error}"))
            }),
        };
        messages.iter().cycle().take(count).map(make).collect()
    }
}

impl Made {
    fn make(&self, number: u64) -> Result<Bytes, String> {
        let text = self.json.render(number, &self.method);
        let value = strict::from_str(&text).map_err(|error| format!("no JSON: {error}"))?;
        let fields: Vec<_> =
            self.fields.iter().map(|field| field.render(number, &self.method)).collect();
        let mut values = [value];
        fields::put_on(&mut values, &self.method.input(), &fields)?;
        let [value] = values;
        Json::new(&self.schema).encode(&self.method.input(), value)
    }
}

/// A text with functions in it.
#[derive(Clone, Debug)]
struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Number,
    Uuid,
    RandomInt(i64, i64),
    RandomString(usize, usize),
    Timestamp,
    TimestampUnix,
    Method,
}

impl Template {
    fn parse(text: &str, is_literal: bool) -> Result<Self, String> {
        if is_literal {
            return Ok(Template(vec![Part::Text(text.to_owned())]));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, inner, after)) = next_function(rest) {
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::parse(inner)?);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Template(parts))
    }

    fn is_constant(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(_) | Part::Method))
    }

    fn render(&self, number: u64, method: &MethodDescriptor) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Number => text.push_str(&number.to_string()),
                Part::Uuid => {
                    let bytes = fastrand::u128(..).to_be_bytes();
                    let uuid = uuid::Builder::from_random_bytes(bytes).into_uuid();
                    text.push_str(&uuid.to_string());
                }
                Part::RandomInt(low, high) => text.push_str(&fastrand::i64(low..=high).to_string()),
                Part::RandomString(low, high) => {
                    text.extend((0..fastrand::usize(low..=high)).map(|_| fastrand::alphanumeric()));
                }
                Part::Timestamp => {
                    text.push_str(&humantime::format_rfc3339_nanos(SystemTime::now()).to_string());
                }
                Part::TimestampUnix => {
                    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                    text.push_str(&time.unwrap_or_default().as_secs().to_string());
                }
                Part::Method => text.push_str(method.name()),
            }
        }
        text
    }
}

impl Part {
    fn parse(inner: &str) -> Result<Self, String> {
        let words: Vec<_> = inner.split_whitespace().collect();
        let ends = |low: &str, high: &str| match (low.parse::<i64>(), high.parse::<i64>()) {
            (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
            _ => Err(format!("`{{{{{inner}}}}}` needs two whole numbers, the smaller one first")),
        };
        Ok(match words[..] {
            [".RequestNumber"] => Part::Number,
            ["newUUID" | ".UUID"] => Part::Uuid,
            [".Timestamp"] => Part::Timestamp,
            [".TimestampUnix"] => Part::TimestampUnix,
            [".MethodName"] => Part::Method,
            ["randomInt", low, high] => {
                let (low, high) = ends(low, high)?;
                Part::RandomInt(low, high)
            }
            ["randomString", low, high] => {
                let (low, high) = ends(low, high)?;
                let len = |len: i64| usize::try_from(len).ok().filter(|len| *len <= MAX_RANDOM_LEN);
                let (Some(low), Some(high)) = (len(low), len(high)) else {
                    return Err(format!("a random string has 0 to {MAX_RANDOM_LEN} characters"));
                };
                Part::RandomString(low, high)
            }
            _ => {
                let inner = output::plain_line(inner);
                return Err(format!(
                    "`{{{{{inner}}}}}` is no template; there are .RequestNumber, .UUID, .Timestamp, .TimestampUnix, \
                     .MethodName, randomInt MIN MAX and randomString MIN MAX. --literal leaves braces as they are"
                ));
            }
        })
    }
}

/// What is before the first `{{…}}`, in it, and behind it.
fn next_function(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (inner, after) = rest.split_once("}}")?;
    Some((before, inner, after))
}

fn read(data: &str) -> Result<String, Failure> {
    match data.strip_prefix('@') {
        Some(path) => fs::read_to_string(path)
            .map(|text| strict::unmarked(&text).to_owned())
            .map_err(|error| Failure::Usage(format!("cannot read {path}: {error}"))),
        None => Ok(data.to_owned()),
    }
}

/// The JSON values of a text, with their templates.
fn split(text: &str, is_literal: bool) -> Result<Vec<String>, Failure> {
    // A number that is as long stands for each template: JSON both in a string and outside.
    let mut masked = String::new();
    let mut rest = text;
    while let Some((before, inner, after)) = next_function(rest).filter(|_| !is_literal) {
        masked.push_str(before);
        masked.push_str(&"1".repeat(inner.len() + 4));
        rest = after;
    }
    masked.push_str(rest);
    let mut values = serde_json::Deserializer::from_str(&masked).into_iter::<IgnoredAny>();
    let (mut pieces, mut begin) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        value.map_err(|error| Failure::Usage(format!("--data is no JSON: {error}")))?;
        let end = values.byte_offset();
        pieces.push(text[begin..end].to_owned());
        begin = end;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::schema::builtin;

    fn data(given: &[&str], fields: &[&str]) -> Result<Data, String> {
        let schema = Arc::new(builtin().clone());
        let method = schema.find_methods("containerd.task.v3.Task/Kill").unwrap().only().unwrap();
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let made = Data::new(&owned(given), &owned(fields), &method, &schema, false);
        made.map_err(|failure| failure.to_string())
    }

    /// The requests of so many calls, as JSON.
    fn requests(data: &Data, calls: u64) -> Vec<serde_json::Value> {
        let kind = builtin().pool().get_message_by_name("containerd.task.v3.KillRequest").unwrap();
        let of = |number| {
            let [bytes] = &data.of_call(number, None).unwrap()[..] else { panic!("one message") };
            Json::new(builtin()).decode(&kind, bytes.clone()).unwrap()
        };
        (0..calls).map(of).collect()
    }

    #[test]
    fn several_requests_are_made_in_turn_with_fields_on_top() {
        let data =
            data(&["{\"id\":\"a\"} {\"id\":\"b\"}", "{\"id\":\"c\"}"], &["signal=9"]).unwrap();
        let ids: Vec<_> = requests(&data, 4).iter().map(|request| request["id"].clone()).collect();
        assert_eq!(ids, ["a", "b", "c", "a"]);
        assert_eq!(requests(&data, 1)[0]["signal"], 9);
    }

    #[test]
    fn templates_are_made_anew_for_each_call() {
        let json =
            "{\"id\": \"c{{.RequestNumber}}-{{newUUID}}\", \"signal\": {{ randomInt 1 64 }}}";
        let data = data(&[json], &["exec_id={{randomString 3 5}}"]).unwrap();
        let requests = requests(&data, 50);
        let mut seen = HashSet::new();
        for (number, request) in requests.iter().enumerate() {
            let id = request["id"].as_str().unwrap();
            let uuid = id.strip_prefix(&format!("c{number}-")).unwrap();
            assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"), "{uuid}");
            assert!(seen.insert(uuid.to_owned()));
            assert!((1..=64).contains(&request["signal"].as_u64().unwrap()));
            assert!((3..=5).contains(&request["execId"].as_str().unwrap().len()));
        }
    }

    #[test]
    fn what_is_no_template_or_no_request_is_told_before_the_first_call() {
        for (json, field, told) in [
            ("{\"id\": \"{{nothing}}\"}", None, "there are .RequestNumber"),
            ("{\"signal\": {{randomInt 5 1}}}", None, "smaller one first"),
            ("{\"id\": \"{{randomString 1 99999999}}\"}", None, "0 to 1048576"),
            ("{\"signal\": {{randomInt -9 -1}}}", None, "no uint32"),
            ("{\"id\": {{.Timestamp}}}", None, "no JSON"),
            ("{\"id\": {{", None, "no JSON"),
            ("", None, "no request"),
            ("{}", Some("no"), "is not name=value"),
            ("{\"ide\": 1}", None, "ide"),
        ] {
            let error = data(&[json], &field.into_iter().collect::<Vec<_>>()).unwrap_err();
            assert!(error.contains(told), "{json}: {error}");
        }
        let schema = Arc::new(builtin().clone());
        let method = schema.find_methods("containerd.task.v3.Task/Kill").unwrap().only().unwrap();
        let json = ["{\"id\": \"{{.UUID}}\"}".to_owned()];
        let literal = Data::new(&json, &[], &method, &schema, true).unwrap();
        assert_eq!(requests(&literal, 1)[0]["id"], "{{.UUID}}");
    }
}
