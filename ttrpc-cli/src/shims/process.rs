//! A process, as `/proc` tells of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use procfs::{
    WithCurrentSystemInfo,
    process::{self, FDTarget, Process},
};

/// What can be seen of a process from outside. What may not be read is left out.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub pid: i32,
    /// The letter of proc_pid_stat(5), `T` for stopped.
    pub state: Option<char>,
    pub threads: Option<i64>,
    pub descriptors: Option<usize>,
    /// In bytes.
    pub resident: Option<u64>,
}

impl Facts {
    /// `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        let process = Process::new(pid).ok()?;
        let stat = process.stat().ok()?;
        Some(Facts {
            pid,
            state: Some(stat.state),
            threads: Some(stat.num_threads),
            descriptors: process.fd_count().ok(),
            resident: Some(stat.rss_bytes().get()),
        })
    }

    /// The state in words.
    pub fn state_in_words(&self) -> &'static str {
        match self.state {
            Some('T') => "stopped (SIGSTOP)",
            Some('t') => "stopped by a debugger",
            Some('D') => "in uninterruptible sleep",
            Some('Z' | 'X') => "dead",
            Some('R') => "running",
            Some('S') => "sleeping",
            _ => "in a state that is not told",
        }
    }
}

/// How many threads of a process wait in which function of the kernel, the most first.
pub fn waits(pid: i32) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::new();
    let tasks = Process::new(pid).and_then(|process| process.tasks());
    for task in tasks.into_iter().flatten().flatten() {
        let path = format!("/proc/{pid}/task/{}/wchan", task.tid);
        let place = std::fs::read_to_string(path).unwrap_or_default();
        let place = match place.as_str() {
            "" | "0" => "user space".to_owned(),
            place => place.to_owned(),
        };
        *counts.entry(place).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// Which processes have these sockets open, by inode.
pub fn owners(inodes: &[u32]) -> HashMap<u32, i32> {
    let mut owners = HashMap::new();
    if inodes.is_empty() {
        return owners;
    }
    for process in process::all_processes().into_iter().flatten().flatten() {
        for descriptor in process.fd().into_iter().flatten().flatten() {
            let FDTarget::Socket(inode) = descriptor.target else { continue };
            if let Some(&inode) = inodes.iter().find(|&&wanted| u64::from(wanted) == inode) {
                owners.insert(inode, process.pid);
            }
        }
    }
    owners
}

/// The inodes of this process' own sockets.
pub fn own_sockets() -> HashSet<u32> {
    let descriptors = Process::myself().and_then(|process| process.fd());
    let targets = descriptors.into_iter().flatten().flatten().map(|descriptor| descriptor.target);
    targets
        .filter_map(|target| match target {
            FDTarget::Socket(inode) => u32::try_from(inode).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let facts = Facts::of(std::process::id() as i32).unwrap();
        assert!(facts.threads.unwrap() >= 1 && facts.resident.unwrap() > 0);
        assert!(facts.descriptors.unwrap() >= 3);
        let threads: usize = waits(facts.pid).iter().map(|(_, count)| count).sum();
        assert!(threads >= 1);
        assert!(Facts::of(i32::MAX).is_none());
    }
}
