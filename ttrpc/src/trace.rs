//! Events and spans of the library for `tracing`: spans for connections and calls at level DEBUG, and events. Without the
//! feature `tracing`, nothing.

#[cfg(not(feature = "tracing"))]
pub(crate) use disabled::*;
#[cfg(feature = "tracing")]
pub(crate) use enabled::*;

#[cfg(feature = "tracing")]
mod enabled {
    use std::sync::Arc;

    use tracing::{Instrument, Level, level_filters::LevelFilter};
    pub(crate) use tracing::{debug, warn};

    use crate::transport::BoxFuture;

    /// Makes a span at level DEBUG, with the fields that `tracing` takes.
    macro_rules! span {
        ($($field:tt)*) => {
            // A span is large even when it is disabled, so the level is checked first.
            match $crate::trace::is_on() {
                true => $crate::trace::Span::new(tracing::debug_span!($($field)*)),
                false => $crate::trace::Span::NONE,
            }
        };
    }
    pub(crate) use span;

    /// Returns whether a subscriber may listen to spans.
    pub(crate) fn is_on() -> bool {
        LevelFilter::current() >= Level::DEBUG
    }

    /// A span, if a subscriber listens.
    #[derive(Clone, Debug)]
    pub(crate) struct Span(Option<Arc<tracing::Span>>);

    impl Span {
        pub(crate) const NONE: Self = Span(None);

        pub(crate) fn new(span: tracing::Span) -> Self {
            Span((!span.is_disabled()).then(|| Arc::new(span)))
        }

        /// The span in which this runs.
        pub(crate) fn current() -> Self {
            Span::new(tracing::Span::current())
        }

        /// Returns whether no subscriber listens.
        pub(crate) fn is_none(&self) -> bool {
            self.0.is_none()
        }

        /// Runs something in the span.
        pub(crate) fn in_scope<R>(&self, run: impl FnOnce() -> R) -> R {
            match &self.0 {
                Some(span) => span.in_scope(run),
                None => run(),
            }
        }

        /// Runs a future in the span, if there is one.
        pub(crate) fn instrument<'a, T>(&self, future: BoxFuture<'a, T>) -> BoxFuture<'a, T>
        where
            T: 'a,
        {
            match self.0.as_deref() {
                Some(span) => Box::pin(future.instrument(span.clone())),
                None => future,
            }
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod disabled {
    macro_rules! nothing {
        ($($field:tt)*) => {{}};
    }
    macro_rules! span {
        ($($field:tt)*) => {
            $crate::trace::Span
        };
    }
    pub(crate) use nothing as debug;
    pub(crate) use nothing as warn;
    pub(crate) use span;

    /// No span.
    #[derive(Clone, Debug)]
    pub(crate) struct Span;

    impl Span {
        pub(crate) fn current() -> Self {
            Span
        }

        pub(crate) fn is_none(&self) -> bool {
            true
        }

        pub(crate) fn in_scope<R>(&self, run: impl FnOnce() -> R) -> R {
            run()
        }

        pub(crate) fn instrument<F>(&self, future: F) -> F {
            future
        }
    }
}
