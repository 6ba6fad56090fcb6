//! A mount's options, sorted by whom they are for.

use std::io;

use rustix::mount::{MountFlags, MountPropagationFlags};

use super::idmap::IdMaps;

/// A mount's options, sorted by whom they are for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub flags: MountFlags,
    pub is_bind: bool,
    pub is_recursive: bool,
    /// Whether the source is a file that is to become a loop device.
    pub is_loop: bool,
    pub propagation: MountPropagationFlags,
    /// Which users and groups of the host those on disk are to be, if not themselves.
    pub ids: Option<IdMaps>,
    /// What the file system itself is to read.
    pub data: Vec<String>,
}

impl Options {
    /// Sorts the words of a mount's options.
    ///
    /// # Errors
    /// If users are to be mapped and groups are not, or the other way round.
    pub fn parse(words: &[String]) -> io::Result<Options> {
        let mut options = Options {
            flags: MountFlags::empty(),
            is_bind: false,
            is_recursive: false,
            is_loop: false,
            propagation: MountPropagationFlags::empty(),
            ids: None,
            data: Vec::new(),
        };
        let (mut users, mut groups) = (None, None);
        for word in words {
            match word.as_str() {
                "bind" => options.is_bind = true,
                "rbind" => (options.is_bind, options.is_recursive) = (true, true),
                "loop" => options.is_loop = true,
                "defaults" => {}
                word => {
                    if let Some(map) = word.strip_prefix("uidmap=") {
                        users = Some(map);
                    } else if let Some(map) = word.strip_prefix("gidmap=") {
                        groups = Some(map);
                    } else if let Some((flag, is_on)) = flag(word) {
                        options.flags.set(flag, is_on);
                    } else if let Some(propagation) = propagation(word) {
                        options.propagation |= propagation;
                    } else {
                        options.data.push(word.to_owned());
                    }
                }
            }
        }
        options.ids = match (users, groups) {
            (Some(users), Some(groups)) => Some(IdMaps::parse(users, groups)?),
            (None, None) => None,
            _ => {
                let reason = "uidmap and gidmap are there together or not at all";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
        };
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
                is_loop: false,
                propagation: MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
                ids: None,
                data: words("size=1m"),
            }
        );
        assert_eq!(Options::parse(&words("ro rw")).unwrap().flags, MountFlags::empty());
        assert!(Options::parse(&words("loop")).unwrap().is_loop);
    }

    #[test]
    fn users_and_groups_are_mapped_together() {
        let options =
            Options::parse(&words("uidmap=0:1000:10 gidmap=0:2000:10 index=off")).unwrap();
        assert_eq!(options.data, words("index=off"));
        assert!(options.ids.is_some());
        assert!(Options::parse(&words("uidmap=0:1000:10")).is_err());
        assert!(Options::parse(&words("uidmap=0:x:10 gidmap=0:1:1")).is_err());
    }
}
