use std::os::unix::fs::FileExt as _;

use super::super::sparse;
use super::*;
use crate::error::chain;

/// A limit that changes after a repair: e2fsck sets the count of mounts to zero, and what was written is there all the same.
#[test]
fn a_repaired_layer_is_not_taken_for_a_new_one() {
    let bench = Bench::prepared(Room::Ahead);
    let started = bench.start(LIMIT);
    fs::write(started.path().join("upper/precious"), "kept").expect("written");
    bench.stop(started);
    e2fsprogs::mend(&bench.dir().join(IMAGE)).expect("repaired");
    bench.set_limit(None, limit(80)).expect("changed");
    let started = bench.start(limit(80));
    let read = fs::read_to_string(started.path().join("upper/precious"));
    assert_eq!(read.expect("there"), "kept");
}

/// A program that repairs it may outlive its daemon: the next one neither mounts the image nor gives it to another program.
#[test]
fn an_image_that_is_being_repaired_is_nobody_elses() {
    let bench = Bench::prepared(Room::Ahead);
    bench.stop(bench.start(LIMIT));
    let image = bench.dir().join(IMAGE);
    let repairing = e2fsprogs::locked(&image).expect("ours");
    let refused = bench.try_to_start(LIMIT).err().expect("refused");
    assert!(
        chain(&refused).to_string().contains("still at work"),
        "{refused:?}"
    );
    let refused = e2fsprogs::mend(&image).expect_err("refused");
    assert!(
        chain(&refused).to_string().contains("still at work"),
        "{refused:?}"
    );
    drop(repairing);
    bench.start(LIMIT);
}

/// What is on the disk of a host that loses its power is the image as it is at some moment.
#[test]
fn a_layer_survives_a_crash_of_the_host() {
    const NEEDS_RECOVERY: u8 = 4;
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    for i in 0..200 {
        started.write(&i.to_string(), 64 << 10).expect("written");
    }
    let then = File::create_new(bench.temp.path().join("then")).expect("new");
    sparse::copy(&bench.image(), &then).expect("copied");
    bench.stop(started);

    fs::rename(bench.temp.path().join("then"), bench.dir().join(IMAGE)).expect("placed");
    let mut features = [0];
    let read = bench.image().read_exact_at(&mut features, 1024 + 0x60);
    read.expect("read");
    assert!(features[0] & NEEDS_RECOVERY != 0, "this was no crash");
    // What the image says of itself is older than what is in it.
    assert_eq!(bench.usage(None).bytes, None);
    let refused = bench.set_limit(None, limit(8));
    assert!(
        matches!(refused, Err(StorageError::InUse { used_bytes, .. }) if used_bytes > 12 * MIB),
        "{refused:?}"
    );
    bench.wait_until_unmounted();
    assert!(bench.usage(None).bytes > Some(12 * MIB));
    let started = bench.start(LIMIT);
    for i in 0..200 {
        let length = fs::metadata(started.file(&i.to_string())).expect("synced");
        assert_eq!(length.len(), 64 << 10);
    }
    bench.stop(started);
}

#[test]
fn a_layer_in_which_errors_were_found_is_mended_at_its_start() {
    const STATE: u64 = 1024 + 0x3A;
    let bench = Bench::prepared(Room::Exact);
    let started = bench.start(LIMIT);
    started.write("kept", MIB).expect("written");
    bench.stop(started);
    // As the kernel notes an error, but for the checksum, which debugfs writes.
    let noted = std::process::Command::new("/usr/sbin/debugfs")
        .args(["-w", "-R", "set_super_value state 2"])
        .arg(bench.dir().join(IMAGE))
        .output();
    assert!(noted.expect("debugfs of e2fsprogs").status.success());
    let state = || {
        let mut state = [0];
        bench
            .image()
            .read_exact_at(&mut state, STATE)
            .expect("read");
        state[0] & 2
    };
    assert_eq!(state(), 2);
    let started = bench.start(LIMIT);
    assert!(started.file("kept").exists());
    bench.stop(started);
    assert_eq!(state(), 0);
}

#[test]
fn a_damaged_image_is_refused_and_left_alone() {
    type Spoil = fn(&File);
    let damage: [(&str, Spoil); 5] = [
        ("empty", |image| image.set_len(0).expect("cut")),
        ("cut", |image| image.set_len(8 * MIB).expect("cut")),
        ("no superblock", |image| {
            image.write_all_at(&[0; 4096], 0).expect("written");
        }),
        ("garbage", |image| {
            image.write_all_at(&[0xA5; 65536], 0).expect("written");
        }),
        ("garbage below the superblock", |image| {
            image.write_all_at(&[0xA5; 65536], 4096).expect("written");
        }),
    ];
    for (what, spoil) in damage {
        let bench = Bench::prepared(Room::Exact);
        spoil(&bench.image());
        let content = fs::read(bench.dir().join(IMAGE)).expect("read");
        if what != "garbage below the superblock" {
            assert!(bench.check().is_err(), "{what}");
        }
        let Err(error) = bench.try_to_start(LIMIT) else {
            panic!("{what}: started")
        };
        assert!(error.to_string().contains(IMAGE), "{what}: {error}");
        bench.wait_until_unmounted();
        let after = fs::read(bench.dir().join(IMAGE)).expect("read");
        assert!(content == after, "{what}: changed");
    }
    let bench = Bench::prepared(Room::Exact);
    fs::remove_file(bench.dir().join(IMAGE)).expect("removed");
    assert!(bench.check().is_err() && bench.try_to_start(LIMIT).is_err());
    assert!(
        !bench.dir().join(IMAGE).exists(),
        "lost files are never made anew"
    );
}
