//! What a session knows: the schema, calls in flight, and replies.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use prost_reflect::MessageDescriptor;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use super::command;
use crate::{
    completion::{self, Candidate},
    schema::Schema,
    sync::lock,
};

/// Calls whose last reply is kept.
const MAX_REPLIES: usize = 16;

/// Shared with the thread that completes lines.
#[derive(Debug)]
pub struct State {
    schema: Mutex<Arc<Schema>>,
    calls: Mutex<BTreeMap<u32, InFlight>>,
    replies: Mutex<BTreeMap<u32, Value>>,
    /// The call of the last reply.
    last: Mutex<Option<u32>>,
}

/// A call that has not ended.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub name: String,
    /// The type of its requests.
    pub input: MessageDescriptor,
    pub begun: Instant,
    /// `None` for a call whose requests were given at once, or whose stream is closed.
    pub requests: Option<mpsc::Sender<Result<Value, String>>>,
    pub task: AbortHandle,
    /// Closed when it has ended.
    pub ended: watch::Receiver<()>,
}

impl State {
    pub fn new(schema: Schema) -> Self {
        State {
            schema: Mutex::new(Arc::new(schema)),
            calls: Mutex::default(),
            replies: Mutex::default(),
            last: Mutex::default(),
        }
    }

    pub fn schema(&self) -> Arc<Schema> {
        lock(&self.schema).clone()
    }

    pub fn set_schema(&self, schema: Schema) {
        *lock(&self.schema) = Arc::new(schema);
    }

    pub fn begin(&self, id: u32, call: InFlight) {
        lock(&self.calls).insert(id, call);
    }

    pub fn end(&self, id: u32) -> Option<InFlight> {
        lock(&self.calls).remove(&id)
    }

    /// A call in flight.
    ///
    /// # Errors
    /// If there is none with this number.
    pub fn call(&self, id: u32) -> Result<InFlight, String> {
        let call = lock(&self.calls).get(&id).cloned();
        call.ok_or_else(|| format!("no call #{id} is in flight: `calls` prints those that are"))
    }

    /// Ends the stream of a call's requests behind those that were sent.
    ///
    /// # Errors
    /// If there is no such call in flight, or it has no such stream.
    pub fn close(&self, id: u32) -> Result<(), String> {
        self.call(id)?;
        let mut calls = lock(&self.calls);
        let requests = calls.get_mut(&id).and_then(|call| call.requests.take());
        requests.map(drop).ok_or_else(|| format!("#{id} takes no requests"))
    }

    pub fn calls(&self) -> BTreeMap<u32, InFlight> {
        lock(&self.calls).clone()
    }

    /// Keeps a reply; those of the oldest calls are dropped.
    pub fn reply(&self, id: u32, value: Value) {
        let mut replies = lock(&self.replies);
        replies.insert(id, value);
        if replies.len() > MAX_REPLIES {
            replies.pop_first();
        }
        *lock(&self.last) = Some(id);
    }

    /// The last reply, or that of a call.
    ///
    /// # Errors
    /// If there is none.
    pub fn last(&self, id: Option<u32>) -> Result<Value, String> {
        let last = *lock(&self.last);
        let id = id.or(last).ok_or("there is no reply yet")?;
        let reply = lock(&self.replies).get(&id).cloned();
        reply.ok_or_else(|| {
            format!("no reply of call #{id} is kept: there is none, or {MAX_REPLIES} later calls have one")
        })
    }

    /// A word with the part of a reply in the place of `name=$…`; other words as they are.
    ///
    /// # Errors
    /// If there is no such reply, or no such part.
    pub fn resolve(&self, word: &str) -> Result<String, String> {
        let Some((name, reference)) = word.split_once("=$") else { return Ok(word.to_owned()) };
        let (id, path) = reference.split_once('.').unwrap_or((reference, ""));
        let is_reference = id.bytes().all(|byte| byte.is_ascii_digit());
        if !is_reference || name.contains('=') {
            return Ok(word.to_owned());
        }
        let reply = self.last(id.parse().ok())?;
        let mut part = &reply;
        for key in path.split('.').filter(|key| !key.is_empty()) {
            let inner = match part {
                Value::Array(values) => key.parse().ok().and_then(|at: usize| values.get(at)),
                value => value.get(key),
            };
            part = inner.ok_or_else(|| format!("`${reference}`: the reply has no `{key}`"))?;
        }
        Ok(match part {
            Value::String(text) => format!("{name}={text}"),
            value => format!("{name}={value}"),
        })
    }

    /// What a word of a line may become, behind the words before it.
    pub fn complete(&self, before: &str, word: &str) -> Vec<Candidate> {
        let schema = self.schema();
        let mut before: Vec<_> = before.split_whitespace().collect();
        if before.is_empty() {
            let names = command::NAMES.iter().filter(|name| name.starts_with(word));
            let names =
                names.map(|name| Candidate { value: (*name).to_owned(), help: String::new() });
            return names.chain(completion::methods(&schema, word)).collect();
        }
        if before[0] == "call" {
            before.remove(0);
        }
        match before[..] {
            [] | ["template"] => completion::methods(&schema, word),
            ["list"] => completion::services(&schema, word),
            ["describe"] => completion::symbols(&schema, word),
            ["wait" | "cancel" | "close" | "send" | "last"] => self.numbers(word),
            ["send", id, ..] => {
                let call =
                    id.trim_start_matches('#').parse().ok().and_then(|id| self.call(id).ok());
                call.map_or(Vec::new(), |call| completion::fields(&call.input, word))
            }
            [name, ..] if command::NAMES.contains(&name) => Vec::new(),
            [method, ..] => {
                let found = schema.find_methods(method).ok();
                let method = found.and_then(|mut found| found.methods.pop());
                method.map_or(Vec::new(), |method| completion::fields(&method.input(), word))
            }
        }
    }

    fn numbers(&self, word: &str) -> Vec<Candidate> {
        let calls = self.calls().into_iter();
        let calls = calls.map(|(id, call)| Candidate { value: id.to_string(), help: call.name });
        calls.filter(|candidate| candidate.value.starts_with(word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[test]
    fn a_value_may_be_a_part_of_a_reply() {
        let state = State::new(builtin().clone());
        assert!(state.resolve("id=$").unwrap_err().contains("no reply yet"));
        state.reply(1, json!({ "id": "a", "list": [{ "n": 5 }] }));
        state.reply(2, json!({ "id": "b" }));
        for (word, resolved) in [
            ("id=$.id", "id=b"),
            ("id=$1.id", "id=a"),
            ("n=$1.list.0.n", "n=5"),
            ("o=$1.list.0", "o={\"n\":5}"),
            ("o=$", "o={\"id\":\"b\"}"),
            ("price=$abc", "price=$abc"),
            ("a=b=$.id", "a=b=$.id"),
            ("$.id", "$.id"),
        ] {
            assert_eq!(state.resolve(word).as_deref(), Ok(resolved), "{word}");
        }
        assert!(state.resolve("id=$.no").unwrap_err().contains("has no `no`"));
        assert!(state.resolve("id=$9.id").unwrap_err().contains("#9"));
        for id in 3..30 {
            state.reply(id, json!({}));
        }
        assert!(state.last(Some(1)).is_err() && state.last(Some(20)).is_ok());
    }

    #[test]
    fn a_line_completes_commands_methods_fields_and_numbers() {
        let state = State::new(builtin().clone());
        let of = |before: &str, word: &str| -> Vec<_> {
            state.complete(before, word).into_iter().map(|candidate| candidate.value).collect()
        };
        assert_eq!(of("", "des"), ["describe"]);
        assert_eq!(of("", "Health/Ch"), ["Health/Check"]);
        assert_eq!(of("call ", "Health/Ch"), ["Health/Check"]);
        assert_eq!(of("Health/Check ", "se"), ["service="]);
        assert_eq!(of("list ", "Heal"), ["Health"]);
        assert!(
            of("cancel ", "").is_empty()
                && of("send 1 ", "").is_empty()
                && of("quit ", "").is_empty()
        );
    }
}
