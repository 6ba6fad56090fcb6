//! A request whose fields are asked for, one after the other.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::editor::{Context, Editor, Line};
use crate::{completion, failure::Failure, fields, misfit, output};

/// Why no more fields are asked for.
enum Stop {
    /// Ctrl-C: there is no request.
    Cancelled,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

/// Asks for each field of a message. `None` after Ctrl-C; after Ctrl-D further fields are not set.
///
/// # Errors
/// If the terminal cannot be used.
pub async fn fill(editor: &Editor, kind: &MessageDescriptor) -> Result<Option<Value>, Failure> {
    let mut form = Form { editor, is_over: false };
    match form.message(kind, 0).await {
        Ok(object) => Ok(Some(Value::Object(object))),
        Err(Stop::Cancelled) => Ok(None),
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

struct Form<'a> {
    editor: &'a Editor,
    /// Ctrl-D was typed.
    is_over: bool,
}

impl Form<'_> {
    /// An answer; `None` for an empty one.
    async fn ask(
        &mut self,
        depth: usize,
        text: &str,
        context: Context,
    ) -> Result<Option<String>, Stop> {
        if self.is_over {
            return Ok(None);
        }
        let prompt = format!("{}{}: ", "  ".repeat(depth), output::plain_line(text));
        match self.editor.read(&prompt, context).await? {
            Line::Text(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Line::Interrupted => Err(Stop::Cancelled),
            Line::End => {
                self.is_over = true;
                Ok(None)
            }
        }
    }

    async fn message(
        &mut self,
        kind: &MessageDescriptor,
        depth: usize,
    ) -> Result<Map<String, Value>, Stop> {
        let mut object = Map::new();
        for field in kind.fields() {
            let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
            let Some(oneof) = oneof else {
                self.field(&field, depth, &mut object).await?;
                continue;
            };
            let fields: Vec<_> = oneof.fields().collect();
            if fields.first() != Some(&field) {
                continue;
            }
            let names: Vec<_> = fields.iter().map(|field| field.name().to_owned()).collect();
            let text = format!("{} (one of {})", oneof.name(), names.join(", "));
            if let Some(name) = self.ask(depth, &text, Context::Value(names)).await? {
                match fields.iter().find(|field| field.name() == name) {
                    Some(chosen) => self.field(chosen, depth, &mut object).await?,
                    None => self.complain(&format!("`{name}` is none of them")).await?,
                }
            }
        }
        Ok(object)
    }

    async fn field(
        &mut self,
        field: &FieldDescriptor,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), Stop> {
        let (name, of) = (field.name(), completion::type_name(field));
        let label = format!("{name} ({of})");
        let value = if field.is_map() {
            self.entries(field, &label, depth).await?
        } else if field.is_list() {
            let mut values = Vec::new();
            while let Some(value) =
                self.value(field, &format!("{name}.{} ({of})", values.len()), depth).await?
            {
                values.push(value);
            }
            Some(Value::Array(values)).filter(|values| values != &Value::Array(Vec::new()))
        } else {
            self.value(field, &label, depth).await?
        };
        if let Some(value) = value {
            object.insert(field.json_name().to_owned(), value);
        }
        Ok(())
    }

    async fn entries(
        &mut self,
        field: &FieldDescriptor,
        label: &str,
        depth: usize,
    ) -> Result<Option<Value>, Stop> {
        let Kind::Message(entry) = field.kind() else { return Ok(None) };
        let mut entries = Map::new();
        let no_names = || Context::Value(Vec::new());
        while let Some(key) = self.ask(depth, &format!("{label}, a key"), no_names()).await? {
            let of = entry.map_entry_value_field();
            let label = format!("{key} ({})", completion::type_name(&of));
            if let Some(value) = self.value(&of, &label, depth + 1).await? {
                entries.insert(key, value);
            }
        }
        Ok(Some(Value::Object(entries)).filter(|entries| entries != &Value::Object(Map::new())))
    }

    /// One value, asked for until it fits. A nested message is asked for by its fields.
    async fn value(
        &mut self,
        field: &FieldDescriptor,
        label: &str,
        depth: usize,
    ) -> Result<Option<Value>, Stop> {
        if let Kind::Message(inner) = field.kind()
            && inner.package_name() != "google.protobuf"
        {
            let yes = Context::Value(vec!["y".to_owned(), "n".to_owned()]);
            let answer = self.ask(depth, &format!("{label}, set it? [y/N]"), yes).await?;
            if !answer.is_some_and(|answer| answer.to_lowercase().starts_with('y')) {
                return Ok(None);
            }
            let object = Box::pin(self.message(&inner, depth + 1)).await?;
            return Ok(Some(Value::Object(object)));
        }
        loop {
            let names = Context::Value(completion::values(field));
            let Some(text) = self.ask(depth, label, names).await? else { return Ok(None) };
            let value = fields::convert(&field.kind(), &text);
            let fits = value
                .and_then(|value| misfit::check_field(field.name(), field, &value).map(|()| value));
            match fits {
                Ok(value) => return Ok(Some(value)),
                Err(error) => self.complain(&error).await?,
            }
        }
    }

    async fn complain(&self, text: &str) -> Result<(), Stop> {
        Ok(self.editor.print(output::plain_line(text)).await?)
    }
}
