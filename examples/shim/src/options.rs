//! What containerd's configuration and clients say about runc. Nothing that is not understood is
//! passed over.

use shim_kit::{Given, Status};
use toml_parser::decoder::ScalarKind;
use ttrpc::prost::{Message, Name};

use ttrpc_containerd::{legacy_runc as legacy, runc::Options};

use crate::toml::{self, Entry};

/// Understands options in all forms.
///
/// # Errors
/// INVALID_ARGUMENT that names what is wrong.
pub fn understand(given: Given<'_>) -> Result<Options, Status> {
    match given {
        Given::Nothing => Ok(Options::default()),
        Given::Message { name, bytes } if name == Options::full_name() => {
            Options::decode(bytes).map_err(|error| wrong(&format!("cannot be read: {error}")))
        }
        Given::Message { name, bytes } if name == legacy::CreateOptions::full_name() => {
            let given = legacy::CreateOptions::decode(bytes);
            from_legacy(given.map_err(|error| wrong(&format!("cannot be read: {error}")))?)
        }
        Given::Message { name, .. } => Err(wrong(&format!("are of the unknown type {name}"))),
        Given::Toml(text) => from_toml(text),
    }
}

fn wrong(what: &str) -> Status {
    Status::invalid_argument(format!("the runtime's options {what}"))
}

/// Understands what clients of containerd 1.6 send to runtimes of other names than its own.
fn from_legacy(given: legacy::CreateOptions) -> Result<Options, Status> {
    let legacy::CreateOptions {
        no_pivot_root,
        no_new_keyring,
        shim_cgroup,
        io_uid,
        io_gid,
        criu_work_path,
        criu_image_path,
        // How to restore.
        open_tcp,
        external_unix_sockets,
        terminal,
        file_locks,
        empty_namespaces,
        cgroups_mode,
    } = given;
    if open_tcp
        || external_unix_sockets
        || terminal
        || file_locks
        || !empty_namespaces.is_empty()
        || !cgroups_mode.is_empty()
    {
        return Err(wrong("say how to restore, which is not a matter of the runtime's"));
    }
    Ok(Options {
        no_pivot_root,
        no_new_keyring,
        shim_cgroup,
        io_uid,
        io_gid,
        criu_work_path,
        criu_image_path,
        ..Options::default()
    })
}

/// Reads a table whose keys are those of containerd's own runc shim. containerd's configuration is
/// read without regard to case.
fn from_toml(text: &str) -> Result<Options, Status> {
    let entries = toml::entries(text).map_err(|error| wrong(&format!("are no TOML: {error}")))?;
    let mut options = Options::default();
    for entry in &entries {
        let key = &entry.key;
        set(&mut options, entry).map_err(|fault| match fault {
            Fault::Key => wrong(&format!("have an unknown key {key}")),
            Fault::Type(wanted) => {
                wrong(&format!("have {key} as {} instead of {wanted}", entry.kind.description()))
            }
        })?;
    }
    Ok(options)
}

/// What may be wrong with an entry.
enum Fault {
    /// No option is called so.
    Key,
    /// It should be of this type.
    Type(&'static str),
}

#[allow(deprecated, reason = "containerd still writes these keys")]
fn set(options: &mut Options, value: &Entry) -> Result<(), Fault> {
    match value.key.to_ascii_lowercase().as_str() {
        "nopivotroot" => options.no_pivot_root = boolean(value)?,
        "nonewkeyring" => options.no_new_keyring = boolean(value)?,
        "systemdcgroup" => options.systemd_cgroup = boolean(value)?,
        "iouid" => options.io_uid = number(value)?,
        "iogid" => options.io_gid = number(value)?,
        "taskapiversion" => options.task_api_version = number(value)?,
        "shimcgroup" => options.shim_cgroup = string(value)?,
        "binaryname" => options.binary_name = string(value)?,
        "root" => options.root = string(value)?,
        "criupath" => options.criu_path = string(value)?,
        "criuimagepath" => options.criu_image_path = string(value)?,
        "criuworkpath" => options.criu_work_path = string(value)?,
        "taskapiaddress" => options.task_api_address = string(value)?,
        // containerd's own, which says what the table is.
        "typeurl" => drop(string(value)?),
        _ => return Err(Fault::Key),
    }
    Ok(())
}

fn boolean(entry: &Entry) -> Result<bool, Fault> {
    match entry.kind {
        ScalarKind::Boolean(value) => Ok(value),
        _ => Err(Fault::Type("boolean")),
    }
}

fn number(entry: &Entry) -> Result<u32, Fault> {
    let number = match entry.kind {
        ScalarKind::Integer(radix) => u32::from_str_radix(&entry.value, radix.value()).ok(),
        _ => None,
    };
    number.ok_or(Fault::Type("a number of 32 bits"))
}

fn string(entry: &Entry) -> Result<String, Fault> {
    match entry.kind {
        ScalarKind::String => Ok(entry.value.clone()),
        _ => Err(Fault::Type("string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_kubernetes_arrive_in_toml() {
        // What containerd 2 writes for a table of its configuration.
        let toml = "BinaryName = '/usr/bin/crun'\nCriuPath = ''\nIoGid = 5\nIoUid = 0\n\
                    NoNewKeyring = false\nNoPivotRoot = true\nRoot = '/run/r'\nSystemdCgroup = true\n";
        let options = understand(Given::Toml(toml)).unwrap();
        let expected = Options {
            binary_name: "/usr/bin/crun".to_owned(),
            io_gid: 5,
            no_pivot_root: true,
            root: "/run/r".to_owned(),
            systemd_cgroup: true,
            ..Options::default()
        };
        assert_eq!(options, expected);
        assert!(understand(Given::Toml("systemdcgroup = true")).unwrap().systemd_cgroup);
        assert_eq!(understand(Given::Toml("")).unwrap(), Options::default());
    }

    #[test]
    fn options_of_clients_arrive_as_a_message() {
        let options = Options { shim_cgroup: "/shims".to_owned(), ..Options::default() };
        let bytes = options.encode_to_vec();
        let given = Given::Message { name: "containerd.runc.v1.Options", bytes: &bytes };
        assert_eq!(understand(given).unwrap(), options);
        assert_eq!(understand(Given::Nothing).unwrap(), Options::default());
    }

    /// Clients of containerd 1.6 got an error for whatever they asked of a runtime of another name.
    #[test]
    fn options_of_old_clients_arrive() {
        let given = legacy::CreateOptions {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: "/shims".to_owned(),
            io_uid: 7,
            io_gid: 8,
            criu_work_path: "/work".to_owned(),
            criu_image_path: "/image".to_owned(),
            ..legacy::CreateOptions::default()
        };
        let understood = |given: &legacy::CreateOptions| {
            let name = "containerd.linux.runc.CreateOptions";
            understand(Given::Message { name, bytes: &given.encode_to_vec() })
        };
        let expected = Options {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: "/shims".to_owned(),
            io_uid: 7,
            io_gid: 8,
            criu_work_path: "/work".to_owned(),
            criu_image_path: "/image".to_owned(),
            ..Options::default()
        };
        assert_eq!(understood(&given).unwrap(), expected);
        let restoring: [fn(&mut legacy::CreateOptions); 6] = [
            |given| given.open_tcp = true,
            |given| given.external_unix_sockets = true,
            |given| given.terminal = true,
            |given| given.file_locks = true,
            |given| given.empty_namespaces = vec!["network".to_owned()],
            |given| given.cgroups_mode = "soft".to_owned(),
        ];
        for how in restoring {
            let mut given = given.clone();
            how(&mut given);
            assert!(understood(&given).unwrap_err().message().contains("how to restore"));
        }
    }

    #[test]
    fn options_that_are_not_understood_are_an_error_and_never_a_default() {
        for (given, reason) in [
            (Given::Toml("SystemdCgroups = true"), "unknown key SystemdCgroups"),
            (Given::Toml("SystemdCgroup = 'yes'"), "SystemdCgroup as string instead of boolean"),
            (Given::Toml("IoUid = -1"), "IoUid"),
            (Given::Toml("Root"), "no TOML"),
            (Given::Message { name: "a.v1.Options", bytes: b"" }, "unknown type a.v1.Options"),
            (
                Given::Message { name: "containerd.runc.v1.Options", bytes: &[0xff] },
                "cannot be read",
            ),
        ] {
            let status = understand(given).unwrap_err();
            assert_eq!(status.code(), shim_kit::Code::InvalidArgument);
            assert!(status.message().contains(reason), "{given:?}: {status}");
        }
    }
}
