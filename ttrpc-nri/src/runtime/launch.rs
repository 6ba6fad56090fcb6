//! Finding plugins that are installed, and launching them.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    net::UnixStream,
    process::{Child, Command},
};

use crate::{
    Error, PluginId,
    identity::{INDEX_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE},
};

/// The descriptor on which a launched plugin has its connection.
const DESCRIPTOR: i32 = 3;

/// An installed plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The index and name, of the file's name.
    pub id: PluginId,
    /// The program.
    pub path: PathBuf,
}

/// Returns the plugins in a folder, in the order of their indexes: executable files that are called `10-name`. No folder has none.
///
/// # Errors
/// [`Error::Launch`] if the folder or what is in it cannot be read, [`Error::Identity`] for an executable file with another name.
pub fn installed(folder: &Path) -> Result<Vec<Installed>, Error> {
    let failed = |source| Error::Launch {
        what: format!("read the plugins in {}", folder.display()),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut plugins = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        // Links are followed.
        let found = match fs::metadata(&path) {
            // A link that leads nowhere, or a file that has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.map_err(|source| Error::Launch {
                what: format!("look at {}", path.display()),
                source,
            })?,
        };
        if found.is_file() && found.permissions().mode() & 0o111 != 0 {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            plugins.push(Installed { id: PluginId::parse(&name)?, path });
        }
    }
    plugins.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(plugins)
}

/// Returns a plugin's configuration: the content of `10-name.conf` or else of `name.conf` in this folder, or nothing.
///
/// # Errors
/// [`Error::Launch`] if something is there and is no file, or cannot be read as text.
pub fn config(folder: &Path, id: &PluginId) -> Result<String, Error> {
    for name in [format!("{id}.conf"), format!("{}.conf", id.name())] {
        let path = folder.join(name);
        match read_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(config) => return Ok(config),
            Err(source) => {
                return Err(Error::Launch { what: format!("read {}", path.display()), source });
            }
        }
    }
    Ok(String::new())
}

/// Reads a file, and nothing that could be waited for.
fn read_file(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    fs::read_to_string(path)
}

/// Starts a plugin with one end of a socket pair, and with nothing else of this process.
///
/// # Errors
/// [`Error::Launch`].
pub(super) fn launch(plugin: &Installed) -> Result<(Child, UnixStream), Error> {
    let failed =
        |source| Error::Launch { what: format!("launch {}", plugin.path.display()), source };
    let (here, there) = UnixStream::pair().map_err(failed)?;
    let there = OwnedFd::from(there.into_std().map_err(failed)?);
    // A plugin may read and write as any program does.
    rustix::io::ioctl_fionbio(&there, false).map_err(|error| failed(error.into()))?;
    let mut command = std::process::Command::new(&plugin.path);
    command
        .env_clear()
        .env(NAME_VARIABLE, plugin.id.name())
        .env(INDEX_VARIABLE, plugin.id.index())
        .env(SOCKET_VARIABLE, DESCRIPTOR.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mappings = vec![command_fds::FdMapping { parent_fd: there, child_fd: DESCRIPTOR }];
    let mapped = command_fds::CommandFdExt::fd_mappings(&mut command, mappings);
    mapped.map_err(|error| failed(io::Error::other(error)))?;
    let mut command = Command::from(command);
    let child = command.kill_on_drop(true).spawn().map_err(failed)?;
    Ok((child, here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_files_are_plugins_in_the_order_of_their_indexes() {
        let folder = tempfile::tempdir().expect("there is a folder for files");
        for (name, mode) in [("20-b", 0o755), ("10-z", 0o700), ("10-a", 0o755), ("readme", 0o644)] {
            let path = folder.path().join(name);
            fs::write(&path, "").expect("there is room");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        let found = installed(folder.path()).expect("all names are valid");
        let names: Vec<_> = found.iter().map(|plugin| plugin.id.to_string()).collect();
        assert_eq!(names, ["10-a", "10-z", "20-b"]);
        fs::set_permissions(folder.path().join("readme"), fs::Permissions::from_mode(0o755))
            .expect("it is ours");
        assert!(matches!(installed(folder.path()), Err(Error::Identity { .. })));
        assert_eq!(installed(&folder.path().join("none")).expect("there is none"), []);
        // A link that leads to itself is named, not only its folder.
        std::os::unix::fs::symlink("30-loop", folder.path().join("30-loop")).expect("it is ours");
        fs::remove_file(folder.path().join("readme")).expect("it is there");
        let error = installed(folder.path()).expect_err("it cannot be looked at");
        assert!(error.to_string().contains("30-loop"), "{error}");
    }

    #[test]
    fn a_configuration_with_the_index_precedes_one_without() {
        let folder = tempfile::tempdir().expect("there is a folder for files");
        let id = PluginId::parse("10-a").expect("it is one");
        assert_eq!(config(folder.path(), &id).expect("there is none"), "");
        fs::write(folder.path().join("a.conf"), "b").expect("there is room");
        assert_eq!(config(folder.path(), &id).expect("there is one"), "b");
        fs::write(folder.path().join("10-a.conf"), "c").expect("there is room");
        assert_eq!(config(folder.path(), &id).expect("there is one"), "c");
    }

    #[test]
    fn what_is_no_file_is_no_configuration_and_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("there is a folder for files");
        let id = PluginId::parse("10-a").expect("it is one");
        let path = folder.path().join("a.conf");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("it is ours");
        let error = config(folder.path(), &id).expect_err("nobody writes to it");
        assert!(error.to_string().contains("a.conf"), "{error}");
    }
}
