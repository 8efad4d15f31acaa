//! Promises of room, on a disk that nobody else writes to.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::super::promised::Promised;
use super::super::reserve;
use super::*;
use crate::storage::pool::make_mounts_private;

/// A disk of 256 MiB, which this test's thread and those that it starts see, and no one else.
struct Disk {
    dir: TempDir,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        make_mounts_private().expect("mounts of its own");
        let (tmpfs, size) = (Some("tmpfs"), Some("size=256m"));
        mount(tmpfs, dir.path(), tmpfs, MsFlags::empty(), size).expect("mounted");
        Self { dir }
    }

    fn free(&self) -> u64 {
        let space = reserve::space_at(self.dir.path()).expect("known");
        space.f_bavail * space.f_frsize
    }

    /// With a driver that sees so many free bytes beyond its reserve.
    fn bench(&self, room: u64) -> Bench {
        let temp = TempDir::new_in(self.dir.path()).expect("temporary directory");
        fs::create_dir(temp.path().join("own")).expect("new");
        let settings = Settings {
            state_dir: temp.path().to_owned(),
            reserve_bytes: self.free() - room,
        };
        let driver = Overlay::with_room(settings, Room::Exact).expect("opened");
        Bench { driver, temp }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        umount2(self.dir.path(), MntFlags::MNT_DETACH).expect("unmounted");
    }
}

/// Between two looks as well: what others were promised is not there for whoever is started.
#[test]
fn what_others_were_promised_is_not_promised_again() {
    let disk = Disk::new();
    let bench = disk.bench(200 * MIB);
    bench.prepare(LIMIT);
    bench.driver.promise(170 * MIB);
    let started = bench.start(LIMIT);
    let written = started.fill("big");
    assert!((MIB..=15 * MIB).contains(&written), "{written}");
    bench.driver.keep_reserve().expect("kept");
    assert!(started.fill("rest") > 30 * MIB, "nobody else is there");
    bench.stop(started);
}

#[test]
fn what_a_file_system_keeps_for_itself_is_counted_as_well() {
    let disk = Disk::new();
    let bench = disk.bench(200 * MIB);
    bench.prepare(LIMIT);
    let layer = Layer::of(&bench.dir());
    let (_, superblock) = layer.open().expect("whole");
    let metadata = superblock.shape.metadata();
    assert!(metadata > 4 * MIB, "a journal alone has that much");
    let may_take = reserve::may_take(&layer, LIMIT).expect("known");
    assert!(may_take + bench.on_host() > LIMIT.bytes + 4 * MIB);

    // As much as its files may take is less than all, and less is held.
    let started = bench.start(LIMIT);
    let state_dir = bench.temp.path().canonicalize().expect("there");
    let promised = Promised::default();
    reserve::share_out(&state_dir, LIMIT.bytes, &promised).expect("shared out");
    let written = started.fill("big");
    assert!(written <= LIMIT.bytes / 8 * 7, "{written}");
    bench.stop(started);
}

/// Inode tables and a journal are written whatever is held back in their file system.
#[test]
fn a_create_is_refused_where_its_file_system_has_no_room() {
    let disk = Disk::new();
    for (room, is_enough) in [(4 * MIB, false), (32 * MIB, true)] {
        let bench = disk.bench(room);
        bench.driver.admit().expect("there is some");
        let dir = bench.dir();
        let place = Place {
            dir: &dir,
            image: &[],
        };
        match bench.driver.prepare(place, LIMIT) {
            Ok(()) => assert!(is_enough),
            Err(StorageError::Reserve { .. }) => assert!(!is_enough),
            Err(error) => panic!("{error}"),
        }
    }
}
