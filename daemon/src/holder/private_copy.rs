//! A copy of this program that belongs to root alone, for the launcher to run from.
//!
//! Until its exec, a command's process still is the launcher's program: `/proc/self/exe` in it leads to that file on the
//! host, whatever root file system the process sees. A sandbox that gets itself executed by that link would hold the
//! host's own file: read it, lock it against other sandboxes, see its file system. The copy's mode lets only the host's root
//! execute it, and the host's root has no id in any sandbox.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Read and execute for the owner, nothing for anybody else.
const MODE: u32 = 0o500;

/// Makes the copy, without a name: in `dir`, where the kernel can give its memory back, or in memory where `dir` does not serve.
pub(super) fn make(dir: &Path) -> io::Result<OwnedFd> {
    on_disk(dir).or_else(|_| in_memory())
}

fn on_disk(dir: &Path) -> io::Result<OwnedFd> {
    if statvfs(dir)?.flags().contains(FsFlags::ST_NOEXEC) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let flags = OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .mode(MODE)
        .open(dir)?;
    fill(file)
}

fn in_memory() -> io::Result<OwnedFd> {
    fill(memfd_create(c"lodge-launcher", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Copies this program, and opens the copy anew for reading: what is open for writing cannot be executed.
fn fill(mut copy: File) -> io::Result<OwnedFd> {
    io::copy(&mut File::open("/proc/self/exe")?, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(MODE))?;
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    File::open(path).map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_copies_are_whole_and_roots_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let size = std::fs::metadata("/proc/self/exe")
            .expect("this program")
            .len();
        for copy in [
            on_disk(dir.path()).expect("on disk"),
            in_memory().expect("in memory"),
        ] {
            let copy = File::from(copy).metadata().expect("open");
            assert_eq!(
                (copy.len(), copy.permissions().mode() & 0o7777),
                (size, MODE)
            );
        }
    }
}
