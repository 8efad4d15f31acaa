//! Freezing all runs, and giving their memory back.

use std::time::Duration;

use super::*;

const PATIENCE: Duration = Duration::from_secs(2);

/// A shell that counts, so that it uses processor time for as long as it lives.
const BUSY: &str = "while :; do :; done";

#[test]
fn frozen_runs_use_no_time_and_go_on_when_thawed() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let mut child = start(&group, &leaf, BUSY);
    let used = || leaf.usage().cpu_time.unwrap();
    group.freeze(PATIENCE).unwrap();
    assert!(group.is_told_to_freeze().unwrap());
    let frozen = used();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(used(), frozen);
    group.freeze(PATIENCE).unwrap();
    group.thaw().unwrap();
    assert!(!group.is_told_to_freeze().unwrap());
    while used() == frozen {
        std::thread::yield_now();
    }
    leaf.kill().unwrap();
    child.wait().unwrap();
}

/// The trap of the v1 freezer: what is frozen there does not die.
#[test]
fn a_frozen_sandbox_is_killed_and_removed() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let mut child = start(&group, &leaf, BUSY);
    group.freeze(PATIENCE).unwrap();
    group.kill().unwrap();
    child.wait().unwrap();
    group.remove().unwrap();
}

#[test]
fn without_a_process_it_freezes_at_once() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    group.freeze(Duration::ZERO).unwrap();
}

#[test]
fn page_cache_of_a_frozen_sandbox_is_given_back_and_counted() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    let script = format!(
        "head -c 16777216 /dev/zero > {0} && sync {0} && exec sleep 1000",
        file.display()
    );
    let mut child = start(&group, &leaf, &script);
    let written = || std::fs::metadata(&file).is_ok_and(|data| data.len() == 16 * MIB);
    while !(written() && sleeps(child.id())) {
        std::thread::sleep(Duration::from_millis(5));
    }
    group.freeze(PATIENCE).unwrap();
    let given_back = group.reclaim().unwrap();
    assert!(given_back >= 8 * MIB, "{given_back}");
    leaf.kill().unwrap();
    child.wait().unwrap();
}

/// Whether the shell has become the last command of its script.
fn sleeps(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
}
