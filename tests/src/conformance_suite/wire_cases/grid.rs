//! Every frame type with every combination of flags in every state of a stream.

use super::WireCase;

/// States: a name, the stream in question, and how it gets into the state.
const STATES: [(&str, u32, &str); 10] = [
    ("fresh", 1, ""),
    ("even", 2, ""),
    ("zero", 0, ""),
    ("unary", 1, "> 1 request Wait key:never"),
    ("open", 1, "> 1 request:2 Collect"),
    ("replying", 1, "> 1 request:1 Generate generate:2,3600000000; < 1 data chunk:0"),
    (
        "half_closed",
        1,
        "> 1 request:2 Generate; > 1 data generate:2,3600000000; > 1 end; < 1 data chunk:0 / end; < 1 nothing / error",
    ),
    ("finished", 1, "> 1 request Echo echo:x; < 1 ok echo:x"),
    ("finished_stream", 1, "> 1 request:2 Exchange; > 1 end; < 1 end / ok -"),
    ("refused", 1, "> 1 request:2 NoSuchMethod; < 1 error UNIMPLEMENTED / error"),
];

/// What a server does with a frame: its state, what is sent, and a letter of [`expectation`] for the
/// flags from 0 to 7. Flags above those have no meaning and must not change anything, so each is
/// tried alone and with all of them.
#[rustfmt::skip]
const ROWS: &[(&str, &str, [&str; 8])] = &[
    ("fresh",           "request Echo echo:x",  ["R", "r", "e", "e", "r", "r", "e", "e"]),
    ("fresh",           "request Collect",      ["e", "C", "c", "c", "e", "C", "c", "c"]),
    ("fresh",           "request Exchange",     ["e", "X", "x", "x", "e", "X", "x", "x"]),
    ("fresh",           "request Generate",     ["e", "G", "g", "g", "e", "G", "g", "g"]),
    ("fresh",           "request NoSuchMethod", ["U", "U", "U", "U", "U", "U", "U", "U"]),
    ("even",            "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("zero",            "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("unary",           "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("open",            "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("replying",        "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("half_closed",     "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("finished",        "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("finished_stream", "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("refused",         "request Echo echo:x",  ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("fresh",           "data chunk:0",         ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("even",            "data chunk:0",         ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("zero",            "data chunk:0",         ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("unary",           "data chunk:0",         ["d", "d", "d", "d", "d", "d", "d", "d"]),
    ("open",            "data chunk:0",         ["1", "L", "1", "L", "0", "Z", "0", "Z"]),
    ("replying",        "data chunk:0",         ["d", "d", "d", "d", "d", "i", "d", "i"]),
    ("half_closed",     "data chunk:0",         ["d", "d", "d", "d", "d", "i", "d", "i"]),
    ("finished",        "data chunk:0",         ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("finished_stream", "data chunk:0",         ["E", "E", "E", "E", "E", "E", "E", "E"]),
    ("refused",         "data chunk:0",         ["i", "i", "i", "i", "i", "i", "i", "i"]),
];

/// Types that mean nothing to a server, in whatever state the stream is: a Response, which is a
/// server's to send, and those that no version knows. Only where the id itself is wrong may a server
/// say so.
const MEANINGLESS: [&str; 5] = ["response", "type0", "type4", "type16", "type255"];

/// The flags whose bits have no meaning in any frame.
const UNKNOWN_FLAGS: u8 = 0xf8;

/// What follows the frame; the stream's id goes where the hash is.
fn expectation(letter: &str) -> &'static str {
    match letter {
        // A call is answered, or, where its flags are odd, refused; or the other way round.
        "R" => "< # ok echo:x",
        "r" => "< # ok echo:x / error",
        "e" => "< # error INVALID_ARGUMENT / error / ok any / end / nothing",
        "U" => "< # error UNIMPLEMENTED / error",
        // The frame has to be refused on its id.
        "E" => "< # error INVALID_ARGUMENT / error",
        // The frame breaks the rules of a stream that is there.
        "d" => "< # error INVALID_ARGUMENT / error / nothing",
        // What comes after an early end is dropped, and so is a close that comes once more; but a
        // server may have forgotten the stream, or be strict.
        "i" => "< # nothing / error",
        "." => "< # nothing",
        // A stream of requests opens closed, or open.
        "C" => "< # ok count:0 / ok any / error / nothing",
        "c" => "> # end; < # ok count:0 / ok any / error / nothing",
        "X" => "< # end / ok - / error / nothing",
        "x" => "> # end; < # end / ok - / error / nothing",
        // The one request has come, empty; or it has not.
        "G" => "< # end / ok - / error / nothing",
        "g" => "> # end; < # error INVALID_ARGUMENT / error / end / ok - / nothing",
        // A stream of requests has got one message, one and its end, none, or its end.
        "1" => "> # end; < # ok count:1",
        "L" => "< # ok count:1 / error",
        "0" => "> # end; < # ok count:0",
        "Z" => "< # ok count:0",
        other => panic!("{other:?} is no expectation"),
    }
}

/// A case for each row.
pub(super) fn cases() -> impl Iterator<Item = WireCase> {
    let rows = ROWS.iter().map(|&(state, sent, letters)| case(state, sent, letters));
    let meaningless = STATES.iter().flat_map(|&(state, id, _)| {
        let letter = if id % 2 == 0 { "i" } else { "." };
        MEANINGLESS.map(|sent| case(state, sent, [letter; 8]))
    });
    rows.chain(meaningless)
}

fn case(state: &str, sent: &str, letters: [&str; 8]) -> WireCase {
    let known = STATES.iter().find(|(name, ..)| *name == state);
    let &(_, id, setup) = known.unwrap_or_else(|| panic!("{state:?} is no state"));
    let (kind, carried) = sent.split_once(' ').unwrap_or((sent, "hex:ffff"));
    let mut scripts = Vec::new();
    for (flags, letter) in (0..).zip(letters) {
        for flags in [flags, flags | UNKNOWN_FLAGS] {
            // A frame that says that it carries nothing carries nothing.
            let is_bare = kind == "data" && flags & 4 != 0;
            let carried = if is_bare { "-" } else { carried };
            let expected = expectation(letter).replace('#', &id.to_string());
            let text = format!("{setup}; > {id} {kind}:{flags:#x} {carried}; {expected}");
            scripts.push((format!("flags {flags:#04x}"), text));
        }
    }
    let what = match carried.split(' ').next() {
        Some(method) if kind == "request" => format!("{kind}_{method}").to_lowercase(),
        _ => kind.to_owned(),
    };
    WireCase { name: format!("grid/{state}/{what}"), scripts }
}
