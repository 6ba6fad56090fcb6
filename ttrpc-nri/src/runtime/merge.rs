//! One request through several plugins: what each wants is merged, and the next one sees it.

use std::collections::{HashMap, HashSet};

use ttrpc::Status;

use super::owners::{Claims, overlay};
use crate::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, LinuxResources,
    mark_for_removal, marked_for_removal,
    proto::{
        CreateContainerRequest, CreateContainerResponse, Field, LinuxContainer,
        LinuxContainerAdjustment, LinuxNamespace, LinuxRdt, OwningPlugins, UpdateContainerRequest,
        UpdateContainerResponse,
    },
};

/// The creation of a container on its way through the plugins.
pub(super) struct CreateMerge {
    /// With what the plugins before have changed.
    pub(super) request: CreateContainerRequest,
    pub(super) adjust: ContainerAdjustment,
    pub(super) others: UpdateMerge,
}

/// Updates of containers that plugins want.
#[derive(Default)]
pub(super) struct UpdateMerge {
    pub(super) updates: Vec<ContainerUpdate>,
    /// Where in `updates` those of a container are.
    positions: HashMap<String, usize>,
    /// Whether all plugins that update the container of a request ignore a failure, if some do update it.
    requested_ignores: Option<bool>,
    pub(super) evictions: Vec<ContainerEviction>,
    pub(super) owners: OwningPlugins,
}

impl CreateMerge {
    pub(super) fn new(request: CreateContainerRequest) -> Self {
        CreateMerge {
            request,
            adjust: ContainerAdjustment::default(),
            others: UpdateMerge::default(),
        }
    }

    /// Merges a plugin's answer.
    ///
    /// # Errors
    /// If it sets what another plugin has set, or updates the container that is being created.
    pub(super) fn apply(
        &mut self,
        plugin: &str,
        reply: CreateContainerResponse,
    ) -> Result<(), Status> {
        let container = self.request.container.get_or_insert_default();
        let id = container.id.clone();
        if let Some(adjust) = reply.adjust {
            let claims = Claims { owners: &mut self.others.owners, container: &id, plugin };
            merge_adjustment(claims, adjust, &mut self.adjust, container)?;
        }
        if reply.update.iter().any(|update| update.container_id == id) {
            let message = format!(
                "the plugin {plugin} updates container `{id}` while it is created: an adjustment does that"
            );
            return Err(Status::invalid_argument(message));
        }
        self.others.evictions.extend(reply.evict);
        self.others.apply(plugin, reply.update, None)
    }
}

impl UpdateMerge {
    /// Merges updates that a plugin wants. Those of the container of `request` change what is requested.
    ///
    /// # Errors
    /// If one sets what another plugin has set, unless its failure is ignored.
    pub(super) fn apply(
        &mut self,
        plugin: &str,
        updates: Vec<ContainerUpdate>,
        mut request: Option<&mut UpdateContainerRequest>,
    ) -> Result<(), Status> {
        for update in updates {
            let resources = update.linux.and_then(|linux| linux.resources).unwrap_or_default();
            let id = update.container_id;
            let mut claims = Claims { owners: &mut self.owners, container: &id, plugin };
            match claims.claim_resources(&resources) {
                Err(_) if update.ignore_failure => continue,
                claimed => claimed?,
            }
            if let Some(request) = &mut request
                && request.container.as_ref().is_some_and(|container| container.id == id)
            {
                overlay(&resources, request.linux_resources.get_or_insert_default());
                let ignores = self.requested_ignores.unwrap_or(true) && update.ignore_failure;
                self.requested_ignores = Some(ignores);
                continue;
            }
            let at = *self.positions.entry(id).or_insert_with_key(|id| {
                let ignore_failure = update.ignore_failure;
                self.updates.push(ContainerUpdate { ignore_failure, ..ContainerUpdate::of(id) });
                self.updates.len() - 1
            });
            let merged = &mut self.updates[at];
            merged.ignore_failure &= update.ignore_failure;
            let target = merged.linux.get_or_insert_default().resources.get_or_insert_default();
            overlay(&resources, target);
        }
        Ok(())
    }

    /// The answer for an updated container: the others, then what is to be set in this one.
    pub(super) fn finish(self, request: UpdateContainerRequest) -> UpdateContainerResponse {
        let mut update = self.updates;
        let mut requested = ContainerUpdate::of(request.container.unwrap_or_default().id);
        requested.ignore_failure = self.requested_ignores.unwrap_or(false);
        requested.linux.get_or_insert_default().resources =
            Some(request.linux_resources.unwrap_or_default());
        update.push(requested);
        UpdateContainerResponse { update, evict: self.evictions }
    }
}

fn merge_adjustment(
    mut claims: Claims<'_>,
    new: ContainerAdjustment,
    reply: &mut ContainerAdjustment,
    container: &mut Container,
) -> Result<(), Status> {
    let claims = &mut claims;
    merge_map(
        claims,
        Field::Annotations,
        new.annotations,
        &mut reply.annotations,
        &mut container.annotations,
    )?;
    merge_list(claims, Field::Mounts, new.mounts, &mut reply.mounts, |mount| &mount.destination)?;
    see(
        &reply.mounts,
        &mut container.mounts,
        |mount| &mount.destination,
        |mount| &mount.destination,
        Clone::clone,
    );
    merge_list(claims, Field::Env, new.env, &mut reply.env, |pair| &pair.key)?;
    see(
        &reply.env,
        &mut container.env,
        |pair| &pair.key,
        |text| text.split('=').next().unwrap_or(""),
        |pair| format!("{}={}", pair.key, pair.value),
    );
    if let Some((first, rest)) = new.args.split_first() {
        let args = if first.is_empty() {
            claims.clear(Field::Args);
            rest
        } else {
            &new.args
        };
        claims.claim(Field::Args)?;
        reply.args = args.to_vec();
        container.args = args.to_vec();
    }
    if let Some(hooks) = new.hooks.filter(|hooks| !hooks.is_empty()) {
        claims.share(Field::OciHooks);
        container.hooks.get_or_insert_default().append(hooks.clone());
        reply.hooks.get_or_insert_default().append(hooks);
    }
    for limit in new.rlimits {
        claims.claim_entry(Field::Rlimits, &limit.r#type)?;
        container.rlimits.push(limit.clone());
        reply.rlimits.push(limit);
    }
    for device in new.cdi_devices {
        claims.claim_entry(Field::CdiDevices, &device.name)?;
        reply.cdi_devices.push(device);
    }
    let Some(linux) = new.linux else { return Ok(()) };
    let reply = reply.linux.get_or_insert_default();
    merge_linux(claims, linux, reply, container.linux.get_or_insert_default())
}

fn merge_linux(
    claims: &mut Claims<'_>,
    new: LinuxContainerAdjustment,
    reply: &mut LinuxContainerAdjustment,
    container: &mut LinuxContainer,
) -> Result<(), Status> {
    merge_list(claims, Field::Devices, new.devices, &mut reply.devices, |device| &device.path)?;
    see(
        &reply.devices,
        &mut container.devices,
        |device| &device.path,
        |device| &device.path,
        Clone::clone,
    );
    if let Some(resources) = new.resources {
        merge_resources(claims, &resources, reply.resources.get_or_insert_default(), container)?;
    }
    if !new.cgroups_path.is_empty() {
        claims.claim(Field::CgroupsPath)?;
        container.cgroups_path.clone_from(&new.cgroups_path);
        reply.cgroups_path = new.cgroups_path;
    }
    macro_rules! one {
        ($field:ident, $claim:expr $(, $seen:ident)?) => {
            if new.$field.is_some() {
                claims.claim($claim)?;
                $(container.$seen = new.$field.clone();)?
                reply.$field = new.$field;
            }
        };
    }
    one!(oom_score_adj, Field::OomScoreAdj, oom_score_adj);
    one!(io_priority, Field::IoPriority, io_priority);
    one!(seccomp_policy, Field::SeccompPolicy, seccomp_policy);
    one!(scheduler, Field::LinuxSched, scheduler);
    one!(memory_policy, Field::MemoryPolicy);
    let mut kinds = HashSet::new();
    for namespace in &new.namespaces {
        let kind = unmarked(&namespace.r#type);
        claims.claim_entry(Field::Namespace, kind)?;
        kinds.insert(kind);
    }
    container.namespaces.retain(|other| !kinds.contains(&*other.r#type));
    let set = |namespace: &&LinuxNamespace| marked_for_removal(&namespace.r#type).is_none();
    container.namespaces.extend(new.namespaces.iter().filter(set).cloned());
    reply.namespaces.extend(new.namespaces);
    merge_map(claims, Field::Sysctl, new.sysctl, &mut reply.sysctl, &mut container.sysctl)?;
    merge_map(
        claims,
        Field::LinuxNetDevices,
        new.net_devices,
        &mut reply.net_devices,
        &mut container.net_devices,
    )?;
    if let Some(rdt) = new.rdt {
        merge_rdt(claims, rdt, reply.rdt.get_or_insert_default())?;
    }
    Ok(())
}

fn merge_resources(
    claims: &mut Claims<'_>,
    new: &LinuxResources,
    reply: &mut LinuxResources,
    container: &mut LinuxContainer,
) -> Result<(), Status> {
    claims.claim_resources(new)?;
    overlay(new, reply);
    overlay(new, container.resources.get_or_insert_default());
    Ok(())
}

fn merge_rdt(claims: &mut Claims<'_>, new: LinuxRdt, reply: &mut LinuxRdt) -> Result<(), Status> {
    let fields = [Field::RdtClosId, Field::RdtSchemata, Field::RdtEnableMonitoring];
    if new.remove {
        fields.into_iter().for_each(|field| claims.clear(field));
        *reply = LinuxRdt { remove: true, ..LinuxRdt::default() };
    }
    let is_set = [new.clos_id.is_some(), new.schemata.is_some(), new.enable_monitoring.is_some()];
    for (field, _) in fields.into_iter().zip(is_set).filter(|(_, is_set)| *is_set) {
        claims.claim(field)?;
        reply.remove = false;
    }
    reply.clos_id = new.clos_id.or(reply.clos_id.take());
    reply.schemata = new.schemata.or(reply.schemata.take());
    reply.enable_monitoring = new.enable_monitoring.or(reply.enable_monitoring.take());
    Ok(())
}

/// Merges entries of a list that have keys. One that is marked for removal takes the entry from the plugin that has set it, and the mark goes
/// on to the runtime, in front of what is set anew.
fn merge_list<T>(
    claims: &mut Claims<'_>,
    field: Field,
    new: Vec<T>,
    reply: &mut Vec<T>,
    key: impl Fn(&T) -> &str,
) -> Result<(), Status> {
    let (removals, additions): (Vec<T>, Vec<T>) =
        new.into_iter().partition(|entry| marked_for_removal(key(entry)).is_some());
    let mut removed = HashSet::new();
    // The last mark of each.
    let mut marks: Vec<T> = removals
        .into_iter()
        .rev()
        .filter(|mark| removed.insert(unmarked(key(mark)).to_owned()))
        .collect();
    reply.retain(|entry| {
        let is_removed = removed.contains(unmarked(key(entry)));
        if is_removed && marked_for_removal(key(entry)).is_none() {
            claims.clear_entry(field, key(entry));
        }
        !is_removed
    });
    marks.append(reply);
    *reply = marks;
    for addition in additions {
        claims.claim_entry(field, key(&addition))?;
        reply.push(addition);
    }
    Ok(())
}

/// A key without its mark for removal, if it has one.
fn unmarked(key: &str) -> &str {
    marked_for_removal(key).unwrap_or(key)
}

/// Changes what later plugins see of the container, by what is merged so far.
fn see<T, C>(
    reply: &[T],
    container: &mut Vec<C>,
    key: impl Fn(&T) -> &str,
    key_there: impl Fn(&C) -> &str,
    convert: impl Fn(&T) -> C,
) {
    let changed: HashSet<&str> = reply.iter().map(|entry| unmarked(key(entry))).collect();
    container.retain(|there| !changed.contains(key_there(there)));
    let set = reply.iter().filter(|entry| marked_for_removal(key(entry)).is_none());
    container.extend(set.map(convert));
}

/// Merges a map as `merge_list` does a list.
fn merge_map<V: Clone + Default>(
    claims: &mut Claims<'_>,
    field: Field,
    new: HashMap<String, V>,
    reply: &mut HashMap<String, V>,
    container: &mut HashMap<String, V>,
) -> Result<(), Status> {
    for removed in new.keys().filter_map(|key| marked_for_removal(key)) {
        container.remove(removed);
        if reply.remove(removed).is_some() {
            claims.clear_entry(field, removed);
        }
        reply.insert(mark_for_removal(removed), V::default());
    }
    for (key, value) in new {
        if marked_for_removal(&key).is_none() {
            claims.claim_entry(field, &key)?;
            container.insert(key.clone(), value.clone());
            reply.insert(key, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ttrpc::Code;

    use super::*;
    use crate::proto::{KeyValue, LinuxDevice, Mount};

    fn merge() -> CreateMerge {
        let container = Container {
            env: vec!["A=1".into(), "B=2".into()],
            args: vec!["run".into()],
            mounts: vec![Mount { destination: "/m".into(), ..Mount::default() }],
            ..Container::named("c")
        };
        CreateMerge::new(CreateContainerRequest { pod: None, container: Some(container) })
    }

    fn reply(adjust: ContainerAdjustment) -> CreateContainerResponse {
        CreateContainerResponse { adjust: Some(adjust), ..Default::default() }
    }

    #[test]
    fn two_plugins_that_set_the_same_are_in_conflict() {
        type Set = fn(ContainerAdjustment) -> ContainerAdjustment;
        let sets: &[Set] = &[
            |it| it.env("X", "1"),
            |it| it.annotation("x", "1"),
            |it| it.mount(Mount { destination: "/x".into(), ..Mount::default() }),
            |it| it.device(LinuxDevice { path: "/dev/x".into(), ..LinuxDevice::default() }),
            |it| it.args(["x"]),
            |it| it.rlimit("RLIMIT_NOFILE", 1, 1),
            |it| it.cdi_device("a.b/c=d"),
            |it| it.namespace("network", ""),
            |it| it.remove_namespace("network"),
            |it| it.net_device("eth0", "x"),
            |it| it.sysctl("a.b", "c"),
            |it| it.memory_limit(1),
            |it| it.memory_swappiness(1),
            |it| it.cpu_shares(1),
            |it| it.cpuset_cpus("0"),
            |it| it.pids_limit(1),
            |it| it.hugepage_limit("2MB", 1),
            |it| it.unified("memory.high", "1"),
            |it| it.blockio_class("x"),
            |it| it.rdt_class("x"),
            |it| it.rdt_clos_id("x"),
            |it| it.rdt_schemata(["x"]),
            |it| it.rdt_monitoring(true),
            |it| it.cgroups_path("/x"),
            |it| it.oom_score_adj(1),
            |it| it.scheduler(Default::default()),
            |it| it.io_priority(Default::default()),
            |it| it.seccomp_policy(Default::default()),
            |it| it.memory_policy(crate::proto::MpolMode::MpolBind, "0", []),
        ];
        for (at, set) in sets.iter().enumerate() {
            let mut merge = merge();
            merge.apply("00-a", reply(set(ContainerAdjustment::new()))).expect("it is the first");
            let merged = merge.adjust.clone();
            let conflict = merge
                .apply("10-b", reply(set(ContainerAdjustment::new())))
                .expect_err("it is the second");
            assert_eq!(conflict.code(), Code::Aborted, "number {at}");
            assert!(
                conflict.message().contains("00-a") && conflict.message().contains("10-b"),
                "{conflict}"
            );
            // Others are not disturbed.
            assert_eq!(set(ContainerAdjustment::new()), merged, "number {at}");
        }
    }

    #[test]
    fn hooks_are_added_by_all() {
        let mut merge = merge();
        let hooks =
            crate::proto::Hooks { poststop: vec![Default::default()], ..Default::default() };
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
        let first = ContainerAdjustment::new()
            .env("A", "a")
            .annotation("x", "a")
            .args(["a"])
            .rdt_clos_id("a");
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

    /// Each of these lists fits into a message, and merged pair by pair takes minutes.
    #[test]
    fn a_merge_takes_time_in_proportion_to_what_plugins_want() {
        const MANY: usize = 30_000;
        let mut merge = merge();
        let names = |prefix: &'static str| (0..MANY).map(move |at| format!("{prefix}{at}"));
        let pair = |key| KeyValue { key, value: String::new() };
        let container = merge.request.container.as_mut().expect("it is there");
        container.env = names("").collect();
        let namespace = |r#type| LinuxNamespace { r#type, path: String::new() };
        let linux = LinuxContainerAdjustment {
            namespaces: names("").map(namespace).collect(),
            ..Default::default()
        };
        let first = ContainerAdjustment {
            env: names("-").map(pair).collect(),
            linux: Some(linux),
            ..ContainerAdjustment::default()
        };
        let mut first = reply(first);
        first.update = names("c").map(ContainerUpdate::of).collect();
        merge.apply("00-a", first).expect("it is the first");
        assert_eq!(merge.request.container.as_ref().expect("it is there").env.len(), 0);
        let second = ContainerAdjustment {
            env: names("-").chain(names("")).map(pair).collect(),
            ..ContainerAdjustment::default()
        };
        merge.apply("10-b", reply(second)).expect("it sets what is removed");
        assert_eq!(merge.request.container.as_ref().expect("it is there").env.len(), MANY);
        assert_eq!((merge.adjust.env.len(), merge.others.updates.len()), (2 * MANY, MANY));
    }

    #[test]
    fn later_plugins_see_what_earlier_ones_have_changed() {
        let mut merge = merge();
        let first = ContainerAdjustment::new()
            .env("A", "9")
            .remove_env("B")
            .remove_mount("/m")
            .cpu_shares(7);
        merge.apply("00-a", reply(first)).expect("it is the first");
        let container = merge.request.container.as_ref().expect("it is there");
        assert_eq!(container.env, ["A=9"]);
        assert!(container.mounts.is_empty());
        let resources = container.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let shares = resources.and_then(|resources| resources.cpu.as_ref()?.shares);
        assert_eq!(shares.map(|shares| shares.value), Some(7));
        // The runtime is told of what is removed.
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
            let mut request = UpdateContainerRequest {
                container: Some(Container::named("c")),
                ..Default::default()
            };
            let mut merge = UpdateMerge::default();
            let first = ContainerUpdate::of("c").cpu_shares(5).ignore_failure();
            merge.apply("00-a", vec![first], Some(&mut request)).expect("it is the first");
            let update = ContainerUpdate::of("c").cpu_quota(5);
            let update = if second { update.ignore_failure() } else { update };
            merge.apply("10-b", vec![update], Some(&mut request)).expect("it sets another");
            assert_eq!(merge.finish(request).update[0].ignore_failure, is_ignored);
        }
    }
}
