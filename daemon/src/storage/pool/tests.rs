//! Pools on the real kernel. A daemon is a thread here that has mounts of its own: they go with it, as with a process that is
//! killed.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use lodge_kernel::mount::{Depth, clone_mount};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use tempfile::TempDir;

use super::*;

fn state_dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(state_dir: &Path) -> Result<Pool, StorageError> {
    Pool::open(Settings {
        state_dir,
        kind: &PoolKind::File,
        bytes: Some(SIZE_MIN),
    })
}

/// What a daemon does until it is killed.
pub(in crate::storage) fn daemon<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let life = scope.spawn(|| {
            make_mounts_private().expect("mounts of its own");
            work()
        });
        life.join().expect("no panic")
    })
}

fn device_of(state_dir: &Path) -> Option<String> {
    let file = File::open(pool_file(state_dir)).expect("a pool");
    LoopDevice::find(&file)
        .expect("looked")
        .map(|device| device.name())
}

/// The kernel takes mounts and devices of the dead back when it gets to it.
fn wait_until_gone(state_dir: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Some(name) = device_of(state_dir) {
        assert!(Instant::now() < end, "{name} is still there");
        thread::yield_now();
    }
}

fn written_in(pool: &Pool) -> PathBuf {
    pool.roots_dir().join("written")
}

#[test]
fn a_pool_is_made_mounted_and_nothing_of_it_stays_on_the_host() {
    let state = state_dir();
    daemon(|| {
        let pool = open(state.path()).expect("made");
        let found = fstatfs(&pool.root).expect("mounted");
        assert_eq!(found.filesystem_type(), BTRFS_SUPER_MAGIC);
        let size = pool.size().expect("a size");
        assert!(
            size.bytes > SIZE_MIN / 2 && size.bytes <= SIZE_MIN,
            "{size:?}"
        );
        assert!(size.used < SIZE_MIN / 4, "{size:?}");
        assert!(pool.images_dir().is_dir() && pool.roots_dir().is_dir());
        assert_eq!(pool.file(), Some(pool_file(state.path()).as_path()));
        assert!(pool.host_free().expect("free") > 0);
    });
    // This thread is the host: it never saw the mount.
    assert!(!pool_dir(state.path()).join(ROOTS).exists());
    wait_until_gone(state.path());
}

#[test]
fn the_next_daemon_finds_what_was_there_without_live_sandboxes() {
    let state = state_dir();
    daemon(|| {
        let pool = open(state.path()).expect("made");
        fs::write(written_in(&pool), "kept").expect("written");
    });
    // As after a reboot: no device, no mount.
    wait_until_gone(state.path());
    daemon(|| {
        let pool = open(state.path()).expect("found");
        assert_eq!(fs::read(written_in(&pool)).expect("there"), b"kept");
    });
    wait_until_gone(state.path());
}

#[test]
fn the_next_daemon_shares_the_file_system_that_a_live_sandbox_has() {
    let state = state_dir();
    let (sandbox, device): (OwnedFd, String) = daemon(|| {
        let pool = open(state.path()).expect("made");
        let mount = clone_mount(pool.root(), c"", Depth::One).expect("a mount of the sandbox's");
        (mount, device_of(state.path()).expect("a device"))
    });
    daemon(|| {
        let pool = open(state.path()).expect("found");
        assert_eq!(device_of(state.path()), Some(device));
        fs::write(written_in(&pool), "by the daemon").expect("written");
        let flags = OFlags::RDONLY;
        let seen = rustix::fs::openat(&sandbox, "roots/written", flags, rustix::fs::Mode::empty());
        let seen = io::read_to_string(File::from(seen.expect("the same files"))).expect("read");
        assert_eq!(seen, "by the daemon");
    });
    drop(sandbox);
    wait_until_gone(state.path());
}

#[test]
fn half_a_pool_is_made_anew_and_a_lost_one_never() {
    let state = state_dir();
    let half = pool_file(state.path()).with_extension("img.new");
    fs::write(&half, vec![1; 1 << 20]).expect("half of one");
    daemon(|| open(state.path()).map(drop).expect("made anew"));
    assert!(!half.exists());
    wait_until_gone(state.path());

    fs::create_dir_all(state.path().join("sandboxes/x")).expect("a sandbox");
    fs::remove_file(pool_file(state.path())).expect("lost");
    let refused = daemon(|| open(state.path()).map(drop)).expect_err("lost");
    assert!(refused.to_string().contains("is gone"), "{refused}");
    assert!(!pool_file(state.path()).exists());
}

#[test]
fn a_file_that_is_no_pool_is_refused_and_left_as_it_is() {
    let state = state_dir();
    let file = File::create(pool_file(state.path())).expect("a file");
    file.set_len(SIZE_MIN).expect("sized");
    let refused = daemon(|| open(state.path()).map(drop)).expect_err("no file system");
    assert!(refused.to_string().contains("btrfs check"), "{refused}");
    assert_eq!(file.metadata().expect("stat").len(), SIZE_MIN);
    wait_until_gone(state.path());
}

#[test]
fn a_pool_without_room_for_one_is_refused() {
    let state = state_dir();
    let refused = Pool::open(Settings {
        state_dir: state.path(),
        kind: &PoolKind::File,
        bytes: Some(SIZE_MIN - 1),
    });
    let refused = refused.expect_err("too small").to_string();
    assert!(refused.contains("too small"), "{refused}");
    assert!(!pool_file(state.path()).exists());
}

fn bytes_of(pool: &Pool) -> u64 {
    pool.size().expect("a size").bytes
}

#[test]
fn a_pool_grows_in_use_and_takes_more_than_it_had() {
    let state = state_dir();
    daemon(|| {
        let pool = open(state.path()).expect("made");
        let before = bytes_of(&pool);
        pool.grow(3 * SIZE_MIN + 1).expect("grown");
        let len = pool_file(state.path()).metadata().expect("stat").len();
        assert_eq!(len, 3 * SIZE_MIN, "whole MiB");
        assert_eq!(bytes_of(&pool) - before, 2 * SIZE_MIN);
        let most = usize::try_from(SIZE_MIN + SIZE_MIN / 4).expect("fits");
        fs::write(written_in(&pool), vec![1; most]).expect("there is room");
        rustix::fs::syncfs(pool.root()).expect("on disk");
        let refused = pool.grow(SIZE_MIN).expect_err("smaller").to_string();
        assert!(refused.contains("does not shrink"), "{refused}");
        assert_eq!(bytes_of(&pool) - before, 2 * SIZE_MIN);
    });
    wait_until_gone(state.path());
}

#[test]
fn a_growth_that_was_cut_short_is_ended_by_the_next_daemon() {
    let state = state_dir();
    let before = daemon(|| bytes_of(&open(state.path()).expect("made")));
    wait_until_gone(state.path());
    let file = OpenOptions::new().write(true).open(pool_file(state.path()));
    file.expect("a pool").set_len(2 * SIZE_MIN).expect("longer");
    let after = daemon(|| bytes_of(&open(state.path()).expect("found")));
    assert_eq!(after - before, SIZE_MIN);
    wait_until_gone(state.path());
}

#[test]
fn a_growth_that_the_host_refuses_is_taken_back() {
    let state = state_dir();
    daemon(|| {
        let pool = open(state.path()).expect("made");
        let before = bytes_of(&pool);
        // More than any file of the host may have.
        pool.grow(u64::MAX).expect_err("too much");
        let len = pool_file(state.path()).metadata().expect("stat").len();
        assert_eq!((len, bytes_of(&pool)), (SIZE_MIN, before));
        fs::write(written_in(&pool), "goes on").expect("written");
    });
    wait_until_gone(state.path());
}

#[test]
fn a_directory_on_btrfs_is_a_pool_without_a_file() {
    let state = state_dir();
    daemon(|| {
        let outer = open(state.path()).expect("made");
        let inner = outer.dir().join("state");
        fs::create_dir(&inner).expect("made");
        let pool = Pool::open(Settings {
            state_dir: &inner,
            kind: &PoolKind::Directory,
            bytes: None,
        });
        let pool = pool.expect("opened");
        assert_eq!(pool.file(), None);
        assert!(pool.roots_dir().is_dir());
        assert_eq!(bytes_of(&pool), bytes_of(&outer));
        let refused = pool.grow(u64::MAX).expect_err("no file").to_string();
        assert!(refused.contains("make that one larger"), "{refused}");
    });
    wait_until_gone(state.path());
}

#[test]
fn what_is_deleted_becomes_a_hole_of_the_file() {
    use std::os::unix::fs::MetadataExt as _;
    const BYTES: usize = 64 << 20;
    let state = state_dir();
    let taken = || pool_file(state.path()).metadata().expect("stat").blocks() * 512;
    daemon(|| {
        let pool = open(state.path()).expect("made");
        let path = written_in(&pool);
        fs::write(&path, vec![1; BYTES]).expect("written");
        rustix::fs::syncfs(pool.root()).expect("on disk");
        let full = taken();
        assert!(full >= BYTES as u64);
        fs::remove_file(&path).expect("removed");
        let end = Instant::now() + Duration::from_secs(60);
        while taken() > full - BYTES as u64 / 2 {
            assert!(
                Instant::now() < end,
                "{} of {full} bytes are taken",
                taken()
            );
            // Commits, after which the file system discards what is free.
            rustix::fs::syncfs(pool.root()).expect("on disk");
            thread::yield_now();
        }
    });
    wait_until_gone(state.path());
}
