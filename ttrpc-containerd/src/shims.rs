//! Shims of this machine: where they listen, and which there are.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sha2::{Digest, Sha256};
use ttrpc::{Client, Error};

use crate::task::Tasks;

/// Where containerd keeps what it runs.
pub const DEFAULT_STATE: &str = "/run/containerd";
/// Where shims listen unless containerd says otherwise.
pub const DEFAULT_SOCKETS: &str = "/run/containerd/s";
/// The longest path that fits into a socket's address, with the zero byte behind it.
const MAX_PATH_LEN: usize = 107;
/// Digits of the hash below which two groups might share a name by accident.
const MIN_DIGITS: usize = 32;
/// containerd's plugin for tasks, in whose folder the bundles are, by namespace and id.
const BUNDLES: &str = "io.containerd.runtime.v2.task";

/// The socket of the shim that serves a group of containers, as shims of containerd's kind choose it. `containerd` is the
/// address of containerd's own gRPC socket.
///
/// # Errors
/// If the folder's path is so long that no name fits behind it.
pub fn socket_path(
    folder: &Path,
    containerd: &str,
    namespace: &str,
    group: &str,
) -> io::Result<PathBuf> {
    let hash = Sha256::digest(format!("{containerd}/{namespace}/{group}"));
    let mut name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let room = MAX_PATH_LEN.saturating_sub(folder.as_os_str().len() + 1);
    if room < MIN_DIGITS {
        let reason =
            format!("the path of the folder for sockets is too long: {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    name.truncate(room);
    Ok(folder.join(name))
}

/// A container whose shim's address is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shim {
    /// containerd's namespace.
    pub namespace: String,
    /// The container's id. Containers of a pod share a shim.
    pub id: String,
    /// The container's bundle.
    pub bundle: PathBuf,
    /// Where the shim listens, such as `unix:///run/containerd/s/…`.
    pub address: String,
    /// The version of the Task service.
    pub version: i32,
}

impl Shim {
    /// What a bundle says of its shim; nothing if it has none, or one that speaks something else than ttrpc.
    fn read(namespace: &str, bundle: PathBuf) -> Option<Shim> {
        let id = bundle.file_name()?.to_str()?.to_owned();
        let of = |address: &str, version| Shim {
            namespace: namespace.to_owned(),
            id,
            address: address.trim().to_owned(),
            version,
            bundle: bundle.clone(),
        };
        // containerd 2.x; before, there is the bare address.
        let Ok(text) = fs::read(bundle.join("bootstrap.json")) else {
            return fs::read_to_string(bundle.join("address")).ok().map(|address| of(&address, 2));
        };
        let answer: Value = serde_json::from_slice(&text).ok()?;
        let version = answer["version"].as_i64().and_then(|version| version.try_into().ok());
        let is_ttrpc = answer["protocol"].as_str().is_none_or(|name| matches!(name, "" | "ttrpc"));
        is_ttrpc.then(|| Some(of(answer["address"].as_str()?, version.unwrap_or(2))))?
    }

    /// Connects to the shim.
    ///
    /// # Errors
    /// If it does not listen.
    pub async fn connect(&self) -> Result<Tasks, Error> {
        Ok(Tasks::new(Client::connect(&self.address).await?, self.version))
    }
}

/// The containers of a containerd with this folder for its state, which is [`DEFAULT_STATE`] as a rule. Needs its rights.
///
/// # Errors
/// Those of reading the folder.
pub fn find(state: impl AsRef<Path>) -> io::Result<Vec<Shim>> {
    let mut shims = Vec::new();
    for namespace in fs::read_dir(state.as_ref().join(BUNDLES))? {
        let namespace = namespace?;
        // It may be removed meanwhile.
        let bundles = fs::read_dir(namespace.path()).into_iter().flatten().flatten();
        let name = namespace.file_name().to_string_lossy().into_owned();
        shims.extend(bundles.filter_map(|bundle| Shim::read(&name, bundle.path())));
    }
    shims.sort_by(|a, b| (&a.namespace, &a.id).cmp(&(&b.namespace, &b.id)));
    Ok(shims)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/run/containerd/containerd.sock";

    #[test]
    fn a_group_has_one_socket_and_no_two_groups_share_one() {
        let path = |containerd: &str, namespace: &str, group: &str| {
            socket_path(Path::new(DEFAULT_SOCKETS), containerd, namespace, group).unwrap()
        };
        let one = path(SOCKET, "default", "c1");
        assert_eq!(one, path(SOCKET, "default", "c1"));
        assert_ne!(one, path(SOCKET, "default", "c2"));
        assert_ne!(one, path(SOCKET, "k8s.io", "c1"));
        assert_ne!(one, path("/run/other.sock", "default", "c1"));
    }

    #[test]
    fn a_path_fits_into_a_sockets_address_however_long_the_id_is() {
        for length in [1, 41, 74] {
            let folder = PathBuf::from(format!("/{}", "f".repeat(length - 1)));
            let path = socket_path(&folder, SOCKET, "default", &"c".repeat(500)).unwrap();
            assert!(path.as_os_str().len() <= MAX_PATH_LEN, "{}", path.display());
            assert!(path.starts_with(&folder));
        }
        let folder = PathBuf::from(format!("/{}", "f".repeat(80)));
        let error = socket_path(&folder, SOCKET, "default", "c1").unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn shims_are_found_by_what_their_bundles_say() {
        let state = tempfile::tempdir().unwrap();
        let bundle = |namespace: &str, id: &str| {
            let path = state.path().join(BUNDLES).join(namespace).join(id);
            fs::create_dir_all(&path).unwrap();
            path
        };
        fs::write(bundle("k8s.io", "old").join("address"), "unix:///s/1\n").unwrap();
        let new = r#"{"version":3,"address":"unix:///s/2","protocol":"ttrpc"}"#;
        fs::write(bundle("default", "new").join("bootstrap.json"), new).unwrap();
        let other = r#"{"version":3,"address":"unix:///s/3","protocol":"grpc"}"#;
        fs::write(bundle("default", "other").join("bootstrap.json"), other).unwrap();
        bundle("default", "starting");
        let found = find(state.path()).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|shim| (shim.id.as_str(), shim.address.as_str(), shim.version))
            .collect();
        assert_eq!(told, [("new", "unix:///s/2", 3), ("old", "unix:///s/1", 2)]);
        assert_eq!(found[1].namespace, "k8s.io");
    }
}
