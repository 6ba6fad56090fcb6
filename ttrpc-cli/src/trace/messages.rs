//! Messages that pass, as JSON, and without what is not to be told.

use bytes::Bytes;
use prost_reflect::{DescriptorPool, MessageDescriptor};
use serde_json::Value;
use ttrpc::{Any, Status};

use super::call::Side;
use crate::{
    json::Json,
    schema::{self, Schema},
};

/// What stands in the place of a value that is left out.
const REDACTED: &str = "[redacted]";

/// Reads messages with a schema.
#[derive(Debug)]
pub struct Messages {
    schema: Schema,
    /// Names of fields that are left out, as in .proto files and as in JSON.
    redacted: Vec<String>,
}

impl Messages {
    pub fn new(schema: Schema, redacted: &[String]) -> Self {
        let redacted = redacted.iter().map(|name| plain(name)).collect();
        Messages { schema, redacted }
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Whether something is left out.
    pub fn is_redacting(&self) -> bool {
        !self.redacted.is_empty()
    }

    /// The type of what a side says in a method.
    fn kind(&self, service: &str, method: &str, side: Side) -> Option<MessageDescriptor> {
        let service = self.schema.pool().get_service_by_name(service)?;
        let method = service.methods().find(|known| known.name() == method)?;
        Some(match side {
            Side::Client => method.input(),
            Side::Server => method.output(),
        })
    }

    /// Whether the schema has a method.
    pub fn knows(&self, service: &str, method: &str) -> bool {
        self.kind(service, method, Side::Client).is_some()
    }

    /// A message for people; `None` if its type is not known or the bytes do not fit it.
    pub fn to_json(&self, service: &str, method: &str, side: Side, bytes: &Bytes) -> Option<Value> {
        let kind = self.kind(service, method, side)?;
        let json = Json::new(&self.schema).readable_only(self.is_redacting());
        let mut value = json.decode(&kind, bytes.clone()).ok()?;
        self.replace(&mut value);
        Some(value)
    }

    /// The bytes of a message without the fields that are left out. A message that cannot be read is
    /// left out as a whole, and so is what an `Any` holds.
    pub fn redact(&self, service: &str, method: &str, side: Side, bytes: &Bytes) -> Bytes {
        if !self.is_redacting() {
            return bytes.clone();
        }
        let kind = self.kind(service, method, side);
        kind.and_then(|kind| self.redact_message(&kind, bytes.clone())).unwrap_or_default()
    }

    fn redact_message(&self, kind: &MessageDescriptor, bytes: Bytes) -> Option<Bytes> {
        let json = Json::new(&self.schema).readable_only(true);
        let mut value = json.decode(kind, bytes).ok()?;
        self.remove(&mut value);
        json.encode(kind, value).ok()
    }

    /// A failure without the fields that are left out of its details. Details that cannot be read are
    /// dropped; the text is kept: it is what one looks for.
    pub fn redact_status(&self, status: &Status) -> Status {
        let redacted = Status::with_raw_code(status.raw_code(), status.message());
        if self.is_left_out("details") {
            return redacted;
        }
        let details = status.details().iter().filter_map(|detail| {
            let kind = self.schema.any_type(&detail.type_url)?;
            let value = self.redact_message(&kind, detail.value.clone().into())?;
            Some(Any { type_url: detail.type_url.clone(), value: value.into() })
        });
        details.fold(redacted, Status::with_detail)
    }

    /// Those of the names that are left out which no field has.
    pub fn unknown_names<'a>(&self, redacted: &'a [String]) -> Vec<&'a str> {
        let has_field = |pool: &DescriptorPool, name: &str| {
            pool.all_messages().any(|message| {
                message.fields().any(|field| {
                    [field.name(), field.json_name()].map(plain).contains(&plain(name))
                })
            })
        };
        let names = redacted.iter().map(String::as_str);
        names
            .filter(|name| {
                !has_field(self.schema.pool(), name) && !has_field(schema::builtin().pool(), name)
            })
            .collect()
    }

    /// A status' text is the server's own and may hold anything, and so may its details.
    pub fn metadata<'a>(&self, key: &str, value: &'a str) -> &'a str {
        if self.is_left_out(key) { REDACTED } else { value }
    }

    fn is_left_out(&self, name: &str) -> bool {
        self.redacted.contains(&plain(name))
    }

    fn replace(&self, value: &mut Value) {
        self.visit(value, &|value| *value = Value::String(REDACTED.to_owned()));
    }

    /// Null is a field that is not set.
    fn remove(&self, value: &mut Value) {
        self.visit(value, &|value| *value = Value::Null);
    }

    fn visit(&self, value: &mut Value, change: &impl Fn(&mut Value)) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    match self.is_left_out(key) {
                        true => change(value),
                        false => self.visit(value, change),
                    }
                }
            }
            Value::Array(values) => {
                values.iter_mut().for_each(|value| self.visit(value, change));
            }
            _ => {}
        }
    }
}

/// A field's name in one way of writing: `exec_id` and `execId` are the same.
fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[test]
    fn fields_are_left_out_at_any_depth() {
        let messages = Messages::new(builtin().clone(), &["exec_id".to_owned(), "args".to_owned()]);
        let (service, method) = ("containerd.task.v3.Task", "Exec");
        let kind = messages.kind(service, method, Side::Client).unwrap();
        let request = json!({
            "id": "c", "execId": "secret",
            "spec": { "@type": "types.containerd.io/Process", "value": { "args": ["secret"] } },
        });
        let bytes = Json::new(builtin()).encode(&kind, request).unwrap();
        let told = messages.to_json(service, method, Side::Client, &bytes).unwrap();
        assert_eq!(told["execId"], REDACTED);
        assert_eq!(told["spec"]["value"]["args"], REDACTED);
        let kept = messages.redact(service, method, Side::Client, &bytes);
        assert!(!String::from_utf8_lossy(&kept).contains("secret"));
        let unknown = messages.redact("no.Such", "Method", Side::Client, &bytes);
        assert!(unknown.is_empty(), "what cannot be read may hold anything");
        let any = json!({ "@type": "no.such.Type", "value": "c2VjcmV0" });
        let bytes = Json::new(builtin()).encode(&kind, json!({ "id": "c", "spec": any })).unwrap();
        assert!(String::from_utf8_lossy(&bytes).contains("secret"));
        let kept = messages.redact(service, method, Side::Client, &bytes);
        let kept = String::from_utf8_lossy(&kept);
        assert!(kept.contains("no.such.Type") && !kept.contains("secret"), "{kept}");
        let told = messages.to_json(service, method, Side::Client, &bytes).unwrap();
        assert!(!told.to_string().contains("c2VjcmV0"), "{told}");
        assert_eq!(messages.metadata("Exec-Id", "x"), "x");
        assert_eq!(messages.metadata("args", "x"), REDACTED);
    }
}
