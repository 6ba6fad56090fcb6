//! The language of the wire cases: steps between semicolons.
//!
//! | step | meaning |
//! |---|---|
//! | `> ID TYPE[:FLAGS] [METHOD] [PAYLOAD] [timeout:NANOS] [meta:K=V,…]` | sends a frame |
//! | `> ID end` | sends Data with `remote closed` and `no data` |
//! | `header LEN ID TYPE[:FLAGS]` | sends a header that announces so much data, and no data |
//! | `zeros N` | sends so many bytes of zero |
//! | `< ID WHAT [/ WHAT]…` | the next frame of the stream has to be one of these |
//! | `skip ID` | Data without flags on this stream is passed over until another frame of it comes, which stays |
//! | `alive` | an Echo on a fresh stream is answered; so does every connection that is left open at the end |
//! | `release KEY ID` | calls Release with this key, on streams of its own, until the Wait on this stream succeeds |
//! | `half_close`, `close`, `reset` | ends the connection: our sending side, both, both with unread data |
//! | `ended` | the server ends the connection, too |
//! | `reconnect` | goes on with a new connection |
//! | `idle` | the server comes to have no connection but this one, and no call but the one that asks |
//! | `each_cut` | first step of a case: what is sent up to the first other step is sent in two parts, cut at each place in turn |
//! | `each_prefix` | first step of a case: of that, each part that is no whole is sent in turn |
//! | `byte_by_byte` | first step of a case: every byte is sent for itself |
//!
//! An ID may be a range, `1..1999`, and then the step is done for each odd number in it. TYPE is
//! `request`, `response`, `data` or `typeN`. A PAYLOAD is a word of [`payload`](super::super::payload);
//! after a METHOD it goes into a Request. WHAT is `ok PAYLOAD`, `ok any`, `ok meta:K=V,…` (of Inspect),
//! `error`, `error CODE`, `data PAYLOAD`, `end`, or `nothing`; where `nothing` may come, any number of the
//! others may.

use ttrpc::{Code, prost::Message};

use super::super::payload::{key as key_of_run, number, payload};
use crate::{
    conformance::*,
    wire::{DATA, Frame, KeyValue, NO_DATA, REMOTE_CLOSED, REQUEST, RESPONSE, Request, header},
};

/// A parsed script.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    pub(super) cutting: Cutting,
}

/// How bytes are portioned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cutting {
    None,
    EachCut,
    EachPrefix,
    ByteByByte,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Send(Send),
    Zeros(u64),
    Expect { ids: Vec<u32>, wanted: Vec<Wanted> },
    Skip(u32),
    Alive,
    Release { key: String, ids: Vec<u32> },
    HalfClose,
    Close,
    Reset,
    Ended,
    Reconnect,
    Idle,
}

/// Bytes to send, and what has to be known of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Send {
    pub(super) bytes: Vec<u8>,
    /// The highest stream id of a Request among them.
    pub(super) opens: Option<u32>,
}

/// What may come on a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    Ok(Vec<u8>),
    OkAny,
    OkMetadata(Vec<(String, String)>),
    Error(Option<Code>),
    Data(Vec<u8>),
    End,
    Nothing,
}

impl Script {
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut script = Script { steps: Vec::new(), cutting: Cutting::None };
        for step in text.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            match step {
                "each_cut" => script.cutting = Cutting::EachCut,
                "each_prefix" => script.cutting = Cutting::EachPrefix,
                "byte_by_byte" => script.cutting = Cutting::ByteByByte,
                _ => script.steps.push(Step::parse(step).map_err(|e| format!("{e} in {step:?}"))?),
            }
        }
        Ok(script)
    }
}

impl Step {
    fn parse(step: &str) -> Result<Self, String> {
        let words: Vec<_> = step.split_whitespace().collect();
        Ok(match &words[..] {
            [">", id, rest @ ..] => Step::Send(Send::parse(id, rest)?),
            ["header", len, id, kind] => {
                let (kind, flags) = kind_and_flags(kind)?;
                let bytes = header(number(len)? as u32, number(id)? as u32, kind, flags);
                Step::Send(Send { bytes, opens: Some(number(id)? as u32) })
            }
            ["zeros", count] => Step::Zeros(number(count)?),
            ["<", id, rest @ ..] => {
                let wanted = rest.split(|word| *word == "/").map(Wanted::parse);
                Step::Expect { ids: ids(id)?, wanted: wanted.collect::<Result<_, _>>()? }
            }
            ["skip", id] => Step::Skip(number(id)? as u32),
            ["alive"] => Step::Alive,
            ["release", key, id] => Step::Release { key: key_of_run(key), ids: ids(id)? },
            ["half_close"] => Step::HalfClose,
            ["close"] => Step::Close,
            ["reset"] => Step::Reset,
            ["ended"] => Step::Ended,
            ["reconnect"] => Step::Reconnect,
            ["idle"] => Step::Idle,
            _ => return Err("no such step".to_owned()),
        })
    }
}

impl Send {
    fn parse(id: &str, words: &[&str]) -> Result<Self, String> {
        let (kind, rest) = words.split_first().ok_or("a type is missing")?;
        let mut send = Send { bytes: Vec::new(), opens: None };
        for id in ids(id)? {
            let frame = match *kind {
                "end" => Frame::end(id),
                kind => frame(id, kind, rest)?,
            };
            if frame.kind == REQUEST {
                send.opens = send.opens.max(Some(id));
            }
            send.bytes.extend(frame.to_bytes());
        }
        Ok(send)
    }
}

fn frame(id: u32, kind: &str, words: &[&str]) -> Result<Frame, String> {
    let (kind, flags) = kind_and_flags(kind)?;
    let is_method = |word: &&str| word.starts_with(|first: char| first.is_ascii_uppercase());
    let Some((method, words)) = words.split_first().filter(|(first, _)| is_method(first)) else {
        return Ok(Frame::new(id, kind, flags, payload(words.first().unwrap_or(&"-"))?));
    };
    let (service, method) = method.split_once('/').unwrap_or((ConformanceClient::NAME, method));
    let mut request =
        Request { service: service.to_owned(), method: method.to_owned(), ..Request::default() };
    for word in words {
        match word.split_once(':') {
            Some(("timeout", nanos)) => {
                request.timeout_nano = nanos.parse().map_err(|_| "no timeout".to_owned())?;
            }
            Some(("meta", pairs)) => {
                let pairs = metadata(pairs)?.into_iter();
                request.metadata = pairs.map(|(key, value)| KeyValue { key, value }).collect();
            }
            _ => request.payload = payload(word)?,
        }
    }
    Ok(Frame::new(id, kind, flags, request.encode_to_vec()))
}

/// A frame's type and flags.
pub(in super::super) fn kind_and_flags(word: &str) -> Result<(u8, u8), String> {
    let (kind, flags) = word.split_once(':').unwrap_or((word, "0"));
    let kind = match kind {
        "request" => REQUEST,
        "response" => RESPONSE,
        "data" => DATA,
        other => number(other.strip_prefix("type").ok_or("no such type")?)? as u8,
    };
    Ok((kind, number(flags)? as u8))
}

fn ids(word: &str) -> Result<Vec<u32>, String> {
    match word.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (number(first)? as u32, number(last)? as u32);
            Ok((first..=last).step_by(2).collect())
        }
        None => Ok(vec![number(word)? as u32]),
    }
}

fn metadata(pairs: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("metadata is K=V")?;
        Ok((key.to_owned(), value.to_owned()))
    };
    pairs.split(',').map(pair).collect()
}

impl Wanted {
    fn parse(words: &[&str]) -> Result<Self, String> {
        Ok(match words {
            ["ok", "any"] => Wanted::OkAny,
            ["ok", word] => match word.strip_prefix("meta:") {
                Some(pairs) => Wanted::OkMetadata(metadata(pairs)?),
                None => Wanted::Ok(payload(word)?),
            },
            ["error"] => Wanted::Error(None),
            ["error", name] => Wanted::Error(Some(code(name)?)),
            ["data", word] => Wanted::Data(payload(word)?),
            ["end"] => Wanted::End,
            ["nothing"] => Wanted::Nothing,
            _ => return Err(format!("{words:?} is nothing that may come")),
        })
    }

    /// Whether this is it.
    pub(super) fn is(&self, frame: &Frame) -> bool {
        if frame.kind == DATA {
            return match self {
                Wanted::Data(bytes) => frame.flags == 0 && frame.data == *bytes,
                Wanted::End => frame.flags == REMOTE_CLOSED | NO_DATA && frame.data.is_empty(),
                _ => false,
            };
        }
        let Some(response) = frame.try_as_response().filter(|_| frame.flags == 0) else {
            return false;
        };
        let code = response.status.map_or(0, |status| status.code);
        match self {
            Wanted::Ok(bytes) => code == 0 && response.payload == *bytes,
            Wanted::OkAny => code == 0,
            Wanted::OkMetadata(pairs) => {
                code == 0
                    && InspectResponse::decode(&response.payload[..]).is_ok_and(|seen| {
                        let seen = seen.metadata.into_iter().map(|entry| (entry.key, entry.value));
                        seen.eq(pairs.iter().cloned())
                    })
            }
            Wanted::Error(wanted) => code != 0 && wanted.is_none_or(|wanted| wanted as i32 == code),
            Wanted::Data(_) | Wanted::End | Wanted::Nothing => false,
        }
    }
}

/// The code with this name.
pub(in super::super) fn code(name: &str) -> Result<Code, String> {
    let mut codes = (0..=16).map(Code::from_i32);
    codes.find(|code| code.name() == name).ok_or(format!("{name:?} is no code"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_step_by_step() {
        let script = Script::parse("each_cut; > 3 data:1 chunk:2; < 3 error NOT_FOUND / nothing");
        let script = script.unwrap();
        assert_eq!(script.cutting, Cutting::EachCut);
        let bytes = vec![0, 0, 0, 2, 0, 0, 0, 3, 3, 1, 8, 2];
        let send = Step::Send(Send { bytes, opens: None });
        let wanted = vec![Wanted::Error(Some(Code::NotFound)), Wanted::Nothing];
        assert_eq!(script.steps, [send, Step::Expect { ids: vec![3], wanted }]);
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["> 1", "> 1 dato", "< 1", "< 1 ok", "< x end", "dance", "> 1 data chunk:x"] {
            assert!(Script::parse(text).is_err(), "{text}");
        }
    }
}
