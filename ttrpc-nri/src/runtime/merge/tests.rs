use super::*;
use crate::{
    Container, ContainerUpdate, LinuxResources,
    proto::{Field, LinuxDevice, Mount, UpdateContainerRequest},
};

pub(super) fn merge() -> CreateMerge {
    let container = Container {
        env: vec!["A=1".into(), "B=2".into()],
        args: vec!["run".into()],
        mounts: vec![Mount { destination: "/m".into(), ..Mount::default() }],
        ..Container::named("c")
    };
    CreateMerge::new(CreateContainerRequest { pod: None, container: Some(container) })
}

pub(super) fn reply(adjust: ContainerAdjustment) -> CreateContainerResponse {
    CreateContainerResponse { adjust: Some(adjust), ..Default::default() }
}

#[test]
fn hooks_are_added_by_all() {
    let mut merge = merge();
    let hooks = crate::proto::Hooks { poststop: vec![Default::default()], ..Default::default() };
    for plugin in ["00-a", "10-b"] {
        merge
            .apply(plugin, reply(ContainerAdjustment::new().hooks(hooks.clone())))
            .expect("all may add");
    }
    assert_eq!(merge.adjust.hooks.map(|hooks| hooks.poststop.len()), Some(2));
    let owners = &merge.others.owners.owners["c"].simple;
    assert_eq!(owners[&Field::OciHooks.into()], "00-a,10-b");
}

#[test]
fn a_plugin_that_removes_may_set_what_another_has_set() {
    let mut merge = merge();
    let first =
        ContainerAdjustment::new().env("A", "a").annotation("x", "a").args(["a"]).rdt_clos_id("a");
    merge.apply("00-a", reply(first)).expect("it is the first");
    let second = ContainerAdjustment::new()
        .remove_env("A")
        .env("A", "b")
        .remove_annotation("x")
        .annotation("x", "b")
        .replace_args(["b"])
        .remove_rdt()
        .rdt_clos_id("b");
    merge.apply("10-b", reply(second)).expect("it removes first");
    assert_eq!(merge.adjust.env_value("A"), Some("b"));
    assert_eq!(merge.adjust.annotations["x"], "b");
    assert_eq!(merge.adjust.args, ["b"]);
    let container = merge.request.container.as_ref().expect("it is there");
    assert_eq!(container.env_value("A"), Some("b"));
    assert_eq!(container.args, ["b"]);
    // A third one is in conflict with the second.
    let conflict = merge.apply("20-c", reply(ContainerAdjustment::new().env("A", "c")));
    assert!(conflict.expect_err("10-b has set it").message().contains("10-b"));
}

#[test]
fn what_one_plugin_removes_of_the_container_another_may_set() {
    let mut merge = merge();
    let first = ContainerAdjustment::new()
        .remove_env("A")
        .remove_mount("/m")
        .remove_annotation("x")
        .remove_device("/dev/x");
    merge.apply("00-a", reply(first)).expect("it is the first");
    let second = ContainerAdjustment::new()
        .env("A", "b")
        .mount(Mount { destination: "/m".into(), ..Mount::default() })
        .annotation("x", "b")
        .device(LinuxDevice { path: "/dev/x".into(), ..LinuxDevice::default() });
    merge.apply("10-b", reply(second.clone())).expect("no plugin has set them");
    assert_eq!(merge.adjust.env_value("A"), Some("b"));
    assert_eq!(merge.adjust.annotations["x"], "b");
    merge.apply("20-c", reply(second)).expect_err("10-b has set them");
}

#[test]
fn later_plugins_see_what_earlier_ones_have_changed() {
    let mut merge = merge();
    let first =
        ContainerAdjustment::new().env("A", "9").remove_env("B").remove_mount("/m").cpu_shares(7);
    merge.apply("00-a", reply(first)).expect("it is the first");
    let container = merge.request.container.as_ref().expect("it is there");
    assert_eq!(container.env, ["A=9"]);
    assert!(container.mounts.is_empty());
    let resources = container.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let shares = resources.and_then(|resources| resources.cpu.as_ref()?.shares);
    assert_eq!(shares.map(|shares| shares.value), Some(7));
    // The runtime learns what is removed.
    assert_eq!(merge.adjust.mounts[0].destination, "-/m");
    assert!(merge.adjust.env.iter().any(|pair| pair.key == "-B"));
}

#[test]
fn updates_of_others_are_merged_and_the_new_container_cannot_be_updated() {
    let mut merge = merge();
    let update = |update: ContainerUpdate| CreateContainerResponse {
        update: vec![update],
        ..Default::default()
    };
    merge
        .apply("00-a", update(ContainerUpdate::of("o").cpu_shares(1).ignore_failure()))
        .expect("it is the first");
    merge
        .apply("10-b", update(ContainerUpdate::of("o").memory_limit(2)))
        .expect("it sets something else");
    let merged = ContainerUpdate::of("o").cpu_shares(1).memory_limit(2);
    assert_eq!(merge.others.updates, [merged]);
    merge
        .apply("20-c", update(ContainerUpdate::of("o").cpu_shares(3)))
        .expect_err("00-a has set it");
    merge
        .apply("20-c", update(ContainerUpdate::of("o").cpu_shares(3).ignore_failure()))
        .expect("it is ignored");
    merge
        .apply("20-c", update(ContainerUpdate::of("c").cpu_shares(3)))
        .expect_err("it is being created");
}

#[test]
fn an_update_of_the_updated_container_changes_the_request() {
    let resources = LinuxResources {
        cpu: ContainerUpdate::of("")
            .cpu_shares(1)
            .cpu_quota(2)
            .linux
            .and_then(|linux| linux.resources?.cpu),
        ..Default::default()
    };
    let mut request = UpdateContainerRequest {
        container: Some(Container::named("c")),
        linux_resources: Some(resources),
        pod: None,
    };
    let mut merge = UpdateMerge::default();
    let updates =
        vec![ContainerUpdate::of("c").cpu_shares(5), ContainerUpdate::of("o").cpu_shares(6)];
    merge.apply("00-a", updates, Some(&mut request)).expect("it is the first");
    let reply = merge.finish(request);
    let expected = [
        ContainerUpdate::of("o").cpu_shares(6),
        ContainerUpdate::of("c").cpu_shares(5).cpu_quota(2),
    ];
    assert_eq!(reply.update, expected);
}

#[test]
fn a_failure_of_the_requested_update_is_ignored_if_all_plugins_ignore_it() {
    for (second, is_ignored) in [(true, true), (false, false)] {
        let mut request =
            UpdateContainerRequest { container: Some(Container::named("c")), ..Default::default() };
        let mut merge = UpdateMerge::default();
        let first = ContainerUpdate::of("c").cpu_shares(5).ignore_failure();
        merge.apply("00-a", vec![first], Some(&mut request)).expect("it is the first");
        let update = ContainerUpdate::of("c").cpu_quota(5);
        let update = if second { update.ignore_failure() } else { update };
        merge.apply("10-b", vec![update], Some(&mut request)).expect("it sets another");
        assert_eq!(merge.finish(request).update[0].ignore_failure, is_ignored);
    }
}

#[test]
fn an_update_that_is_ignored_claims_nothing() {
    let mut merge = UpdateMerge::default();
    let first = ContainerUpdate::of("o").cpu_shares(1);
    merge.apply("00-a", vec![first], None).expect("it is the first");
    let ignored = ContainerUpdate::of("o").memory_limit(2).cpu_shares(2).ignore_failure();
    merge.apply("10-b", vec![ignored], None).expect("its failure is ignored");
    let third = ContainerUpdate::of("o").memory_limit(3);
    merge.apply("20-c", vec![third], None).expect("10-b has set nothing");
    assert_eq!(merge.updates, [ContainerUpdate::of("o").cpu_shares(1).memory_limit(3)]);
}
