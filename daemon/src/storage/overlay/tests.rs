//! The driver on real loop devices.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lodge_kernel::block::LoopDevice;
use tempfile::TempDir;

use super::geometry::Room;
use super::layer::{IMAGE, Layer};
use super::{Directories, Overlay, Settings, e2fsprogs};
use crate::storage::driver::{
    DiskLimit, DiskUsage, OWN_DIR, Place, Root, Storage as _, StorageError, Writable,
};

const MIB: u64 = 1 << 20;
const LIMIT: DiskLimit = limit(64);
const ENOSPC: i32 = nix::errno::Errno::ENOSPC as i32;

const fn limit(mib: u64) -> DiskLimit {
    DiskLimit {
        bytes: mib * MIB,
        inodes: 4096,
    }
}

/// A state directory with one sandbox. Dropped in this order: the driver has files in the directory.
struct Bench {
    driver: Overlay,
    temp: TempDir,
}

/// A layer that somebody has mounted.
struct Started {
    root: OwnedFd,
}

impl Bench {
    fn new() -> Self {
        Self::with_room(Room::Ahead)
    }

    fn with_room(room: Room) -> Self {
        let temp = tempfile::tempdir().expect("temporary directory");
        let driver = Self::driver(temp.path(), room);
        fs::create_dir(temp.path().join("own")).expect("new");
        Self { driver, temp }
    }

    fn driver(state_dir: &Path, room: Room) -> Overlay {
        let settings = Settings {
            state_dir: state_dir.to_owned(),
            reserve_bytes: 0,
        };
        Overlay::with_room(settings, room).expect("opened")
    }

    fn prepared(room: Room) -> Self {
        let bench = Self::with_room(room);
        bench.prepare(LIMIT);
        bench
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().join("own")
    }

    fn image(&self) -> File {
        let mut options = File::options();
        options.read(true).write(true);
        options.open(self.dir().join(IMAGE)).expect("an image")
    }

    fn prepare(&self, limit: DiskLimit) {
        let dir = self.dir();
        let place = Place {
            dir: &dir,
            image: &[],
        };
        self.driver.prepare(place, limit).expect("prepared");
    }

    fn check(&self) -> Result<(), StorageError> {
        let dir = self.dir();
        self.driver.check(Place {
            dir: &dir,
            image: &[],
        })
    }

    fn try_to_start(&self, limit: DiskLimit) -> Result<Started, StorageError> {
        let dir = self.dir();
        let place = Place {
            dir: &dir,
            image: &[],
        };
        match self.driver.open(place, limit)? {
            Root::Overlay {
                writable: Writable::Mount(root),
                ..
            } => Ok(Started { root }),
            other => panic!("{other:?}"),
        }
    }

    fn start(&self, limit: DiskLimit) -> Started {
        self.try_to_start(limit).expect("started")
    }

    fn set_limit(&self, started: Option<&Started>, limit: DiskLimit) -> Result<(), StorageError> {
        let root = started.map(Started::path);
        self.driver.set_limit(&self.dir(), root.as_deref(), limit)
    }

    fn usage(&self, started: Option<&Started>) -> DiskUsage {
        let root = started.map(Started::path);
        let usage = self.driver.usage(&self.dir(), root.as_deref());
        usage.expect("known")
    }

    /// Bytes that the image takes on the host.
    fn on_host(&self) -> u64 {
        self.image().metadata().expect("stat").blocks() * 512
    }

    /// The last user is gone, the file system is unmounted.
    fn wait_until_unmounted(&self) {
        let (image, end) = (self.image(), Instant::now() + Duration::from_secs(10));
        while LoopDevice::find(&image).expect("looked").is_some() {
            assert!(Instant::now() < end, "still mounted");
            std::thread::yield_now();
        }
    }

    fn stop(&self, started: Started) {
        drop(started);
        self.wait_until_unmounted();
        e2fsprogs::check(&self.dir().join(IMAGE)).expect("a sound file system");
    }
}

impl Started {
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.root.as_raw_fd().to_string())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join("upper").join(name)
    }

    fn write(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = File::options()
            .append(true)
            .create(true)
            .open(self.file(name))?;
        let data = vec![b'x'; 64 << 10];
        for _ in 0..bytes / data.len() as u64 {
            io::Write::write_all(&mut &file, &data)?;
        }
        file.sync_all()
    }

    /// Writes until there is no room; how many bytes there were.
    fn fill(&self, name: &str) -> u64 {
        let error = self.write(name, 1 << 40).expect_err("a limit");
        assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
        fs::metadata(self.file(name)).expect("there").len()
    }

    fn sync(&self) {
        let dir = File::open(self.path()).expect("open");
        rustix::fs::syncfs(&dir).expect("synced");
    }
}

fn near(bytes: u64, wanted: u64) -> bool {
    bytes <= wanted && bytes >= wanted - wanted / 32
}

#[test]
fn a_layer_has_the_directories_of_an_overlay_and_nothing_is_used() {
    for room in [Room::Exact, Room::Ahead] {
        let bench = Bench::prepared(room);
        assert!(bench.on_host() < MIB, "{}", bench.on_host());
        bench.check().expect("whole");
        let stopped = bench.usage(None);
        let started = bench.start(LIMIT);
        let mode = |name| {
            let found = fs::metadata(started.path().join(name)).expect("there");
            (found.uid(), found.permissions().mode() & 0o7777)
        };
        assert_eq!(mode("upper"), (0, 0o755));
        assert_eq!(mode("work"), (0, 0o700));
        let usage = bench.usage(Some(&started));
        assert_eq!(
            usage, stopped,
            "what is read from the image is what the kernel says"
        );
        assert_eq!(usage.limit_bytes, Some(LIMIT.bytes));
        assert!(usage.bytes < Some(MIB / 16), "{usage:?}");
        assert!(usage.inodes_limit >= Some(4096), "{usage:?}");
        assert!(!usage.is_full(4096));
        bench.stop(started);
    }
}

#[test]
fn bytes_are_limited_and_come_back_to_the_sandbox_and_the_host() {
    for room in [Room::Exact, Room::Ahead] {
        let bench = Bench::prepared(room);
        let started = bench.start(LIMIT);
        let written = started.fill("big");
        assert!(near(written, LIMIT.bytes), "{written}");
        let usage = bench.usage(Some(&started));
        assert!(
            usage.is_full(MIB) && usage.bytes <= usage.limit_bytes,
            "{usage:?}"
        );
        // The limit, and what the file system keeps for itself: the journal and 4,096 inodes.
        assert!(
            bench.on_host() < LIMIT.bytes + 8 * MIB,
            "{}",
            bench.on_host()
        );

        fs::remove_file(started.file("big")).expect("removed");
        started.sync();
        // The kernel gives it back in the background.
        let end = Instant::now() + Duration::from_secs(10);
        while bench.on_host() >= 8 * MIB {
            assert!(Instant::now() < end, "{} bytes stay", bench.on_host());
            std::thread::yield_now();
        }
        assert!(!bench.usage(Some(&started)).is_full(60 * MIB));
        started.write("again", 60 * MIB).expect("there is room");
        bench.stop(started);
    }
}

#[test]
fn inodes_are_limited_and_come_back() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    let make = |i: u64| File::create_new(started.file(&i.to_string())).map(drop);
    let count = (0..10_000)
        .find(|i| make(*i).is_err())
        .expect("a limit on inodes");
    assert!((4000..4500).contains(&count), "{count}");
    let error = make(count).expect_err("none left");
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
    let usage = bench.usage(Some(&started));
    assert_eq!(usage.inodes, usage.inodes_limit);
    assert!(usage.is_full(0));
    fs::remove_file(started.file("0")).expect("removed");
    make(count).expect("one is free");
    bench.stop(started);
}

#[test]
fn a_limit_rises_and_falls_in_use() {
    let bench = Bench::prepared(Room::Ahead);
    let started = bench.start(LIMIT);
    started.fill("big");
    bench.set_limit(Some(&started), limit(128)).expect("raised");
    let written = started.fill("big");
    assert!(near(written, 128 * MIB), "{written}");
    assert_eq!(bench.usage(Some(&started)).limit_bytes, Some(128 * MIB));

    let refused = bench.set_limit(Some(&started), LIMIT);
    assert!(
        matches!(refused, Err(StorageError::InUse { .. })),
        "{refused:?}"
    );
    fs::remove_file(started.file("big")).expect("removed");
    bench.set_limit(Some(&started), LIMIT).expect("lowered");
    let written = started.fill("big");
    assert!(near(written, 64 * MIB), "{written}");

    // What it was when it stopped is what it is when it starts.
    fs::remove_file(started.file("big")).expect("removed");
    bench.stop(started);
    let started = bench.start(LIMIT);
    assert!(near(started.fill("big"), 64 * MIB));
    bench.stop(started);
}

/// With CAP_SYS_RESOURCE it grows; else it is refused, and as it was.
#[test]
fn an_image_without_room_grows_in_use_or_stays_as_it_was() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    started.write("kept", 10 * MIB).expect("written");
    let before = bench.image().metadata().expect("stat").len();
    match bench.set_limit(Some(&started), limit(1024)) {
        Ok(()) => {
            assert_eq!(bench.usage(Some(&started)).limit_bytes, Some(1024 * MIB));
            started.write("more", 200 * MIB).expect("written");
        }
        Err(StorageError::Unsupported { why, .. }) => {
            assert!(why.contains("CAP_SYS_RESOURCE"), "{why}");
            assert_eq!(bench.image().metadata().expect("stat").len(), before);
            assert_eq!(bench.usage(Some(&started)).limit_bytes, Some(LIMIT.bytes));
            assert!(near(started.fill("more"), 54 * MIB));
        }
        Err(error) => panic!("{error}"),
    }
    bench.stop(started);
}

#[test]
fn a_stopped_layer_grows_at_its_next_start_with_all_that_is_in_it() {
    for room in [Room::Exact, Room::Ahead] {
        let bench = Bench::prepared(room);
        let started = bench.start(LIMIT);
        started.write("kept", 10 * MIB).expect("written");
        bench.stop(started);
        let large = DiskLimit {
            bytes: 3072 * MIB,
            inodes: 20_000,
        };
        bench.set_limit(None, large).expect("noted");
        let started = bench.start(large);
        let usage = bench.usage(Some(&started));
        assert_eq!(usage.limit_bytes, Some(large.bytes));
        assert!(usage.inodes_limit >= Some(20_000), "{usage:?}");
        started.write("more", 300 * MIB).expect("there is room");
        let kept = fs::metadata(started.file("kept")).expect("kept").len();
        assert_eq!(kept, 10 * MIB);
        bench.stop(started);
    }
}

/// The record says more than the driver was told: lodged died between the two.
#[test]
fn a_start_holds_the_limit_that_it_is_given() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(limit(96));
    assert!(near(started.fill("big"), 96 * MIB));
    bench.stop(started);
    // lodged died when it had extended the file, before the file system grew.
    let image = bench.image();
    image.set_len(512 * MIB).expect("extended");
    let started = bench.start(limit(256));
    assert_eq!(bench.usage(Some(&started)).limit_bytes, Some(256 * MIB));
    bench.stop(started);
}

#[test]
fn fewer_inodes_are_refused_once_something_was_written() {
    let many = DiskLimit {
        bytes: 64 * MIB,
        inodes: 16_000,
    };
    let bench = Bench::new();
    bench.prepare(many);
    bench.set_limit(None, LIMIT).expect("made anew");
    bench.set_limit(None, many).expect("made anew");
    let started = bench.start(many);
    let refused = bench.set_limit(Some(&started), LIMIT);
    assert!(
        matches!(refused, Err(StorageError::Unsupported { .. })),
        "{refused:?}"
    );
    bench.set_limit(Some(&started), many).expect("as it is");
    bench.stop(started);
}

#[test]
fn two_starts_have_one_device_and_one_file_system() {
    let bench = Bench::prepared(Room::Exact);
    let (one, other) = std::thread::scope(|scope| {
        let start = || bench.start(LIMIT);
        let (one, other) = (scope.spawn(start), scope.spawn(start));
        (one.join().expect("started"), other.join().expect("started"))
    });
    let device = |started: &Started| fs::metadata(started.path()).expect("stat").dev();
    assert_eq!(device(&one), device(&other));
    one.write("seen", MIB).expect("written");
    drop(one);
    assert!(other.file("seen").exists());
    bench.stop(other);
}

#[test]
fn a_removal_takes_the_image_away_and_its_device_with_it() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    started.write("big", 30 * MIB).expect("written");
    let image = bench.image();
    drop(started);
    bench
        .driver
        .remove(bench.temp.path(), "own")
        .expect("removed");
    assert!(!bench.dir().exists());
    let end = Instant::now() + Duration::from_secs(10);
    while LoopDevice::find(&image).expect("looked").is_some() {
        assert!(Instant::now() < end, "the device is still there");
        std::thread::yield_now();
    }
    bench
        .driver
        .remove(bench.temp.path(), "own")
        .expect("gone already");
    assert_eq!(bench.driver.host().expect("known").being_removed, 0);
}

#[test]
fn a_sandbox_that_was_made_without_a_limit_keeps_its_directories() {
    let bench = Bench::new();
    let dir = bench.dir();
    let place = Place {
        dir: &dir,
        image: &[],
    };
    Directories.prepare(place, LIMIT).expect("prepared");
    bench.check().expect("whole");
    let root = bench.driver.open(place, LIMIT).expect("opened");
    let Root::Overlay {
        writable: Writable::Directory(_),
        ..
    } = root
    else {
        panic!("{root:?}");
    };
    assert_eq!(bench.usage(None), DiskUsage::default());
    let refused = bench.set_limit(None, LIMIT);
    assert!(
        matches!(refused, Err(StorageError::Unsupported { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_limit_that_no_image_holds_is_refused() {
    let bench = Bench::new();
    let dir = bench.dir();
    let place = Place {
        dir: &dir,
        image: &[],
    };
    let huge = DiskLimit {
        bytes: 1 << 50,
        inodes: 1 << 20,
    };
    let refused = bench.driver.prepare(place, huge);
    assert!(
        matches!(refused, Err(StorageError::Unsupported { .. })),
        "{refused:?}"
    );
    assert!(Layer::of(&dir).open().is_err());
}

/// What is made ahead, and what is kept until later.
mod ahead;
/// Crashes, errors and what mends them.
mod damage;
/// What the host has left.
mod host_room;
/// What layers are promised of it.
mod promises;
