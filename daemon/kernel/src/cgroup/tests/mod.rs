//! Against the kernel that the tests run on: they need root, and fail without it.

mod devices;
mod freeze;
mod limits;
mod room;
mod runs;
mod sandboxes;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Host, Limits, Parent, RunLeaf, SandboxGroup};

/// A host uid that nobody has.
const BASE_UID: u32 = 900_000_000;
const MIB: u64 = 1 << 20;
const LIMITS: Limits = Limits {
    memory_bytes: 64 * MIB,
    pids: 32,
    cpu_millis: 1500,
};

/// A parent of its own for each test. Everything in it is gone when it is dropped.
struct Fixture {
    parent: Parent,
}

impl Fixture {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lodge-test-{}-{number}", std::process::id());
        let host = Host::detect().expect("the kernel's tables can be read");
        // Only a pure v1 host gets a mount out of this, and keeps it for the tests that follow.
        let runtime_dir = std::env::temp_dir().join("lodge-test-run");
        let host = host
            .mount_unified(&runtime_dir)
            .expect("root can mount cgroup2");
        let parent = host
            .parent(&name)
            .expect("root can make control groups: run the tests as root");
        Self { parent }
    }

    fn sandbox(&self) -> SandboxGroup {
        let group = self.parent.create("box", BASE_UID, &LIMITS).unwrap();
        let refused: Vec<_> = group
            .apply_limits(&LIMITS)
            .into_iter()
            .filter(|limit| limit.effective.is_err())
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
        group
    }

    /// The parent's directory in every hierarchy, v2 first.
    fn directories(&self) -> Vec<PathBuf> {
        let trees = &self.parent.trees;
        let v1 = trees.v1.iter().map(|(_, parent)| parent);
        [&trees.v2]
            .into_iter()
            .chain(v1)
            .map(|parent| parent.path().into())
            .collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for sandbox in self.parent.sandboxes().unwrap_or_default() {
            self.parent.discard(&sandbox).ok();
        }
        for directory in self.directories() {
            std::fs::remove_dir(directory).ok();
        }
    }
}

/// A shell that enters the run as the holder's child would, by writing `0` to each v1 file it was handed, and then
/// executes `script`. The v2 leaf is entered from outside, before the script starts.
fn start(group: &SandboxGroup, leaf: &RunLeaf, script: &str) -> Child {
    let tasks = leaf.spawn_fds().unwrap().v1_tasks.into_iter();
    let tasks: Vec<_> = tasks.chain(group.launch_fds().unwrap().v1_runs).collect();
    let paths: Vec<_> = tasks.iter().map(fd_path).collect();
    let enter = paths
        .iter()
        .map(|path| format!("echo 0 > {}; ", path.display()));
    let script = format!("read -r go; {}{script}", enter.collect::<String>());
    let mut child = Command::new("/bin/sh")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    leaf.leaf
        .write("cgroup.procs", &child.id().to_string())
        .unwrap();
    let stdin = child.stdin.take().expect("stdin is a pipe");
    std::io::Write::write_all(&mut &stdin, b"go\n").unwrap();
    child
}

/// The file behind a descriptor.
fn fd_path(fd: &std::os::fd::OwnedFd) -> PathBuf {
    let number = std::os::fd::AsRawFd::as_raw_fd(fd);
    std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap()
}
