//! The host's cgroup trees, seen from outside the product: where a parent group is, who is in it, and its end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::until_blocking;

/// A killed tree is empty within this time, or something is stuck in the kernel.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

/// Every directory that the parent group `name` may have: under the root of each hierarchy, and under the group
/// that this process is in.
pub fn trees(name: &str) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let mut found = BTreeSet::new();
    for line in mounts.lines().filter(|l| l.contains(" - cgroup")) {
        let Some(root) = line.split(' ').nth(4).map(PathBuf::from) else {
            continue;
        };
        found.insert(root.join(name));
        for path in own.lines().filter_map(|l| l.splitn(3, ':').nth(2)) {
            found.insert(root.join(path.trim_start_matches('/')).join(name));
        }
    }
    Ok(found.into_iter().filter(|dir| dir.is_dir()).collect())
}

/// All groups below and including `top`, children before parents.
fn groups(top: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let children = fs::read_dir(top).into_iter().flatten().flatten();
    for child in children.filter(|c| c.file_type().is_ok_and(|t| t.is_dir())) {
        all.extend(groups(&child.path()));
    }
    all.push(top.to_owned());
    all
}

/// Host pids of every process in the groups named `name`.
pub fn members(name: &str) -> Result<BTreeSet<i32>> {
    let mut pids = BTreeSet::new();
    for group in trees(name)?.iter().flat_map(|tree| groups(tree)) {
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// Groups of the parent `name` whose path contains `word`.
pub fn containing(name: &str, word: &str) -> Result<Vec<PathBuf>> {
    let all = trees(name)?.into_iter().flat_map(|tree| groups(&tree));
    Ok(all.filter(|g| g.to_string_lossy().contains(word)).collect())
}

/// Kills everything in the groups named `name` and removes them.
pub fn remove(name: &str) -> Result<()> {
    until_blocking(&format!("cgroup {name} is gone"), EMPTY_WITHIN, || {
        let mut left = false;
        for tree in trees(name)? {
            // The kill file exists on v2 alone; elsewhere the pids below do it.
            let _ = fs::write(tree.join("cgroup.kill"), "1");
            for pid in members(name)? {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            for group in groups(&tree) {
                left |= fs::remove_dir(&group).is_err() && group.exists();
            }
        }
        Ok((!left).then_some(()))
    })
}
