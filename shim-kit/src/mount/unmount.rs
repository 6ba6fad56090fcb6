//! Unmounting a folder with everything that is mounted on it and below.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    mount::{MountPropagationFlags, UnmountFlags},
};

use super::Place;

/// How often and how long it is waited for a mount that is in use: processes that were killed a
/// moment ago may still have files open.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Unmounts everything that is mounted on a folder and below, the deepest first. Waits a second for what is in use.
/// Blocks the thread.
///
/// # Errors
/// If something stays in use, with its path.
pub fn unmount_all(target: &Path) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match unmount_now(target) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            result => return result,
        }
    }
    unmount_now(target)
}

fn unmount_now(target: &Path) -> io::Result<()> {
    let Some(target) = real_path(target)? else { return Ok(()) };
    loop {
        let table = fs::read("/proc/self/mountinfo")?;
        let (inside, outside): (Vec<Mount>, Vec<Mount>) =
            parse(&table).partition(|mount| mount.path.starts_with(&target));
        if inside.is_empty() {
            return Ok(());
        }
        keep_from_peers(&inside, &outside)?;
        let mut has_failed = None;
        let mut is_smaller = false;
        for path in deepest_first(&inside) {
            match unmount_one(path) {
                Ok(()) => is_smaller = true,
                // Something has come over it meanwhile, or it went with another.
                Err(error) => has_failed = Some((path, error)),
            }
        }
        if let Some((path, error)) = has_failed.filter(|_| !is_smaller) {
            return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
        }
    }
}

/// The path as the kernel writes it. What is mounted there is not touched: its server may not answer. Nothing if the
/// folder that it is in is gone.
fn real_path(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root stays mounted"));
    };
    match folder.canonicalize() {
        Ok(folder) => Ok(Some(folder.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A bind of a tree of the host's has the host's mounts as its peers: what is unmounted below it would be unmounted
/// there. Takes such mounts out of their groups.
fn keep_from_peers(inside: &[Mount], outside: &[Mount]) -> io::Result<()> {
    let groups: HashSet<&[u8]> = outside.iter().filter_map(|mount| mount.group).collect();
    for mount in
        inside.iter().filter(|mount| mount.group.is_some_and(|group| groups.contains(group)))
    {
        let result = at(&mount.path, |path| {
            rustix::mount::mount_change(path, MountPropagationFlags::PRIVATE)
        });
        match result {
            // Something else is mounted over it, and goes first.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Of those on one path the last comes first.
fn deepest_first<'a>(mounts: &'a [Mount<'_>]) -> Vec<&'a Path> {
    let paths = || mounts.iter().rev().map(|mount| mount.path.as_path());
    let depth = |path: &Path| path.components().count();
    let deepest = paths().map(depth).max().unwrap_or(0);
    (0..=deepest).rev().flat_map(|at| paths().filter(move |path| depth(path) == at)).collect()
}

fn unmount_one(path: &Path) -> Result<(), Errno> {
    at(path, |path| rustix::mount::unmount(path, UnmountFlags::NOFOLLOW))
}

/// Calls with a path to a mount that leads over no symbolic link: an image may have got one since the kernel was asked.
fn at(path: &Path, call: impl FnOnce(&Path) -> Result<(), Errno>) -> Result<(), Errno> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let folder =
        Place::folder(folder).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    call(&folder.path().join(name))
}

/// A line of `/proc/PID/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    path: PathBuf,
    /// The peers that it shares its mounts with.
    group: Option<&'a [u8]>,
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(4);
        let path = unescape(words.next()?);
        // Optional fields end with a hyphen.
        let group = words.skip(1).take_while(|word| *word != b"-");
        let group = group.filter_map(|word| word.strip_prefix(b"shared:")).next();
        Some(Mount { path: OsString::from_vec(path).into(), group })
    })
}

/// The kernel writes spaces and the like as a backslash and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        let digits = behind
            .get(..3)
            .filter(|_| *byte == b'\\')
            .and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                rest = &behind[3..];
            }
            None => {
                plain.push(*byte);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};

    use super::*;

    #[test]
    fn the_kernels_table_of_mounts_is_read() {
        let table =
            b"36 35 98:0 /a /mnt/a\\040b rw,noatime shared:7 master:1 - ext3 /dev/root rw\n\
                      37 36 0:5 / /mnt/a\\040b/c rw - tmpfs tmpfs rw\n\
                      38 36 0:6 / /mnt/a\\040b rw - tmpfs tmpfs rw\n";
        let mounts: Vec<_> = parse(table).collect();
        assert_eq!(mounts[0], Mount { path: "/mnt/a b".into(), group: Some(b"7") });
        assert_eq!(mounts[1].group, None);
        let paths = ["/mnt/a b/c", "/mnt/a b", "/mnt/a b"].map(PathBuf::from);
        assert_eq!(deepest_first(&mounts), paths);
        assert_eq!(unescape(b"a\\134b\\q"), b"a\\b\\q");
    }

    /// A folder for mounts; nothing where this may not mount.
    fn folder() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().unwrap();
        match mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), None) {
            Ok(()) => Some(folder),
            Err(error) => {
                println!("skipped: cannot mount: {error}");
                None
            }
        }
    }

    fn tmpfs(path: &Path) {
        fs::create_dir_all(path).unwrap();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).unwrap();
    }

    /// A rootfs with a mount below it was never unmounted.
    #[test]
    fn what_is_mounted_below_goes_first() {
        let Some(folder) = folder() else { return };
        let root = folder.path().join("a b");
        tmpfs(&root);
        tmpfs(&root.join("data"));
        tmpfs(&root.join("data/deep"));
        tmpfs(&root.join("data"));
        tmpfs(&root);
        unmount_all(&root).unwrap();
        fs::remove_dir(&root).unwrap();
        unmount_all(&root).unwrap();
        unmount_all(&root.join("missing/rootfs")).unwrap();
        unmount_all(folder.path()).unwrap();
    }

    /// A tree of the host's that is bound with what is mounted below shares its mounts with the host.
    #[test]
    fn a_bound_tree_stays_where_it_was_bound_from() {
        let Some(folder) = folder() else { return };
        let (tree, root) = (folder.path().join("tree"), folder.path().join("rootfs"));
        tmpfs(&tree);
        rustix::mount::mount_change(&tree, MountPropagationFlags::SHARED).unwrap();
        tmpfs(&tree.join("sub"));
        fs::write(tree.join("sub/file"), "").unwrap();
        tmpfs(&root);
        fs::create_dir(root.join("data")).unwrap();
        mount_bind_recursive(&tree, root.join("data")).unwrap();
        assert!(root.join("data/sub/file").exists());
        unmount_all(&root).unwrap();
        assert!(tree.join("sub/file").exists(), "it was unmounted from the host");
        unmount_all(folder.path()).unwrap();
    }

    #[test]
    fn what_is_in_use_is_named_and_goes_when_it_is_free() {
        let Some(folder) = folder() else { return };
        let root = folder.path().join("rootfs");
        tmpfs(&root);
        fs::create_dir(root.join("data")).unwrap();
        mount_bind(folder.path(), root.join("data")).unwrap();
        let used = fs::File::create(root.join("used")).unwrap();
        let error = unmount_now(&root).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("rootfs"), "{error}");
        drop(used);
        unmount_all(folder.path()).unwrap();
    }
}
