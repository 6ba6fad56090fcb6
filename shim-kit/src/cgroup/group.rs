//! Control groups that a runtime makes for its containers, in both versions.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{ROOT, is_unified, named, write};

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
                    let _ = write(&above, "cgroup.subtree_control", format_args!("+{controller}"));
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
    /// UNSUPPORTED if the controller of a limit is not there; whatever the kernel says if it refuses.
    pub fn limit(&self, limits: &Limits) -> io::Result<()> {
        let files = [
            (limits.memory, "memory", "memory.limit_in_bytes", "memory.max"),
            (limits.processes, "pids", "pids.max", "pids.max"),
        ];
        for (limit, controller, first, second) in files {
            if let Some(limit) = limit {
                let name = if self.is_unified { second } else { first };
                self.set(controller, name, limit)?;
            }
        }
        let Some(quota) = limits.cpu else { return Ok(()) };
        if self.is_unified {
            return self.set("cpu", "cpu.max", format_args!("{quota} {PERIOD}"));
        }
        self.set("cpu", "cpu.cfs_period_us", PERIOD)?;
        self.set("cpu", "cpu.cfs_quota_us", quota)
    }

    /// Freezes all processes of the group, or lets them go on. The kernel does it soon after.
    ///
    /// # Errors
    /// UNSUPPORTED if the kernel cannot freeze groups.
    pub fn freeze(&self, is_frozen: bool) -> io::Result<()> {
        match self.is_unified {
            true => self.set("freezer", "cgroup.freeze", u8::from(is_frozen)),
            false => {
                self.set("freezer", "freezer.state", if is_frozen { "FROZEN" } else { "THAWED" })
            }
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

    /// Writes to a file of a controller's.
    fn set(&self, controller: &str, name: &str, value: impl ToString) -> io::Result<()> {
        let missing = || {
            let message = format!("there is no controller {controller} in the group {}", self.path);
            io::Error::new(io::ErrorKind::Unsupported, message)
        };
        let folder = self.folder(controller).ok_or_else(missing)?;
        write(folder, name, value).map_err(|error| match error.kind() {
            // In version 2 all controllers have one folder, and each that is there its files in it.
            io::ErrorKind::NotFound if folder.exists() => missing(),
            _ => error,
        })
    }

    /// The folder with the files of a controller.
    fn folder(&self, controller: &str) -> Option<&Path> {
        let tree = format!("/{controller}/{}", self.path);
        let found = self.folders.iter().find(|folder| {
            self.is_unified || folder.to_str().is_some_and(|folder| folder.ends_with(&tree))
        });
        found.map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: Some(4096), processes: Some(7), cpu: Some(150_000) };

    fn read(folder: &Path, name: &str) -> String {
        fs::read_to_string(folder.join(name)).unwrap()
    }

    /// Makes files as the kernel does with a group: nobody else can.
    fn with_files(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        names.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
    }

    #[test]
    fn a_group_of_version_2_has_its_controllers_and_limits_in_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let (above, folder) = (root.path().join("mine"), root.path().join("mine/c1"));
        let files = ["cgroup.procs", "memory.max", "pids.max", "cpu.max", "cgroup.freeze"];
        for folder in [root.path(), &above, &folder] {
            with_files(folder, &["cgroup.subtree_control"]);
        }
        with_files(&folder, &files);
        let group = ControlGroup::make_below(root.path(), "/mine/c1", true).unwrap();
        for above in [root.path(), &above] {
            assert_eq!(read(above, "cgroup.subtree_control"), "+pids", "the last of them");
        }
        assert_eq!(read(&folder, "cgroup.subtree_control"), "", "a group with processes has none");
        group.join(42).unwrap();
        group.limit(&LIMITS).unwrap();
        group.freeze(true).unwrap();
        let texts = files.map(|name| read(&folder, name));
        assert_eq!(texts, ["42", "4096", "7", "150000 100000", "1"]);
        assert_eq!(group.path(), "mine/c1");
    }

    /// It was "memory.max: Permission denied": files were made that the kernel makes alone.
    #[test]
    fn a_missing_controller_is_named_in_both_versions() {
        for is_unified in [true, false] {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join(if is_unified { "c1" } else { "pids/c1" });
            with_files(&folder, &["cgroup.procs", "pids.max"]);
            let group = ControlGroup::make_below(root.path(), "c1", is_unified).unwrap();
            let limits = Limits { processes: Some(7), ..Limits::default() };
            group.limit(&limits).unwrap();
            let cpu = Limits { cpu: Some(1), ..limits };
            let memory = Limits { memory: Some(1), ..limits };
            for (result, controller) in [
                (group.limit(&cpu), "cpu"),
                (group.limit(&memory), "memory"),
                (group.freeze(true), "freezer"),
            ] {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                let expected = format!("there is no controller {controller} in the group c1");
                assert_eq!(error.to_string(), expected);
            }
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no file is made");
            fs::remove_dir_all(&folder).unwrap();
            assert_eq!(group.join(42).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(group.limit(&limits).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_group_of_version_1_has_a_folder_in_each_tree_that_there_is() {
        let root = tempfile::tempdir().unwrap();
        let at = |tree: &str| root.path().join(tree).join("c1");
        fs::create_dir(root.path().join("cpuset")).unwrap();
        with_files(&at("memory"), &["cgroup.procs", "memory.limit_in_bytes"]);
        with_files(&at("cpu"), &["cgroup.procs", "cpu.cfs_period_us", "cpu.cfs_quota_us"]);
        with_files(&at("freezer"), &["cgroup.procs", "freezer.state"]);
        let group = ControlGroup::make_below(root.path(), "c1", false).unwrap();
        assert!(!root.path().join("cpuset/c1").exists(), "nobody sets its processors");
        group.join(42).unwrap();
        group.limit(&Limits { processes: None, ..LIMITS }).unwrap();
        group.freeze(false).unwrap();
        assert_eq!(read(&at("memory"), "memory.limit_in_bytes"), "4096");
        assert_eq!(read(&at("cpu"), "cpu.cfs_quota_us"), "150000");
        assert_eq!(read(&at("freezer"), "freezer.state"), "THAWED");
        assert_eq!(read(&at("freezer"), "cgroup.procs"), "42");
    }

    /// On the kernel's own files. A limit of a controller that the kernel does not have here is an error that says so.
    #[test]
    fn a_real_group_is_limited_joined_frozen_and_removed() {
        let path = format!("shim-kit-test-{}", std::process::id());
        let roots = [(ROOT.to_owned(), is_unified()), (format!("{ROOT}/unified"), true)];
        for (root, is_unified) in roots.into_iter().filter(|(root, _)| Path::new(root).exists()) {
            let root = Path::new(&root);
            let group = match ControlGroup::make_below(root, &path, is_unified) {
                Ok(group) if !group.folders.is_empty() => group,
                other => {
                    println!("skipped: no group can be made below {}: {other:?}", root.display());
                    continue;
                }
            };
            let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
            let used = use_real(&group, child.id());
            // Some kernels count a process that has ended for a while.
            for folder in &group.folders {
                write(folder.parent().unwrap(), "cgroup.procs", child.id()).unwrap();
            }
            group.remove().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            used.unwrap();
            assert!(group.folders.iter().all(|folder| !folder.exists()));
        }
    }

    /// Does all that can be done with a group, and reads it back where the kernel has the controller.
    fn use_real(group: &ControlGroup, pid: u32) -> io::Result<()> {
        group.join(pid)?;
        for folder in &group.folders {
            assert_eq!(read(folder, "cgroup.procs").trim(), pid.to_string(), "{folder:?}");
        }
        let limits = Limits { memory: Some(256 << 20), processes: Some(7), cpu: Some(150_000) };
        let none = Limits::default();
        let (memory, cpu, max) = match group.is_unified {
            true => ("memory.max", "cpu.max", "150000 100000"),
            false => ("memory.limit_in_bytes", "cpu.cfs_quota_us", "150000"),
        };
        for (limits, controller, file, text) in [
            (Limits { memory: limits.memory, ..none }, "memory", memory, "268435456"),
            (Limits { processes: limits.processes, ..none }, "pids", "pids.max", "7"),
            (Limits { cpu: limits.cpu, ..none }, "cpu", cpu, max),
        ] {
            let folder = group.folder(controller).filter(|folder| folder.join(file).exists());
            match (group.limit(&limits), folder) {
                (result, Some(folder)) => {
                    result?;
                    assert_eq!(read(folder, file).trim(), text);
                }
                (result, None) => {
                    println!("skipped: {controller}, which is not in {group:?}");
                    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Unsupported);
                }
            }
        }
        match group.freeze(true) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                println!("skipped: {error}")
            }
            result => result.and_then(|()| group.freeze(false))?,
        }
        Ok(())
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
