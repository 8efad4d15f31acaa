//! The limits bite, on the run that deserves it, and are reported as the kernel holds them.

use std::os::unix::process::ExitStatusExt as _;

use super::*;
use std::time::{Duration, Instant};

use crate::cgroup::{Controller, Removed};

#[test]
fn limits_are_reported_as_the_kernel_holds_them() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let odd = Limits {
        memory_bytes: 64 * MIB + 1,
        pids: 17,
        cpu_millis: 250,
    };
    let effective: Vec<_> = group
        .apply_limits(&odd)
        .into_iter()
        .map(|limit| (limit.controller, limit.requested, limit.effective.unwrap()))
        .collect();
    assert_eq!(
        effective,
        [
            (Controller::Memory, 64 * MIB + 1, 64 * MIB),
            (Controller::Pids, 17, 17),
            (Controller::Cpu, 250, 250),
        ]
    );
}

#[test]
fn limits_go_up_and_down() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    for memory_bytes in [128 * MIB, 32 * MIB, 256 * MIB] {
        let limits = Limits {
            memory_bytes,
            ..LIMITS
        };
        assert_eq!(group.apply_limits(&limits)[0].effective, Ok(memory_bytes));
    }
}

#[test]
fn a_limit_that_the_kernel_refuses_has_a_reason() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let limits = Limits {
        cpu_millis: 1,
        ..LIMITS
    };
    let reason = group.apply_limits(&limits)[2]
        .effective
        .clone()
        .unwrap_err();
    assert!(reason.contains("Invalid argument"), "{reason}");
}

#[test]
fn want_of_memory_is_counted_on_the_run_that_had_it() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let hungry = group.create_run("hungry").unwrap();
    let modest = group.create_run("modest").unwrap();
    let mut bystander = start(&group, &modest, "exec sleep 1000");
    let status = start(&group, &hungry, "exec tail /dev/zero")
        .wait()
        .unwrap();
    assert_eq!(status.signal(), Some(9));
    assert!(hungry.usage().oom_kills.unwrap() >= 1);
    assert!(hungry.usage().peak_memory.unwrap() > 32 * MIB);
    assert_eq!(modest.usage().oom_kills, Some(0));
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// Each figure is that of all runs together; kills are counted also where the run's group is gone.
#[test]
fn what_a_sandbox_uses_is_that_of_all_its_runs() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let hungry = group.create_run("hungry").unwrap();
    let status = start(&group, &hungry, "exec tail /dev/zero")
        .wait()
        .unwrap();
    assert_eq!(status.signal(), Some(9));
    let kills = group.usage().oom_kills.unwrap();
    assert!(kills >= 1);
    assert_eq!(hungry.remove().unwrap(), Removed::Removed);
    let sleeping = group.create_run("sleeping").unwrap();
    let mut child = start(&group, &sleeping, "exec sleep 1000");
    // The child enters its groups by itself.
    let deadline = Instant::now() + Duration::from_secs(10);
    while group.usage().pids != Some(1) {
        assert!(Instant::now() < deadline, "{:?}", group.usage());
        std::thread::yield_now();
    }
    let usage = group.usage();
    assert_eq!((usage.oom_kills, usage.pids), (Some(kills), Some(1)));
    assert_eq!(
        (usage.memory_limit, usage.pids_limit),
        (Some(64 * MIB), Some(32))
    );
    assert!(usage.memory_peak.unwrap() > 32 * MIB && usage.memory.unwrap() < 32 * MIB);
    assert!(usage.cpu_time.unwrap() > Duration::ZERO);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_pids_limit_holds_over_all_runs_and_counts_its_hits() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    assert_eq!(group.pids_limit_hits(), Some(0));
    let leaf = group.create_run("r1").unwrap();
    let many = "i=0; while [ $i -lt 64 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; wait";
    let mut child = start(&group, &leaf, many);
    child.wait().unwrap();
    assert!(group.pids_limit_hits().unwrap() >= 1);
    assert!(leaf.processes().unwrap().len() <= 32);
    leaf.kill().unwrap();
    group.remove().unwrap();
}
