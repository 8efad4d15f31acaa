//! Which hierarchies this host has, and the way to our parent group in each.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::controller::{Controller, Hierarchy};
use super::delegation::{self, DAEMON_LEAF};
use super::directory::Directory;
use super::error::{Error, Result};
use super::mounts::{self, CgroupMount, Membership};
use super::parent::Parent;

/// Where the host has its controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All in the v2 hierarchy.
    V2,
    /// On v1, with v2 mounted beside it.
    Hybrid,
    /// On v1, and v2 is not mounted by the host.
    V1,
}

/// The control groups of this host as they were found at the start.
#[derive(Debug, Clone)]
pub struct Host {
    mode: Mode,
    unified: Option<Unified>,
    v1: Vec<Hierarchy>,
    delegation: Delegation,
}

/// Whether systemd gave us a part of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegation {
    /// It did: everything of ours is made there.
    Delegated,
    /// This process is in a service's group that is not delegated.
    Missing,
    /// This process is in no service's group.
    NoUnit,
}

/// The v2 hierarchy.
#[derive(Debug, Clone)]
struct Unified {
    /// The mount point, or the delegated unit's group below it.
    base: PathBuf,
    /// Our controllers that are there and not on v1.
    controllers: Vec<Controller>,
}

impl Host {
    /// Looks at what is mounted and in which group this process is.
    ///
    /// # Errors
    /// The two tables under /proc that tell could not be read.
    pub fn detect() -> Result<Self> {
        let mounts = mounts::parse_mountinfo(&table("/proc/self/mountinfo")?);
        let own = mounts::parse_membership(&table("/proc/self/cgroup")?);
        let unified_mount = mounts.iter().find(|mount| mount.v1_options.is_none());
        let unit = unified_mount.and_then(|mount| {
            delegation::delegated_group(&mount.point, &visible(mount, mounts::v2_group(&own)?)?)
        });
        let v1 = v1_hierarchies(&mounts, &own, unit.as_deref());
        let unified = unified_mount.map(|mount| unified(&mount.point, unit.as_deref(), &v1));
        let mode = match (&unified, v1.is_empty()) {
            (None, _) => Mode::V1,
            (Some(_), true) => Mode::V2,
            (Some(_), false) => Mode::Hybrid,
        };
        let delegation = match unit {
            Some(_) => Delegation::Delegated,
            None if own.iter().any(Membership::is_service) => Delegation::Missing,
            None => Delegation::NoUnit,
        };
        Ok(Self {
            mode,
            unified,
            v1,
            delegation,
        })
    }

    /// Whether systemd gave us a part of the tree.
    #[must_use]
    pub fn delegation(&self) -> Delegation {
        self.delegation
    }

    /// Where the controllers are.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether this host can enforce a controller at all.
    #[must_use]
    pub fn has(&self, controller: Controller) -> bool {
        let on_v2 = self
            .unified
            .as_ref()
            .is_some_and(|v2| v2.controllers.contains(&controller));
        on_v2 || self.v1.iter().any(|hierarchy| hierarchy.has(controller))
    }

    /// On a pure v1 host, mounts the v2 hierarchy at `<runtime_dir>/cgroup2`: without controllers, for kill, freeze and
    /// membership. Elsewhere does nothing. The mount stays for the next daemon, which then sees a hybrid host.
    ///
    /// # Errors
    /// The directory cannot be made, or the kernel has no cgroup v2.
    pub fn mount_unified(mut self, runtime_dir: &Path) -> Result<Self> {
        if self.unified.is_none() {
            let point = runtime_dir.join("cgroup2");
            mount_private(&point)?;
            self.unified = Some(unified(&point, None, &self.v1));
        }
        Ok(self)
    }

    /// `<delegated unit's group or root>/<name>` in the v2 tree and in each v1 hierarchy of memory, pids, cpu and
    /// devices. Creates what is missing.
    ///
    /// # Errors
    /// [`Error::NoUnified`] on a pure v1 host before [`Host::mount_unified`]; [`Error::File`] where a group cannot be
    /// made or opened; [`Error::Name`].
    pub fn parent(&self, name: &str) -> Result<Parent> {
        let unified = self.unified.as_ref().ok_or(Error::NoUnified)?;
        let base = Directory::open(&unified.base)?;
        leave_inner_group(&base, &unified.controllers)?;
        Parent::ensure(name, &base, &unified.controllers, &self.v1)
    }
}

/// Reads one of the kernel's tables.
fn table(path: &'static str) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Table { path, source })
}

/// A group of the hierarchy as seen below the mount point, which may show only a part of the hierarchy.
fn visible(mount: &CgroupMount, group: &Path) -> Option<PathBuf> {
    let below = group.strip_prefix(&mount.root).ok()?;
    Some(Path::new("/").join(below))
}

/// Every v1 hierarchy that has one of our controllers. In each, our parent goes below the delegated unit's group if
/// this process is in the group of that name there too; a hierarchy that systemd does not manage keeps us at its root.
fn v1_hierarchies(
    mounts: &[CgroupMount],
    own: &[Membership],
    unit: Option<&Path>,
) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts {
        let options = mount.v1_options.iter().flatten();
        let controllers: Vec<_> = options
            .filter_map(|name| Controller::from_name(name))
            .collect();
        let known = |one: &Hierarchy| controllers.iter().any(|controller| one.has(*controller));
        // The same hierarchy may be mounted twice; the first one serves.
        let Some(first) = controllers.first().filter(|_| !found.iter().any(known)) else {
            continue;
        };
        let group = mounts::v1_group(own, first.name()).and_then(|group| visible(mount, group));
        let base = match (unit, group) {
            (Some(unit), Some(group)) if group.starts_with(Path::new("/").join(unit)) => {
                mount.point.join(unit)
            }
            _ => mount.point.clone(),
        };
        found.push(Hierarchy { controllers, base });
    }
    found
}

/// A delegated unit may have fewer controllers than the host: what its group lists is what there is.
fn unified(point: &Path, unit: Option<&Path>, v1: &[Hierarchy]) -> Unified {
    let base = unit.map_or_else(|| point.into(), |unit| point.join(unit));
    let listed = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
    let controllers = listed.split_whitespace().filter_map(Controller::from_name);
    let free = controllers.filter(|controller| !v1.iter().any(|one| one.has(*controller)));
    Unified {
        controllers: free.collect(),
        base,
    }
}

/// Mounts v2 where only root can reach it, unless an earlier daemon did.
fn mount_private(point: &Path) -> Result<()> {
    let failed = |action, source| Error::File {
        action,
        path: point.into(),
        source,
    };
    fs::create_dir_all(point).map_err(|error| {
        failed(
            "create",
            nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        )
    })?;
    let kind = statfs(point)
        .map_err(|source| failed("inspect", source))?
        .filesystem_type();
    if kind == CGROUP2_SUPER_MAGIC {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let none: Option<&str> = None;
    mount(Some("cgroup2"), point, Some("cgroup2"), flags, none)
        .and_then(|()| mount(none, point, none, MsFlags::MS_PRIVATE, none))
        .map_err(|source| failed("mount cgroup2 on", source))
}

/// In v2 a group that has processes cannot hand controllers down, the root excepted. In a delegated unit the daemon
/// itself is such a process: it moves to a leaf of its own. Nothing moves where v2 has none of our controllers.
fn leave_inner_group(base: &Directory, controllers: &[Controller]) -> Result<()> {
    let is_root = !base.path().join("cgroup.type").exists();
    if is_root || controllers.is_empty() {
        return Ok(());
    }
    let leaf = base.ensure_child(DAEMON_LEAF)?;
    let processes = base.read("cgroup.procs")?;
    processes
        .lines()
        .try_for_each(|pid| leaf.write("cgroup.procs", pid))
}
