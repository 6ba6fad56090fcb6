//! Pods with a user namespace: its users, the namespace itself, and where they get to.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use ttrpc::Status;

use super::{files, unremoved};
use crate::{
    bundle::Bundle,
    mount,
    proto::{
        cri::{IdMapping, NamespaceMode, PodSandboxConfig},
        types::Mount,
    },
    reaper::Reaper,
};

/// What belongs to pods with a user namespace. containerd keeps the bundles of sandboxes where only
/// the machine's root may look, and not the root of such a namespace.
const FOLDER: &str = "/run/shim-kit";
const FILES: &str = "pod";
const ROOT: &str = "rootfs";
const NAMESPACE: &str = "namespace";

/// Whom of the machine's users and groups a pod's are.
#[derive(Clone, Debug, PartialEq)]
pub struct Users {
    users: IdMapping,
    groups: IdMapping,
}

impl Users {
    /// Those of a pod with a user namespace.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for mappings that are not one for users and one for groups, or that lack root.
    pub fn of(pod: &PodSandboxConfig) -> Result<Option<Users>, Status> {
        let wrong = |what| Status::invalid_argument(format!("the pod's user namespace {what}"));
        let context = pod.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = context.and_then(|context| context.namespace_options.as_ref());
        let Some(given) = options.and_then(|options| options.userns_options.as_ref()) else {
            return Ok(None);
        };
        match (given.mode(), &given.uids[..], &given.gids[..]) {
            (NamespaceMode::Node, [], []) => Ok(None),
            (NamespaceMode::Node, ..) => Err(wrong("is the machine's and has mappings")),
            (NamespaceMode::Pod, [users], [groups]) => {
                // containerd gives what belongs to the namespace's root to its first user.
                if [users, groups].iter().any(|ids| ids.container_id != 0 || ids.length == 0) {
                    return Err(wrong("has no root"));
                }
                Ok(Some(Users { users: *users, groups: *groups }))
            }
            (NamespaceMode::Pod, ..) => Err(wrong("does not have one mapping each")),
            _ => Err(wrong("is neither the pod's nor the machine's")),
        }
    }

    /// The user and the group that are the namespace's root.
    pub fn root(&self) -> (u32, u32) {
        (self.users.host_id, self.groups.host_id)
    }

    /// The last user and group that the namespace has.
    pub fn last(&self) -> (i64, i64) {
        let last = |ids: &IdMapping| i64::from(ids.length) - 1;
        (last(&self.users), last(&self.groups))
    }

    /// The mappings in the words of the OCI runtime specification.
    pub fn mappings(&self) -> [(&'static str, Value); 2] {
        let list = |ids: &IdMapping| json!([{"containerID": ids.container_id, "hostID": ids.host_id, "size": ids.length}]);
        [("uidMappings", list(&self.users)), ("gidMappings", list(&self.groups))]
    }

    /// Where the pod's files are to be.
    ///
    /// # Errors
    /// Those of making folders.
    pub fn files(&self, bundle: &Bundle) -> io::Result<PathBuf> {
        Ok(self.make_folder(bundle)?.join(FILES))
    }

    /// Makes a folder that this root can get to, for a pod.
    fn make_folder(&self, bundle: &Bundle) -> io::Result<PathBuf> {
        let make = |path: &Path, mode| {
            DirBuilder::new().recursive(true).mode(mode).create(path)?;
            fs::set_permissions(path, Permissions::from_mode(mode))
        };
        let path = folder(bundle)?;
        make(Path::new(FOLDER), 0o711)?;
        make(&path, 0o710)?;
        chown(&path, None, Some(self.root().1))?;
        Ok(path)
    }

    /// Makes an empty root file system that is the namespace's.
    ///
    /// # Errors
    /// Those of making folders and mounting.
    pub async fn make_root(&self, bundle: &Bundle, reaper: &Reaper) -> io::Result<PathBuf> {
        let path = self.make_folder(bundle)?.join(ROOT);
        fs::create_dir_all(&path)?;
        let mut mount = super::empty_root();
        let (user, group) = self.root();
        mount.options.extend([format!("uid={user}"), format!("gid={group}")]);
        mount::mount_all(&[mount], &path, reaper).await?;
        Ok(path)
    }

    /// Gives the user namespace that a network namespace belongs to a file. Only its root may set the
    /// network up.
    ///
    /// # Errors
    /// If there is no such network namespace; those of making a file and mounting.
    pub fn make_namespace(&self, bundle: &Bundle, network: &Path) -> io::Result<PathBuf> {
        let owner = owner_of(network)?;
        let path = self.make_folder(bundle)?.join(NAMESPACE);
        File::create(&path)?;
        // Not this link itself: runc takes a process in front of `fd` for one in the namespace.
        rustix::mount::mount_bind(format!("/proc/self/fd/{}", owner.as_raw_fd()), &path)?;
        Ok(path)
    }
}

/// A mount of what is mounted elsewhere.
pub fn same_as(path: &Path) -> Mount {
    Mount {
        r#type: "bind".to_owned(),
        source: path.display().to_string(),
        options: vec!["rbind".to_owned()],
        ..Mount::default()
    }
}

/// The user namespace that a network namespace belongs to.
#[allow(unsafe_code, reason = "rustix does not know the ioctls of namespaces")]
fn owner_of(network: &Path) -> io::Result<OwnedFd> {
    let network = File::open(network)?;
    // SAFETY: the descriptor is open, and the call takes no argument.
    match unsafe { libc::ioctl(network.as_raw_fd(), libc::NS_GET_USERNS) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has made it for this call.
        owner => Ok(unsafe { OwnedFd::from_raw_fd(owner) }),
    }
}

/// Removes what was made for a pod, if it was.
///
/// # Errors
/// Those of unmounting and removing, with the path.
pub fn remove(bundle: &Bundle) -> io::Result<()> {
    let folder = match folder(bundle) {
        // Its bundle is gone, and with it the name of the folder.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    if !folder.exists() {
        return Ok(());
    }
    files::remove(&folder.join(FILES))?;
    for mounted in [folder.join(ROOT), folder.join(NAMESPACE)] {
        mount::unmount_all(&mounted)?;
    }
    fs::remove_dir_all(&folder).map_err(|error| unremoved(&folder, error))
}

/// The folder for a pod, which follows from that of its bundle.
fn folder(bundle: &Bundle) -> io::Result<PathBuf> {
    let path = bundle.path().canonicalize()?;
    let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Ok(Path::new(FOLDER).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::cri::{
        LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceOption, UserNamespace,
    };

    fn ids(container_id: u32, host_id: u32, length: u32) -> Vec<IdMapping> {
        vec![IdMapping { host_id, container_id, length }]
    }

    fn users(
        mode: NamespaceMode,
        uids: Vec<IdMapping>,
        gids: Vec<IdMapping>,
    ) -> Result<Option<Users>, Status> {
        let users = UserNamespace { mode: mode.into(), uids, gids };
        let options = NamespaceOption { userns_options: Some(users), ..Default::default() };
        let context =
            LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        let linux = LinuxPodSandboxConfig { security_context: Some(context), ..Default::default() };
        Users::of(&PodSandboxConfig { linux: Some(linux), ..Default::default() })
    }

    #[test]
    fn a_pods_users_are_those_of_its_mappings() {
        assert_eq!(Users::of(&PodSandboxConfig::default()).unwrap(), None);
        assert_eq!(users(NamespaceMode::Node, vec![], vec![]).unwrap(), None);
        let found = users(NamespaceMode::Pod, ids(0, 7000, 1000), ids(0, 8000, 500));
        let found = found.unwrap().unwrap();
        assert_eq!((found.root(), found.last()), ((7000, 8000), (999, 499)));
    }

    #[test]
    fn mappings_that_cannot_be_are_an_error_and_never_none() {
        let good = || ids(0, 7000, 1000);
        let two = || [good(), ids(1000, 1, 1)].concat();
        for (mode, uids, gids, reason) in [
            (NamespaceMode::Node, good(), good(), "is the machine's"),
            (NamespaceMode::Pod, vec![], vec![], "one mapping each"),
            (NamespaceMode::Pod, good(), vec![], "one mapping each"),
            (NamespaceMode::Pod, two(), good(), "one mapping each"),
            (NamespaceMode::Pod, good(), ids(1, 7000, 10), "no root"),
            (NamespaceMode::Pod, ids(0, 7000, 0), good(), "no root"),
            (NamespaceMode::Container, good(), good(), "neither"),
        ] {
            let status = users(mode, uids, gids).unwrap_err();
            assert_eq!(status.code(), ttrpc::Code::InvalidArgument);
            assert!(status.message().contains(reason), "{mode:?}: {status}");
        }
    }

    #[test]
    fn a_network_namespace_has_an_owner() {
        let found = match owner_of(Path::new("/proc/self/ns/net")) {
            // The namespace is of a user namespace further out: in a container without one of its own.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                println!("skipped: {error}");
                return;
            }
            found => found.unwrap(),
        };
        let target = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert!(target.to_string_lossy().starts_with("user:["), "{}", target.display());
        assert!(owner_of(Path::new("/missing")).is_err());
    }
}
