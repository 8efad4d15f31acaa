//! The driver on pools of its own. A daemon is a thread here that has mounts of its own, as in the tests of pools.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lodge_kernel::btrfs;
use lodge_kernel::seccomp;
use nix::errno::Errno;
use tempfile::TempDir;

use super::Btrfs;
use super::driver::refuse_without_filter;
use super::volume::Volume;
use crate::storage::choice::PoolKind;
use crate::storage::pool::tests::daemon;
use crate::storage::pool::{Pool, Settings};
use crate::storage::{DiskLimit, OWN_DIR, Place, Root, Storage as _, StorageError};

const MIB: u64 = 1 << 20;
const POOL: u64 = 1 << 30;
/// Far above what any of these tests needs.
const PLENTY: DiskLimit = limit(512 * MIB);
const PATIENCE: Duration = Duration::from_secs(60);

const fn limit(bytes: u64) -> DiskLimit {
    DiskLimit {
        bytes,
        inodes: 1_000,
    }
}

/// A daemon's state, with the driver of one that runs.
struct Host<'a> {
    state: &'a Path,
    driver: Btrfs,
}

impl<'a> Host<'a> {
    fn start(state: &'a Path) -> Self {
        Self::start_with_reserve(state, 0)
    }

    fn start_with_reserve(state: &'a Path, reserve: u64) -> Self {
        Self::start_in(state, &PoolKind::File, reserve)
    }

    fn start_in(state: &'a Path, kind: &PoolKind, reserve: u64) -> Self {
        fs::create_dir_all(state.join("trash")).expect("made");
        let pool = Pool::open(Settings {
            state_dir: state,
            kind,
            bytes: Some(POOL),
        });
        let driver = Btrfs::open(pool.expect("a pool"), reserve).expect("opened");
        Self { state, driver }
    }

    fn image(&self, name: &str, bytes: u64) -> [PathBuf; 1] {
        self.image_with(name, bytes, |_| ())
    }

    /// One with what `add` makes in it.
    fn image_with(&self, name: &str, bytes: u64, add: impl FnOnce(&Path)) -> [PathBuf; 1] {
        let images = self.state.join("pool/images");
        btrfs::create_subvolume(File::open(&images).expect("open"), name).expect("made");
        let path = images.join(name);
        write(&path.join("of-image"), bytes).expect("written");
        add(&path);
        btrfs::set_read_only(File::open(&path).expect("open")).expect("set");
        [path]
    }

    /// A sandbox's own directory, as a create makes it.
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.state.join("trash").join(name).join(OWN_DIR);
        fs::create_dir_all(&dir).expect("made");
        dir
    }

    fn create(&self, name: &str, image: &[PathBuf], limit: DiskLimit) -> Sandbox {
        let dir = self.dir(name);
        let place = Place { dir: &dir, image };
        self.driver.prepare(place, limit).expect("prepared");
        self.open(name, image, limit)
    }

    fn open(&self, name: &str, image: &[PathBuf], limit: DiskLimit) -> Sandbox {
        let dir = self.dir(name);
        let place = Place { dir: &dir, image };
        self.driver.check(place).expect("all there");
        let Root::Whole(root) = self.driver.open(place, limit).expect("opened") else {
            panic!("not one tree");
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
        Sandbox {
            dir,
            root: path,
            _fd: root,
        }
    }

    fn remove(&self, name: &str) {
        let removed = self.driver.remove(&self.state.join("trash"), name);
        removed.expect("removed");
        assert!(!self.state.join("trash").join(name).exists());
    }

    fn is_full(&self, sandbox: &Sandbox) -> bool {
        let usage = self.driver.usage(&sandbox.dir, None).expect("read");
        usage.is_full(MIB)
    }

    /// The names of all roots, spares included.
    fn roots(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state.join("pool/roots")).expect("listed");
        let names = entries.map(|e| e.expect("an entry").file_name().into_string());
        let mut names: Vec<_> = names.map(|name| name.expect("digits")).collect();
        names.sort();
        names
    }

    fn until_all_is_removed(&self) {
        until("removed", || {
            self.driver.host().expect("asked").being_removed == 0
        });
    }

    fn until_spares_are_ready(&self, image: &[PathBuf]) {
        until("made ahead", || self.driver.ready_of(&image[0]) == 2);
    }

    fn used(&self) -> u64 {
        let pool = File::open(self.state.join("pool")).expect("open");
        btrfs::sync(pool).expect("synced");
        self.driver.host().expect("asked").used_bytes
    }
}

struct Sandbox {
    dir: PathBuf,
    root: PathBuf,
    _fd: std::os::fd::OwnedFd,
}

impl Sandbox {
    fn write(&self, name: &str, bytes: u64) -> io::Result<()> {
        write(&self.root.join(name), bytes)
    }

    /// Writes until there is no more room, and tells how much there was.
    fn fill(&self) -> u64 {
        let mut file = File::create(self.root.join("filler")).expect("new");
        let chunk = vec![b'x'; 64 << 10];
        let error = loop {
            if let Err(error) = file.write_all(&chunk) {
                break error;
            }
        };
        assert_eq!(error.raw_os_error(), Some(Errno::EDQUOT as i32), "{error}");
        file.sync_all().expect("what was taken is kept");
        file.metadata().expect("stat").blocks() * 512
    }
}

fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let chunk = vec![b'x'; MIB as usize];
    for _ in 0..bytes / MIB {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: still not so");
        thread::yield_now();
    }
}

fn state() -> TempDir {
    tempfile::tempdir().expect("temporary directory")
}

#[test]
fn a_sandbox_has_the_image_and_writes_as_much_as_its_limit_says() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", 64 * MIB);
        let sandbox = host.create("a", &image, limit(32 * MIB));
        assert_eq!(
            fs::metadata(sandbox.root.join("of-image"))
                .expect("there")
                .len(),
            64 * MIB
        );

        let written = sandbox.fill();
        assert!((30 * MIB..=32 * MIB).contains(&written), "{written}");
        assert!(host.is_full(&sandbox));
        let usage = host.driver.usage(&sandbox.dir, None).expect("read");
        assert_eq!(usage.limit_bytes, Some(32 * MIB));
        assert!(usage.bytes.expect("counted") <= 32 * MIB, "{usage:?}");

        // Others are not held by it.
        let other = host.create("b", &image, limit(32 * MIB));
        other.write("file", 16 * MIB).expect("its own limit");
        assert!(!host.is_full(&other));
    });
}

#[test]
fn what_is_written_and_not_on_disk_yet_is_used() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, PLENTY);
        let content = vec![b'x'; 32 * MIB as usize];
        fs::write(sandbox.root.join("file"), content).expect("room");
        let usage = host.driver.usage(&sandbox.dir, None).expect("read");
        assert!(usage.bytes >= Some(32 * MIB), "{usage:?}");
    });
}

#[test]
fn a_full_sandbox_can_delete_and_write_again() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, limit(32 * MIB));
        sandbox.write("old", 8 * MIB).expect("room");
        sandbox.fill();
        assert!(host.is_full(&sandbox));
        fs::remove_file(sandbox.root.join("old")).expect("removed");
        assert!(!host.is_full(&sandbox), "at once");
        sandbox.write("new", 4 * MIB).expect("room again");
        sandbox.write("newer", 16 * MIB).expect_err("not as much");
        // To cut a file takes a little room, to remove it none.
        fs::remove_file(sandbox.root.join("filler")).expect("removed");
        let _ = fs::remove_file(sandbox.root.join("newer"));
        sandbox.write("last", 16 * MIB).expect("room again");
        // A file of the image can be removed too.
        sandbox.fill();
        fs::remove_file(sandbox.root.join("of-image")).expect("removed");
    });
}

#[test]
fn a_limit_changes_while_it_is_held_and_not_below_what_is_used() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, limit(16 * MIB));
        sandbox.fill();
        let set = |bytes| host.driver.set_limit(&sandbox.dir, None, limit(bytes));
        set(32 * MIB).expect("raised");
        assert!(!host.is_full(&sandbox));
        sandbox.write("more", 8 * MIB).expect("room");
        let refused = set(20 * MIB).expect_err("in use");
        assert!(
            matches!(refused, StorageError::InUse { limit_bytes, used_bytes }
                if limit_bytes == 20 * MIB && used_bytes > 20 * MIB),
            "{refused}"
        );
        let usage = host.driver.usage(&sandbox.dir, None).expect("read");
        assert_eq!(usage.limit_bytes, Some(32 * MIB));
        // What was just deleted does not count.
        fs::remove_file(sandbox.root.join("filler")).expect("removed");
        set(12 * MIB).expect("lowered");
        sandbox.write("again", 8 * MIB).expect_err("the new limit");
    });
}

#[test]
fn a_full_sandbox_is_deleted_and_its_room_and_group_come_back() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let before = host.used();
        let sandbox = host.create("a", &image, limit(128 * MIB));
        sandbox.fill();
        assert!(host.used() > before + 100 * MIB);
        drop(sandbox);
        host.remove("a");
        host.until_all_is_removed();
        assert!(host.used() < before + 8 * MIB);
        let pool = File::open(state.path().join("pool")).expect("open");
        let of_sandboxes = || {
            let groups = btrfs::groups(&pool).expect("listed");
            groups
                .into_iter()
                .filter(|id| id >> btrfs::LEVEL_SHIFT == 1)
                .count()
        };
        // Those of the spares are there.
        host.until_spares_are_ready(&image);
        assert_eq!(of_sandboxes(), 2);
        host.remove("a");
    });
}

#[test]
fn deleting_many_files_takes_no_time_of_whoever_asks() {
    const FILES: usize = 20_000;
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, PLENTY);
        for number in 0..FILES {
            fs::write(sandbox.root.join(number.to_string()), "x").expect("written");
        }
        btrfs::sync(File::open(state.path().join("pool")).expect("open")).expect("synced");
        drop(sandbox);
        let began = Instant::now();
        host.remove("a");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(500), "{took:?}");
        host.until_all_is_removed();
    });
}

/// A limit is on disk with the next commit only: after a loss of power a sandbox may have none.
#[test]
fn a_start_has_a_lost_limit_held_again() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, limit(16 * MIB));
        let volume = Volume::read(&sandbox.dir).expect("read").expect("named");
        let pool = File::open(state.path().join("pool")).expect("open");
        btrfs::set_limit(&pool, volume.qgroup(), None).expect("set");
        drop(sandbox);
        let sandbox = host.open("a", &image, limit(16 * MIB));
        assert!(sandbox.fill() <= 16 * MIB);
    });
}

#[test]
fn the_next_daemon_finds_sandboxes_and_removes_what_is_nobodys() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("kept", &image, PLENTY);
        sandbox.write("file", MIB).expect("written");
        host.create("lost", &image, PLENTY)
            .write("file", MIB)
            .expect("written");
        host.until_spares_are_ready(&image);
        // As after a crash behind the removal of the directory, with the root on disk as it was.
        fs::remove_dir_all(state.path().join("trash/lost")).expect("removed");
    });
    daemon(|| {
        let host = Host::start(state.path());
        let image = [state.path().join("pool/images/image")];
        assert_eq!(host.roots().len(), 4);
        let torn = host.dir("torn");
        let dirs = [
            host.dir("kept"),
            torn.clone(),
            state.path().join("trash/none/layer"),
        ];
        fs::write(torn.join("volume"), "{").expect("written");
        host.driver.sweep(&dirs).expect("swept");
        assert_eq!(host.roots().len(), 4, "any of them may be the torn one's");
        fs::remove_file(torn.join("volume")).expect("removed");
        host.driver.sweep(&dirs).expect("swept");
        assert_eq!(host.roots().len(), 1);
        host.until_all_is_removed();
        let sandbox = host.open("kept", &image, PLENTY);
        assert_eq!(
            fs::metadata(sandbox.root.join("file"))
                .expect("there")
                .len(),
            MIB
        );
        let pool = File::open(state.path().join("pool")).expect("open");
        let groups = btrfs::groups(&pool).expect("listed");
        assert_eq!(
            groups
                .iter()
                .filter(|id| *id >> btrfs::LEVEL_SHIFT == 1)
                .count(),
            1
        );
    });
}

/// As where `sandboxes` is on a disk that is not mounted, or was moved.
#[test]
fn many_roots_are_not_removed_because_no_directory_names_one() {
    const SANDBOXES: usize = 9;
    let names: Vec<_> = (0..SANDBOXES).map(|n| n.to_string()).collect();
    let state = state();
    let kept = state.path().join("roots.kept");
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        for name in &names {
            host.create(name, &image, PLENTY);
        }
        host.until_spares_are_ready(&image);
        fs::rename(state.path().join("trash"), state.path().join("elsewhere")).expect("moved");
    });
    daemon(|| {
        let host = Host::start(state.path());
        host.driver.sweep(&[]).expect("swept");
        assert_eq!(host.roots().len(), SANDBOXES + 2);
        // Also once there is a sandbox again.
        host.create("new", &[state.path().join("pool/images/image")], PLENTY);
        let dirs = [host.dir("new")];
        host.driver.sweep(&dirs).expect("swept");
        assert!(host.roots().len() >= SANDBOXES + 3);
        host.remove("new");
        fs::remove_dir(state.path().join("trash")).expect("empty");
        fs::rename(state.path().join("elsewhere"), state.path().join("trash")).expect("back");
    });
    daemon(|| {
        let host = Host::start(state.path());
        let image = [state.path().join("pool/images/image")];
        let dirs: Vec<_> = names.iter().map(|name| host.dir(name)).collect();
        host.driver.sweep(&dirs).expect("swept");
        for name in &names {
            host.open(name, &image, PLENTY);
        }
        // Two of the first daemon's spares may have been sandboxes.
        assert_eq!(host.roots().len(), SANDBOXES + 2);
        fs::write(&kept, "").expect("emptied");
        host.driver.sweep(&dirs).expect("swept");
        assert_eq!(host.roots().len(), SANDBOXES);
        assert!(!kept.exists());
        host.until_all_is_removed();
    });
}

/// As where state directories lie on btrfs themselves.
#[test]
fn pools_on_one_file_system_leave_each_other_alone() {
    let state = state();
    daemon(|| {
        let outer = Host::start(state.path());
        let image = outer.image("image", MIB);
        let full = outer.create("a", &image, limit(8 * MIB));
        let pool = File::open(state.path().join("pool")).expect("open");
        let foreign = 1 << btrfs::LEVEL_SHIFT | 5;
        btrfs::create_group(&pool, foreign).expect("made");

        let other = state.path().join("pool/other");
        let start = |reserve| Host::start_in(&other, &PoolKind::Directory, reserve);
        let a = start(0).create("a", &image, limit(8 * MIB));
        a.write("file", MIB).expect("room");
        drop(a);
        let next = start(0);
        next.driver.sweep(&[]).expect("swept");
        next.until_all_is_removed();
        assert_eq!(next.roots().len(), 0);
        drop(next);

        assert!(full.fill() <= 8 * MIB, "its limit is held");
        assert!(btrfs::groups(&pool).expect("listed").contains(&foreign));
        // The other's reserve is the other's alone.
        let other = start(u64::MAX);
        other.driver.admit().expect_err("no room");
        fs::remove_file(full.root.join("filler")).expect("removed");
        full.write("file", 4 * MIB).expect("room");
    });
}

#[test]
fn subvolumes_in_a_sandbox_go_with_it() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, PLENTY);
        let root = fs::canonicalize(&sandbox.root).expect("a path");
        for (dir, name) in [
            ("", "one"),
            ("one", "two"),
            ("one/two", "three"),
            ("", "four"),
        ] {
            let dir = File::open(root.join(dir)).expect("open");
            btrfs::create_subvolume(dir, name).expect("made");
        }
        // To destroy one takes room of what it lies in, and there is none.
        let volume = Volume::read(&sandbox.dir).expect("read").expect("named");
        let pool = File::open(state.path().join("pool")).expect("open");
        btrfs::set_limit(&pool, volume.qgroup(), Some(0)).expect("set");
        sandbox.write("file", MIB).expect_err("it is full");
        let dir = sandbox.dir.clone();
        drop(sandbox);
        host.remove("a");
        assert!(!dir.exists());
        assert!(!root.exists());
        host.until_all_is_removed();
    });
}

#[test]
fn a_create_that_fails_leaves_no_root() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let place = Place {
            dir: &state.path().join("no/such/directory"),
            image: &image,
        };
        host.driver
            .prepare(place, PLENTY)
            .expect_err("nowhere to write");
        host.until_spares_are_ready(&image);
        host.until_all_is_removed();
        assert_eq!(host.roots().len(), 2, "the spares");

        let dir = host.dir("a");
        for image in [
            vec![],
            vec![state.path().join("none")],
            vec![state.path().into()],
        ] {
            let place = Place {
                dir: &dir,
                image: &image,
            };
            host.driver.prepare(place, PLENTY).expect_err("no image");
            host.driver.check(place).expect_err("no root");
            host.driver.open(place, PLENTY).expect_err("no root");
        }
        host.driver.usage(&dir, None).expect_err("no root");
        assert_eq!(fs::read_dir(&dir).expect("listed").count(), 0);
    });
}

#[test]
fn without_the_filter_it_does_not_start() {
    refuse_without_filter(&seccomp::base_program()).expect("the filter of sandboxes");
    let refused = refuse_without_filter(&seccomp::run_program()).expect_err("another one");
    assert!(matches!(refused, StorageError::Unfit { .. }), "{refused}");
}

/// What the host keeps of itself.
mod ahead;
mod reserve;
