//! Comments of a .proto file, made fit for rustdoc.
//!
//! What is code to Markdown would be a test to rustdoc, and fail in the user's crate: indented lines
//! and fences without a language are marked as text. What looks like an HTML tag is escaped.

use prost_types::FileDescriptorProto;

/// Spaces from which Markdown takes a line for code, counted behind the comment's first space.
const CODE_INDENT: usize = 4;

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
    let mut output = String::with_capacity(comment.len());
    let mut block = Block::Text;
    let mut is_after_blank = true;
    for line in comment.lines() {
        let content = line.strip_prefix(' ').unwrap_or(line);
        let is_fence = content.trim_start().starts_with("```");
        let is_code = content.starts_with('\t') || content.starts_with(&" ".repeat(CODE_INDENT));
        if block == Block::Indented && !is_code && !content.trim().is_empty() {
            output.push_str(" ```\n");
            block = Block::Text;
        }
        match block {
            Block::Fenced if is_fence => block = Block::Text,
            Block::Text if is_fence => {
                block = Block::Fenced;
                push_line(&mut output, &with_language(line));
                continue;
            }
            Block::Text if is_code && is_after_blank => {
                block = Block::Indented;
                output.push_str(" ```text\n");
            }
            Block::Text | Block::Fenced | Block::Indented => {}
        }
        match block {
            Block::Text if !is_fence => push_line(&mut output, &escape_tags(line)),
            _ => push_line(&mut output, line),
        }
        is_after_blank = content.trim().is_empty();
    }
    if block != Block::Text {
        output.push_str(" ```\n");
    }
    output
}

#[derive(Clone, Copy, PartialEq)]
enum Block {
    Text,
    Fenced,
    Indented,
}

fn push_line(output: &mut String, line: &str) {
    output.push_str(line);
    output.push('\n');
}

/// An opening fence that says that what follows is no Rust.
fn with_language(line: &str) -> String {
    let language = line.trim_start().trim_start_matches('`').trim();
    match language.is_empty() || language.starts_with("rust") {
        true => " ```text".to_owned(),
        false => line.to_owned(),
    }
}

fn escape_tags(line: &str) -> String {
    let mut output = String::with_capacity(line.len());
    let mut rest = line;
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

    #[test]
    fn what_is_plain_text_is_left_alone() {
        let comment = " One.\n\n  - a list\n    that goes on\n Two: `x`.\n";
        assert_eq!(sanitize(comment), comment);
    }

    #[test]
    fn what_would_be_a_doctest_becomes_text() {
        let comment = " See:\n\n     let x = y;\n     more\n\n Done.\n ```\n code\n ```\n";
        let expected = " See:\n\n ```text\n     let x = y;\n     more\n\n ```\n Done.\n \
                        ```text\n code\n ```\n";
        assert_eq!(sanitize(comment), expected);
        assert_eq!(sanitize(expected), expected);
    }

    #[test]
    fn a_fence_that_is_not_closed_is_closed() {
        assert_eq!(sanitize(" ```rust\n x\n"), " ```text\n x\n ```\n");
    }

    #[test]
    fn tags_are_escaped_and_links_are_not() {
        assert_eq!(sanitize(" a <b> <http://c>\n"), " a \\<b> <http://c>\n");
    }
}
