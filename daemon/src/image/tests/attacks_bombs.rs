//! A few bytes that become many.

use std::fs;

use super::archive::{Archive, Item, gzip, zstd};
use super::arena::Arena;
use crate::image::{Beneath, DiskRoom, ImageError};

const MIB: usize = 1024 * 1024;

/// F08: zeros, compressed a thousand times and more, in gzip and in zstd. Stopped by the ratio, long before the size.
#[test]
fn attack_f08_zeros() {
    let arena = Arena::with(|limits| limits.ratio_free_bytes = MIB as u64);
    let zeros = Archive::default().file("zeros", vec![0; 24 * MIB]).finish();
    for bomb in [gzip(&zeros), zstd(&zeros)] {
        assert!(bomb.len() < MIB / 4);
        assert!(arena.refused(&bomb).contains("bomb"));
    }
    // Plain, it costs its sender what it costs us.
    arena.import(&zeros).expect("a plain archive is no bomb");
}

/// F08: a bomb in a bomb. What comes out of the first is no tar file, and nothing unpacks the second.
#[test]
fn attack_f08_nested() {
    let arena = Arena::new();
    let mut inner = gzip(&Archive::default().file("f", "x").finish());
    inner.resize(1024, 0);
    assert!(arena.refused(&gzip(&inner)).contains("tar header"));
}

/// F08: a zstd frame of a dozen bytes that asks for a window of 2 GiB. Refused by the window, without the memory.
#[test]
fn attack_f08_zstd_window() {
    let arena = Arena::new();
    let before = peak_memory_kib();
    // Magic, descriptor, a window of 2^31 bytes, and one empty last block.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
    let error = arena.import(&frame).expect_err("accepted");
    assert!(matches!(error, ImageError::Decompress(_)), "{error}");
    assert!(
        peak_memory_kib() - before < 512 * 1024,
        "the window was allocated"
    );
}

/// F08: a sparse file of 8 EiB, from one block; maps that overlap, leave the file or never end.
#[test]
fn attack_f08_sparse() {
    let arena = Arena::new();
    let sparse = |real_size: u64, stretches: &[(u64, u64)]| {
        let content = Item {
            content: b"data".to_vec(),
            ..Item::new(b'S', "s")
        };
        let mut header = content.header();
        let gnu = header.as_gnu_mut().expect("made so");
        gnu.set_real_size(real_size);
        for (slot, (offset, length)) in gnu.sparse.iter_mut().zip(stretches) {
            slot.set_offset(*offset);
            slot.set_length(*length);
        }
        header.set_cksum();
        Archive::default().header(&header).content(b"data").finish()
    };
    assert!(
        arena
            .refused(&sparse(8 << 60, &[(0, 4)]))
            .contains("bytes in its files")
    );
    for stretches in [
        [(0, 2), (1, 2)].as_slice(),
        &[(4000, 4), (0, 4)],
        &[(4093, 4)],
        &[(u64::MAX - 1, 4)],
        &[(0, 5)],
        &[(0, 3)],
    ] {
        let message = arena.refused(&sparse(4096, stretches));
        assert!(message.contains("sparse map"), "{stretches:?}: {message}");
    }
    let mut endless = Item::new(b'S', "s").header();
    let gnu = endless.as_gnu_mut().expect("made so");
    gnu.set_real_size(0);
    gnu.set_is_extended(true);
    endless.set_cksum();
    let mut block = [0; 512];
    block[504] = 1;
    let mut archive = Archive::default().header(&endless);
    for _ in 0..5000 {
        archive = archive.content(&block);
    }
    assert!(arena.refused(&archive.finish()).contains("4096 blocks"));
}

/// F08: files that are larger together than an import may write; names of directories that fill the memory.
#[test]
fn attack_f08_bounds_of_the_whole() {
    let arena = Arena::with(|limits| limits.unpacked_bytes = 2 * MIB as u64);
    let archive = Archive::default()
        .file("a", vec![1; MIB])
        .file("b", vec![2; MIB])
        .file("c", "1");
    assert!(arena.refused(&archive.finish()).contains("2097152 bytes"));
    let arena = Arena::with(|limits| limits.directory_bytes = 1000);
    let mut archive = Archive::default();
    for n in 0..200 {
        archive = archive.dir(format!("directory-{n}"));
    }
    assert!(arena.refused(&archive.finish()).contains("directory names"));
    let arena = Arena::with(|limits| limits.disk_reserve_bytes = u64::MAX / 2);
    assert!(
        arena
            .refused(&Archive::default().file("f", "x").finish())
            .contains("free bytes")
    );
}

/// F08: the images' file system is sparse, and what it is in has no room.
#[test]
fn attack_f08_the_disk_below_is_not_filled() {
    let above = |free_bytes| {
        let room = DiskRoom {
            free_bytes,
            reserve_bytes: 1 << 30,
        };
        let mut arena = Arena::new();
        arena.store = arena.store.above(Beneath::new(move || Ok(Some(room))));
        arena
    };
    let archive = Archive::default().file("f", "x").finish();
    assert!(above(1 << 30).refused(&archive).contains("free bytes"));
    above(2 << 30).import(&archive).expect("there is room");
}

fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("there");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}
