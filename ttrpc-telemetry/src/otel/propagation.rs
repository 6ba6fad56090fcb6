//! Context through metadata.

use std::fmt;

use opentelemetry::{
    Context, global,
    propagation::{Extractor, Injector, TextMapPropagator},
};
use ttrpc::Metadata;

/// What writes contexts into metadata, and reads them.
pub(super) enum Propagator {
    Global,
    Own(Box<dyn TextMapPropagator + Send + Sync>),
}

impl Propagator {
    /// The context that came with a call.
    pub(super) fn extract(&self, metadata: &Metadata) -> Context {
        // Whatever is current where the call arrives belongs to something else.
        let (none, carrier) = (Context::new(), Received(metadata));
        self.with(|propagator| propagator.extract_with_context(&none, &carrier))
    }

    /// Adds a context to a call.
    pub(super) fn inject(&self, context: &Context, metadata: &mut Metadata) {
        let mut carrier = Outgoing(metadata);
        self.with(|propagator| propagator.inject_context(context, &mut carrier));
    }

    fn with<R>(&self, mut run: impl FnMut(&dyn TextMapPropagator) -> R) -> R {
        match self {
            Propagator::Global => global::get_text_map_propagator(run),
            Propagator::Own(propagator) => run(&**propagator),
        }
    }
}

impl fmt::Debug for Propagator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Propagator::Global => "Global",
            Propagator::Own(_) => "Own",
        })
    }
}

/// Of several values of a key, the first is read.
struct Received<'a>(&'a Metadata);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(key, _)| key).collect()
    }
}

/// A value replaces all that its key had. An empty one, such as the `tracestate` of a trace that has none, is not
/// sent.
struct Outgoing<'a>(&'a mut Metadata);

impl Injector for Outgoing<'_> {
    fn set(&mut self, key: &str, value: String) {
        match value.as_str() {
            "" => self.0.remove(key),
            _ => self.0.insert(key, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_metadata_give_the_first_value_whatever_the_case() {
        let metadata = Metadata::from_iter([("baggage", "a=1"), ("baggage", "b=2")]);
        assert_eq!(Received(&metadata).get("Baggage"), Some("a=1"));
        assert_eq!(Received(&metadata).get_all("baggage"), Some(vec!["a=1"]));
        assert_eq!(Received(&metadata).get("traceparent"), None);
    }

    #[test]
    fn outgoing_metadata_replace_all_values_of_a_key_and_lower_it() {
        let mut metadata =
            Metadata::from_iter([("baggage", "a=1"), ("user", "ann"), ("baggage", "b=2")]);
        Outgoing(&mut metadata).set("Baggage", "c=3".into());
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("user", "ann"), ("baggage", "c=3")]);
    }

    #[test]
    fn an_empty_value_is_not_sent_and_removes_what_its_key_had() {
        let mut metadata = Metadata::from_iter([("tracestate", "vendor=stale"), ("user", "ann")]);
        Outgoing(&mut metadata).set("tracestate", String::new());
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("user", "ann")]);
    }
}
