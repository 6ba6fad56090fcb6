//! Generated code as rustfmt writes it.

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// Formats code that is going to lie in this folder, whose `rustfmt.toml` counts. Code is left as it is
/// where there is no rustfmt: it means the same.
pub(crate) fn format(code: String, folder: &Path) -> String {
    match rustfmt(&code, folder) {
        Ok(formatted) if !formatted.is_empty() => formatted,
        _ => code,
    }
}

fn rustfmt(code: &str, folder: &Path) -> io::Result<String> {
    // Who has several says by the variable which one; cargo-fmt reads the same.
    let program = env::var_os("RUSTFMT").unwrap_or_else(|| "rustfmt".into());
    let mut child = Command::new(program)
        .args(["--quiet", "--edition", "2024"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // On a thread of its own, so that neither side waits for the other to read.
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(code.as_bytes()));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    String::from_utf8(output.stdout).map_err(|_| io::ErrorKind::InvalidData.into())
}
