//! The controllers that Lodge uses, and the hierarchy that each one is in.

use std::fmt;
use std::path::PathBuf;

/// A kernel controller that bounds or counts a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Bytes of memory, and the counter of kills for want of it.
    Memory,
    /// Number of processes and threads.
    Pids,
    /// Processor time per wall time.
    Cpu,
    /// Which device nodes may be opened. Exists on v1 only; on v2 it is a program on the group (`devices_v2`).
    Devices,
}

impl Controller {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::Memory, Self::Pids, Self::Cpu, Self::Devices];
    /// Those that carry a limit of the API.
    pub(super) const LIMITS: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Devices => "devices",
        }
    }

    /// The controller of that kernel name, if Lodge uses it.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|controller| controller.name() == name)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A v1 hierarchy with at least one of our controllers, and the group in it below which our parent is made.
#[derive(Debug, Clone)]
pub(super) struct Hierarchy {
    /// Our controllers in it: more than one where they are mounted together.
    pub(super) controllers: Vec<Controller>,
    /// The delegated unit's group or the hierarchy's root.
    pub(super) base: PathBuf,
}

impl Hierarchy {
    /// Whether `controller` is in this hierarchy.
    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Whether it carries limits; a hierarchy of devices alone needs no `holder` and `runs` below the sandbox.
    pub(super) fn has_limits(&self) -> bool {
        Controller::LIMITS
            .into_iter()
            .any(|controller| self.has(controller))
    }
}
