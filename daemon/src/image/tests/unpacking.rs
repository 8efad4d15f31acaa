//! What an honest archive becomes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::archive::{Archive, Item, gzip, zstd};
use super::arena::{Arena, mode};

#[test]
fn owners_modes_and_times_are_kept() {
    let arena = Arena::new();
    let root = arena.root_of(
        &Archive::default()
            .item(&Item {
                mode: 0o711,
                mtime: 7,
                ..Item::new(b'5', "./")
            })
            .item(&Item {
                mode: 0o2555,
                mtime: 5,
                owner: (1, 2),
                ..Item::new(b'5', "d")
            })
            .item(&Item {
                mode: 0o4750,
                owner: (65535, 0),
                mtime: 9,
                ..Item::new(b'0', "d/su")
            })
            .item(&Item {
                link: b"nowhere".to_vec(),
                owner: (3, 4),
                mtime: 11,
                ..Item::new(b'2', "d/l")
            })
            .finish(),
    );
    let facts = |name: &str| {
        let stat = fs::symlink_metadata(root.join(name)).expect(name);
        (stat.mode() & 0o7777, stat.uid(), stat.gid(), stat.mtime())
    };
    assert_eq!(facts(""), (0o711, 0, 0, 7));
    assert_eq!(
        facts("d"),
        (0o2555, 1, 2, 5),
        "what is put into it later changes nothing"
    );
    assert_eq!(facts("d/su"), (0o4750, 65535, 0, 9));
    let (_, uid, gid, mtime) = facts("d/l");
    assert_eq!((uid, gid, mtime), (3, 4, 11));
}

#[test]
fn hard_links_are_one_file() {
    let arena = Arena::new();
    let archive = Archive::default()
        .file("a/f", "x")
        .hard_link("b/g", "/a/f")
        .finish();
    let root = arena.root_of(&archive);
    let inode = |name: &str| fs::metadata(root.join(name)).expect(name).ino();
    assert_eq!(inode("a/f"), inode("b/g"));
    assert_eq!(
        mode(&root.join("b")),
        0o755,
        "a directory that the archive does not list"
    );
}

#[test]
fn long_and_odd_names_are_kept() {
    let arena = Arena::new();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(255));
    let odd = b"\xff\xfe new\nline";
    let archive = Archive::default()
        .long_name(&long)
        .file("cut", "1")
        .file(odd, "2")
        .pax(&[("path", "pax/name".as_bytes()), ("mtime", b"-1.5")])
        .file("cut", "3")
        .finish();
    let root = arena.root_of(&archive);
    let read = |name: &std::ffi::OsStr| fs::read(root.join(name)).expect("there");
    assert_eq!(read(long.as_ref()), b"1");
    assert_eq!(read(std::ffi::OsStr::from_bytes(odd)), b"2");
    assert_eq!(read("pax/name".as_ref()), b"3");
    let stat = fs::metadata(root.join("pax/name")).expect("there");
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (-2, 500_000_000));
}

#[test]
fn of_two_entries_with_one_name_the_last_wins() {
    let arena = Arena::new();
    let archive = Archive::default()
        .file("f", "old")
        .file("f", "new")
        .dir("d")
        .file("d/gone", "")
        .file("d", "now a file")
        .symlink("l", "f")
        .dir("l")
        .file("l/in", "")
        .dir("kept")
        .file("kept/f", "")
        .item(&Item {
            mode: 0o700,
            ..Item::new(b'5', "kept")
        })
        .finish();
    let root = arena.root_of(&archive);
    assert_eq!(fs::read(root.join("f")).expect("there"), b"new");
    assert_eq!(fs::read(root.join("d")).expect("there"), b"now a file");
    assert!(
        fs::symlink_metadata(root.join("l"))
            .expect("there")
            .is_dir()
    );
    assert!(root.join("kept/f").exists(), "two directories become one");
    assert_eq!(mode(&root.join("kept")), 0o700);
}

#[test]
fn gzip_and_zstd_give_the_same_image() {
    let arena = Arena::new();
    let plain = Archive::default().dir("etc").file("etc/x", "y").finish();
    let digest = arena.import(&plain).expect("plain").digest;
    assert_eq!(arena.import(&gzip(&plain)).expect("gzip").digest, digest);
    assert_eq!(arena.import(&zstd(&plain)).expect("zstd").digest, digest);
    let two_members = [gzip(&plain[..700]), gzip(&plain[700..])].concat();
    assert_eq!(
        arena
            .import(&two_members)
            .expect("gzip in two members")
            .digest,
        digest
    );
}

#[test]
fn other_formats_are_refused_by_name() {
    let arena = Arena::new();
    for (head, name) in [
        (b"\xfd7zXZ\0".as_slice(), "xz"),
        (b"BZh91AY", "bzip2"),
        (b"PK\x03\x04", "zip"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ] {
        let message = arena.refused(head);
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn a_sparse_file_gets_its_holes() {
    let arena = Arena::new();
    let mut header = Item {
        content: b"headtail".to_vec(),
        ..Item::new(b'S', "s")
    }
    .header();
    let gnu = header.as_gnu_mut().expect("made so");
    gnu.set_real_size(1 << 20);
    for (slot, (offset, length)) in gnu.sparse.iter_mut().zip([(0, 4), ((1 << 20) - 4, 4)]) {
        slot.set_offset(offset);
        slot.set_length(length);
    }
    header.set_cksum();
    let archive = Archive::default()
        .header(&header)
        .content(b"headtail")
        .file("next", "n");
    let root = arena.root_of(&archive.finish());
    let content = fs::read(root.join("s")).expect("there");
    assert_eq!(content.len(), 1 << 20);
    assert!(content.starts_with(b"head\0") && content.ends_with(b"\0tail"));
    assert!(
        fs::metadata(root.join("s")).expect("there").blocks() < 64,
        "the hole takes no space"
    );
    assert_eq!(fs::read(root.join("next")).expect("there"), b"n");
}

#[test]
fn the_default_user_is_taken_from_the_images_own_accounts() {
    let arena = Arena::new();
    let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n";
    let with = arena
        .import(&Archive::default().file("etc/passwd", passwd).finish())
        .expect("ok");
    assert_eq!(
        (with.user.as_str(), with.workdir.as_str()),
        ("user", "/home/user")
    );
    let without = arena
        .import(&Archive::default().file("bin/sh", "").finish())
        .expect("ok");
    assert_eq!(
        (without.user.as_str(), without.workdir.as_str()),
        ("root", "/")
    );
}

#[test]
fn accounts_are_not_read_through_a_link() {
    let arena = Arena::new();
    let theirs = arena.outside().join("canary");
    fs::write(&theirs, "user:x:1000:1000::/stolen:/bin/sh\n").expect("written");
    let archive = Archive::default()
        .dir("etc")
        .symlink("etc/passwd", theirs.as_os_str().as_bytes());
    let image = arena.import(&archive.finish()).expect("imported");
    assert_eq!((image.user.as_str(), image.workdir.as_str()), ("root", "/"));
}
