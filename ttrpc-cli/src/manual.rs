//! The manual page: one for the program with all of its commands.

use clap::{Arg, Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use crate::{args::Arguments, failure::Failure};

/// Arguments that every command has. They stand in the page once.
const COMMON: [&str; 4] = ["json", "color", "help", "version"];

/// The day of the version that the page is of.
const DATE: &str = "2026-11-26";

/// Writes the page.
///
/// # Errors
/// None, in memory.
pub fn write(page: &mut Vec<u8>) -> Result<(), Failure> {
    let mut program = Arguments::command();
    program.build();
    let man = Man::new(program.clone()).date(DATE).manual("User commands");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let mut names = Roff::default();
    names.control("SH", ["COMMANDS"]);
    // What `help` prints stands here.
    let commands = || program.get_subcommands().filter(|command| command.get_name() != "help");
    for command in commands() {
        names.control("TP", []);
        names.text([bold(name(command))]);
        names.text([roman(command.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
    names.to_writer(page)?;
    write_examples(&program, "SH", page)?;
    for command in commands() {
        write_command(command, page)?;
    }
    Ok(man.render_version_section(page)?)
}

/// The section of a command, and those of the commands that it has itself.
fn write_command(command: &Command, page: &mut Vec<u8>) -> Result<(), Failure> {
    let mut heading = Roff::default();
    heading.control("SH", [name(command).to_uppercase().as_str()]);
    heading.to_writer(page)?;
    let hide = |arg: Arg| {
        let is_common = COMMON.contains(&arg.get_id().as_str());
        arg.hide(is_common)
    };
    let man = Man::new(command.clone().mut_args(hide));
    let mut parts = Vec::new();
    man.render_synopsis_section(&mut parts)?;
    man.render_description_section(&mut parts)?;
    man.render_options_section(&mut parts)?;
    let parts = String::from_utf8_lossy(&parts).replace(".SH ", ".SS ");
    page.extend_from_slice(parts.as_bytes());
    write_examples(command, "SS", page)?;
    let mut inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    inner.try_for_each(|inner| write_command(inner, page))
}

/// What stands below a command's help, line by line as it is there. The heading is the page's.
fn write_examples(command: &Command, level: &str, page: &mut Vec<u8>) -> Result<(), Failure> {
    let Some(text) = command.get_after_help() else { return Ok(()) };
    let mut roff = Roff::default();
    roff.control(level, ["EXAMPLES"]).control("nf", []);
    for line in text.to_string().lines().filter(|line| !line.starts_with("Example")) {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    Ok(roff.to_writer(page)?)
}

/// A command's name without the program's: `shims debug`.
fn name(command: &Command) -> &str {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    name.strip_prefix("ttrpc ").unwrap_or(name)
}
