//! What the figures were measured on and of.

use std::{fs, process::Command};

use crate::plan::Contender;

/// Machine, kernel, compiler, and versions of the contenders.
pub(crate) fn describe(contenders: &[&Contender]) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
    format!(
        "{model}, {cpus} CPUs. Linux {}. {}. Versions: {}.\n\n\
         Measured at {}; 0 commits have changed `ttrpc/src` since.\n\n\
         Client and server are processes of their own on a Unix socket. Figures are medians; \
         compare them with each other, not with those of other machines. Contenders: {}. The raw and \
         mux ones are floors without a library, bench/README.md says what they leave out.\n",
        output("uname", &["-r"]),
        output("rustc", &["--version"]),
        versions(),
        output("git", &["rev-parse", "--short", "HEAD"]),
        names.join(", "),
    )
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

/// The versions in the lock file and in go.mod.
fn versions() -> String {
    let lock = include_str!("../../Cargo.lock");
    let names = ["ttrpc", "trapeze", "tonic", "tarpc", "tokio"];
    let mut versions = Vec::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_matches(['"', ' ', '=']))
        };
        // What has no source is the project itself.
        if let (Some(name), Some(version), Some(_)) =
            (field("name = "), field("version = "), field("source = "))
            && names.contains(&name)
        {
            versions.push(format!("{name} {version}"));
        }
    }
    let module = include_str!("../../go/go.mod").lines();
    let go = module.filter_map(|line| line.trim().strip_prefix("github.com/containerd/ttrpc "));
    versions.extend(go.map(|version| format!("containerd/ttrpc {version}")));
    versions.join(", ")
}
