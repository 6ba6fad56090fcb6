//! Mounting a container's root file system from what containerd's snapshotter says.

use std::{
    env,
    ffi::CString,
    io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::proto::types::Mount;

/// Data that is longer does not fit into the page that the kernel takes.
const MAX_DATA_LEN: usize = 4095;

/// A mount's options, sorted by whom they are for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    flags: MountFlags,
    is_bind: bool,
    is_recursive: bool,
    propagation: MountPropagationFlags,
    /// What the file system itself is to read.
    data: Vec<String>,
}

impl Options {
    fn parse(words: &[String]) -> io::Result<Options> {
        let mut options = Options {
            flags: MountFlags::empty(),
            is_bind: false,
            is_recursive: false,
            propagation: MountPropagationFlags::empty(),
            data: Vec::new(),
        };
        for word in words {
            match word.as_str() {
                "bind" => options.is_bind = true,
                "rbind" => (options.is_bind, options.is_recursive) = (true, true),
                "loop" => {
                    let reason = "loop devices are not supported";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
                "defaults" => {}
                word => {
                    if let Some((flag, is_on)) = flag(word) {
                        options.flags.set(flag, is_on);
                    } else if let Some(propagation) = propagation(word) {
                        options.propagation |= propagation;
                    } else {
                        options.data.push(word.to_owned());
                    }
                }
            }
        }
        Ok(options)
    }
}

fn flag(word: &str) -> Option<(MountFlags, bool)> {
    Some(match word {
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "suid" => (MountFlags::NOSUID, false),
        "nodev" => (MountFlags::NODEV, true),
        "dev" => (MountFlags::NODEV, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "exec" => (MountFlags::NOEXEC, false),
        "noatime" => (MountFlags::NOATIME, true),
        "atime" => (MountFlags::NOATIME, false),
        "nodiratime" => (MountFlags::NODIRATIME, true),
        "diratime" => (MountFlags::NODIRATIME, false),
        "relatime" => (MountFlags::RELATIME, true),
        "norelatime" => (MountFlags::RELATIME, false),
        "strictatime" => (MountFlags::STRICTATIME, true),
        "nostrictatime" => (MountFlags::STRICTATIME, false),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "async" => (MountFlags::SYNCHRONOUS, false),
        "dirsync" => (MountFlags::DIRSYNC, true),
        _ => return None,
    })
}

fn propagation(word: &str) -> Option<MountPropagationFlags> {
    let recursive = MountPropagationFlags::REC;
    Some(match word {
        "private" => MountPropagationFlags::PRIVATE,
        "rprivate" => MountPropagationFlags::PRIVATE | recursive,
        "shared" => MountPropagationFlags::SHARED,
        "rshared" => MountPropagationFlags::SHARED | recursive,
        "slave" => MountPropagationFlags::DOWNSTREAM,
        "rslave" => MountPropagationFlags::DOWNSTREAM | recursive,
        "unbindable" => MountPropagationFlags::UNBINDABLE,
        "runbindable" => MountPropagationFlags::UNBINDABLE | recursive,
        _ => return None,
    })
}

/// Mounts one after the other on a root.
///
/// # Errors
/// The first that fails, with what was to be mounted. What was mounted before stays.
pub fn mount_all(mounts: &[Mount], root: &Path) -> io::Result<()> {
    for mount in mounts {
        let target = within(root, &mount.target)?;
        mount_one(mount, &target).map_err(|error| {
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

fn mount_one(mount: &Mount, target: &Path) -> io::Result<()> {
    let options = Options::parse(&mount.options)?;
    if options.is_bind {
        bind(&mount.source, target, &options)?;
    } else {
        let (folder, data) = shorten(options.data.clone());
        let data = CString::new(data.join(","))?;
        in_folder(folder.as_deref(), || {
            let (source, fstype) = (mount.source.as_str(), mount.r#type.as_str());
            rustix::mount::mount(source, target, fstype, options.flags, data.as_c_str())
        })?;
    }
    if !options.propagation.is_empty() {
        rustix::mount::mount_change(target, options.propagation)?;
    }
    Ok(())
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

/// Shortens an overlay's data where it is too long for the kernel, as with many layers: lower
/// folders are named from the folder that they have in common, in which the caller has to be.
fn shorten(data: Vec<String>) -> (Option<PathBuf>, Vec<String>) {
    const LOWER: &str = "lowerdir=";
    let length: usize = data.iter().map(|word| word.len() + 1).sum();
    let lower = data.iter().position(|word| word.starts_with(LOWER));
    let (Some(lower), true) = (lower, length > MAX_DATA_LEN) else { return (None, data) };
    let folders: Vec<&Path> = data[lower][LOWER.len()..].split(':').map(Path::new).collect();
    let Some(common) = common_folder(&folders) else { return (None, data) };
    let short: Vec<String> = folders
        .iter()
        .filter_map(|folder| folder.strip_prefix(&common).ok())
        .map(|folder| folder.display().to_string())
        .collect();
    let word = format!("{LOWER}{}", short.join(":"));
    let mut data = data;
    data[lower] = word;
    (Some(common), data)
}

/// The deepest folder above all of these.
fn common_folder(folders: &[&Path]) -> Option<PathBuf> {
    let mut common = folders.first()?.parent()?.to_owned();
    while !folders.iter().all(|folder| folder.starts_with(&common)) {
        common.pop();
    }
    (common.is_absolute() && common != Path::new("/")).then_some(common)
}

/// Calls with another working folder. The shim has one thread, so nobody else is surprised.
fn in_folder(
    folder: Option<&Path>,
    call: impl FnOnce() -> Result<(), rustix::io::Errno>,
) -> io::Result<()> {
    let Some(folder) = folder else { return Ok(call()?) };
    let before = env::current_dir()?;
    env::set_current_dir(folder)?;
    let result = call();
    env::set_current_dir(before)?;
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

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_sorted_by_whom_they_are_for() {
        let options = Options::parse(&words("rbind ro nosuid rprivate size=1m")).unwrap();
        assert_eq!(
            options,
            Options {
                flags: MountFlags::RDONLY | MountFlags::NOSUID,
                is_bind: true,
                is_recursive: true,
                propagation: MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
                data: words("size=1m"),
            }
        );
        assert_eq!(Options::parse(&words("ro rw")).unwrap().flags, MountFlags::empty());
        assert!(Options::parse(&words("loop")).is_err());
    }

    #[test]
    fn a_target_does_not_leave_the_root() {
        let root = Path::new("/bundle/rootfs");
        assert_eq!(within(root, "").unwrap(), root);
        assert_eq!(within(root, "/etc").unwrap(), root.join("etc"));
        assert!(within(root, "../etc").is_err());
    }

    #[test]
    fn many_layers_are_named_from_their_common_folder() {
        let few = words("lowerdir=/s/1/fs:/s/2/fs workdir=/s/3/work");
        assert_eq!(shorten(few.clone()), (None, few));

        let layers: Vec<String> = (0..100)
            .map(|layer| format!("/var/lib/containerd/snapshots/{layer}/fs-of-it"))
            .collect();
        let many = vec![format!("lowerdir={}", layers.join(":")), "index=off".to_owned()];
        let (folder, data) = shorten(many);
        assert_eq!(folder.unwrap(), Path::new("/var/lib/containerd/snapshots"));
        assert!(data[0].starts_with("lowerdir=0/fs-of-it:1/fs-of-it:"), "{}", data[0]);
        assert_eq!(data[1], "index=off");
    }
}
