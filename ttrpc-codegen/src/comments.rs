//! Comments of a .proto file, made fit for rustdoc.
//!
//! What is code to Markdown is a test to rustdoc, and fails in the user's crate. Lines become code by
//! fences and by their indentation. Of both, fences are made that say `text`; they stand in the first
//! column, since in a list they would end with their item, unseen. Lines that are indented for looks
//! are left alone in a list, and moved to the left elsewhere. What looks like an HTML tag is escaped.

use prost_types::FileDescriptorProto;

/// Columns from which Markdown takes a line for code, counted from where the text around it begins.
const CODE_INDENT: usize = 4;

/// What Markdown takes for the whitespace of a line.
const WHITESPACE: [char; 2] = [' ', '\t'];

/// What rustc refuses in documentation: a carriage return, and what changes the direction of text unseen (the
/// lint `text_direction_codepoint_in_comment`).
const REFUSED: [char; 10] = [
    '\r', '\u{202A}', '\u{202B}', '\u{202C}', '\u{202D}', '\u{202E}', '\u{2066}', '\u{2067}',
    '\u{2068}', '\u{2069}',
];

/// Makes all comments of a file fit for rustdoc.
pub(crate) fn sanitize_file(file: &mut FileDescriptorProto) {
    for location in file.source_code_info.iter_mut().flat_map(|info| &mut info.location) {
        let comments = location.leading_comments.iter_mut().chain(&mut location.trailing_comments);
        for comment in comments {
            *comment = sanitize(comment);
        }
    }
}

/// Makes one comment fit for rustdoc. Doing it twice changes nothing more.
pub(crate) fn sanitize(comment: &str) -> String {
    let mut sanitizer = Sanitizer {
        output: String::with_capacity(comment.len()),
        block: Block::Text,
        is_after_blank: true,
        list_column: None,
    };
    for line in comment.lines() {
        sanitizer.push(&line.replace(REFUSED, ""));
    }
    sanitizer.end_block();
    sanitizer.output
}

/// What the line before belongs to.
enum Block {
    Text,
    /// Code between fences.
    Fenced(Fence),
    /// Code by its indentation, for which a fence was opened.
    Indented,
}

struct Fence {
    marks: String,
    column: usize,
}

struct Sanitizer {
    output: String,
    block: Block,
    is_after_blank: bool,
    /// Where the text of the list item begins that the line before belongs to.
    list_column: Option<usize>,
}

impl Sanitizer {
    fn push(&mut self, line: &str) {
        // Whitespace of other kinds is nothing to rustdoc, and text to Markdown.
        let content = if line.trim().is_empty() { "" } else { line.trim_matches(WHITESPACE) };
        let column = column_of(line);
        match &self.block {
            Block::Fenced(fence) if fence.is_closed_by(content, column) => return self.end_block(),
            Block::Fenced(_) => return self.push_line(line),
            Block::Indented if content.is_empty() || column >= CODE_INDENT => {
                return self.push_line(line);
            }
            Block::Indented => self.end_block(),
            Block::Text => {}
        }
        if let Some(marks) = opening_marks(content) {
            self.begin_block(marks);
            self.block = Block::Fenced(Fence { marks: marks.to_owned(), column });
        } else if content.is_empty() {
            self.push_line("");
            self.is_after_blank = true;
        } else {
            self.push_text(line, column);
        }
    }

    /// A line with something in it, outside of code so far.
    fn push_text(&mut self, line: &str, column: usize) {
        let content = line.trim_start_matches(WHITESPACE);
        let is_in_item =
            self.list_column.is_some_and(|start| (start..start + CODE_INDENT).contains(&column));
        if column >= CODE_INDENT && !is_in_item && self.is_after_blank {
            self.begin_block("```");
            self.block = Block::Indented;
            return self.push_line(line);
        }
        // Behind a line of text it is no code; less indented it is none behind a heading either.
        let column = if is_in_item { column } else { column.min(CODE_INDENT - 1) };
        let is_in_list = self.list_column.is_some_and(|start| column >= start);
        let (markers, text) = split_markers(content);
        // A list that begins in the middle of a paragraph has no other number than 1, an item without
        // text ends at the next blank line, and quotations are too rare to be followed over lines.
        let is_item = match markers.trim_end_matches(WHITESPACE) {
            "" | "1." | "1)" | "-" | "*" | "+" => !markers.is_empty(),
            _ => self.is_after_blank || (self.list_column.is_some() && !is_in_list),
        };
        // What looks like an item can be the line below a table's head, too.
        let has_text = text.chars().any(|char| !"|-: ".contains(char));
        let is_item = is_item && has_text && !markers.contains('>');
        self.list_column = match is_item {
            true => Some(column + markers.len()),
            false => self.list_column.filter(|_| is_in_list),
        };
        self.is_after_blank = false;
        let escape = if opening_marks(text).is_some() { "\\" } else { "" };
        let indent = " ".repeat(column.max(1));
        self.push_line(&format!("{indent}{markers}{escape}{}", escape_tags(text)));
    }

    fn begin_block(&mut self, marks: &str) {
        self.push_line(&format!(" {marks}text"));
        self.list_column = None;
    }

    fn end_block(&mut self) {
        let marks = match std::mem::replace(&mut self.block, Block::Text) {
            Block::Text => return,
            Block::Fenced(fence) => fence.marks,
            Block::Indented => "```".to_owned(),
        };
        self.push_line(&format!(" {marks}"));
        self.is_after_blank = true;
    }

    fn push_line(&mut self, line: &str) {
        self.output.push_str(line);
        self.output.push('\n');
    }
}

/// The column in which a line begins for rustdoc, to which a single space counts as none.
fn column_of(line: &str) -> usize {
    let whitespace = line.chars().take_while(|char| WHITESPACE.contains(char));
    match whitespace.map(|char| if char == '\t' { CODE_INDENT } else { 1 }).sum() {
        1 => 0,
        column => column,
    }
}

/// The backticks or tildes with which a line begins code.
fn opening_marks(content: &str) -> Option<&str> {
    let mark = content.chars().next().filter(|char| matches!(char, '`' | '~'))?;
    let rest = content.trim_start_matches(mark);
    let marks = &content[..content.len() - rest.len()];
    // More backticks in the line make it code within text.
    let is_fence = marks.len() >= 3 && !(mark == '`' && rest.contains(mark));
    is_fence.then_some(marks)
}

impl Fence {
    fn is_closed_by(&self, content: &str, column: usize) -> bool {
        let is_fence = content.starts_with(&self.marks)
            && content.bytes().all(|byte| byte == self.marks.as_bytes()[0]);
        is_fence && column < self.column + CODE_INDENT
    }
}

/// Splits what makes a line a list item or a quotation from its text. So much space between the two
/// that the text would be code is left out.
fn split_markers(content: &str) -> (String, &str) {
    let (mut markers, mut text) = (String::new(), content);
    while let Some(length) = marker_length(text) {
        let (marker, rest) = text.split_at(length);
        text = rest.trim_start_matches(WHITESPACE);
        let space = &rest[..rest.len() - text.len()];
        let is_wide = space.len() > CODE_INDENT || space.contains('\t');
        markers.push_str(marker);
        markers.push_str(if is_wide { " " } else { space });
    }
    (markers, text)
}

fn marker_length(text: &str) -> Option<usize> {
    // Three of them and nothing else are a line across the page.
    let is_rule = |mark| {
        text.chars().all(|char| char == mark || WHITESPACE.contains(&char))
            && text.matches(mark).count() >= 3
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let length = match text.chars().next()? {
        '>' => return Some(1),
        '-' | '*' | '+' if !is_rule('-') && !is_rule('*') => 1,
        _ if (1..10).contains(&digits) && text[digits..].starts_with(['.', ')']) => digits + 1,
        _ => return None,
    };
    text[length..].starts_with(WHITESPACE).then_some(length)
}

/// Escapes tags, but not between backticks, where they are none.
fn escape_tags(line: &str) -> String {
    let mut pieces: Vec<String> = line.split('`').map(str::to_owned).collect();
    let last = pieces.len() - 1;
    for (index, piece) in pieces.iter_mut().enumerate() {
        if index % 2 == 0 || index == last {
            *piece = escape_tags_of_text(piece);
        }
    }
    pieces.join("`")
}

fn escape_tags_of_text(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        output.push_str(before);
        let is_plain = after.starts_with("http") || before.ends_with('\\');
        output.push_str(if is_plain { "<" } else { "\\<" });
        rest = after;
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_becomes(comment: &str, expected: &str) {
        assert_eq!(sanitize(comment), expected);
        assert_eq!(sanitize(expected), expected, "twice changes nothing more");
    }

    #[test]
    fn what_is_plain_text_is_left_alone() {
        let comment = " One.\n\n  - a list\n    that goes on\n\n      - in a list\n Two: `x`.\n";
        assert_becomes(comment, comment);
    }

    #[test]
    fn indented_code_becomes_text() {
        assert_becomes(
            " See:\n\n     let x = y;\n     more\n\n Done.\n",
            " See:\n\n ```text\n     let x = y;\n     more\n\n ```\n Done.\n",
        );
        // Four columns are enough: a comment that is indented by more than one is kept as it is.
        assert_becomes(" See:\n\n    let x;\n", " See:\n\n ```text\n    let x;\n ```\n");
        assert_becomes("\tlet x;\n", " ```text\n\tlet x;\n ```\n");
        assert_becomes(
            " - item\n\n        let x;\n",
            " - item\n\n ```text\n        let x;\n ```\n",
        );
        assert_becomes(" -       let x;\n", " - let x;\n");
        assert_becomes(" >     let x;\n", " > let x;\n");
    }

    /// From the column of an item's text on, less than four columns more are its text.
    #[test]
    fn paragraphs_of_an_item_are_told_from_code_by_their_column() {
        for column in [3, 4, 5] {
            let comment = format!(" - item\n\n{}its text\n", " ".repeat(column));
            assert_becomes(&comment, &comment);
        }
        for column in [6, 7, 8] {
            let code = format!("{}let x;\n", " ".repeat(column));
            let expected = format!(" - item\n\n ```text\n{code} ```\n");
            assert_becomes(&format!(" - item\n\n{code}"), &expected);
        }
    }

    #[test]
    fn a_number_of_ten_digits_or_none_makes_no_item() {
        for marker in ["1234567890.", ")"] {
            let code = format!("{}let x;\n", " ".repeat(marker.len() + 4));
            let text = format!(" {marker} text\n\n");
            assert_becomes(&format!("{text}{code}"), &format!("{text} ```text\n{code} ```\n"));
        }
    }

    #[test]
    fn the_second_item_of_a_list_has_paragraphs_too() {
        let comment = " 5. item\n 6. item\n\n      its text\n";
        assert_becomes(&format!(" text\n\n{comment}"), &format!(" text\n\n{comment}"));
    }

    #[test]
    fn a_fence_that_is_indented_like_code_ends_none() {
        assert_becomes(" ```text\n code\n   ```\n", " ```text\n code\n ```\n");
        assert_becomes(" ```text\n code\n    ```\n", " ```text\n code\n    ```\n ```\n");
    }

    #[test]
    fn a_line_across_the_page_is_no_item_and_three_marks_with_text_are_some() {
        for rule in [" - - -\n", " *      *      *\n"] {
            assert_becomes(rule, rule);
        }
        let items = " - - - item\n\n         its text\n";
        assert_becomes(items, items);
    }

    #[test]
    fn a_paragraph_that_is_indented_a_little_is_no_item() {
        assert_becomes("  text\n\n     let x;\n", "  text\n\n ```text\n     let x;\n ```\n");
    }

    #[test]
    fn numbers_make_items_and_in_the_middle_of_a_paragraph_the_first_alone() {
        for item in ["1. item", "7) item", "10. item", "123456789. item"] {
            let text = format!(" {item}\n\n{}its text\n", " ".repeat(item.len() - 4));
            assert_becomes(&text, &text);
        }
        for first in ["1. item", "1) item"] {
            let text = format!(" text\n {first}\n\n     its text\n");
            assert_becomes(&text, &text);
        }
        for no_item in ["2. more", "1234567890. more", "1.more", "1: more"] {
            assert_becomes(
                &format!(" text\n {no_item}\n\n     let x;\n"),
                &format!(" text\n {no_item}\n\n ```text\n     let x;\n ```\n"),
            );
        }
    }

    #[test]
    fn lines_across_the_page_are_no_items() {
        for line in ["* * *", "***", "- - -", "**  *"] {
            assert_becomes(
                &format!(" {line}\n\n     let x;\n"),
                &format!(" {line}\n\n ```text\n     let x;\n ```\n"),
            );
        }
        let items = " + + item\n\n     its text\n";
        assert_becomes(items, items);
    }

    #[test]
    fn four_spaces_behind_a_marker_stay_and_more_do_not() {
        assert_becomes(" -    item\n", " -    item\n");
        assert_becomes(" -     item\n", " - item\n");
        assert_becomes(" -\titem\n", " - item\n");
    }

    /// What closes a fence is indented by less than four columns more than what opened it.
    #[test]
    fn a_fence_that_is_indented_like_code_closes_nothing() {
        assert_becomes(" ```\n     ```\n x\n ```\n", " ```text\n     ```\n x\n ```\n");
        assert_becomes(" ```\n   ```\n x\n", " ```text\n ```\n x\n");
    }

    #[test]
    fn lines_that_are_indented_for_looks_stay_text() {
        assert_becomes(" # Title\n      let x;\n", " # Title\n   let x;\n");
        assert_becomes(" name: what it is\n       and more\n", " name: what it is\n   and more\n");
    }

    #[test]
    fn fenced_code_becomes_text_in_every_dialect() {
        for info in ["", "rust", " no_run", "should_panic", "edition2021", "ignore", "json"] {
            let comment = format!(" ```{info}\n x\n ```\n");
            assert_becomes(&comment, " ```text\n x\n ```\n");
        }
        assert_becomes(" ~~~\n x\n ~~~\n y\n", " ~~~text\n x\n ~~~\n y\n");
        assert_becomes(" ````\n ```\n x\n ````\n", " ````text\n ```\n x\n ````\n");
        assert_becomes(" - item\n   ```\n   x\n   ```\n", " - item\n ```text\n   x\n ```\n");
        assert_becomes(" > ```\n > x\n > ```\n", " > \\```\n > x\n > \\```\n");
        assert_becomes(" ```not``` a fence\n", " ```not``` a fence\n");
    }

    #[test]
    fn a_fence_that_is_not_closed_is_closed() {
        assert_becomes(" ```rust\n x\n", " ```text\n x\n ```\n");
    }

    #[test]
    fn tags_are_escaped_and_links_and_code_are_not() {
        assert_becomes(" a <b> <http://c> `d<e>`\n", " a \\<b> <http://c> `d<e>`\n");
        assert_becomes(" `a<b>` c<d> `e<f>`\n", " `a<b>` c\\<d> `e<f>`\n");
        // A backtick without another one behind it begins no code.
        assert_becomes(" a ` b<c>\n", " a ` b\\<c>\n");
    }

    #[test]
    fn carriage_returns_are_left_out() {
        assert_becomes(" a\r b\r\n", " a b\n");
    }

    #[test]
    fn what_changes_the_direction_of_text_is_left_out() {
        let directions = "\u{202A}\u{202B}\u{202C}\u{202D}\u{202E}\u{2066}\u{2067}\u{2068}\u{2069}";
        for direction in directions.chars() {
            assert_becomes(&format!(" a {direction}b c\n"), " a b c\n");
        }
    }
}
