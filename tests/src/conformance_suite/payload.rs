//! Messages of the conformance service, written in a word.
//!
//! | word | message |
//! |---|---|
//! | `-` | no bytes |
//! | `echo:TEXT` | EchoRequest or EchoResponse with this payload |
//! | `reply_bytes:N` | EchoRequest for a reply with N bytes of payload |
//! | `request_bytes:N` | EchoRequest that fills a Request for Echo up to exactly N bytes of data |
//! | `key:TEXT` | KeyRequest with a key of this run |
//! | `sleep:MILLIS` | SleepRequest |
//! | `fail:CODE` | FailRequest |
//! | `chunk:N` | Chunk with this sequence number |
//! | `count:N` | CollectResponse after N chunks without payload, in order |
//! | `generate:COUNT[,MICROS[,CODE]]` | GenerateRequest with a pause between chunks and a code at the end |
//! | `hex:BYTES` | these bytes |
//! | `zeros:N` | N bytes of zero |

use std::{
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use ttrpc::prost::Message;

use crate::{
    conformance::*,
    wire::{Frame, REQUEST},
};

/// The bytes that a word stands for.
///
/// # Errors
/// What is wrong with the word.
pub(super) fn payload(word: &str) -> Result<Vec<u8>, String> {
    let (name, value) = word.split_once(':').unwrap_or((word, ""));
    let bytes = match name {
        "-" => Vec::new(),
        "echo" => EchoResponse { payload: value.into() }.encode_to_vec(),
        "reply_bytes" => EchoRequest { payload: Vec::new(), response_size: number(value)? as u32 }
            .encode_to_vec(),
        "request_bytes" => filling_echo(number(value)? as usize)?,
        "key" => KeyRequest { key: key(value) }.encode_to_vec(),
        "sleep" => SleepRequest { millis: number(value)? }.encode_to_vec(),
        "fail" => {
            FailRequest { code: number(value)? as i32, ..FailRequest::default() }.encode_to_vec()
        }
        "chunk" => Chunk { sequence: number(value)?, payload: Vec::new() }.encode_to_vec(),
        "count" => {
            CollectResponse { chunks: number(value)?, bytes: 0, in_order: true }.encode_to_vec()
        }
        "generate" => generate(value)?.encode_to_vec(),
        "hex" => hex(value)?,
        "zeros" => vec![0; number(value)? as usize],
        _ => return Err(format!("{word:?} is no message")),
    };
    Ok(bytes)
}

/// A key of this run: a server remembers what was released in an earlier one.
pub(super) fn key(name: &str) -> String {
    static RUN: LazyLock<String> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        format!("{}-{}", std::process::id(), since.map_or(0, |since| since.as_nanos()))
    });
    format!("{name}-{}", *RUN)
}

/// A number, which may be written in hexadecimal.
///
/// # Errors
/// If it is none.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}

fn generate(value: &str) -> Result<GenerateRequest, String> {
    let mut numbers = value.split(',').map(number);
    let mut next = || numbers.next().unwrap_or(Ok(0));
    Ok(GenerateRequest {
        count: next()?,
        interval_micros: next()?,
        fail_code: next()? as i32,
        size: 0,
    })
}

/// Bytes from their digits, between which underlines may stand.
fn hex(digits: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<_> = digits.chars().filter(|digit| *digit != '_').collect();
    let byte = |pair: &[char]| {
        let text: String = pair.iter().collect();
        u8::from_str_radix(&text, 16).map_err(|_| format!("{text:?} is no byte"))
    };
    digits.chunks(2).map(byte).collect()
}

/// An EchoRequest whose Request has exactly this many bytes of data.
fn filling_echo(data_len: usize) -> Result<Vec<u8>, String> {
    let request = |len: usize| EchoRequest { payload: vec![0x5a; len], response_size: 0 };
    let data_of = |len: usize| {
        let frame = Frame::unary(1, ConformanceClient::NAME, "Echo", &request(len));
        assert_eq!(frame.kind, REQUEST);
        frame.data.len()
    };
    let overhead = data_of(data_len) - data_len;
    let payload_len = data_len.checked_sub(overhead).ok_or("no Request is so short")?;
    if data_of(payload_len) != data_len {
        return Err(format!("no payload makes a Request of {data_len} bytes"));
    }
    Ok(request(payload_len).encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_messages() {
        assert_eq!(payload("-"), Ok(vec![]));
        assert_eq!(payload("hex:01_ff"), Ok(vec![1, 255]));
        assert_eq!(payload("chunk:5"), Ok(vec![8, 5]));
        assert_eq!(payload("generate:2,0,9"), Ok(vec![8, 2, 32, 9]));
        assert_eq!(number("0xffffffff"), Ok(u64::from(u32::MAX)));
        assert!(payload("nothing:1").is_err());
        assert!(payload("chunk:x").is_err());
    }

    #[test]
    fn a_request_is_filled_to_the_byte() {
        for len in [300, 4 << 20] {
            let request =
                EchoRequest::decode(&payload(&format!("request_bytes:{len}")).unwrap()[..]);
            let frame = Frame::unary(1, ConformanceClient::NAME, "Echo", &request.unwrap());
            assert_eq!(frame.data.len(), len);
        }
    }
}
