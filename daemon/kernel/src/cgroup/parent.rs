//! The group that holds all sandboxes of this daemon, in every hierarchy.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::controller::{Controller, Hierarchy};
use super::devices;
use super::devices_v2;
use super::directory::{Directory, check_name};
use super::error::Result;
use super::limits::{Limits, Version};
use super::removal;
use super::sandbox::{self, Origin, SandboxGroup};
use crate::sys::xattr;

/// The parent of all sandbox groups. Cheap to clone; its calls block on the kernel for well under a millisecond each,
/// except where they say that they wait.
#[derive(Debug, Clone)]
pub struct Parent {
    pub(super) trees: Arc<Trees>,
    /// What new groups are marked with.
    pub(super) owner: Option<Arc<str>>,
}

/// Extended attribute of a sandbox's v2 group: who made it. Only the host's root sees and sets those of `trusted`.
const OWNER: &CStr = c"trusted.lodge.owner";

/// The parent's directory in each hierarchy.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) v2: Directory,
    /// Our controllers that live in v2.
    pub(super) v2_controllers: Vec<Controller>,
    pub(super) v1: Vec<(Hierarchy, Directory)>,
}

impl Trees {
    /// The parent's group in the hierarchy that has a controller.
    pub(super) fn with(&self, controller: Controller) -> Option<(&Directory, Version)> {
        if self.v2_controllers.contains(&controller) {
            return Some((&self.v2, Version::V2));
        }
        let mut v1 = self.v1.iter();
        let (_, group) = v1.find(|(hierarchy, _)| hierarchy.has(controller))?;
        Some((group, Version::V1))
    }
}

impl Parent {
    /// Opens or makes the parent in each hierarchy, and lets v2 hand its controllers down to it and through it.
    pub(super) fn ensure(
        name: &str,
        v2_base: &Directory,
        v2_controllers: &[Controller],
        v1: &[Hierarchy],
    ) -> Result<Self> {
        check_name(name)?;
        let v2 = v2_base.ensure_child(name)?;
        for controller in v2_controllers {
            for group in [v2_base, &v2] {
                // One at a time, and a refusal is no error here: what is not in force shows in the effective limits.
                group
                    .write("cgroup.subtree_control", &format!("+{controller}"))
                    .ok();
            }
        }
        let v1 = v1.iter().map(|hierarchy| {
            let group = Directory::open(&hierarchy.base)?.ensure_child(name)?;
            if hierarchy.has(Controller::Memory) {
                count_subtree(&group)?;
            }
            Ok((hierarchy.clone(), group))
        });
        let v1 = v1.collect::<Result<_>>()?;
        Ok(Self {
            trees: Arc::new(Trees {
                v2,
                v2_controllers: v2_controllers.into(),
                v1,
            }),
            owner: None,
        })
    }

    /// Marks every group that is made from here on as this owner's: text of at most 64 bytes that nobody else has.
    #[must_use]
    pub fn owned_by(self, owner: &str) -> Self {
        Self {
            owner: Some(owner.into()),
            ..self
        }
    }

    /// Whether a sandbox's group carries the mark of this parent's owner. One without any mark is nobody's to remove.
    #[must_use]
    pub fn owns(&self, sandbox: &str) -> bool {
        let path = self.trees.v2.path().join(sandbox);
        let mark = xattr::get(&path, OWNER).ok();
        mark.is_some() && mark.as_deref() == self.owner.as_deref().map(str::as_bytes)
    }

    /// Makes the groups of a new sandbox, with its device rules, and its limits where v1 has their controllers (v2 takes
    /// them in [`SandboxGroup::apply_limits`]). An empty leftover of that name is replaced. `base_uid` is the host
    /// uid that may move processes inside it.
    ///
    /// # Errors
    /// [`Error::Populated`](super::Error::Populated) if a group of that name has processes;
    /// [`Error::Devices`](super::Error::Devices) if the device rules are refused;
    /// [`Error::File`](super::Error::File); [`Error::Name`](super::Error::Name). Nothing is left behind.
    pub fn create(&self, sandbox: &str, base_uid: u32, limits: &Limits) -> Result<SandboxGroup> {
        check_name(sandbox)?;
        match self.trees.v2.create(sandbox) {
            Err(error) if error.errno() == Some(Errno::EEXIST) => {
                removal::remove(&self.trees, sandbox, Duration::ZERO)?;
                self.trees.v2.create(sandbox)?;
            }
            made => made?,
        }
        self.mark(sandbox);
        let made = self
            .fill(sandbox, base_uid)
            .and_then(|()| SandboxGroup::open(sandbox, Arc::clone(&self.trees), Origin::New));
        match made {
            Ok(group) => {
                // What is refused here is refused again, with its reason, when the effective limits are asked for.
                group.limit_v1(limits);
                Ok(group)
            }
            Err(error) => {
                // The first error is the one to report.
                removal::remove(&self.trees, sandbox, Duration::ZERO).ok();
                Err(error)
            }
        }
    }

    /// Opens the groups of a sandbox that an earlier daemon made.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File) with ENOENT if there are none, or if they are incomplete:
    /// [`Parent::discard`] clears both.
    pub fn open(&self, sandbox: &str) -> Result<SandboxGroup> {
        check_name(sandbox)?;
        SandboxGroup::open(sandbox, Arc::clone(&self.trees), Origin::Found)
    }

    /// The sandboxes that have groups, in no particular order.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File) if the parent cannot be listed.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        self.trees.v2.children()
    }

    /// Kills whatever is in a sandbox's groups and removes them, also if they are incomplete or missing. Waits up to five
    /// seconds for the processes to go.
    ///
    /// # Errors
    /// [`Error::Populated`](super::Error::Populated) if a process outlives that;
    /// [`Error::File`](super::Error::File); [`Error::Name`](super::Error::Name).
    pub fn discard(&self, sandbox: &str) -> Result<()> {
        check_name(sandbox)?;
        match self.trees.v2.child(sandbox) {
            Ok(group) => group.write("cgroup.kill", "1")?,
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        removal::remove(&self.trees, sandbox, removal::PATIENCE)
    }

    /// Removes the parent's own groups where nothing is in them; those of live sandboxes stay. To be called when this daemon makes
    /// no more: a host that Lodge has left shows no trace of it.
    pub fn leave(&self) {
        let v1 = self.trees.v1.iter().map(|(_, group)| group);
        for group in v1.chain([&self.trees.v2]) {
            // The kernel refuses for a group in use, which is all the check that is needed.
            std::fs::remove_dir(group.path()).ok();
        }
    }

    /// Marks a new group. One that cannot be marked is only never swept.
    fn mark(&self, sandbox: &str) {
        if let Some(owner) = &self.owner {
            let path = self.trees.v2.path().join(sandbox);
            xattr::set(&path, OWNER, owner.as_bytes()).ok();
        }
    }

    /// Everything below the v2 group that `create` has made.
    fn fill(&self, name: &str, base_uid: u32) -> Result<()> {
        let group = self.trees.v2.child(name)?;
        sandbox::fill_v2(&group, base_uid)?;
        let has_devices =
            |(hierarchy, _): &(Hierarchy, Directory)| hierarchy.has(Controller::Devices);
        if !self.trees.v1.iter().any(has_devices) {
            devices_v2::restrict(&group)?;
        }
        for (hierarchy, parent) in &self.trees.v1 {
            let group = parent.ensure_child(name)?;
            if hierarchy.has(Controller::Devices) {
                devices::restrict(&group)?;
            }
            if hierarchy.has_limits() {
                group.ensure_child(sandbox::HOLDER)?;
                group.ensure_child(sandbox::RUNS)?;
            }
        }
        Ok(())
    }
}

/// Before Linux 5.11 a v1 memory group counts its children only if told to, before it has any.
fn count_subtree(group: &Directory) -> Result<()> {
    const FILE: &str = "memory.use_hierarchy";
    match group.read(FILE) {
        Ok(value) if value.trim() == "0" => group.write(FILE, "1"),
        _ => Ok(()),
    }
}
