//! The device rules of v1. On a v2-only host the host says that it has none.

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
        return;
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
    let opens = |device: &str| {
        let script = format!("echo 0 > {} && : < {device}", tasks.display());
        let mut shell = Command::new("/bin/sh");
        let shell = shell
            .args(["-c", &script])
            .stderr(std::process::Stdio::null());
        shell.status().unwrap().success()
    };
    assert!(opens("/dev/null"));
    assert!(opens("/dev/urandom"));
    assert!(!opens("/dev/kmsg"), "root itself opens it outside");
}
