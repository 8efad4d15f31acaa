//! The groups of one sandbox: `<parent>/<sandbox>` with `holder` and `runs` below it.
//!
//! Limits sit on `runs`, so that no fork bomb and no want of memory of the sandbox reaches the holder.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::fcntl::OFlag;

use super::controller::{Controller, Hierarchy};
use super::directory::{Directory, check_name};
use super::error::Result;
use super::launch::LaunchFds;
use super::limits::{self, EffectiveLimit, Limits, Version};
use super::parent::Trees;
use super::removal;
use super::run::{RunLeaf, Runs};
use super::usage::keyed_value;
use crate::protection::Protection;

/// The holder's leaf, outside the limits.
pub(super) const HOLDER: &str = "holder";
/// The group of all runs, which carries the limits.
pub(super) const RUNS: &str = "runs";

/// The groups of one sandbox.
#[derive(Debug)]
pub struct SandboxGroup {
    name: String,
    trees: Arc<Trees>,
    v2: Directory,
    pub(super) runs: Arc<Runs>,
}

/// Who made the groups of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This process, just now: nothing has run in them.
    New,
    /// An earlier daemon.
    Found,
}

/// Makes `holder` and `runs` in v2 and lets the sandbox's uid move processes between them: that takes write permission
/// on `cgroup.procs` of the target and of the nearest group above both.
pub(super) fn fill_v2(sandbox: &Directory, base_uid: u32) -> Result<()> {
    sandbox
        .create_child(HOLDER)?
        .give("cgroup.procs", base_uid)?;
    sandbox.create_child(RUNS)?.give("cgroup.procs", base_uid)?;
    sandbox.give("cgroup.procs", base_uid)
}

impl SandboxGroup {
    /// Opens groups that exist.
    pub(super) fn open(name: &str, trees: Arc<Trees>, origin: Origin) -> Result<Self> {
        let v2 = trees.v2.child(name)?;
        let memory = trees
            .v1
            .iter()
            .find(|(hierarchy, _)| hierarchy.has(Controller::Memory));
        let memory = memory
            .map(|(_, parent)| parent.child(name)?.child(RUNS))
            .transpose()?;
        let runs = Arc::new(Runs {
            base_uid: v2.owner("cgroup.procs")?,
            v2: v2.child(RUNS)?,
            memory_v1: memory,
            memory_on_v2: trees.v2_controllers.contains(&Controller::Memory),
            removed_oom_kills: (origin == Origin::New).then(AtomicU64::default),
        });
        Ok(Self {
            name: name.into(),
            trees,
            v2,
            runs,
        })
    }

    /// What the launcher and the holder need to place themselves.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File).
    pub fn launch_fds(&self) -> Result<LaunchFds> {
        let group = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        Ok(LaunchFds {
            sandbox: self.v2.open_at(".", group)?,
            holder: self.v2.open_at(HOLDER, group)?,
            v1_sandbox: self.v1_tasks("tasks", |_| true)?,
            v1_holder: self.v1_tasks("holder/tasks", Hierarchy::has_limits)?,
            v1_runs: self.v1_tasks("runs/tasks", |hierarchy| {
                hierarchy.has_limits() && !hierarchy.has(Controller::Memory)
            })?,
        })
    }

    /// Sets the limits and says what is in force, for memory, pids and cpu in this order. On v2 this works only when no
    /// process is left in the sandbox's own group: call it after the holder has moved to its leaf and the
    /// intermediate process has been reaped. A limit that is in force already costs one read.
    #[must_use]
    pub fn apply_limits(&self, limits: &Limits) -> Vec<EffectiveLimit> {
        let apply = |controller| EffectiveLimit {
            controller,
            requested: limits.of(controller),
            effective: self.apply_limit(controller, limits.of(controller)),
        };
        Controller::LIMITS.map(apply).into()
    }

    /// Makes the leaf of a new run. On the path of every run: six system calls.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File), with EEXIST if the run has one; [`Error::Name`](super::Error::Name).
    pub fn create_run(&self, run: &str) -> Result<RunLeaf> {
        check_name(run)?;
        RunLeaf::create(run, Arc::clone(&self.runs))
    }

    /// Opens the leaf of a run that an earlier daemon started.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File), with ENOENT if there is none; [`Error::Name`](super::Error::Name).
    pub fn open_run(&self, run: &str) -> Result<RunLeaf> {
        check_name(run)?;
        RunLeaf::open(run, Arc::clone(&self.runs))
    }

    /// The runs that have leaves, in no particular order.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File).
    pub fn runs(&self) -> Result<Vec<String>> {
        self.runs.v2.children()
    }

    /// The host pid of the holder that lives in the sandbox's group, if one does.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File).
    pub fn holder_pid(&self) -> Result<Option<i32>> {
        let processes = self.v2.read(&format!("{HOLDER}/cgroup.procs"))?;
        Ok(processes.lines().next().and_then(|pid| pid.parse().ok()))
    }

    /// How often a fork failed at the pids limit since the sandbox's groups were made; `None` where nothing counts it.
    #[must_use]
    pub fn pids_limit_hits(&self) -> Option<u64> {
        let (path, _) = self.limited_group(Controller::Pids)?;
        let events = std::fs::read_to_string(path.join("pids.events")).ok()?;
        keyed_value(&events, "max")
    }

    /// Kills every process of the sandbox at once, the holder included, frozen ones too. Does not wait for their end.
    ///
    /// # Errors
    /// [`Error::File`](super::Error::File).
    pub fn kill(&self) -> Result<()> {
        self.v2.write("cgroup.kill", "1")
    }

    /// Removes all groups of the sandbox. Waits up to five seconds for killed processes to go: not for an async task.
    ///
    /// # Errors
    /// [`Error::Populated`](super::Error::Populated) if processes are still there;
    /// [`Error::File`](super::Error::File).
    pub fn remove(&self) -> Result<()> {
        removal::remove(&self.trees, &self.name, removal::PATIENCE)
    }

    /// Sets the limits of v1 controllers, which need no process to have moved.
    pub(super) fn limit_v1(&self, limits: &Limits) {
        for controller in Controller::LIMITS {
            if let Some((path, Version::V1)) = self.limited_group(controller) {
                set_limit(controller, &path, Version::V1, limits.of(controller)).ok();
            }
        }
    }

    /// The v2 group of all runs.
    pub(super) fn runs_v2(&self) -> &Directory {
        &self.runs.v2
    }

    fn apply_limit(&self, controller: Controller, requested: u64) -> Result<u64, String> {
        let (path, version) = self
            .limited_group(controller)
            .ok_or_else(|| format!("this host has no {controller} controller"))?;
        if version == Version::V2 {
            self.hand_down(controller)
                .map_err(|error| limits::reason(&error))?;
        }
        set_limit(controller, &path, version, requested)
    }

    /// Lets v2 hand a controller down to `runs`; memory also to each run's leaf, for its peak and its kills.
    fn hand_down(&self, controller: Controller) -> Result<()> {
        let enable = format!("+{controller}");
        self.v2.write("cgroup.subtree_control", &enable)?;
        if controller == Controller::Memory {
            self.runs.v2.write("cgroup.subtree_control", &enable)?;
        }
        Ok(())
    }

    /// The `runs` group that carries a controller's limit.
    pub(super) fn limited_group(&self, controller: Controller) -> Option<(PathBuf, Version)> {
        let (parent, version) = self.trees.with(controller)?;
        let path = match version {
            Version::V1 => parent.path().join(&self.name).join(RUNS),
            Version::V2 => self.runs.v2.path().into(),
        };
        Some((path, version))
    }

    /// `<sandbox>/<file>` of each chosen v1 hierarchy, for writing.
    fn v1_tasks(&self, file: &str, chosen: impl Fn(&Hierarchy) -> bool) -> Result<Vec<OwnedFd>> {
        let hierarchies = self
            .trees
            .v1
            .iter()
            .filter(|(hierarchy, _)| chosen(hierarchy));
        hierarchies
            .map(|(_, parent)| parent.open_at(&format!("{}/{file}", self.name), OFlag::O_WRONLY))
            .collect()
    }
}

/// Sets one limit, unless a test has switched it off.
fn set_limit(
    controller: Controller,
    path: &Path,
    version: Version,
    requested: u64,
) -> Result<u64, String> {
    let protection = match controller {
        Controller::Memory => Some(Protection::Memory),
        Controller::Pids => Some(Protection::Pids),
        Controller::Cpu => Some(Protection::Cpu),
        Controller::Devices => None,
    };
    if protection.is_some_and(Protection::is_off) {
        return Ok(requested);
    }
    limits::set(controller, path, version, requested)
}
