//! The adjustment of a container that is created: field by field.

use ttrpc::Status;

use super::entries::{merge_list, merge_map, see, unmarked};
use crate::{
    Container, ContainerAdjustment, LinuxResources,
    proto::{Field, LinuxContainer, LinuxContainerAdjustment, LinuxRdt},
    runtime::owners::{Claims, overlay},
};

/// Merges the adjustment that a plugin wants into `reply`, and into what the next plugin sees of the container.
///
/// # Errors
/// If it sets what another plugin has set.
pub(super) fn merge(
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
        reply.rlimits.push(limit);
    }
    see(
        &reply.rlimits,
        &mut container.rlimits,
        |limit| &limit.r#type,
        |limit| &limit.r#type,
        Clone::clone,
    );
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
    for namespace in &new.namespaces {
        claims.claim_entry(Field::Namespace, unmarked(&namespace.r#type))?;
    }
    see(
        &new.namespaces,
        &mut container.namespaces,
        |namespace| &namespace.r#type,
        |namespace| &namespace.r#type,
        Clone::clone,
    );
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
