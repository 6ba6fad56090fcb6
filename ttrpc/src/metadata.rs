//! Metadata: pairs of strings that travel with a call's Request.

use std::fmt;

/// Pairs of keys and values that a client sends with a call, in order.
///
/// A key may repeat, and the order of its values counts. Keys are lower-case on the wire: a client
/// lowers them as they are added. Look-ups ignore case, for peers that break this rule. A server
/// sees the pairs as they arrived.
///
/// ```
/// use ttrpc::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.append("Trace", "a");
/// metadata.append("trace", "b");
/// assert_eq!(metadata.get("trace"), Some("a"));
/// assert_eq!(metadata.get_all("trace").collect::<Vec<_>>(), ["a", "b"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pairs: Vec<(String, String)>,
}

impl Metadata {
    /// Makes empty metadata, without an allocation.
    pub const fn new() -> Self {
        Metadata { pairs: Vec::new() }
    }

    /// Makes metadata without pairs, with capacity for this many.
    pub(crate) fn with_capacity(pairs: usize) -> Self {
        Metadata { pairs: Vec::with_capacity(pairs) }
    }

    /// Adds a value after those that the key already has.
    pub fn append(&mut self, key: impl Into<String>, value: impl Into<String>) {
        let mut key = key.into();
        key.make_ascii_lowercase();
        self.pairs.push((key, value.into()));
    }

    /// Replaces all values of the key by this one.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<String>) {
        let key = key.into();
        self.remove(&key);
        self.append(key, value);
    }

    /// Removes all values of the key.
    pub fn remove(&mut self, key: &str) {
        self.pairs.retain(|(k, _)| !k.eq_ignore_ascii_case(key));
    }

    /// Returns the first value of the key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    }

    /// Returns all values of the key, in order.
    pub fn get_all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.iter().filter(move |(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    }

    /// Returns all pairs, in the order in which they are sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds a pair as it arrived, its key's case untouched.
    pub(crate) fn push_received(&mut self, key: String, value: String) {
        self.pairs.push((key, value));
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs.iter()).finish()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Metadata::new();
        metadata.extend(pairs);
        metadata
    }
}

impl<K: Into<String>, V: Into<String>> Extend<(K, V)> for Metadata {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.append(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_replaces_and_append_adds() {
        let mut metadata = Metadata::from_iter([("a", "1"), ("b", "2"), ("A", "3")]);
        assert_eq!(metadata.get_all("a").collect::<Vec<_>>(), ["1", "3"]);
        metadata.insert("A", "4");
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("b", "2"), ("a", "4")]);
        metadata.remove("B");
        assert_eq!(metadata.len(), 1);
        assert_eq!(metadata.get("b"), None);
    }

    #[test]
    fn metadata_may_be_empty_or_have_room_and_prints_its_pairs() {
        assert!(Metadata::new().is_empty());
        let mut metadata = Metadata::with_capacity(7);
        assert!(metadata.is_empty() && metadata.pairs.capacity() >= 7);
        metadata.append("a", "1");
        assert!(!metadata.is_empty());
        assert_eq!(format!("{metadata:?}"), "[(\"a\", \"1\")]");
    }
}
