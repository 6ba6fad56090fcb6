//! The arguments with which runc writes a container's state to a folder and makes one of it.

use std::{ffi::OsString, path::Path};

use shim_kit::{Any, Status};
use ttrpc::prost::{Message, Name};

use ttrpc_containerd::{
    legacy_runc as legacy,
    runc::{CheckpointOptions, Options},
};

/// Reads what a client says about a checkpoint.
///
/// # Errors
/// INVALID_ARGUMENT if it is not understood.
pub fn options(any: Option<&Any>) -> Result<CheckpointOptions, Status> {
    let Some(any) = any.filter(|any| !any.type_url.is_empty()) else {
        return Ok(CheckpointOptions::default());
    };
    let wrong = |what: String| Status::invalid_argument(format!("the checkpoint's options {what}"));
    let (name, bytes) = (any.type_url.rsplit('/').next().unwrap_or_default(), any.value.as_slice());
    let unreadable = |error| wrong(format!("cannot be read: {error}"));
    if name == CheckpointOptions::full_name() {
        return CheckpointOptions::decode(bytes).map_err(unreadable);
    }
    if name == legacy::CheckpointOptions::full_name() {
        return legacy::CheckpointOptions::decode(bytes).map(from_legacy).map_err(unreadable);
    }
    Err(wrong(format!("are of the unknown type {name}")))
}

/// What clients of containerd 1.6 send to runtimes of other names than its own.
fn from_legacy(given: legacy::CheckpointOptions) -> CheckpointOptions {
    CheckpointOptions {
        exit: given.exit,
        open_tcp: given.open_tcp,
        external_unix_sockets: given.external_unix_sockets,
        terminal: given.terminal,
        file_locks: given.file_locks,
        empty_namespaces: given.empty_namespaces,
        cgroups_mode: given.cgroups_mode,
        image_path: given.image_path,
        work_path: given.work_path,
        parent_path: String::new(),
    }
}

/// `runc checkpoint`, without the container's id. `work` is CRIU's folder unless another is given.
pub fn checkpoint(image: &Path, work: &Path, options: &CheckpointOptions) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["checkpoint".into()];
    let mut path = |flag: &str, given: &str, default: Option<&Path>| {
        let path = Some(Path::new(given)).filter(|_| !given.is_empty()).or(default);
        if let Some(path) = path {
            args.extend([flag.into(), path.into()]);
        }
    };
    path("--image-path", &options.image_path, Some(image));
    path("--work-path", &options.work_path, Some(work));
    path("--parent-path", &options.parent_path, None);
    for (flag, is_set) in [
        ("--tcp-established", options.open_tcp),
        ("--ext-unix-sk", options.external_unix_sockets),
        ("--shell-job", options.terminal),
        ("--file-locks", options.file_locks),
        ("--leave-running", !options.exit),
    ] {
        if is_set {
            args.push(flag.into());
        }
    }
    if !options.cgroups_mode.is_empty() {
        args.extend(["--manage-cgroups-mode".into(), options.cgroups_mode.clone().into()]);
    }
    for namespace in &options.empty_namespaces {
        args.extend(["--empty-ns".into(), namespace.into()]);
    }
    args
}

/// `runc restore`, without what every new process is given.
pub fn restore(image: &Path, bundle: &Path, options: &Options) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["restore".into(), "--detach".into()];
    args.extend(["--image-path".into(), image.into(), "--bundle".into(), bundle.into()]);
    if !options.criu_work_path.is_empty() {
        args.extend(["--work-path".into(), options.criu_work_path.clone().into()]);
    }
    // The shim is the subreaper.
    args.push("--no-subreaper".into());
    if options.no_pivot_root {
        args.push("--no-pivot".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[OsString]) -> String {
        args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_checkpoints_options_become_arguments() {
        let (image, work) = (Path::new("/image"), Path::new("/work"));
        assert_eq!(
            words(&checkpoint(image, work, &CheckpointOptions::default())),
            "checkpoint --image-path /image --work-path /work --leave-running"
        );
        let all = CheckpointOptions {
            exit: true,
            open_tcp: true,
            external_unix_sockets: true,
            terminal: true,
            file_locks: true,
            empty_namespaces: vec!["network".to_owned()],
            cgroups_mode: "soft".to_owned(),
            image_path: "/other".to_owned(),
            work_path: "/criu".to_owned(),
            parent_path: "/parent".to_owned(),
        };
        assert_eq!(
            words(&checkpoint(image, work, &all)),
            "checkpoint --image-path /other --work-path /criu --parent-path /parent \
             --tcp-established --ext-unix-sk --shell-job --file-locks --manage-cgroups-mode soft \
             --empty-ns network"
        );
        let any = Any { type_url: CheckpointOptions::full_name(), value: all.encode_to_vec() };
        assert_eq!(options(Some(&any)).unwrap(), all);
        let old = legacy::CheckpointOptions {
            exit: true,
            image_path: "/image".to_owned(),
            work_path: "/work".to_owned(),
            ..legacy::CheckpointOptions::default()
        };
        let name = legacy::CheckpointOptions::full_name();
        let any = Any { type_url: name, value: old.encode_to_vec() };
        let understood = options(Some(&any)).unwrap();
        assert_eq!((understood.image_path.as_str(), understood.exit), ("/image", true));
        assert_eq!(understood.work_path, "/work");
        let unknown = Any { type_url: "a.Options".to_owned(), value: Vec::new() };
        assert!(options(Some(&unknown)).is_err());
    }

    #[test]
    fn a_container_is_restored_from_its_folder() {
        let options = Options {
            criu_work_path: "/criu".to_owned(),
            no_pivot_root: true,
            ..Options::default()
        };
        assert_eq!(
            words(&restore(Path::new("/image"), Path::new("/b"), &options)),
            "restore --detach --image-path /image --bundle /b --work-path /criu --no-subreaper --no-pivot"
        );
    }
}
