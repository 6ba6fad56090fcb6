//! Which plugin has set what of which container: two that set the same are in conflict.

use std::collections::HashSet;

use ttrpc::Status;

use crate::{
    mark_for_removal, marked_for_removal,
    proto::{Field, LinuxResources, OwningPlugins},
};

/// Claims for one plugin on one container.
pub(super) struct Claims<'a> {
    pub(super) owners: &'a mut OwningPlugins,
    pub(super) container: &'a str,
    pub(super) plugin: &'a str,
}

impl Claims<'_> {
    /// Claims a field that has one value.
    ///
    /// # Errors
    /// If another plugin, or this one already, has set it.
    pub(super) fn claim(&mut self, field: Field) -> Result<(), Status> {
        let fields = self.owners.owners.entry(self.container.to_owned()).or_default();
        let owner = fields.simple.get(&field.into());
        check(owner, field, "", self.container, self.plugin)?;
        fields.simple.insert(field.into(), self.plugin.to_owned());
        Ok(())
    }

    /// Claims one entry of a field that has several.
    ///
    /// # Errors
    /// If another plugin, or this one already, has set it.
    pub(super) fn claim_entry(&mut self, field: Field, key: &str) -> Result<(), Status> {
        let fields = self.owners.owners.entry(self.container.to_owned()).or_default();
        let entries = fields.compound.entry(field.into()).or_default();
        check(entries.owners.get(key), field, key, self.container, self.plugin)?;
        entries.owners.insert(key.to_owned(), self.plugin.to_owned());
        Ok(())
    }

    /// Takes a field from the plugin that has it, for this one to set.
    pub(super) fn clear(&mut self, field: Field) {
        let fields = self.owners.owners.entry(self.container.to_owned()).or_default();
        fields.simple.insert(field.into(), mark_for_removal(self.plugin));
    }

    /// Takes an entry from the plugin that has it, for this one to set.
    pub(super) fn clear_entry(&mut self, field: Field, key: &str) {
        let fields = self.owners.owners.entry(self.container.to_owned()).or_default();
        let entries = fields.compound.entry(field.into()).or_default();
        entries.owners.insert(key.to_owned(), mark_for_removal(self.plugin));
    }

    /// Adds the plugin to the owners of a field that all may add to.
    pub(super) fn share(&mut self, field: Field) {
        let fields = self.owners.owners.entry(self.container.to_owned()).or_default();
        let owners = fields.simple.entry(field.into()).or_default();
        if !owners.is_empty() {
            owners.push(',');
        }
        owners.push_str(self.plugin);
    }

    /// Claims all resources that are set.
    pub(super) fn claim_resources(&mut self, resources: &LinuxResources) -> Result<(), Status> {
        let mut fields = Vec::new();
        if let Some(memory) = &resources.memory {
            fields.extend([
                (memory.limit.is_some(), Field::MemLimit),
                (memory.reservation.is_some(), Field::MemReservation),
                (memory.swap.is_some(), Field::MemSwapLimit),
                (memory.kernel.is_some(), Field::MemKernelLimit),
                (memory.kernel_tcp.is_some(), Field::MemTcpLimit),
                (memory.swappiness.is_some(), Field::MemSwappiness),
                (memory.disable_oom_killer.is_some(), Field::MemDisableOomKiller),
                (memory.use_hierarchy.is_some(), Field::MemUseHierarchy),
            ]);
        }
        if let Some(cpu) = &resources.cpu {
            fields.extend([
                (cpu.shares.is_some(), Field::CpuShares),
                (cpu.quota.is_some(), Field::CpuQuota),
                (cpu.period.is_some(), Field::CpuPeriod),
                (cpu.realtime_runtime.is_some(), Field::CpuRealtimeRuntime),
                (cpu.realtime_period.is_some(), Field::CpuRealtimePeriod),
                (!cpu.cpus.is_empty(), Field::CpuSetCpUs),
                (!cpu.mems.is_empty(), Field::CpuSetMems),
            ]);
        }
        fields.extend([
            (resources.blockio_class.is_some(), Field::BlockioClass),
            (resources.rdt_class.is_some(), Field::RdtClass),
            (resources.pids.is_some(), Field::PidsLimit),
        ]);
        fields
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .try_for_each(|(_, field)| self.claim(field))?;
        let pages = resources.hugepage_limits.iter();
        pages
            .map(|limit| &limit.page_size)
            .try_for_each(|size| self.claim_entry(Field::HugepageLimits, size))?;
        resources.unified.keys().try_for_each(|file| self.claim_entry(Field::CgroupsUnified, file))
    }
}

/// Whether a plugin may set what has this owner.
fn check(
    owner: Option<&String>,
    field: Field,
    key: &str,
    container: &str,
    plugin: &str,
) -> Result<(), Status> {
    let Some(owner) = owner else { return Ok(()) };
    let owner = match marked_for_removal(owner) {
        Some(clearer) if clearer == plugin => return Ok(()),
        Some(clearer) => clearer,
        None => owner,
    };
    let of = if key.is_empty() { String::new() } else { format!(" `{key}`") };
    let field = field.as_str_name();
    let message =
        format!("the plugins {plugin} and {owner} both set {field}{of} of container `{container}`");
    Err(Status::aborted(message))
}

/// Sets in `target` what is set in `resources`.
pub(super) fn overlay(resources: &LinuxResources, target: &mut LinuxResources) {
    macro_rules! set {
        ($from:expr, $to:expr, $($field:ident)*) => {
            $(if $from.$field.is_some() {
                $to.$field = $from.$field.clone();
            })*
        };
    }
    if let Some(from) = &resources.memory {
        let to = target.memory.get_or_insert_default();
        set!(from, to, limit reservation swap kernel kernel_tcp swappiness disable_oom_killer use_hierarchy);
    }
    if let Some(from) = &resources.cpu {
        let to = target.cpu.get_or_insert_default();
        set!(from, to, shares quota period realtime_runtime realtime_period);
        for (from, to) in [(&from.cpus, &mut to.cpus), (&from.mems, &mut to.mems)] {
            if !from.is_empty() {
                to.clone_from(from);
            }
        }
    }
    set!(resources, target, blockio_class rdt_class pids);
    let sizes: HashSet<&str> =
        resources.hugepage_limits.iter().map(|limit| &*limit.page_size).collect();
    target.hugepage_limits.retain(|limit| !sizes.contains(&*limit.page_size));
    target.hugepage_limits.extend(resources.hugepage_limits.iter().cloned());
    target.devices.extend(resources.devices.iter().cloned());
    target.unified.extend(resources.unified.clone());
}
