//! Control groups that a runtime makes for its containers, in both versions.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{ROOT, is_unified};

/// The controllers that this has something to do with. In version 1 each is a tree of its own.
const CONTROLLERS: [&str; 6] = ["memory", "pids", "cpu", "cpuacct", "blkio", "freezer"];

/// A control group, made by the shim for a container.
///
/// ```no_run
/// # fn example(id: &str, pid: u32) -> std::io::Result<()> {
/// use shim_kit::{ControlGroup, Limits};
///
/// let group = ControlGroup::make(&format!("my-runtime/{id}"))?;
/// group.limit(&Limits { memory: Some(64 << 20), processes: Some(100), ..Limits::default() })?;
/// group.join(pid)?;
/// // When its processes have ended:
/// group.remove()
/// # }
/// ```
///
/// All of it writes to files of the kernel's, and does not block for long. Name the group with
/// [`Launch::set_cgroup`](crate::Launch::set_cgroup) where the container's first process is not in it from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    path: String,
    /// Of each tree that there is; in version 2 one.
    folders: Vec<PathBuf>,
    is_unified: bool,
}

/// Limits of a [`ControlGroup`]. What is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Time of processors, in microseconds of each 100 ms: 150,000 is one processor and a half.
    pub cpu: Option<u64>,
}

/// In microseconds.
const PERIOD: u64 = 100_000;

impl ControlGroup {
    /// Makes a group, unless it is there. `path` is its folder, without the mount point.
    ///
    /// # Errors
    /// If a folder cannot be made, with its path; INVALID_INPUT if the path leads out of the tree.
    pub fn make(path: &str) -> io::Result<ControlGroup> {
        ControlGroup::make_below(Path::new(ROOT), path, is_unified())
    }

    fn make_below(root: &Path, path: &str, is_unified: bool) -> io::Result<ControlGroup> {
        let path = path.trim_matches('/');
        if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            let message = format!("{path:?} is no path of a control group");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let folders: Vec<PathBuf> = match is_unified {
            true => vec![root.join(path)],
            false => {
                let trees = CONTROLLERS.iter().map(|controller| root.join(controller));
                trees.filter(|tree| tree.is_dir()).map(|tree| tree.join(path)).collect()
            }
        };
        if is_unified {
            // A group has the controllers that all above it pass on.
            let mut above = root.to_owned();
            for part in path.split('/') {
                for controller in ["cpu", "io", "memory", "pids"] {
                    // One that is not there is said by the limit that needs it.
                    let _ =
                        fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"));
                }
                above.push(part);
                fs::create_dir_all(&above).map_err(|error| named(&above, error))?;
            }
        }
        for folder in &folders {
            fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        }
        Ok(ControlGroup { path: path.to_owned(), folders, is_unified })
    }

    /// Returns the path that it was made with, for [`Launch::set_cgroup`](crate::Launch::set_cgroup).
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses.
    pub fn join(&self, pid: u32) -> io::Result<()> {
        self.folders.iter().try_for_each(|folder| write(folder, "cgroup.procs", pid))
    }

    /// Sets limits.
    ///
    /// # Errors
    /// If the controller of a limit is not there, or the kernel refuses.
    pub fn limit(&self, limits: &Limits) -> io::Result<()> {
        let files = [
            (limits.memory, "memory", "memory.limit_in_bytes", "memory.max"),
            (limits.processes, "pids", "pids.max", "pids.max"),
        ];
        for (limit, controller, first, second) in files {
            if let Some(limit) = limit {
                let name = if self.is_unified { second } else { first };
                write(self.folder(controller)?, name, limit)?;
            }
        }
        let Some(quota) = limits.cpu else { return Ok(()) };
        let folder = self.folder("cpu")?;
        if self.is_unified {
            return write(folder, "cpu.max", format_args!("{quota} {PERIOD}"));
        }
        write(folder, "cpu.cfs_period_us", PERIOD)?;
        write(folder, "cpu.cfs_quota_us", quota)
    }

    /// Freezes all processes of the group, or lets them go on. The kernel does it soon after.
    ///
    /// # Errors
    /// If the kernel cannot freeze groups.
    pub fn freeze(&self, is_frozen: bool) -> io::Result<()> {
        let folder = self.folder("freezer")?;
        match self.is_unified {
            true => write(folder, "cgroup.freeze", u8::from(is_frozen)),
            false => write(folder, "freezer.state", if is_frozen { "FROZEN" } else { "THAWED" }),
        }
    }

    /// Removes the group, which no process is in. One that is gone is no error.
    ///
    /// # Errors
    /// If a process is in it (EBUSY), or a group below it.
    pub fn remove(&self) -> io::Result<()> {
        for folder in &self.folders {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(named(folder, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The folder with the files of a controller.
    fn folder(&self, controller: &str) -> io::Result<&Path> {
        let tree = format!("/{controller}/{}", self.path);
        let found = self.folders.iter().find(|folder| {
            self.is_unified || folder.to_str().is_some_and(|folder| folder.ends_with(&tree))
        });
        found.map(PathBuf::as_path).ok_or_else(|| {
            let message = format!("there is no controller {controller}");
            io::Error::new(io::ErrorKind::Unsupported, message)
        })
    }
}

fn write(folder: &Path, name: &str, value: impl ToString) -> io::Result<()> {
    let file = folder.join(name);
    fs::write(&file, value.to_string()).map_err(|error| named(&file, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: Some(4096), processes: Some(7), cpu: Some(150_000) };

    fn read(folder: &Path, name: &str) -> String {
        fs::read_to_string(folder.join(name)).unwrap()
    }

    #[test]
    fn a_group_of_version_2_has_its_controllers_and_limits_in_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let group = ControlGroup::make_below(root.path(), "/mine/c1", true).unwrap();
        let folder = root.path().join("mine/c1");
        for above in [root.path(), &root.path().join("mine")] {
            assert_eq!(read(above, "cgroup.subtree_control"), "+pids", "the last of them");
        }
        assert!(!folder.join("cgroup.subtree_control").exists(), "a group with processes has none");
        group.join(42).unwrap();
        group.limit(&LIMITS).unwrap();
        group.freeze(true).unwrap();
        for (name, text) in [
            ("cgroup.procs", "42"),
            ("memory.max", "4096"),
            ("pids.max", "7"),
            ("cpu.max", "150000 100000"),
            ("cgroup.freeze", "1"),
        ] {
            assert_eq!(read(&folder, name), text, "{name}");
        }
        assert_eq!(group.path(), "mine/c1");
    }

    #[test]
    fn a_group_of_version_1_has_a_folder_in_each_tree_that_there_is() {
        let root = tempfile::tempdir().unwrap();
        for tree in ["memory", "cpu", "freezer", "cpuset"] {
            fs::create_dir(root.path().join(tree)).unwrap();
        }
        let group = ControlGroup::make_below(root.path(), "c1", false).unwrap();
        assert!(!root.path().join("cpuset/c1").exists(), "nobody sets its processors");
        group.join(42).unwrap();
        let unlimited = Limits { processes: None, ..LIMITS };
        group.limit(&unlimited).unwrap();
        group.freeze(false).unwrap();
        let at = |tree: &str| root.path().join(tree).join("c1");
        assert_eq!(read(&at("memory"), "memory.limit_in_bytes"), "4096");
        assert_eq!(read(&at("cpu"), "cpu.cfs_quota_us"), "150000");
        assert_eq!(read(&at("freezer"), "freezer.state"), "THAWED");
        assert_eq!(read(&at("freezer"), "cgroup.procs"), "42");
        let error = group.limit(&LIMITS).unwrap_err();
        assert_eq!(error.to_string(), "there is no controller pids");
    }

    #[test]
    fn a_group_is_removed_also_if_a_part_of_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        for tree in ["memory", "cpu"] {
            fs::create_dir(root.path().join(tree)).unwrap();
        }
        let group = ControlGroup::make_below(root.path(), "c1", false).unwrap();
        fs::remove_dir(root.path().join("memory/c1")).unwrap();
        group.remove().unwrap();
        assert!(!root.path().join("cpu/c1").exists());
        group.remove().unwrap();
    }

    #[test]
    fn a_path_does_not_lead_out_of_the_tree() {
        let root = tempfile::tempdir().unwrap();
        for path in ["", "/", "../c1", "a/../../c1", "a//b", "./a"] {
            let error = ControlGroup::make_below(root.path(), path, true).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }
}
