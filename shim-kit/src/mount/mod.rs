//! Mounting a container's root file system from what containerd's snapshotter says, and unmounting it.

mod idmap;
mod loopback;
mod options;
mod overlay;
mod place;
mod unmount;

use std::{
    env,
    ffi::CString,
    fs::{self, File},
    io,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    mount::{MountFlags, UnmountFlags},
    thread::UnshareFlags,
};

use self::options::Options;
pub use self::{place::Place, unmount::unmount_all};
use crate::{log, proto::types::Mount, reaper::Reaper, tasks::blocking};

/// Mounts one after the other on a root. What may block is done on a thread of its own.
///
/// # Errors
/// The first that fails, with what was to be mounted. What was mounted before stays.
pub async fn mount_all(mounts: &[Mount], root: &Path, reaper: &Reaper) -> io::Result<()> {
    for mount in mounts {
        mount_one(mount, root, reaper).await.map_err(|error| {
            let source = &mount.source;
            io::Error::new(error.kind(), format!("cannot mount {} {source}: {error}", mount.r#type))
        })?;
    }
    Ok(())
}

async fn mount_one(mount: &Mount, root: &Path, reaper: &Reaper) -> io::Result<()> {
    if let Some((helper, kind)) = helper(&mount.r#type) {
        let (root, path) = (root.to_owned(), mount.target.clone());
        let target = blocking(move || Place::within(&root, &path)).await?;
        return mount_with(helper, kind, mount, &target.path(), reaper).await;
    }
    let options = Options::parse(&mount.options)?;
    let ids = match &options.ids {
        Some(maps) => Some(maps.user_namespace(reaper).await?),
        None => None,
    };
    let (mount, root) = (mount.clone(), root.to_owned());
    blocking(move || mount_here(&mount, &root, &options, ids)).await
}

/// Mounts, while the thread waits.
fn mount_here(mount: &Mount, root: &Path, options: &Options, ids: Option<File>) -> io::Result<()> {
    let place = Place::within(root, &mount.target)?;
    let target = place.path();
    if options.is_bind {
        bind(&mount.source, &target, options.is_recursive)?;
    } else {
        match (&ids, mount.r#type.as_str()) {
            (Some(ids), "overlay") => {
                mount_mapped_overlay(
                    mount,
                    &target,
                    &root.with_file_name("mapped-layers"),
                    options,
                    ids,
                )?;
            }
            _ if options.is_loop => {
                let is_read_only = options.flags.contains(MountFlags::RDONLY);
                let device = loopback::attach(&mount.source, is_read_only)?;
                let source = device.path.display().to_string();
                let mount = Mount { source, ..mount.clone() };
                mount_new(&mount, &target, options.flags, options.data.clone())?;
            }
            _ => mount_new(mount, &target, options.flags, options.data.clone())?,
        }
    }
    // What was found before is below what is mounted now.
    let place = Place::within(root, &mount.target)?;
    let target = place.path();
    if options.is_bind && !options.flags.is_empty() {
        // The flags of a bind mount take effect only with a second call.
        rustix::mount::mount_remount(&target, options.flags | MountFlags::BIND, c"")?;
    }
    if let Some(ids) = ids.filter(|_| mount.r#type != "overlay") {
        idmap::map(&target, &target, &ids, false)?;
    }
    if !options.propagation.is_empty() {
        let place = Place::within(root, &mount.target)?;
        rustix::mount::mount_change(place.path(), options.propagation)?;
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
    mapped: &Path,
    options: &Options,
    ids: &File,
) -> io::Result<()> {
    let common = overlay::common_lower(&options.data)
        .ok_or_else(|| io::Error::other("the overlay's layers have no folder in common"))?;
    fs::create_dir_all(mapped)?;
    let result = idmap::map(&common, mapped, ids, true).and_then(|()| {
        let data = overlay::move_lower(options.data.clone(), &common, mapped);
        let result = mount_new(mount, target, options.flags, data);
        rustix::mount::unmount(mapped, UnmountFlags::DETACH)?;
        result
    });
    if let Err(error) = fs::remove_dir(mapped) {
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

fn bind(source: &str, target: &Path, is_recursive: bool) -> io::Result<()> {
    match is_recursive {
        true => rustix::mount::mount_bind_recursive(source, target)?,
        false => rustix::mount::mount_bind(source, target)?,
    }
    Ok(())
}

/// Calls with another working folder, which the thread does not share with others from then on.
fn in_folder(
    folder: Option<&Path>,
    call: impl FnOnce() -> Result<(), rustix::io::Errno>,
) -> io::Result<()> {
    let Some(folder) = folder else { return Ok(call()?) };
    // Not the file descriptors, for which alone this call has its bad name.
    #[allow(deprecated)]
    rustix::thread::unshare(UnshareFlags::FS)?;
    env::set_current_dir(folder)?;
    let result = call();
    env::set_current_dir("/")?;
    Ok(result?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_in_user_space_are_mounted_by_their_program() {
        assert_eq!(helper("fuse3.fuse-overlayfs"), Some(("mount.fuse3", "fuse-overlayfs")));
        assert_eq!(helper("fuse.sshfs"), Some(("mount.fuse", "sshfs")));
        assert_eq!(helper("overlay"), None);
        assert_eq!(helper("fuse"), None);
    }
}
