//! The first process of a pod that nobody has chosen another for: this program, with a root file
//! system that holds the program alone.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use rustix::process::{WaitOptions, wait};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::bind_mount;

/// Where the program is in its container, with its libraries.
const PROGRAM: &str = "/pause";
const LIBRARIES: &str = "/lib";

/// Waits until it is told to end. As the first process of a pid namespace it collects the children
/// of those that have ended.
///
/// # Errors
/// If signals cannot be received.
pub(crate) fn pause() -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let mut children = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            tokio::select! {
                _ = children.recv() => {}
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            }
        }
    })
}

/// The files that a program consists of.
#[derive(Debug)]
pub struct Program {
    executable: PathBuf,
    /// The dynamic linker, unless the program needs none.
    linker: Option<PathBuf>,
    libraries: Vec<PathBuf>,
}

impl Program {
    /// This program.
    ///
    /// # Errors
    /// Those of reading `/proc`.
    pub fn this() -> io::Result<Program> {
        let executable = present(&env::current_exe()?.to_string_lossy());
        Ok(Program::from_maps(executable, &fs::read_to_string("/proc/self/maps")?))
    }

    /// Finds the files in `/proc/PID/maps`, whose lines end with a path where one is mapped.
    fn from_maps(executable: PathBuf, maps: &str) -> Program {
        let mut program = Program { executable, linker: None, libraries: Vec::new() };
        for line in maps.lines() {
            let Some(path) = line.find('/').map(|start| present(&line[start..])) else { continue };
            let is_code = line.split(' ').nth(1).is_some_and(|access| access.contains('x'));
            if !is_code || path == program.executable || program.libraries.contains(&path) {
                continue;
            }
            if name(&path).starts_with("ld-") {
                program.linker = Some(path);
            } else {
                program.libraries.push(path);
            }
        }
        program
    }

    /// Its command line in the container.
    pub fn args(&self) -> Vec<String> {
        let linker = self.linker.as_deref().map(in_container);
        let linked = linker
            .into_iter()
            .flat_map(|linker| [linker, "--library-path".to_owned(), LIBRARIES.to_owned()]);
        linked.chain([PROGRAM.to_owned(), "pause".to_owned()]).collect()
    }

    /// What brings it into the container.
    pub fn mounts(&self) -> Vec<Value> {
        let others = self.linker.iter().chain(&self.libraries);
        let pairs = others.map(|path| (path, in_container(path)));
        let all = pairs.chain([(&self.executable, PROGRAM.to_owned())]);
        let options = ["bind", "ro", "nosuid", "nodev"];
        all.map(|(source, destination)| bind_mount(source, &destination, options)).collect()
    }
}

/// A path as the kernel writes it, where a file that was replaced since is marked. What replaced it
/// is used.
fn present(path: &str) -> PathBuf {
    path.strip_suffix(" (deleted)").unwrap_or(path).into()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn in_container(library: &Path) -> String {
    format!("{LIBRARIES}/{}", name(library))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        55d0-55d1 r--p 00000000 fe:01 10 /usr/bin/containerd-shim-x-v1 (deleted)\n\
        55d1-55d2 r-xp 00001000 fe:01 10 /usr/bin/containerd-shim-x-v1 (deleted)\n\
        55d3-55d4 rw-p 00000000 00:00 0 [heap]\n\
        7f00-7f01 r-xp 00000000 fe:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
        7f01-7f02 r-xp 00002000 fe:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
        7f02-7f03 r--p 00000000 fe:01 12 /usr/lib/locale/C.utf8/LC_CTYPE\n\
        7f03-7f04 r-xp 00000000 fe:01 13 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
        7ffd-7ffe r-xp 00000000 00:00 0 [vdso]\n";

    #[test]
    fn a_program_is_found_with_its_libraries_also_after_it_was_replaced() {
        let program = Program::from_maps("/usr/bin/containerd-shim-x-v1".into(), MAPS);
        assert_eq!(
            program.args(),
            ["/lib/ld-linux-x86-64.so.2", "--library-path", "/lib", "/pause", "pause"]
        );
        let mounts = program.mounts();
        let sources: Vec<_> =
            mounts.iter().map(|mount| mount["source"].as_str().unwrap()).collect();
        assert_eq!(
            sources,
            [
                "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/bin/containerd-shim-x-v1"
            ]
        );
        assert!(mounts.iter().all(|mount| mount["options"][1] == "ro"));
    }

    #[test]
    fn a_program_without_libraries_is_started_by_itself() {
        let program =
            Program::from_maps("/usr/bin/shim".into(), "1-2 r-xp 0 fe:01 1 /usr/bin/shim");
        assert_eq!(program.args(), ["/pause", "pause"]);
        assert_eq!(program.mounts().len(), 1);
    }
}
