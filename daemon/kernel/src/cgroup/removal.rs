//! Removing a sandbox's groups: waits for the last process, then takes the directories from the bottom up.
//!
//! Kills nothing: the caller does that first.

use std::time::Duration;

use nix::errno::Errno;

use super::directory::Directory;
use super::error::{Error, Result};
use super::events;
use super::parent::Trees;

/// How long killed processes may take to go. Hundreds need about 0.3 s; one stuck in the kernel may never go.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Groups below a sandbox are two levels deep (`runs/<run>`); deeper ones are not ours.
const DEPTH: u32 = 3;

/// How often a group is listed and taken again in which others are being made. Each time needs a run that was about to be
/// started in the moment of the kill.
const ATTEMPTS: usize = 8;

/// Removes every group of `sandbox`, in v1 first: the v2 group is the one that lists it. Processes that are still there
/// get `patience` to go.
pub(super) fn remove(trees: &Trees, sandbox: &str, patience: Duration) -> Result<()> {
    match trees.v2.child(sandbox) {
        Ok(group) => wait_until_empty(&group, patience)?,
        Err(error) if error.errno() == Some(Errno::ENOENT) => {}
        Err(error) => return Err(error),
    }
    let v1 = trees.v1.iter().map(|(_, parent)| parent);
    v1.chain([&trees.v2])
        .try_for_each(|parent| remove_tree(parent, sandbox, DEPTH))
}

/// A process leaves its v1 groups in the moment in which it leaves its v2 group, so that no second wait is needed.
fn wait_until_empty(group: &Directory, patience: Duration) -> Result<()> {
    if events::wait_for(group, "populated", 0, patience)? {
        return Ok(());
    }
    Err(Error::Populated {
        path: group.path().into(),
    })
}

/// Takes a group and those below it. One that was made below it meanwhile, for a run that was just being started, holds no
/// process and is taken too.
fn remove_tree(parent: &Directory, name: &str, depth: u32) -> Result<()> {
    for _ in 1..ATTEMPTS {
        match remove_tree_once(parent, name, depth) {
            Err(Error::Populated { .. }) => {}
            done => return done,
        }
    }
    remove_tree_once(parent, name, depth)
}

fn remove_tree_once(parent: &Directory, name: &str, depth: u32) -> Result<()> {
    let group = match parent.child(name) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    if depth > 0 {
        for child in group.children()? {
            remove_tree(&group, &child, depth - 1)?;
        }
    }
    parent.remove_child(name)
}
