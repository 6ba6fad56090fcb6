//! Calls whose names and bytes are known at run time only.
//!
//! The one place that knows how the library is called without types.

use std::{
    collections::HashSet,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType},
};
use ttrpc::{
    Client, Metadata, Status,
    client::{Reply, StreamReceiver, StreamSender},
};

/// A message that stays encoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raw(pub Bytes);

impl Message for Raw {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        self.0 = buf.copy_to_bytes(buf.remaining());
        Ok(())
    }

    fn merge_field(
        &mut self,
        _tag: u32,
        _wire_type: WireType,
        _buf: &mut impl Buf,
        _ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        unreachable!("`merge` takes all bytes at once")
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// What a call is given beside its request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub metadata: Metadata,
    /// `None` for no deadline.
    pub timeout: Option<Duration>,
}

/// A method by its names.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    service: &'static str,
    method: &'static str,
}

impl Target {
    /// Names that are kept for as long as the process lives, once each.
    pub fn new(service: &str, method: &str) -> Self {
        Target { service: intern(service), method: intern(method) }
    }
}

fn intern(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let mut names =
        NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}

/// Puts a call's options on it.
macro_rules! with_options {
    ($call:expr, $options:expr) => {{
        let call = $call.with_metadata($options.metadata.clone());
        match $options.timeout {
            Some(timeout) => call.timeout(timeout).await,
            None => call.await,
        }
    }};
}

/// One request, one reply.
pub async fn unary(
    client: &Client,
    target: Target,
    request: Bytes,
    options: &Options,
) -> Result<Bytes, Status> {
    let call = client.unary::<Raw, Raw>(target.service, target.method, Raw(request));
    with_options!(call, options).map(|reply| reply.0)
}

/// One request, many replies.
pub async fn server_streaming(
    client: &Client,
    target: Target,
    request: Bytes,
    options: &Options,
) -> Result<StreamReceiver<Raw>, Status> {
    let call = client.server_streaming::<Raw, Raw>(target.service, target.method, Raw(request));
    with_options!(call, options)
}

/// Many requests, one reply.
pub async fn client_streaming(
    client: &Client,
    target: Target,
    options: &Options,
) -> Result<(StreamSender<Raw>, Reply<Raw>), Status> {
    with_options!(client.client_streaming::<Raw, Raw>(target.service, target.method), options)
}

/// Many requests, many replies.
pub async fn bidi_streaming(
    client: &Client,
    target: Target,
    options: &Options,
) -> Result<(StreamSender<Raw>, StreamReceiver<Raw>), Status> {
    with_options!(client.bidi_streaming::<Raw, Raw>(target.service, target.method), options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        assert!(std::ptr::eq(intern("a.B"), intern(&String::from("a.B"))));
    }

    #[test]
    fn bytes_pass_through_whatever_they_are() {
        let bytes = Bytes::from_static(&[0xff, 0, 1]);
        assert_eq!(Raw::decode(bytes.clone()).unwrap(), Raw(bytes.clone()));
        assert_eq!(Raw(bytes.clone()).encode_to_vec(), bytes);
    }
}
