//! A btrfs of its own for a test, in a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lodge_kernel::block::LoopDevice;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

const BYTES: u64 = 512 << 20;

/// A mounted btrfs. It is seen by this test's thread and its children alone, and gone with it whatever happens: its mount
/// namespace is its own, and the loop device goes with the last mount.
pub(super) struct Pool {
    mountpoint: PathBuf,
    _directory: TempDir,
}

impl Pool {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool.img");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("made");
        file.set_len(BYTES).expect("sized");
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-m", "single"])
            .arg(&path)
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("mkfs.btrfs of btrfs-progs").success());
        let mountpoint = directory.path().join("pool");
        fs::create_dir(&mountpoint).expect("made");
        own_namespace();
        let device = LoopDevice::of(&file).expect("a loop device");
        let none: Option<&str> = None;
        mount(
            Some(&device.path()),
            &mountpoint,
            Some("btrfs"),
            MsFlags::empty(),
            none,
        )
        .expect("mounted");
        Self {
            mountpoint,
            _directory: directory,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.mountpoint
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Else the directory could not be removed. It fails only if it is not mounted any more.
        let _ = umount2(&self.mountpoint, MntFlags::MNT_DETACH);
    }
}

/// Mounts of this thread are its own from now on.
pub(super) fn own_namespace() {
    unshare(CloneFlags::CLONE_NEWNS).expect("root may");
    let none: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(none, "/", none, private, none).expect("mounts are nobody else's");
}
