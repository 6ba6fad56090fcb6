//! The .proto files themselves.

macro_rules! files {
    ($($name:literal)*) => {
        /// The .proto files of all protocols, by their names: for programs that compile them in a way of their own. `task.proto`
        /// has version 3 of the service; version 2 is the same in the package `containerd.task.v2`.
        pub const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../proto/", $name))),)*];
    };
}

files! {
    "bootstrap.proto"
    "cgroups_v1.proto"
    "cgroups_v2.proto"
    "cri.proto"
    "events.proto"
    "image_events.proto"
    "publish.proto"
    "runc.proto"
    "runc_legacy.proto"
    "runtimeoptions.proto"
    "sandbox.proto"
    "task.proto"
    "task_types.proto"
    "types.proto"
}
