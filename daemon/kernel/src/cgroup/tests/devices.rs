//! The rules of devices, of either version.

use super::*;
use crate::cgroup::Controller;

#[test]
fn only_the_listed_devices_open() {
    let fixture = Fixture::new();
    let host = Host::detect().unwrap();
    let group = fixture.sandbox();
    let trees = &fixture.parent.trees;
    let Some((_, parent)) = trees
        .v1
        .iter()
        .find(|(one, _)| one.has(Controller::Devices))
    else {
        assert!(!host.has(Controller::Devices));
        let procs = trees.v2.path().join("box/holder/cgroup.procs");
        return check_opens(&procs);
    };
    let list = std::fs::read_to_string(parent.path().join("box/devices.list")).unwrap();
    let rules: Vec<_> = list.lines().collect();
    assert_eq!(
        rules,
        [
            "c 1:3 rw",
            "c 1:5 rw",
            "c 1:7 rw",
            "c 1:8 rw",
            "c 1:9 rw",
            "c 5:0 rw",
            "c 5:2 rw",
            "c 136:* rw",
        ]
    );
    let tasks: Vec<_> = group
        .launch_fds()
        .unwrap()
        .v1_sandbox
        .iter()
        .map(fd_path)
        .collect();
    let tasks = tasks
        .iter()
        .find(|path| path.to_string_lossy().contains("devices"))
        .unwrap();
    check_opens(tasks);
}

/// The program that version 2 has instead: here it lies beside the rules of version 1, and allows no more than they.
#[test]
fn only_the_listed_devices_open_by_the_program() {
    let fixture = Fixture::new();
    let _group = fixture.sandbox();
    let group = fixture.parent.trees.v2.child("box").unwrap();
    crate::cgroup::devices_v2::restrict(&group).unwrap();
    check_opens(&group.path().join("holder/cgroup.procs"));
}

/// What a process may open that enters a group by writing to this file.
fn check_opens(enter: &std::path::Path) {
    let opens = |script: &str| {
        let script = format!("echo 0 > {} && {script}", enter.display());
        let mut shell = Command::new("/bin/sh");
        let shell = shell
            .args(["-c", &script])
            .stderr(std::process::Stdio::null());
        shell.status().unwrap().success()
    };
    for device in ["null", "zero", "full", "random", "urandom", "ptmx"] {
        assert!(opens(&format!(": < /dev/{device}")), "{device}");
    }
    assert!(!opens(": < /dev/kmsg"), "root itself opens it outside");
    let node = std::env::temp_dir().join(format!("lodge-node-{}", std::process::id()));
    let made = opens(&format!("mknod {} b 7 0", node.display()));
    std::fs::remove_file(&node).ok();
    assert!(!made, "root itself makes one outside");
}
