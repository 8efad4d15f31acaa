//! Bounds on all sandboxes together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::cgroup::parent::Trees;
use crate::cgroup::{Controller, Room};

/// The host's figures that lead to these bounds.
fn room(memory_bytes: u64, pids: u64) -> Room {
    Room {
        memory_bytes: Some(memory_bytes / 3 * 4),
        pids: Some(pids / 3 * 4),
    }
}

/// Two sandboxes, each within its own limit of 32, have no more than the parent's bound of processes together.
#[test]
fn all_sandboxes_together_are_bounded() {
    const BOUND: u64 = 12;
    const EACH: usize = 10;
    let fixture = Fixture::new();
    let held = fixture.parent.hold(room(384 * MIB, BOUND));
    assert_eq!(held[0].effective, Ok(384 * MIB));
    assert_eq!(held[1].effective, Ok(BOUND));
    let groups = ["one", "two"].map(|name| {
        let group = fixture.parent.create(name, BASE_UID, &LIMITS).unwrap();
        assert!(
            group
                .apply_limits(&LIMITS)
                .iter()
                .all(|l| l.effective.is_ok())
        );
        group
    });
    let leaves = groups
        .each_ref()
        .map(|group| group.create_run("r").unwrap());
    // A shell that cannot fork says so and ends.
    let script = format!("for n in $(seq {EACH}); do sleep 1000 & done; wait");
    let mut shells: Vec<_> = groups
        .iter()
        .zip(&leaves)
        .map(|(group, leaf)| start(group, leaf, &script))
        .collect();
    let count = || -> usize {
        leaves
            .iter()
            .map(|leaf| leaf.processes().unwrap().len())
            .sum()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !shells
        .iter_mut()
        .any(|shell| shell.try_wait().unwrap().is_some())
    {
        assert!(Instant::now() < deadline, "{} processes", count());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(count() as u64 <= BOUND, "{} processes", count());
    for (group, mut shell) in groups.iter().zip(shells) {
        group.kill().unwrap();
        shell.wait().unwrap();
        group.remove().unwrap();
    }
}

/// Bounds go up and down with the host's figures; setting them again changes nothing.
#[test]
fn bounds_follow_the_host() {
    let fixture = Fixture::new();
    for mib in [384, 768, 768, 192] {
        let held = fixture.parent.hold(room(mib * MIB, 300));
        let held: Vec<_> = held
            .into_iter()
            .map(|l| (l.controller, l.effective))
            .collect();
        assert_eq!(
            held,
            [
                (Controller::Memory, Ok(mib * MIB)),
                (Controller::Pids, Ok(300))
            ]
        );
    }
}

/// What a host cannot hold it goes without, and says why.
#[test]
fn a_bound_that_cannot_be_held_has_a_reason() {
    let fixture = Fixture::new();
    let held = fixture.parent.hold(Room::default());
    assert!(held.iter().all(|l| l.effective.is_err()), "{held:?}");
    let bare = Parent {
        trees: Arc::new(Trees {
            v2: crate::cgroup::directory::Directory::open(fixture.parent.trees.v2.path()).unwrap(),
            v2_controllers: Vec::new(),
            v1: Vec::new(),
        }),
        owner: None,
    };
    let held = bare.hold(room(384 * MIB, 300));
    for (limit, name) in held.iter().zip(["memory", "pids"]) {
        let reason = limit.effective.as_ref().unwrap_err();
        assert!(
            reason.contains(&format!("no {name} controller")),
            "{reason}"
        );
    }
}
