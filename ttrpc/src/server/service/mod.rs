//! The methods that a server has.
//!
//! A Request's names enter. What leaves is the method's code, which decodes the payload and starts the handler of an
//! admitted [`call`](crate::server::call).

pub(in crate::server) mod fallback;
pub(in crate::server) mod routes;
pub(in crate::server) mod services;
