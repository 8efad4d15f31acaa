//! What every first run reads, read ahead into memory: the shell. Snapshots share their blocks on disk, and no page in memory.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::{Advice, FileType, Mode, OFlags, ResolveFlags, fadvise, fstat, openat2};

/// Where they are, if they are there: Debian and its kin, the Red Hat family, Alpine. Seen with `fincore` after a run of `true`.
const FILES: &[&str] = &[
    "bin/bash",
    "bin/sh",
    "etc/group",
    "etc/ld.so.cache",
    "etc/passwd",
    "lib/aarch64-linux-gnu/libc.so.6",
    "lib/aarch64-linux-gnu/libtinfo.so.6",
    "lib/ld-linux-aarch64.so.1",
    "lib/ld-musl-aarch64.so.1",
    "lib/ld-musl-x86_64.so.1",
    "lib/x86_64-linux-gnu/libc.so.6",
    "lib/x86_64-linux-gnu/libtinfo.so.6",
    "lib64/ld-linux-x86-64.so.2",
    "lib64/libc.so.6",
    "lib64/libtinfo.so.6",
    "usr/lib/locale/C.utf8/LC_CTYPE",
];
/// Of one file, at most: a C library has 2 MiB, and an image may have anything under these names.
const BYTES_MAX: NonZeroU64 = NonZeroU64::new(4 << 20).expect("not zero");

/// Has the kernel begin to read. What is not there, or is no file, is left out.
pub(super) fn read_ahead(root: BorrowedFd<'_>) {
    for file in FILES {
        // Whoever has it runs it a little later.
        let _ = read_file_ahead(root, file);
    }
}

fn read_file_ahead(root: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // To open what an image has under a name may have it act, where it is a device or a pipe.
    let found = openat2(root, path, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(fadvise(&file, 0, Some(BYTES_MAX), Advice::WillNeed)?)
}
