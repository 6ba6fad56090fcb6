use std::time::Duration;

use serde_json::Value;

use unicode_width::UnicodeWidthStr;

use super::{
    table::{prefix, suffix},
    text::only_styles,
    *,
};

#[test]
fn quantities_are_short() {
    assert_eq!([bytes(0), bytes(1023), bytes(1536)], ["0 B", "1023 B", "1.5 KiB"]);
    let of = |nanos| duration(Duration::from_nanos(nanos));
    assert_eq!([of(5), of(1_234), of(56_700_000)], ["5 ns", "1.23 µs", "56.7 ms"]);
    assert_eq!(of(1_500_000_000), "1.50 s");
}

#[test]
fn tables_fit_the_terminal() {
    let rows = [
        vec![Cell::text("a"), Cell::number(5), Cell::text("short")],
        vec![Cell::text("long"), Cell::number(50), Cell::text("longer than there is room")],
    ];
    let plain = |columns| -> Vec<String> {
        let lines = table(&rows, columns);
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    };
    assert_eq!(plain(None)[0], "a      5  short");
    assert!(plain(Some(20)).iter().all(|line| line.chars().count() <= 20));
    assert!(plain(Some(3)).iter().all(|line| line.chars().count() <= 3));
}

#[test]
fn names_leave_room_for_figures() {
    let name = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let rows = [vec![Cell::name(name), Cell::number(12)], vec![Cell::name("a"), Cell::number(1)]];
    let line = table(&rows, Some(34)).swap_remove(0);
    let line = anstream::adapter::strip_str(&line).to_string();
    assert_eq!(line, "…flection/ServerReflectionInfo  12");
}

#[test]
fn what_is_left_out_has_a_sign() {
    let of = |columns| {
        let row = [Cell::beginning("0123456789abcdef", 8), Cell::number(123)];
        let line = table(&[row.to_vec()], Some(columns)).swap_remove(0);
        anstream::adapter::strip_str(&line).to_string()
    };
    assert_eq!(of(21), "0123456789abcdef  123");
    assert_eq!(of(15), "012345678…  123");
    assert_eq!(of(12), "0123456…  1…");
    assert_eq!(of(9), "0123456……");
}

#[test]
fn a_column_is_as_wide_as_a_terminal_shows_it() {
    let rows = [
        vec![Cell::name("容器的名字"), Cell::number(1)],
        vec![Cell::name("e\u{301}ab"), Cell::number(12)],
    ];
    let lines = |columns| -> Vec<String> {
        let lines = table(&rows, columns).into_iter();
        lines.map(|line| anstream::adapter::strip_str(&line).to_string()).collect()
    };
    assert_eq!(lines(None), ["容器的名字   1", "e\u{301}ab         12"]);
    for columns in 3..14 {
        assert!(lines(Some(columns)).iter().all(|line| line.width() <= columns), "{columns}");
    }
    assert_eq!((prefix("容器", 3), suffix("容器", 3), prefix("", 1)), ("容", "器", ""));
}

#[test]
fn nothing_that_a_terminal_acts_on_is_left_in_a_text() {
    let unsafe_ones = (0..0x20).chain(0x7f..0xa0).chain(0x202a..0x202f).chain(0x2066..0x206a);
    let unsafe_ones = unsafe_ones.chain([0x61c, 0x200e, 0x200f, 0x2028, 0x2029, 0xe0041]);
    // What nobody sees: spaces without a width, fillers, a mark of the bytes' order.
    let unsafe_ones = unsafe_ones.chain([0xad, 0x34f, 0x115f, 0x180e, 0x200b, 0x2060, 0x2064]);
    let unsafe_ones = unsafe_ones.chain([0x3164, 0xfeff, 0xffa0, 0x1d173, 0xe0100]);
    for character in unsafe_ones.filter_map(char::from_u32) {
        let text = format!("a{character}[2Jb");
        assert!(!plain_line(&text).contains(character), "{character:?}");
        assert_eq!(only_styles(&text).contains(character), "\n\t".contains(character));
        let value = Value::from(text);
        assert!(!json(&value).contains(character) && !pretty_json(&value).contains(character));
        assert_eq!(serde_json::from_str::<Value>(&json(&value)).unwrap(), value);
    }
    let painted = paint(BAD, "a\u{1b}]0;t\u{7}");
    assert_eq!(only_styles(&painted), paint(BAD, "a\\u{1b}]0;t\\u{7}"));
    // Words are left as they are, also those that are joined by what has no width.
    let words = "é 容 👩\u{200d}🚀 ☎\u{fe0f} می\u{200c}خواهم";
    assert_eq!(plain(words), words);
    assert_eq!(json(&words.into()), format!("\"{words}\""));
    // In a name they would be one that looks like another.
    assert_eq!(plain_line("ad\u{200d}min"), "ad\\u{200d}min");
}

#[test]
fn a_cell_is_one_line_of_text() {
    let row = vec![Cell::name("a\nb\u{1b}[31m"), Cell::text("c\td")];
    let line = table(&[row], None).swap_remove(0);
    assert_eq!(anstream::adapter::strip_str(&line).to_string(), "a\\nb\\u{1b}[31m  c\\td");
    assert_eq!(plain("a\nb\u{9b}31m"), "a\nb\\u{9b}31m");
}
