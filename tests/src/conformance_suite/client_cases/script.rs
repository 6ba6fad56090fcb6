//! The language of the client's cases: steps between semicolons.
//!
//! | step | meaning |
//! |---|---|
//! | `call ID METHOD [PAYLOAD] [timeout:MILLIS]` | the client begins a call; its Request has to come with this id, and as its kind of call demands |
//! | `refused METHOD PAYLOAD CODE` | a call fails with this code before anything is sent |
//! | `send ID PAYLOAD`, `send ID fails CODE` | the client sends a message on the call's stream, which works or fails |
//! | `finish ID`, `drop ID` | the client closes its side, or gives the call up |
//! | `returns ID PAYLOAD`, `fails ID CODE` | the call's one reply is this, or it fails |
//! | `recv ID PAYLOAD`, `recv ID end`, `recv ID fails CODE` | the next that the call's stream gives |
//! | `< ID TYPE[:FLAGS] PAYLOAD` | the client's next frame is this one |
//! | `quiet` | nothing comes from the client while nothing is asked of it |
//! | `open N` | so many calls are in flight |
//! | `> ID TYPE[:FLAGS] [PAYLOAD]` | the server sends a frame; TYPE is `request`, `response`, `data` or `typeN` |
//! | `> ID ok PAYLOAD`, `> ID error CODE`, `> ID end` | the server answers, fails the call, closes its side |
//! | `> ID status_ok PAYLOAD` | the server answers with a status that says that all is well |
//! | `header LEN ID TYPE[:FLAGS]`, `zeros N` | the server sends a header alone, and bytes of zero |
//! | `close` | the server closes the connection |
//! | `wait MILLIS` | time passes |
//!
//! PAYLOAD is a word of [`payload`](super::super::payload). A connection that is open at the end must
//! be alive.

use std::time::Duration;

use ttrpc::{Code, prost::Message};

use super::super::{
    payload::{number, payload},
    wire_cases::{code, kind_and_flags},
};
use crate::wire::{Frame, RESPONSE, Response, Status, header};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Call { id: u32, method: String, request: Vec<u8>, timeout: Option<Duration> },
    Refused { method: String, request: Vec<u8>, code: Code },
    Send { id: u32, message: Vec<u8> },
    SendFails { id: u32, code: Code },
    Finish(u32),
    Drop(u32),
    Reply { id: u32, wanted: Wanted },
    Receive { id: u32, wanted: Wanted },
    Comes(Frame),
    Quiet,
    Open(usize),
    Bytes(Vec<u8>),
    Close,
    Wait(Duration),
}

/// What a caller gets to see.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    Message(Vec<u8>),
    End,
    Fails(Code),
}

impl Step {
    /// # Errors
    /// What is wrong with the step.
    pub(super) fn parse(step: &str) -> Result<Self, String> {
        let words: Vec<_> = step.split_whitespace().collect();
        let id = || number(words[1]).map(|id| id as u32);
        Ok(match &words[..] {
            ["call", _, method, rest @ ..] => {
                let (timeout, rest) = match rest {
                    [first @ .., last] if last.starts_with("timeout:") => {
                        (Some(millis(&last["timeout:".len()..])?), first)
                    }
                    _ => (None, rest),
                };
                let request = payload(rest.first().unwrap_or(&"-"))?;
                Step::Call { id: id()?, method: (*method).to_owned(), request, timeout }
            }
            ["refused", method, request, name] => Step::Refused {
                method: (*method).to_owned(),
                request: payload(request)?,
                code: code(name)?,
            },
            ["send", _, "fails", name] => Step::SendFails { id: id()?, code: code(name)? },
            ["send", _, message] => Step::Send { id: id()?, message: payload(message)? },
            ["finish", _] => Step::Finish(id()?),
            ["drop", _] => Step::Drop(id()?),
            ["returns", _, message] => {
                Step::Reply { id: id()?, wanted: Wanted::Message(payload(message)?) }
            }
            ["fails", _, name] => Step::Reply { id: id()?, wanted: Wanted::Fails(code(name)?) },
            ["recv", _, "end"] => Step::Receive { id: id()?, wanted: Wanted::End },
            ["recv", _, "fails", name] => {
                Step::Receive { id: id()?, wanted: Wanted::Fails(code(name)?) }
            }
            ["recv", _, message] => {
                Step::Receive { id: id()?, wanted: Wanted::Message(payload(message)?) }
            }
            ["<", _, rest @ ..] => Step::Comes(frame(id()?, rest)?),
            [">", _, rest @ ..] => Step::Bytes(frame(id()?, rest)?.to_bytes()),
            ["header", len, of, kind] => {
                let (kind, flags) = kind_and_flags(kind)?;
                Step::Bytes(header(number(len)? as u32, number(of)? as u32, kind, flags))
            }
            ["zeros", count] => Step::Bytes(vec![0; number(count)? as usize]),
            ["quiet"] => Step::Quiet,
            ["open", count] => Step::Open(number(count)? as usize),
            ["close"] => Step::Close,
            ["wait", time] => Step::Wait(millis(time)?),
            _ => return Err("no such step".to_owned()),
        })
    }
}

fn millis(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(text)?))
}

fn frame(id: u32, words: &[&str]) -> Result<Frame, String> {
    let response = |status: Option<Status>, payload: Vec<u8>| {
        Frame::new(id, RESPONSE, 0, Response { status, payload }.encode_to_vec())
    };
    Ok(match words {
        ["end"] => Frame::end(id),
        ["ok", message] => response(None, payload(message)?),
        ["status_ok", message] => response(Some(Status::default()), payload(message)?),
        ["error", name] => Frame::failure(id, code(name)? as i32, "as the script says"),
        [kind, data @ ..] => {
            let (kind, flags) = kind_and_flags(kind)?;
            Frame::new(id, kind, flags, payload(data.first().unwrap_or(&"-"))?)
        }
        [] => return Err("a type is missing".to_owned()),
    })
}
