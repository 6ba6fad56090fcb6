//! The shims below a state directory of containerd.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Folders of a state directory that hold a folder per namespace, with one per container or sandbox.
const PLUGINS: [&str; 2] =
    ["io.containerd.runtime.v2.task", "io.containerd.sandbox.controller.v1.shim"];

/// The newest version of the service Task.
const NEWEST: u32 = 3;

/// A container or sandbox, as its folder tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub namespace: String,
    pub id: String,
    pub bundle: PathBuf,
}

/// A shim, and all whose folders name its address.
#[derive(Clone, Debug)]
pub struct Shim {
    /// `None` if nothing tells it: the shim is about to start, or never did.
    pub address: Option<String>,
    /// Its `bootstrap.json` cannot be read.
    pub is_damaged: bool,
    /// Of the service Task.
    pub version: u32,
    /// `ttrpc` or `grpc`.
    pub protocol: String,
    pub containers: Vec<Container>,
}

/// What a shim answered when it was started, as containerd 1.7 and later keep it.
#[derive(Debug, Deserialize)]
struct Bootstrap {
    version: u32,
    address: String,
    #[serde(default)]
    protocol: String,
}

/// Adds the shims of a state directory. Those of one address are one shim.
///
/// # Errors
/// If the directory cannot be read. What is gone before it was read is left out.
pub fn add(state: &Path, namespace: Option<&str>, shims: &mut Vec<Shim>) -> io::Result<()> {
    // So that a wrong directory is told from one without shims.
    fs::read_dir(state)?;
    for plugin in PLUGINS {
        for namespace_folder in folders(&state.join(plugin))? {
            let name = file_name(&namespace_folder);
            if namespace.is_some_and(|wanted| wanted != name) {
                continue;
            }
            for bundle in folders(&namespace_folder)? {
                let container =
                    Container { namespace: name.clone(), id: file_name(&bundle), bundle };
                put(container, shims);
            }
        }
    }
    Ok(())
}

fn put(container: Container, shims: &mut Vec<Shim>) {
    let shim = read(&container.bundle);
    let known =
        shims.iter_mut().find(|known| known.address.is_some() && known.address == shim.address);
    match known {
        // A sandbox has a folder as a container, too.
        Some(known) if known.containers.iter().any(|other| other.id == container.id) => {}
        Some(known) => known.containers.push(container),
        None => shims.push(Shim { containers: vec![container], ..shim }),
    }
}

/// What a bundle tells of its shim.
fn read(bundle: &Path) -> Shim {
    let shim = |address: Option<String>, version, protocol: &str| Shim {
        address: address.filter(|address| !address.is_empty()),
        is_damaged: false,
        version,
        protocol: protocol.to_owned(),
        containers: Vec::new(),
    };
    if let Ok(bootstrap) = fs::read(bundle.join("bootstrap.json")) {
        return match serde_json::from_slice::<Bootstrap>(&bootstrap) {
            Ok(Bootstrap { version, address, protocol }) => match &*protocol {
                "" => shim(Some(address), version, "ttrpc"),
                protocol => shim(Some(address), version, protocol),
            },
            Err(_) => Shim { is_damaged: true, ..shim(None, NEWEST, "ttrpc") },
        };
    }
    let address = fs::read_to_string(bundle.join("address")).ok();
    shim(address.map(|address| address.trim().to_owned()), 2, "ttrpc")
}

/// The folders in a folder, in order; none if it is not there.
fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(state: &Path, plugin: usize, id: &str, file: &str, text: &str) {
        let folder = state.join(PLUGINS[plugin]).join("ns").join(id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), text).unwrap();
    }

    #[test]
    fn shims_are_found_by_both_files_and_grouped_by_address() {
        let state = tempfile::tempdir().unwrap();
        let json = r#"{"version":3,"address":"unix:///run/s/pod","protocol":"ttrpc"}"#;
        bundle(state.path(), 0, "a", "bootstrap.json", json);
        bundle(state.path(), 0, "b", "bootstrap.json", json);
        bundle(state.path(), 1, "a", "bootstrap.json", json);
        bundle(state.path(), 0, "old", "address", "unix:///run/s/old\n");
        bundle(state.path(), 0, "none", "config.json", "{}");
        let mut shims = Vec::new();
        add(state.path(), None, &mut shims).unwrap();
        let told: Vec<_> = shims
            .iter()
            .map(|shim| (shim.address.as_deref(), shim.version, shim.containers.len()))
            .collect();
        assert_eq!(
            told,
            [(Some("unix:///run/s/pod"), 3, 2), (None, 2, 1), (Some("unix:///run/s/old"), 2, 1),]
        );
        shims.clear();
        add(state.path(), Some("other"), &mut shims).unwrap();
        assert!(shims.is_empty());
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(add(Path::new("/no/such/state"), None, &mut Vec::new()).is_err());
    }
}
