use nix::mount::MsFlags;

use super::super::promised::Promised;
use super::super::reserve;
use super::*;
use crate::error::Error;
use crate::storage::pool::make_mounts_private;

#[test]
fn layers_share_what_the_host_has_beyond_its_reserve() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    let state_dir = bench.temp.path().canonicalize().expect("there");
    let promised = Promised::default();
    let share_out = |mib: u64| {
        reserve::share_out(&state_dir, mib * MIB, &promised).expect("shared out");
    };

    // Some is left for others.
    share_out(24);
    let written = started.fill("big");
    assert!(near(written, 21 * MIB), "{written}");
    // Nothing is left to take.
    share_out(0);
    assert!(started.write("other", MIB).is_err());
    // What is promised and not written is taken already.
    share_out(1024);
    let allocated = File::create(started.file("allocated")).expect("new");
    let fallocate = |mib| {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&allocated, flags, 0, mib * MIB)
    };
    fallocate(20).expect("room");
    share_out(25);
    let written = started.fill("small");
    assert!(written <= 6 * MIB, "{written}");
    fs::remove_file(started.file("big")).expect("removed");

    // The limit is what is left when there is enough again.
    share_out(1024);
    fallocate(40).expect("room");
    bench.set_limit(Some(&started), limit(62)).expect("lowered");
    share_out(1024);
    let all = bench.usage(Some(&started));
    started.fill("big");
    let usage = bench.usage(Some(&started));
    assert!(
        usage.bytes > all.bytes && usage.bytes <= Some(62 * MIB),
        "{usage:?}"
    );
    drop(allocated);
    bench.stop(started);
}

#[test]
fn the_reserve_refuses_creates_and_holds_writes_back() {
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    bench.driver.admit().expect("nothing is kept back");
    bench.driver.keep_reserve().expect("kept");
    let settings = Settings {
        state_dir: bench.temp.path().to_owned(),
        reserve_bytes: 1 << 60,
    };
    let full = Overlay::with_room(settings, Room::Exact).expect("opened");
    let refused = full.admit();
    assert!(
        matches!(refused, Err(StorageError::Reserve { .. })),
        "{refused:?}"
    );
    full.keep_reserve().expect("kept");
    assert!(started.write("file", MIB).is_err());
    bench.driver.keep_reserve().expect("kept");
    started.write("file", MIB).expect("there is room again");
    bench.stop(started);
    // Layers that are not mounted are in nobody's way.
    full.keep_reserve().expect("kept");
}

/// One whose state directory is a disk of its own with so much room, in KiB. Only this thread sees it.
fn on_small_disk(kib: u64) -> Bench {
    make_mounts_private().expect("mounts of its own");
    let temp = tempfile::tempdir().expect("temporary directory");
    let size = format!("size={kib}k");
    let (kind, flags) = (Some("tmpfs"), MsFlags::empty());
    nix::mount::mount(kind, temp.path(), kind, flags, Some(size.as_str())).expect("mounted");
    let driver = Bench::driver(temp.path(), Room::Exact);
    fs::create_dir(temp.path().join("own")).expect("new");
    Bench { driver, temp }
}

fn reason<T>(result: Result<T, StorageError>) -> &'static str {
    let error = result.err().expect("no room");
    Error::from(error).reason()
}

#[test]
fn a_create_on_a_full_host_says_so() {
    // As much as a template's directories take, and not the template.
    let bench = on_small_disk(64);
    let dir = bench.dir();
    let place = Place {
        dir: &dir,
        image: &[],
    };
    assert_eq!(reason(bench.driver.prepare(place, LIMIT)), "HOST_DISK_FULL");
}

#[test]
fn a_layer_that_cannot_grow_on_a_full_host_says_so() {
    let bench = on_small_disk(8 << 10);
    bench.prepare(LIMIT);
    let started = bench.start(LIMIT);
    started.write("kept", MIB).expect("written");
    bench.stop(started);
    let mut filler = File::create(bench.temp.path().join("filler")).expect("new");
    let full = io::copy(&mut io::repeat(b'x'), &mut filler).expect_err("no room");
    assert_eq!(full.raw_os_error(), Some(ENOSPC));
    assert_eq!(
        reason(bench.try_to_start(limit(16 << 10))),
        "HOST_DISK_FULL"
    );
}
