//! Making, finding and removing the groups of a sandbox.

use super::*;
use crate::cgroup::{Controller, Error};

#[test]
fn a_removed_sandbox_leaves_nothing_in_any_hierarchy() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    group.create_run("r1").unwrap();
    let exist = || {
        fixture
            .directories()
            .iter()
            .filter(|dir| dir.join("box").exists())
            .count()
    };
    assert_eq!(exist(), fixture.directories().len());
    assert_eq!(fixture.parent.sandboxes().unwrap(), ["box"]);
    group.remove().unwrap();
    assert_eq!(exist(), 0);
    assert!(fixture.parent.sandboxes().unwrap().is_empty());
}

/// A run that is about to start in the moment of a stop makes its group below one that is being removed.
#[test]
fn groups_made_in_the_moment_of_the_removal_go_too() {
    for _ in 0..50 {
        let fixture = Fixture::new();
        let group = fixture.sandbox();
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                for name in ["r1", "r2", "r3"] {
                    // Refused once the group above it is gone.
                    let _ = group.create_run(name);
                }
            });
            both.wait();
            group.remove().unwrap();
        });
        assert!(fixture.parent.sandboxes().unwrap().is_empty());
    }
}

#[test]
fn processes_keep_a_sandbox_until_they_are_killed() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    let mut child = start(&group, &leaf, "exec sleep 1000");
    let taken = fixture.parent.create("box", BASE_UID, &LIMITS);
    assert!(matches!(taken, Err(Error::Populated { .. })), "{taken:?}");
    group.kill().unwrap();
    group.remove().unwrap();
    child.wait().unwrap();
    assert!(fixture.parent.sandboxes().unwrap().is_empty());
}

#[test]
fn an_empty_leftover_is_replaced() {
    let fixture = Fixture::new();
    fixture.sandbox().create_run("old").unwrap();
    let group = fixture.sandbox();
    assert!(group.runs().unwrap().is_empty());
}

#[test]
fn an_incomplete_leftover_can_be_discarded() {
    let fixture = Fixture::new();
    fixture.parent.trees.v2.create("half").unwrap();
    fixture.parent.open("half").unwrap_err();
    fixture.parent.discard("half").unwrap();
    fixture.parent.discard("half").unwrap();
    assert!(fixture.parent.sandboxes().unwrap().is_empty());
}

#[test]
fn a_sandbox_is_found_again_with_its_runs() {
    let fixture = Fixture::new();
    fixture.sandbox().create_run("r1").unwrap();
    let again = fixture.parent.open("box").unwrap();
    assert_eq!(again.runs().unwrap(), ["r1"]);
    let leaf = again.open_run("r1").unwrap();
    assert!(leaf.processes().unwrap().is_empty());
    again.open_run("r2").unwrap_err();
}

#[test]
fn a_name_cannot_leave_the_subtree() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    for name in ["", ".", "..", "a/b", "../x", "a\nb", "a\0b", ".hidden"] {
        assert!(matches!(
            fixture.parent.create(name, BASE_UID, &LIMITS),
            Err(Error::Name { .. })
        ));
        assert!(matches!(
            fixture.parent.discard(name),
            Err(Error::Name { .. })
        ));
        assert!(matches!(group.create_run(name), Err(Error::Name { .. })));
    }
}

#[test]
fn the_launcher_gets_one_descriptor_for_each_hierarchy() {
    let fixture = Fixture::new();
    let fds = fixture.sandbox().launch_fds().unwrap();
    let host = Host::detect().unwrap();
    let v1 = &fixture.parent.trees.v1;
    let with_limits = v1
        .iter()
        .filter(|(hierarchy, _)| hierarchy.has_limits())
        .count();
    let memory = v1
        .iter()
        .filter(|(hierarchy, _)| hierarchy.has(Controller::Memory))
        .count();
    assert_eq!(fds.v1_sandbox.len(), v1.len());
    assert_eq!(fds.v1_holder.len(), with_limits);
    assert_eq!(fds.v1_runs.len(), with_limits - memory);
    assert!(
        host.has(Controller::Memory) && host.has(Controller::Pids) && host.has(Controller::Cpu)
    );
}

#[test]
fn the_sandboxs_uid_may_move_its_processes_and_no_other_uid_may() {
    let fixture = Fixture::new();
    let group = fixture.sandbox();
    let leaf = group.create_run("r1").unwrap();
    assert!(moves_itself(&group, &leaf, BASE_UID));
    assert!(!moves_itself(&group, &leaf, BASE_UID + 1));
}

/// Whether a process of `uid` that starts in the holder's leaf gets into the run's leaf by itself.
fn moves_itself(group: &SandboxGroup, leaf: &RunLeaf, uid: u32) -> bool {
    use std::os::unix::process::CommandExt as _;
    let holder = fd_path(&group.launch_fds().unwrap().holder);
    let script = format!(
        "read -r go; echo 0 > {}/cgroup.procs",
        leaf.leaf.path().display()
    );
    let mut child = Command::new("/bin/sh")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .uid(uid)
        .spawn()
        .unwrap();
    std::fs::write(holder.join("cgroup.procs"), child.id().to_string()).unwrap();
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin is a pipe"), b"go\n").unwrap();
    child.wait().unwrap().success()
}
