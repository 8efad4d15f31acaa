//! What the host has, and what of it all sandboxes together may have: bounds on the group above them. A sandbox's own limit says
//! nothing of how many sandboxes there are.
//!
//! Deliberately no sum over the limits of sandboxes: a limit is no reservation, and a thousand idle ones use next to nothing.

use std::fs;

use super::controller::Controller;
use super::limits::{self, EffectiveLimit};
use super::parent::Parent;

/// Memory that stays with the host, in bytes: its services, lodged and the kernel's own.
const MEMORY_RESERVE: u64 = 512 << 20;
/// Processes and threads that stay with the host. Lodged itself has a few hundred threads at most.
const PIDS_RESERVE: u64 = 4096;
/// On a small host the reserve is no more than this part of all.
const RESERVE_PART: u64 = 4;

/// What the host has. A figure that its kernel does not tell is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Bytes of memory, without swap.
    pub memory_bytes: Option<u64>,
    /// Processes and threads that there can be at once.
    pub pids: Option<u64>,
}

impl Room {
    /// That of this host, as /proc tells it now.
    #[must_use]
    pub fn of_host() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let number = |path| read(path).trim().parse::<u64>().ok();
        let pids = [
            number("/proc/sys/kernel/pid_max"),
            number("/proc/sys/kernel/threads-max"),
        ];
        Self {
            memory_bytes: total(&read("/proc/meminfo")),
            pids: pids.into_iter().flatten().min(),
        }
    }

    /// What of it all sandboxes together may have, by the controller that holds it.
    fn bounds(self) -> [(Controller, Option<u64>); 2] {
        let without =
            |all: Option<u64>, reserve: u64| all.map(|all| all - reserve.min(all / RESERVE_PART));
        [
            (
                Controller::Memory,
                without(self.memory_bytes, MEMORY_RESERVE),
            ),
            (Controller::Pids, without(self.pids, PIDS_RESERVE)),
        ]
    }
}

impl Parent {
    /// Bounds all sandboxes together to what the host has, less a reserve, and says what is in force, for memory and pids in
    /// this order. A host that cannot hold a bound goes without it: each sandbox has its own limits all the same. What is in
    /// force already is set again, so that two that ask for it do not disturb each other.
    #[must_use]
    pub fn hold(&self, room: Room) -> Vec<EffectiveLimit> {
        let hold = |(controller, bound): (Controller, Option<u64>)| EffectiveLimit {
            controller,
            requested: bound.unwrap_or(0),
            effective: bound
                .ok_or_else(|| format!("the kernel does not tell how much {controller} there is"))
                .and_then(|bound| self.bound(controller, bound)),
        };
        room.bounds().map(hold).into()
    }

    fn bound(&self, controller: Controller, bound: u64) -> Result<u64, String> {
        let (group, version) = self
            .trees
            .with(controller)
            .ok_or_else(|| format!("this host has no {controller} controller"))?;
        limits::set(controller, group.path(), version, bound)
    }
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_tells_what_it_has() {
        let room = Room::of_host();
        assert!(room.memory_bytes.is_some_and(|bytes| bytes > 64 << 20));
        assert!(room.pids.is_some_and(|pids| pids > 300));
        assert_eq!(
            total("MemFree: 1 kB\nMemTotal:   24684084 kB\n"),
            Some(24_684_084 << 10)
        );
        assert_eq!(total("MemTotal: many kB"), None);
    }

    #[test]
    fn a_reserve_is_left_and_on_a_small_host_a_smaller_one() {
        let bounds = |memory_bytes, pids| {
            let room = Room {
                memory_bytes: Some(memory_bytes),
                pids: Some(pids),
            };
            room.bounds().map(|(_, bound)| bound)
        };
        assert_eq!(
            bounds(8 << 30, 32_768),
            [Some((8 << 30) - (512 << 20)), Some(28_672)]
        );
        assert_eq!(bounds(1 << 30, 4096), [Some(768 << 20), Some(3072)]);
        assert_eq!(Room::default().bounds().map(|(_, bound)| bound), [None; 2]);
    }
}
