//! The bindings that both peers of the crate `trapeze` use.

#[allow(warnings)]
#[rustfmt::skip]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/ttrpc.conformance.v1.rs"));
}

pub use generated::*;
