//! Generates the services and messages of containerd's shim interface. Needs no protoc.

fn main() -> Result<(), ttrpc_codegen::Error> {
    let set = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let builder = ttrpc_codegen::configure()
        .file_descriptor_set_path(set.join("shim.bin"))
        // There are many shims on a machine.
        .file_descriptor_set_source_info(false);
    builder.compile_protos(
        &[
            "proto/task_v2.proto",
            "proto/task_v3.proto",
            "proto/sandbox.proto",
            "proto/cri.proto",
            "proto/publish.proto",
            "proto/events.proto",
            "proto/process.proto",
            "proto/runtimeoptions.proto",
            "proto/bootstrap.proto",
            "proto/metrics_v1.proto",
            "proto/metrics_v2.proto",
        ],
        &["proto"],
    )
}
