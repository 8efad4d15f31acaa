//! The descriptors that the launcher and the holder need to place themselves and, later, their runs.

use std::os::fd::OwnedFd;

/// Open ends of a sandbox's groups. All were opened by root: the right to move goes with the descriptor on v1, and
/// with the ownership of `cgroup.procs` (the sandbox's base uid) on v2.
#[derive(Debug)]
pub struct LaunchFds {
    /// v2 directory of the sandbox, for clone3(CLONE_INTO_CGROUP) of the intermediate process.
    pub sandbox: OwnedFd,
    /// v2 directory of the holder's leaf, for clone3(CLONE_INTO_CGROUP) of PID 1.
    pub holder: OwnedFd,
    /// `tasks` of the sandbox in each v1 hierarchy, devices included: the intermediate writes `0` to each before it
    /// makes the cgroup namespace, so that the namespace's root is the sandbox's group everywhere.
    pub v1_sandbox: Vec<OwnedFd>,
    /// `tasks` of the holder's group in each v1 hierarchy with limits: PID 1 writes `0` to each.
    pub v1_holder: Vec<OwnedFd>,
    /// `tasks` of `runs` in those v1 hierarchies that have no leaf per run (pids, cpu): the holder keeps them, and the
    /// child of each run writes `0` to each, as well as to its own [`RunFds::v1_tasks`](super::RunFds::v1_tasks).
    pub v1_runs: Vec<OwnedFd>,
}
