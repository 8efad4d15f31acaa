//! Archives of images: whatever they are, an import makes an image or an error, leaves nothing where it failed, and touches nothing
//! beside the store. Where the first byte is odd the checksums of headers are mended, so that what is behind them is reached.
#![no_main]

use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use lodged::image::{Form, ImageName, ImageStore, Limits};

const BLOCK: usize = 512;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let mut archive = body.to_vec();
    if kind % 2 == 1 {
        archive.chunks_exact_mut(BLOCK).for_each(mend);
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("canary"), "untouched").expect("written");
    let limits = Limits {
        unpacked_bytes: 4 << 20,
        entries: 1000,
        ratio_free_bytes: 1 << 20,
        disk_reserve_bytes: 0,
        ..Limits::default()
    };
    let images = dir.path().join("images");
    let store = ImageStore::open_with(&images, Form::Directories, limits).expect("a store");
    let mut file = store.receive().expect("a file");
    file.write_all(&archive).expect("written");
    let name = ImageName::parse("fuzz").expect("a name");
    let imported = store.import(&name, &file, &mut |_| ControlFlow::Continue(()));
    let known = store.list().expect("a list").len();
    assert_eq!(known, usize::from(imported.is_ok()));
    let layers = fs::read_dir(images.join("layers")).map_or(0, Iterator::count);
    assert!(imported.is_ok() || layers == 0, "{layers} layers are left");
    assert_eq!(fs::read_dir(&outside).expect("read").count(), 1);
    assert_eq!(fs::read(outside.join("canary")).expect("there"), b"untouched");
    assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 2);
});

/// Writes the checksum of what looks like a header of ustar.
fn mend(block: &mut [u8]) {
    if &block[257..262] != b"ustar" {
        return;
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
