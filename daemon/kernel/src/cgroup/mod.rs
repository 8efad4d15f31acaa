//! Control groups: one group per sandbox with its limits, one leaf per run, kill and counters.
//!
//! Works on pure v2, on hybrid hosts (controllers on v1, v2 mounted beside them) and on pure v1. Freeze, kill and
//! membership always go through v2; controllers come from wherever the host has them. Everything below happens in
//! our own subtree, whose name the caller gives. No process is moved from here: the launcher and the holder do
//! that with the descriptors they are handed. Calls block on the kernel, never on the network or a timer.

mod controller; // memory, pids, cpu, devices, and where each one lives
mod delegation; // the service unit's group, if systemd gave it to us
mod devices; // which device nodes may be opened at all
mod devices_v2; // the same where version 2 is alone
mod host; // detection, and the way to our parent group
mod launch; // the descriptors that a starting sandbox needs
mod limits; // what all runs may use, one controller each
mod mounts; // what the kernel says is mounted, and where we are in it
mod oom; // want of memory, where the kernel ends one process of a run
mod parent; // the group that holds all sandboxes
mod freeze; // freezing all runs of a sandbox, and thawing them
mod reclaim; // giving their memory back
mod removal; // taking a sandbox's groups away
mod room; // what the host has, and the bounds on all sandboxes together
mod run; // one run's leaf
mod sandbox; // one sandbox: holder, runs, limits
mod sandbox_usage; // what all runs of a sandbox use, from the kernel's counters
mod usage; // what a run has used, from the kernel's counters

mod directory; // an open cgroup directory
mod error; // what can go wrong
mod events; // waiting for what a group's `cgroup.events` says

#[cfg(test)]
mod tests;

pub use controller::Controller;
pub use error::{Error, Result};
pub use host::{Delegation, Host, Mode};
pub use launch::LaunchFds;
pub use limits::{EffectiveLimit, Limits};
pub use parent::Parent;
pub use room::Room;
pub use run::{Removed, RunFds, RunLeaf};
pub use sandbox::SandboxGroup;
pub use sandbox_usage::SandboxUsage;
pub use usage::Usage;
