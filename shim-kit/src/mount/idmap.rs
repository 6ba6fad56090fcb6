//! Mounts whose files belong to others than on disk: id-mapped mounts, for containers in a user
//! namespace.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags},
    pipe::PipeFlags,
};

use crate::reaper::Reaper;

/// Which users and groups of the host those on disk are to be, in the form of `/proc/PID/uid_map`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    users: String,
    groups: String,
}

impl IdMaps {
    /// Reads two lists of `container:host:size`.
    ///
    /// # Errors
    /// If something is no number.
    pub fn parse(users: &str, groups: &str) -> io::Result<IdMaps> {
        Ok(IdMaps { users: table(users)?, groups: table(groups)? })
    }

    /// A user namespace with these maps, which lasts as long as the file is open.
    ///
    /// # Errors
    /// If the kernel makes none, or refuses the maps.
    pub async fn user_namespace(&self, reaper: &Reaper) -> io::Result<File> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("hold").stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        enter_user_namespace(&mut command);
        let child = reaper.spawn(&mut command).await?;
        drop(command);
        let of_child = |name: &str| format!("/proc/{}/{name}", child.pid.as_raw_nonzero());
        let namespace = fs::write(of_child("uid_map"), &self.users)
            .and_then(|()| fs::write(of_child("gid_map"), &self.groups))
            .and_then(|()| File::open(of_child("ns/user")));
        // The child ends.
        drop(writer);
        child.exit().await?;
        namespace
    }
}

fn table(list: &str) -> io::Result<String> {
    let row = |entry: &str| {
        let numbers: Vec<u32> = entry.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [container, host, size] = numbers[..] else { return None };
        Some(format!("{container} {host} {size}\n"))
    };
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("no map of ids: {list}"));
    list.split(',').map(row).collect::<Option<String>>().ok_or_else(wrong)
}

#[allow(unsafe_code, reason = "a child enters a namespace before it starts")]
fn enter_user_namespace(command: &mut Command) {
    // SAFETY: between fork and exec, one system call is made and nothing is allocated.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Mounts a folder and what is below on another (or itself), with the owners of its files mapped.
///
/// # Errors
/// If the file system does not support it.
#[allow(unsafe_code, reason = "rustix does not know mount_setattr(2)")]
pub fn map(source: &Path, target: &Path, namespace: &File, is_read_only: bool) -> io::Result<()> {
    let said = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("{what} {}: {error}", source.display()))
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, source, flags)
        .map_err(|error| said("cannot clone", error.into()))?;
    let read_only = if is_read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | read_only,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::from(namespace.as_raw_fd().unsigned_abs()),
    };
    // SAFETY: the descriptors are open, the path is empty, and the structure has the size that is
    // given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result != 0 {
        return Err(said("cannot map the owners in", io::Error::last_os_error()));
    }
    rustix::mount::move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| said("cannot mount", error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_written_as_the_kernel_reads_them() {
        let maps = IdMaps::parse("0:1000:10,10:5000:1", "0:2000:65536").unwrap();
        assert_eq!(maps.users, "0 1000 10\n10 5000 1\n");
        assert_eq!(maps.groups, "0 2000 65536\n");
        for wrong in ["", "0:1", "0:1:2:3", "a:b:c", "0:-1:5"] {
            assert!(IdMaps::parse(wrong, "0:0:1").is_err(), "{wrong}");
        }
    }
}
