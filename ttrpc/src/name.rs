//! Names of services and methods.

use std::{fmt, ops::Deref, sync::Arc};

/// The name of a service or a method: known at compile time or made at run time.
///
/// Whatever takes a name takes `impl Into<Name>`. A `&'static str` becomes one without an allocation;
/// a `String` or an `Arc<str>` is shared by all clones, so that who calls a method often keeps its
/// `Name`. Text that is borrowed is copied, by `to_owned()`. It reads as the `str` that it is.
///
/// ```
/// use ttrpc::Name;
///
/// let method = format!("{}{}", "Say", "Hello");
/// let name = Name::from(method);
/// assert_eq!(name, "SayHello");
/// assert_eq!(name.clone().as_str(), "SayHello");
/// ```
#[derive(Clone)]
pub struct Name(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Name {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(name) => name,
            Text::Shared(name) => name,
        }
    }
}

impl From<&'static str> for Name {
    fn from(name: &'static str) -> Self {
        Name(Text::Static(name))
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Name(Text::Shared(name.into()))
    }
}

impl From<Arc<str>> for Name {
    fn from(name: Arc<str>) -> Self {
        Name(Text::Shared(name))
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Self {
        name.clone()
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl<T: AsRef<str> + ?Sized> PartialEq<T> for Name {
    fn eq(&self, other: &T) -> bool {
        self.as_str() == other.as_ref()
    }
}

impl Eq for Name {}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_their_text_is() {
        let (fixed, made) = (Name::from("a.B"), Name::from("a.B".to_owned()));
        assert!(fixed == made && fixed == "a.B" && made == *"a.B");
        let other = Name::from("a.C");
        assert!(fixed != other && other != "a.B" && other != *"a.B");
        assert_eq!(AsRef::<str>::as_ref(&made), "a.B");
        assert_eq!(format!("{made} {made:?}"), "a.B \"a.B\"");
    }
}
