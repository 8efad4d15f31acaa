//! One run's leaf: members, kill, counters, removal.

use std::os::unix::process::ExitStatusExt as _;

use super::*;
use crate::cgroup::Removed;

#[test]
fn a_kill_reaches_every_process_of_the_run_and_no_other() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let other = group.create_run("r2").unwrap();
    let mut child = start(
        &group,
        &leaf,
        "setsid sleep 1000 & setsid sleep 1000 & wait",
    );
    let mut bystander = start(&group, &other, "exec sleep 1000");
    assert!(
        leaf.processes()
            .unwrap()
            .contains(&i32::try_from(child.id()).unwrap())
    );
    assert_eq!(leaf.remove().unwrap(), Removed::StillPopulated);
    leaf.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn a_frozen_run_is_killed() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let mut child = start(&group, &leaf, "exec sleep 1000");
    leaf.leaf.write("cgroup.freeze", "1").unwrap();
    leaf.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn the_holders_descriptors_kill_too() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let mut child = start(&group, &leaf, "exec sleep 1000");
    nix::unistd::write(leaf.spawn_fds().unwrap().kill, b"1").unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn an_ended_run_shows_its_time_and_its_peak_and_goes() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 20000000 /dev/zero | tail -c 16777216 >/dev/null";
    assert!(start(&group, &leaf, script).wait().unwrap().success());
    let usage = leaf.usage();
    assert!(usage.cpu_time.unwrap().as_millis() >= 10, "{usage:?}");
    assert!(usage.peak_memory.unwrap() >= 16 * MIB, "{usage:?}");
    assert!(
        usage.peak_memory.unwrap() <= LIMITS.memory_bytes,
        "{usage:?}"
    );
    assert_eq!(usage.oom_kills, Some(0));
    assert_eq!(leaf.remove().unwrap(), Removed::Removed);
    assert_eq!(leaf.remove().unwrap(), Removed::Removed);
    assert!(group.runs().unwrap().is_empty());
}

#[test]
fn a_fresh_run_has_used_nothing_yet() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let usage = group.create_run("r1").unwrap().usage();
    assert_eq!(usage.cpu_time, Some(std::time::Duration::ZERO));
    assert_eq!(usage.oom_kills, Some(0));
}

#[test]
fn a_run_has_one_leaf() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let first = group.create_run("r1").unwrap();
    let error = group.create_run("r1").unwrap_err();
    assert_eq!(error.errno(), Some(nix::errno::Errno::EEXIST));
    assert!(
        first.processes().unwrap().is_empty(),
        "the first one is still there"
    );
}
