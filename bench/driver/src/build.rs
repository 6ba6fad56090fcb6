//! Building the contenders' programs.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::plan::Contender;

/// Where the programs are.
pub(crate) struct Programs {
    target: PathBuf,
    base: Option<PathBuf>,
}

impl Programs {
    /// Builds what the part needs. A contender whose tools are missing is taken out of the list,
    /// with a sentence that says so.
    pub(crate) fn build(
        contenders: &mut Vec<&Contender>,
        part: &str,
        base: Option<PathBuf>,
    ) -> io::Result<Self> {
        // The driver's own program is in the target folder too.
        let target = env::current_exe()?.ancestors().nth(2).expect("it is two deep").to_owned();
        let programs = Programs { target, base };
        contenders.retain(|contender| !contender.is_go || programs.build_go());
        programs.cargo(&["--release", "-p", "bench-peer"])?;
        if ["all", "memory"].contains(&part) {
            // One by one: built together they would share the union of their features.
            for minimal in contenders.iter().filter_map(|contender| contender.minimal) {
                programs.cargo(&["--profile", "min", "-p", minimal.package])?;
            }
        }
        Ok(programs)
    }

    /// The program that is server and client of a contender.
    pub(crate) fn peer(&self, contender: &Contender) -> PathBuf {
        if let (true, Some(base)) = (contender.is_base, &self.base) {
            return base.clone();
        }
        if contender.is_go {
            return self.target.join("go/bench-peer");
        }
        self.target.join("release/bench-peer")
    }

    /// The same, counting allocations.
    pub(crate) fn counting_peer(&self, contender: &Contender) -> PathBuf {
        if contender.is_go {
            return self.peer(contender);
        }
        let name = "bench-peer-counting";
        match &self.base {
            Some(base) if contender.is_base => base.with_file_name(name),
            _ => self.target.join("release").join(name),
        }
    }

    /// The smallest server.
    pub(crate) fn minimal(&self, program: &str) -> PathBuf {
        self.target.join("min").join(program)
    }

    fn cargo(&self, arguments: &[&str]) -> io::Result<()> {
        eprintln!("cargo build {}", arguments.join(" "));
        let mut command = Command::new("cargo");
        command.arg("build").args(arguments).arg("--quiet").arg("--target-dir").arg(&self.target);
        match command.current_dir(workspace()).status()?.success() {
            true => Ok(()),
            false => Err(io::Error::other("cargo build failed")),
        }
    }

    fn build_go(&self) -> bool {
        let output = self.target.join("go/bench-peer");
        let mut command = Command::new("go");
        command.arg("build").arg("-o").arg(output).arg(".").current_dir(workspace().join("go"));
        let is_built = command.stdout(Stdio::null()).status().is_ok_and(|status| status.success());
        if !is_built {
            eprintln!("go-ttrpc is left out: it needs Go, and its module or a network to get it.");
        }
        is_built
    }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the driver is one deep")
}
