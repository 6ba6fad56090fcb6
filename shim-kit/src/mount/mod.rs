//! Mounting a container's root file system from what containerd's snapshotter says.

mod idmap;
mod loopback;
mod options;
mod overlay;

use std::{
    env,
    ffi::CString,
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::mount::{MountFlags, UnmountFlags};

use self::options::Options;
use crate::{log, proto::types::Mount, reaper::Reaper};

/// Mounts one after the other on a root.
///
/// # Errors
/// The first that fails, with what was to be mounted. What was mounted before stays.
pub async fn mount_all(mounts: &[Mount], root: &Path, reaper: &Reaper) -> io::Result<()> {
    for mount in mounts {
        let target = within(root, &mount.target)?;
        mount_one(mount, &target, reaper).await.map_err(|error| {
            let source = &mount.source;
            io::Error::new(error.kind(), format!("cannot mount {} {source}: {error}", mount.r#type))
        })?;
    }
    Ok(())
}

/// A path below the root, which it may not leave.
fn within(root: &Path, target: &str) -> io::Result<PathBuf> {
    let target = Path::new(target.trim_start_matches('/'));
    if target.components().any(|part| part == Component::ParentDir) {
        let reason = format!("a mount's target leaves the root: {}", target.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(if target.as_os_str().is_empty() { root.to_owned() } else { root.join(target) })
}

async fn mount_one(mount: &Mount, target: &Path, reaper: &Reaper) -> io::Result<()> {
    if let Some((helper, kind)) = helper(&mount.r#type) {
        return mount_with(helper, kind, mount, target, reaper).await;
    }
    let options = Options::parse(&mount.options)?;
    let ids = match &options.ids {
        Some(maps) => Some(maps.user_namespace(reaper).await?),
        None => None,
    };
    if options.is_bind {
        bind(&mount.source, target, &options)?;
    } else {
        match (&ids, mount.r#type.as_str()) {
            (Some(ids), "overlay") => mount_mapped_overlay(mount, target, &options, ids)?,
            _ if options.is_loop => {
                let is_read_only = options.flags.contains(MountFlags::RDONLY);
                let device = loopback::attach(&mount.source, is_read_only)?;
                let source = device.path.display().to_string();
                let mount = Mount { source, ..mount.clone() };
                mount_new(&mount, target, options.flags, options.data.clone())?;
            }
            _ => mount_new(mount, target, options.flags, options.data.clone())?,
        }
    }
    if let Some(ids) = ids.filter(|_| mount.r#type != "overlay") {
        idmap::map(target, target, &ids, false)?;
    }
    if !options.propagation.is_empty() {
        rustix::mount::mount_change(target, options.propagation)?;
    }
    Ok(())
}

fn mount_new(mount: &Mount, target: &Path, flags: MountFlags, data: Vec<String>) -> io::Result<()> {
    let (folder, data) = overlay::shorten(data);
    let data = CString::new(data.join(","))?;
    in_folder(folder.as_deref(), || {
        let (source, fstype) = (mount.source.as_str(), mount.r#type.as_str());
        rustix::mount::mount(source, target, fstype, flags, data.as_c_str())
    })
}

/// Mounts an overlay whose lower folders are seen through a user namespace. The kernel maps no
/// overlay itself; the folder of the layers is mapped beside the root for as long as it takes.
fn mount_mapped_overlay(
    mount: &Mount,
    target: &Path,
    options: &Options,
    ids: &File,
) -> io::Result<()> {
    let common = overlay::common_lower(&options.data)
        .ok_or_else(|| io::Error::other("the overlay's layers have no folder in common"))?;
    let mapped = target.with_file_name("mapped-layers");
    fs::create_dir_all(&mapped)?;
    let result = idmap::map(&common, &mapped, ids, true).and_then(|()| {
        let data = overlay::move_lower(options.data.clone(), &common, &mapped);
        let result = mount_new(mount, target, options.flags, data);
        rustix::mount::unmount(&mapped, UnmountFlags::DETACH)?;
        result
    });
    if let Err(error) = fs::remove_dir(&mapped) {
        log::warn(format_args!("cannot remove {}: {error}", mapped.display()));
    }
    result
}

/// The program that mounts file systems of this type, and the type as it knows it.
fn helper(kind: &str) -> Option<(&'static str, &str)> {
    ["fuse3", "fuse"].into_iter().zip(["mount.fuse3", "mount.fuse"]).find_map(
        |(family, program)| Some((program, kind.strip_prefix(family)?.strip_prefix('.')?)),
    )
}

/// Has a program mount a file system in user space.
async fn mount_with(
    helper: &str,
    kind: &str,
    mount: &Mount,
    target: &Path,
    reaper: &Reaper,
) -> io::Result<()> {
    let mut command = Command::new(helper);
    command.arg(&mount.source).arg(target);
    for option in &mount.options {
        command.args(["-o", option]);
    }
    command.args(["-t", kind]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match reaper.spawn(&mut command).await?.exit().await?.status {
        0 => Ok(()),
        status => Err(io::Error::other(format!("{helper} ended with {status}"))),
    }
}

/// Binds. The flags of a bind mount take effect only with a second call.
fn bind(source: &str, target: &Path, options: &Options) -> io::Result<()> {
    match options.is_recursive {
        true => rustix::mount::mount_bind_recursive(source, target)?,
        false => rustix::mount::mount_bind(source, target)?,
    }
    if !options.flags.is_empty() {
        let flags = options.flags | MountFlags::BIND;
        rustix::mount::mount_remount(target, flags, c"")?;
    }
    Ok(())
}

/// Calls with another working folder. The shim has one thread, so nobody else is surprised; its own
/// folder is the root, which is always there.
fn in_folder(
    folder: Option<&Path>,
    call: impl FnOnce() -> Result<(), rustix::io::Errno>,
) -> io::Result<()> {
    let Some(folder) = folder else { return Ok(call()?) };
    env::set_current_dir(folder)?;
    let result = call();
    env::set_current_dir("/")?;
    Ok(result?)
}

/// How often and how long it is waited for a mount that is in use: processes that were killed a
/// moment ago may still have files open.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Unmounts everything that is mounted on a folder.
///
/// # Errors
/// If it stays in use.
pub async fn unmount_all(target: &Path) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match unmount_now(target) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
    unmount_now(target)
}

/// Unmounts everything that is mounted on a folder, without waiting.
///
/// # Errors
/// If it is in use.
pub fn unmount_now(target: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_does_not_leave_the_root() {
        let root = Path::new("/bundle/rootfs");
        assert_eq!(within(root, "").unwrap(), root);
        assert_eq!(within(root, "/etc").unwrap(), root.join("etc"));
        assert!(within(root, "../etc").is_err());
    }

    #[test]
    fn file_systems_in_user_space_are_mounted_by_their_program() {
        assert_eq!(helper("fuse3.fuse-overlayfs"), Some(("mount.fuse3", "fuse-overlayfs")));
        assert_eq!(helper("fuse.sshfs"), Some(("mount.fuse", "sshfs")));
        assert_eq!(helper("overlay"), None);
        assert_eq!(helper("fuse"), None);
    }
}
