//! Headers that lie.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::archive::{Archive, Item};
use super::arena::Arena;
use crate::image::ImageError;

/// Every kind of entry that a reader has to know, once.
fn sampler() -> Archive {
    let mut sparse = Item {
        content: b"data".to_vec(),
        ..Item::new(b'S', "s")
    }
    .header();
    let gnu = sparse.as_gnu_mut().expect("made so");
    gnu.set_real_size(4096);
    gnu.sparse[0].set_offset(0);
    gnu.sparse[0].set_length(4);
    sparse.set_cksum();
    Archive::default()
        .dir("d")
        .file("d/f", "x".repeat(700))
        .symlink("d/l", "f")
        .hard_link("d/h", "d/f")
        .long_name("n".repeat(150))
        .file("cut", "long")
        .pax(&[("path", b"pax"), ("SCHILY.xattr.user.a", b"1")])
        .file("cut", "pax")
        .header(&sparse)
        .content(b"data")
}

/// F05: every type that a header can claim, devices (0:0 too, which an overlay takes for "gone"), fifos, volume labels,
/// continued and unknown ones among them. Each is made, left out and listed, or refused; none becomes a device.
#[test]
fn attack_f05_every_type() {
    let arena = Arena::new();
    let mut made = 0;
    for kind in 0..=u8::MAX {
        let mut item = Item::new(kind, "e");
        if matches!(kind, b'1' | b'2') {
            item.link = b"first".to_vec();
        }
        let archive = Archive::default()
            .file("first", "")
            .item(&item)
            .file("last", "")
            .finish();
        let Ok(image) = arena.import(&archive) else {
            continue;
        };
        made += 1;
        check_no_special(&image.layers[0].path);
        if matches!(kind, b'3' | b'4' | b'6' | b'V') {
            assert_eq!(image.left_out.len(), 1, "type {kind}");
            assert!(image.left_out[0].starts_with("e: "), "{:?}", image.left_out);
        }
    }
    // '\0' 0 1 2 3 4 5 6 7 V, and extended headers whose empty content says nothing: x g K.
    assert_eq!(made, 13);
    let content = Item {
        content: b"c".to_vec(),
        ..Item::new(b'5', "d")
    };
    assert!(
        arena
            .refused(&Archive::default().item(&content).finish())
            .contains("content")
    );
}

fn check_no_special(root: &Path) {
    for entry in fs::read_dir(root).expect("readable") {
        let kind = entry.expect("readable").file_type().expect("readable");
        assert!(!kind.is_char_device() && !kind.is_block_device() && !kind.is_fifo());
    }
}

/// F07: the archive stops at each block, and at odd bytes. It is never taken for a shorter whole archive.
#[test]
fn attack_f07_truncated_anywhere() {
    let arena = Arena::new();
    let whole = sampler().unfinished();
    for length in (0..=whole.len())
        .step_by(512)
        .chain([1, 511, 513, whole.len() - 1])
    {
        let error = arena
            .import(&whole[..length])
            .expect_err("a truncated archive was accepted");
        assert!(
            matches!(error, ImageError::Truncated { .. }),
            "at {length}: {error}"
        );
    }
    assert!(arena.listing().is_empty());
    let gzip = super::archive::gzip(&sampler().finish());
    for length in (2..gzip.len() - 1).step_by(97) {
        arena.refused(&gzip[..length]);
    }
    let zstd = super::archive::zstd(&sampler().finish());
    for length in (4..zstd.len() - 1).step_by(97) {
        arena.refused(&zstd[..length]);
    }
}

/// F07: each byte of the archive is changed, first with its header's checksum left wrong, then with it put right. The
/// first is refused; with the second anything goes but a panic or a file outside.
#[test]
fn attack_f07_changed_bytes() {
    let arena = Arena::new();
    let whole = sampler().finish();
    for at in (0..512).filter(|at| !(148..156).contains(at)) {
        let mut changed = whole.clone();
        changed[at] ^= 0x01;
        let message = arena.refused(&changed);
        assert!(message.contains("checksum"), "{message}");
    }
    for at in (0..whole.len()).step_by(13) {
        let mut changed = whole.clone();
        changed[at] ^= 0xa5;
        let block = at / 512 * 512;
        let sum: u32 = changed[block..block + 512]
            .iter()
            .enumerate()
            .map(|(i, b)| {
                if (148..156).contains(&i) {
                    32
                } else {
                    u32::from(*b)
                }
            })
            .sum();
        changed[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let _either = arena.unpack_only(&changed);
        arena.check_outside();
    }
}

/// F07: names without end. Each is refused by the bound it breaks, before it takes memory or time.
#[test]
fn attack_f07_names_without_end() {
    let arena = Arena::new();
    let mut gigantic = Item::new(b'L', "././@LongLink").header();
    gigantic.set_size(1 << 30);
    gigantic.set_cksum();
    let message = arena.refused(&Archive::default().header(&gigantic).finish());
    assert!(message.contains("larger than allowed"), "{message}");
    let mut pax = Item::new(b'x', "pax").header();
    pax.set_size((1 << 20) + 1);
    pax.set_cksum();
    arena.refused(&Archive::default().header(&pax).finish());
    for name in [
        "/a".repeat(4096),
        "a/".repeat(257),
        "a".repeat(256),
        "a/".repeat(32_000),
    ] {
        arena.refused(&Archive::default().long_name(&name).file("cut", "").finish());
        arena.refused(
            &Archive::default()
                .pax(&[("path", name.as_bytes())])
                .file("c", "")
                .finish(),
        );
    }
    arena.refused(&Archive::default().file("", "").finish());
    arena.refused(
        &Archive::default()
            .pax(&[("path", b"")])
            .file("c", "")
            .finish(),
    );
    arena.refused(
        &Archive::default()
            .pax(&[("path", b"a\0b")])
            .file("c", "")
            .finish(),
    );
    arena.refused(&Archive::default().symlink("l", "").finish());
    arena.refused(&Archive::default().file(".", "").finish());
}

/// F07: 65,536 directories, each in the one before: refused at the depth that a removal can still walk.
#[test]
fn attack_f07_nested_directories() {
    let arena = Arena::new();
    let mut archive = Archive::default();
    let mut name = String::new();
    for _ in 0..65_536 / 32 {
        name.push_str("d/");
        archive = archive.long_name(&name).dir("cut");
    }
    assert!(
        arena
            .refused(&archive.finish())
            .contains("256 directories deep")
    );
    let deepest = "d/".repeat(255) + "f";
    let root = arena.root_of(
        &Archive::default()
            .long_name(&deepest)
            .file("cut", "")
            .finish(),
    );
    assert!(root.join(deepest).exists());
}

/// F07: one name a hundred thousand times, first as a file and a directory in turn, then as a file. One is left, and
/// the entries count against the bound.
#[test]
fn attack_f07_duplicates() {
    let arena = Arena::new();
    let (file, dir) = (Item::new(b'0', "d").header(), Item::new(b'5', "d").header());
    let mut archive = Archive::default();
    for number in 0..100_000 {
        let alternating = number < 2000 && number % 2 == 1;
        archive = archive.header(if alternating { &dir } else { &file });
    }
    let archive = archive.finish();
    arena
        .unpack_only(&archive)
        .expect("one file, written many times");
    let root = arena.root_of(
        &Archive::default()
            .header(&file)
            .header(&dir)
            .header(&file)
            .finish(),
    );
    assert_eq!(fs::read_dir(root).expect("there").count(), 1);
    let bounded = Arena::with(|limits| limits.entries = 1000);
    assert!(bounded.refused(&archive).contains("1000 entries"));
}

/// F07: two sources for one fact. Readers that pick different ones see different archives, so none is picked.
#[test]
fn attack_f07_contradictions() {
    let arena = Arena::new();
    let smuggled = Archive::default().file("hidden", "").unfinished();
    let size = smuggled.len().to_string();
    for archive in [
        Archive::default()
            .pax(&[("size", size.as_bytes())])
            .file("f", ""),
        Archive::default()
            .pax(&[("size", b"0")])
            .file("f", &smuggled),
        Archive::default()
            .long_name("a")
            .pax(&[("path", b"b")])
            .file("f", ""),
        Archive::default()
            .long_name("a")
            .long_name("b")
            .file("f", ""),
        Archive::default()
            .pax(&[("comment", b"a")])
            .pax(&[("comment", b"b")])
            .file("f", ""),
        Archive::default().item(&Item {
            content: smuggled.clone(),
            ..Item::new(b'2', "l")
        }),
    ] {
        arena.refused(&archive.finish());
    }
    let global = Item {
        content: b"10 path=x\n".to_vec(),
        ..Item::new(b'g', "g")
    };
    arena.refused(&Archive::default().item(&global).file("f", "").finish());
}

/// F07: owners that no sandbox has are refused, not silently made somebody else's.
#[test]
fn attack_f07_owners_out_of_range() {
    let arena = Arena::new();
    for owner in [
        (65_536, 0),
        (0, 65_536),
        (u64::from(u32::MAX), 0),
        (1 << 40, 0),
    ] {
        let message = arena.refused(
            &Archive::default()
                .item(&Item {
                    owner,
                    ..Item::new(b'0', "f")
                })
                .finish(),
        );
        assert!(message.contains("65535"), "{message}");
    }
    arena.refused(
        &Archive::default()
            .pax(&[("uid", b"65536")])
            .file("f", "")
            .finish(),
    );
    arena.refused(
        &Archive::default()
            .pax(&[("gid", b"4294967296")])
            .file("f", "")
            .finish(),
    );
}
