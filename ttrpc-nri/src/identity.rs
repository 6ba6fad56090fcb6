//! The name and the index of a plugin.

use std::{env, fmt, path::Path};

use crate::Error;

/// The environment variables by which a runtime names a plugin that it launches, and its descriptor.
pub(crate) const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
pub(crate) const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";
pub(crate) const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";

/// The index and the name of a plugin, printed as `10-name`. Plugins are called in the order of their indexes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginId {
    index: String,
    name: String,
}

impl PluginId {
    /// Checks an index of two digits and a name of letters, digits, `_`, `.`, `+` and `-`.
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub fn new(index: impl Into<String>, name: impl Into<String>) -> Result<Self, Error> {
        let (index, name) = (index.into(), name.into());
        let is_index = index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit());
        if !is_index {
            let (index, name) = (shown(&index), shown(&name));
            let problem = format!("the index `{index}` of the plugin `{name}` is not two digits");
            return Err(Error::Identity { problem });
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_allowed) {
            let name = shown(&name);
            let problem = format!(
                "the name `{name}` of a plugin has other characters than a-z, A-Z, 0-9, `_.+-`, or none"
            );
            return Err(Error::Identity { problem });
        }
        Ok(PluginId { index, name })
    }

    /// Parses `10-name`, as a plugin's file is called.
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Some((index, name)) = text.split_once('-') else {
            let text = shown(text);
            let problem = format!("`{text}` is not an index and a name, such as `10-{text}`");
            return Err(Error::Identity { problem });
        };
        PluginId::new(index, name)
    }

    /// What the program said, else what the runtime said, else the name of the program's file.
    pub(crate) fn find(index: Option<String>, name: Option<String>) -> Result<Self, Error> {
        // A variable that is empty is not set.
        let said = |value: Option<String>, variable| {
            value.or_else(|| env::var(variable).ok().filter(|value| !value.is_empty()))
        };
        let program = env::args_os().next().unwrap_or_default();
        let file = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        PluginId::complete(said(index, INDEX_VARIABLE), said(name, NAME_VARIABLE), &file)
    }

    fn complete(index: Option<String>, name: Option<String>, file: &str) -> Result<Self, Error> {
        match (index, name, PluginId::parse(file)) {
            (Some(index), Some(name), _) => PluginId::new(index, name),
            (Some(index), None, Ok(of_file)) => PluginId::new(index, of_file.name),
            (Some(index), None, Err(_)) => PluginId::new(index, file),
            (None, Some(name), Ok(of_file)) => PluginId::new(of_file.index, name),
            (None, None, of_file @ Ok(_)) => of_file,
            (None, ..) => {
                let file = shown(file);
                let problem = format!(
                    "the plugin has no index: call `Stub::index`, set {INDEX_VARIABLE}, or call the program `10-{file}`"
                );
                Err(Error::Identity { problem })
            }
        }
    }

    /// Returns the two digits.
    pub fn index(&self) -> &str {
        &self.index
    }

    /// Returns the name without the index.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A text of a peer or a file for an error: in one line, and not much of it.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(64).collect();
    let rest = if short.len() < text.len() { "…" } else { "" };
    format!("{}{rest}", short.escape_debug())
}

impl fmt::Display for PluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_two_digits_and_a_name_is_of_few_characters() {
        let id = PluginId::parse("10-device-injector_v1.2+x").expect("it is one");
        assert_eq!((id.index(), id.name()), ("10", "device-injector_v1.2+x"));
        assert_eq!(id.to_string(), "10-device-injector_v1.2+x");
        for wrong in ["", "10", "10-", "1-a", "100-a", "aa-a", "10-a b", "10-ä", "１０-a"] {
            let error = PluginId::parse(wrong).expect_err(wrong);
            assert!(matches!(error, Error::Identity { .. }));
        }
    }

    #[test]
    fn what_is_not_said_is_of_the_programs_file() {
        let complete = |index: &str, name: &str, file: &str| {
            let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            PluginId::complete(said(index), said(name), file).map(|id| id.to_string()).ok()
        };
        for (index, name, file, id) in [
            ("20", "a", "10-b", Some("20-a")),
            ("20", "", "10-b", Some("20-b")),
            ("20", "", "device-injector", Some("20-device-injector")),
            ("20", "", "pinner", Some("20-pinner")),
            ("", "a", "10-b", Some("10-a")),
            ("", "", "10-b", Some("10-b")),
            ("", "a", "pinner", None),
            ("", "", "device-injector", None),
        ] {
            assert_eq!(complete(index, name, file).as_deref(), id, "{index} {name} {file}");
        }
    }

    /// It goes to logs and terminals, and is a peer's or a file's.
    #[test]
    fn a_wrong_name_is_shown_in_one_short_line() {
        let long = "x ".repeat(1 << 20);
        let wrongs =
            [("10", "a\nb"), ("10", "a\u{1b}[31m"), ("1\n", "a"), ("10", &long), (&long, "a")];
        for (index, name) in wrongs {
            let shown = PluginId::new(index, name).expect_err(name).to_string();
            assert!(!shown.chars().any(char::is_control) && shown.len() < 500, "{shown}");
        }
        let shown = PluginId::parse("a\nb").expect_err("it has no index").to_string();
        assert!(!shown.contains('\n'), "{shown}");
    }
}
