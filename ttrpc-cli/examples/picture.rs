//! Draws a terminal: text with colours from the standard input, a picture to the standard output.
//!
//! `ttrpc shims --color always | cargo run -p ttrpc-cli --example picture > docs/operate/cli-shims.svg`

use std::io::{Read, Write, stdin, stdout};

fn main() -> std::io::Result<()> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let picture = anstyle_svg::Term::new().render_svg(&text);
    stdout().write_all(picture.as_bytes())
}
