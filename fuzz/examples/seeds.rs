//! Writes the seeds of the targets `server` and `client`: `cargo run --example seeds`, in this
//! folder. Those of `generator` are written by hand.

use std::{fs, io, path::Path};

use ttrpc_fuzz::{frame, request};

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 5;
const OPEN: u8 = 2;
const CLOSED: u8 = 1;

/// A conversation: its name, and its frames.
type Conversation = (&'static str, Vec<Vec<u8>>);

/// A message with one string.
fn text(text: &str) -> Vec<u8> {
    match text.len() {
        0 => Vec::new(),
        len => [&[0x0a, len as u8], text.as_bytes()].concat(),
    }
}

fn call(id: u32, flags: u8, method: &str, payload: &str) -> Vec<u8> {
    frame(id, REQUEST, flags, &request(method, &text(payload), 0))
}

fn said_by_clients() -> Vec<Conversation> {
    let data = |id, payload| frame(id, DATA, 0, &text(payload));
    let end = |id| frame(id, DATA, END, &[]);
    let late = frame(5, REQUEST, 0, &request("w", &[], 100));
    let negative = [&request("e", &[], 0)[..], &[0x20], &[0xff; 9], &[1]].concat();
    let metadata = [&request("e", &[], 0)[..], &[0x2a, 6, 0x0a, 1, b'k', 0x12, 1, b'v']].concat();
    vec![
        ("unary", vec![call(1, 0, "e", "hello"), call(3, 0, "p", ""), call(5, 0, "?", "")]),
        ("waiting", (0..9).map(|n| call(2 * n + 1, 0, "w", "")).collect()),
        ("ending", vec![call(1, 0, "s", "a"), call(3, 0, "t", ""), late]),
        ("generating", vec![call(1, CLOSED, "g", "0123456789"), call(3, CLOSED, "g", "x")]),
        ("collecting", vec![call(1, OPEN, "c", ""), data(1, "a"), data(1, "b"), end(1)]),
        ("exchanging", vec![call(1, OPEN, "x", ""), data(1, "a"), end(1), data(1, "late")]),
        ("holding", [vec![call(1, OPEN, "h", "")], vec![data(1, ""); 6], vec![end(1)]].concat()),
        ("timing out", vec![frame(1, REQUEST, 0, &negative), frame(3, REQUEST, 0, &metadata)]),
        (
            "breaking rules",
            vec![call(2, 0, "e", ""), call(3, 0, "w", ""), call(3, 0, "w", ""), data(9, "?")],
        ),
    ]
}

fn said_by_servers() -> Vec<Conversation> {
    let data = |id, payload| frame(id, DATA, 0, &text(payload));
    let end = |id| frame(id, DATA, END, &[]);
    let reply = |id, payload: &str| {
        let payload = text(payload);
        frame(id, RESPONSE, 0, &[&[0x12, payload.len() as u8], &payload[..]].concat())
    };
    let failure = |id| frame(id, RESPONSE, 0, &[0x0a, 6, 0x08, 5, 0x12, 2, b'n', b'o']);
    vec![
        ("answers", vec![reply(1, "hello"), failure(3), reply(5, "3 chunks"), failure(7)]),
        ("streams", vec![data(3, "a"), data(3, "b"), end(3), data(7, "c"), end(7)]),
        ("an early end", vec![failure(5), failure(7), frame(1, RESPONSE, 0, &[])]),
        ("a flood", (0..9).flat_map(|_| [data(11, "0123456789"), data(3, "a")]).collect()),
        ("a response in place of an end", vec![data(3, "a"), frame(3, RESPONSE, 0, &[])]),
        ("wrong kinds", vec![data(1, "a"), reply(3, "b"), end(5), end(1), frame(1, 9, 255, b"x")]),
    ]
}

fn write(folder: &str, conversations: Vec<Conversation>) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(folder);
    fs::create_dir_all(&folder)?;
    for (number, (name, frames)) in conversations.into_iter().enumerate() {
        let name = name.replace(' ', "-");
        // Framed, read at once, in a wide pipe; the fuzzer finds the other choices.
        let choice = [[0x18, 0x1c][number % 2]];
        fs::write(folder.join(name), [&choice[..], &frames.concat()].concat())?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    write("server", said_by_clients())?;
    write("client", said_by_servers())
}
