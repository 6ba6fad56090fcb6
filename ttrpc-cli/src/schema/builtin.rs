//! The schemas that come with this program: containerd's, NRI's, and those of `ttrpc-reflection`.

use std::sync::OnceLock;

use prost_reflect::DescriptorPool;
use ttrpc_reflection::proto;

use super::{Schema, Source};

const CONTAINERD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/builtin.bin"));

/// Decoded when it is first asked for.
///
/// # Panics
/// Never: a test decodes it.
pub fn builtin() -> &'static Schema {
    static BUILTIN: OnceLock<Schema> = OnceLock::new();
    BUILTIN.get_or_init(|| {
        let mut pool = DescriptorPool::new();
        for set in [
            CONTAINERD,
            proto::reflection::FILE_DESCRIPTOR_SET,
            proto::health::FILE_DESCRIPTOR_SET,
            proto::debug::FILE_DESCRIPTOR_SET,
        ] {
            pool.decode_file_descriptor_set(set).expect("the build made the set");
        }
        Schema::new(pool, Source::BuiltIn).expect("the placeholder's name is free")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operators_look_at_is_built_in() {
        let services: Vec<_> =
            builtin().pool().services().map(|service| service.full_name().to_owned()).collect();
        for name in [
            "containerd.task.v2.Task",
            "containerd.task.v3.Task",
            "containerd.runtime.sandbox.v1.Sandbox",
            "containerd.services.events.ttrpc.v1.Events",
            "nri.pkg.api.v1alpha1.Plugin",
            "nri.pkg.api.v1alpha1.Runtime",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "ttrpc.debug.v1.Debug",
        ] {
            assert!(services.iter().any(|known| known == name), "{name} is not in {services:?}");
        }
        let task = |version: u8| {
            let name = format!("containerd.task.v{version}.Task");
            builtin().pool().get_service_by_name(&name).unwrap().methods().len()
        };
        assert_eq!((task(2), task(3)), (17, 17));
    }

    #[test]
    fn an_any_is_found_with_and_without_a_domain() {
        for url in ["containerd.events.TaskExit", "type.googleapis.com/containerd.events.TaskExit"]
        {
            assert_eq!(builtin().any_type(url).unwrap().name(), "TaskExit");
        }
        assert!(builtin().any_type("").is_none());
    }
}
