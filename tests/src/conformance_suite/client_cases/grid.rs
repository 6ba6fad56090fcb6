//! Every frame type with every combination of flags in every state of a client's stream.

use super::ClientCase;

/// States: a name, the stream in question, how it gets into the state, and how it goes on from there
/// when nothing has happened.
#[rustfmt::skip]
const STATES: [(&str, u32, &str, &str); 12] = [
    ("unary",           1, "call 1 Echo echo:x",                          "open 1; > 1 ok echo:x; returns 1 echo:x"),
    ("upload",          1, "call 1 Collect",                              "open 1; send 1 chunk:2; < 1 data chunk:2; > 1 ok count:1; returns 1 count:1"),
    ("upload_closed",   1, "call 1 Collect; finish 1; < 1 end",           "open 1; > 1 ok count:1; returns 1 count:1"),
    ("replies",         1, "call 1 Generate generate:1",                  "open 1; > 1 data chunk:6; recv 1 chunk:6; > 1 end; recv 1 end"),
    ("exchange",        1, "call 1 Exchange",                             "open 1; > 1 data chunk:6; recv 1 chunk:6; finish 1; < 1 end; > 1 end; recv 1 end"),
    ("exchange_closed", 1, "call 1 Exchange; finish 1; < 1 end",          "open 1; > 1 data chunk:6; recv 1 chunk:6; > 1 end; recv 1 end"),
    ("remote_closed",   1, "call 1 Exchange; > 1 end; recv 1 end",        "open 1; send 1 chunk:2; < 1 data chunk:2; finish 1; < 1 end; open 0"),
    ("finished",        1, "call 1 Echo echo:x; > 1 ok echo:x; returns 1 echo:x", "open 0; quiet"),
    ("dropped",         1, "call 1 Generate generate:1; drop 1",          "open 0; quiet"),
    ("unknown",         9, "call 1 Echo echo:x",                          "open 1; > 1 ok echo:x; returns 1 echo:x"),
    ("even",            2, "call 1 Echo echo:x",                          "open 1; > 1 ok echo:x; returns 1 echo:x"),
    ("zero",            0, "call 1 Echo echo:x",                          "open 1; > 1 ok echo:x; returns 1 echo:x"),
];

/// What a client does with a frame: its state, what is sent, and a letter of [`expectation`] for the
/// flags from 0 to 7. Flags above those have no meaning and must not change anything.
#[rustfmt::skip]
const ROWS: &[(&str, &str, [&str; 8])] = &[
    ("unary",           "data chunk:5", ["V", "V", "V", "V", "V", "V", "V", "V"]),
    ("upload",          "data chunk:5", ["V", "V", "V", "V", "V", "V", "V", "V"]),
    ("upload_closed",   "data chunk:5", ["V", "V", "V", "V", "V", "V", "V", "V"]),
    ("replies",         "data chunk:5", ["M", "L", "M", "L", ".", "Z", ".", "Z"]),
    ("exchange",        "data chunk:5", ["M", "S", "M", "S", ".", "T", ".", "T"]),
    ("exchange_closed", "data chunk:5", ["M", "L", "M", "L", ".", "Z", ".", "Z"]),
    ("remote_closed",   "data chunk:5", ["W", "W", "W", "W", "W", ".", "W", "."]),
    ("finished",        "data chunk:5", [".", ".", ".", ".", ".", ".", ".", "."]),
    ("dropped",         "data chunk:5", [".", ".", ".", ".", ".", ".", ".", "."]),
    ("unknown",         "data chunk:5", [".", ".", ".", ".", ".", ".", ".", "."]),
    ("even",            "data chunk:5", [".", ".", ".", ".", ".", ".", ".", "."]),
    ("zero",            "data chunk:5", [".", ".", ".", ".", ".", ".", ".", "."]),
    ("unary",           "response -",   ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("upload",          "response -",   ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("upload_closed",   "response -",   ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("replies",         "response -",   ["Z", "Z", "Z", "Z", "Z", "Z", "Z", "Z"]),
    ("exchange",        "response -",   ["C", "C", "C", "C", "C", "C", "C", "C"]),
    ("exchange_closed", "response -",   ["Z", "Z", "Z", "Z", "Z", "Z", "Z", "Z"]),
    ("remote_closed",   "response -",   ["K", "K", "K", "K", "K", "K", "K", "K"]),
    ("finished",        "response -",   [".", ".", ".", ".", ".", ".", ".", "."]),
    ("dropped",         "response -",   [".", ".", ".", ".", ".", ".", ".", "."]),
    ("unknown",         "response -",   [".", ".", ".", ".", ".", ".", ".", "."]),
    ("even",            "response -",   [".", ".", ".", ".", ".", ".", ".", "."]),
    ("zero",            "response -",   [".", ".", ".", ".", ".", ".", ".", "."]),
];

/// Types that mean nothing to a client, in whatever state the stream is: a Request, which is a
/// client's to send, and those that no version knows.
const MEANINGLESS: [&str; 5] = ["request", "type0", "type4", "type16", "type255"];

/// The flags whose bits have no meaning in any frame.
const UNKNOWN_FLAGS: u8 = 0xf8;

/// What the caller gets to see; `None` where nothing has happened and the call goes on.
fn expectation(letter: &str) -> Option<&'static str> {
    Some(match letter {
        "." => return None,
        // The frame breaks the rules of the stream: the call fails, and no other one does.
        "V" => "fails 1 INTERNAL; open 0",
        "W" => "send 1 fails INTERNAL; open 0",
        // A message; one that is the last; and the end without one.
        "M" => "recv 1 chunk:5; open 1; > 1 end; recv 1 end",
        "L" => "recv 1 chunk:5; recv 1 end; open 0",
        "Z" => "recv 1 end; open 0",
        // The server's side has ended, and this one may go on.
        "S" => {
            "recv 1 chunk:5; recv 1 end; open 1; send 1 chunk:2; < 1 data chunk:2; finish 1; < 1 end; open 0"
        }
        "T" => "recv 1 end; open 1; send 1 chunk:2; < 1 data chunk:2; finish 1; < 1 end; open 0",
        // A Response of no bytes is a reply of no bytes, and an end of both sides.
        "E" => "returns 1 -; open 0",
        "C" => "recv 1 end; send 1 fails CANCELLED; finish 1; quiet; open 0",
        "K" => "send 1 fails CANCELLED; finish 1; quiet; open 0",
        other => panic!("{other:?} is no expectation"),
    })
}

/// A case for each cell.
pub(super) fn cases() -> impl Iterator<Item = ClientCase> {
    let rows = ROWS.iter().flat_map(|&(state, sent, letters)| row(state, sent, letters));
    let meaningless = STATES.iter().flat_map(|&(state, ..)| {
        MEANINGLESS.into_iter().flat_map(move |kind| row(state, kind, ["."; 8]))
    });
    rows.chain(meaningless)
}

fn row(state: &str, sent: &str, letters: [&str; 8]) -> Vec<ClientCase> {
    let known = STATES.iter().find(|(name, ..)| *name == state);
    let &(_, id, setup, goes_on) = known.unwrap_or_else(|| panic!("{state:?} is no state"));
    let (kind, carried) = sent.split_once(' ').unwrap_or((sent, "hex:ffff"));
    let mut cases = Vec::new();
    for (flags, letter) in (0..).zip(letters) {
        for flags in [flags, flags | UNKNOWN_FLAGS] {
            // A frame that says that it carries nothing carries nothing.
            let carried = if kind == "data" && flags & 4 != 0 { "-" } else { carried };
            let expected = expectation(letter).unwrap_or(goes_on);
            let text = format!("{setup}; > {id} {kind}:{flags:#x} {carried}; {expected}");
            cases.push(ClientCase::parse(&format!("grid/{state}/{kind}/{flags:#04x}"), &text));
        }
    }
    cases
}
