//! Where a mount goes: a place inside a root file system, wherever the image's symbolic links point.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// A file or folder inside of a root, open so that nobody can put another in its place.
#[derive(Debug)]
pub struct Place(OwnedFd);

impl Place {
    /// Finds a path as a process would whose root directory this is: links and `..` do not leave it.
    ///
    /// # Errors
    /// Those of openat2(2), with the path: it may be missing. Kernels before 5.6 do not have that call.
    pub fn within(root: &Path, path: &str) -> io::Result<Place> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let failed = |error: rustix::io::Errno| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("{path:?} in {}: {error}", root.display()))
        };
        let root =
            rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
        let path = match path {
            "" => ".",
            path => path,
        };
        // A link such as those in /proc leads out of the root by its nature.
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(root, path, flags, Mode::empty(), inside).map(Place).map_err(failed)
    }

    /// The folder of a path that has no symbolic links, such as the kernel's own list of mounts has.
    pub(super) fn folder(path: &Path) -> io::Result<Place> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let place = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        Ok(Place(place?))
    }

    /// A path that names it to system calls, also of this process's children, while this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A target of `/evil` was mounted over the host's folder that the image's link names.
    #[test]
    fn a_target_stays_in_the_root_whatever_links_the_image_has() {
        let folder = tempfile::tempdir().unwrap();
        let (root, host) = (folder.path().join("rootfs"), folder.path().join("host"));
        fs::create_dir_all(root.join("data")).unwrap();
        fs::create_dir(&host).unwrap();
        symlink(&host, root.join("evil")).unwrap();
        symlink("../../host", root.join("up")).unwrap();
        symlink("/data", root.join("good")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();

        let found = |path: &str| {
            Place::within(&root, path).map(|place| fs::read_link(place.path()).unwrap())
        };
        assert_eq!(found("").unwrap(), root);
        assert_eq!(found("/data").unwrap(), root.join("data"));
        assert_eq!(found("good").unwrap(), root.join("data"));
        assert_eq!(found("../../..").unwrap(), root);
        for wrong in ["/evil", "up", "magic", "missing"] {
            let error = found(wrong).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{wrong}: {error}");
            assert!(error.to_string().contains(wrong), "{error}");
        }
        // Where the root has such a folder of its own, it is that.
        let own = root.join(host.strip_prefix("/").unwrap());
        fs::create_dir_all(&own).unwrap();
        assert_eq!(found("/evil").unwrap(), own);
    }
}
