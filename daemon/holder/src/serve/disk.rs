//! Where commands write, and whether there is room left: told with the end of each run, so that "disk full" is not only an
//! errno in some output. By descriptors that were opened before any untrusted process, since paths may be changed inside.
//!
//! A limit that is not the file system's own, as a quota of btrfs, is not seen from here: the daemon asks its driver.

use std::os::fd::OwnedFd;

use lodge_proto::holder::NoRoom;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::{Statfs, fstatfs};

/// With less left than this, in bytes, a write into the root file system has failed or is about to: a large write is taken in
/// pieces of up to a huge page, and one for which there is no room fails as a whole, with the rest left free.
pub const ROOM: u64 = 2 << 20;

/// The file systems that commands write to.
pub(super) struct Disk {
    root: OwnedFd,
    shm: OwnedFd,
}

impl Disk {
    /// Opens them.
    pub(super) fn open() -> nix::Result<Self> {
        let directory = |path| {
            open(
                path,
                OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )
        };
        Ok(Self {
            root: directory("/")?,
            shm: directory("/dev/shm")?,
        })
    }

    /// Those that have no room left. One that cannot be looked at is not told of.
    pub(super) fn without_room(&self) -> Vec<i32> {
        let mut places = Vec::new();
        if let Ok(root) = fstatfs(&self.root) {
            if bytes_left(&root) < ROOM {
                places.push(NoRoom::Root.into());
            }
            // Btrfs has no count of files, and says that there are none.
            if root.files() > 0 && root.files_free() == 0 {
                places.push(NoRoom::RootInodes.into());
            }
        }
        if fstatfs(&self.shm).is_ok_and(|shm| bytes_left(&shm) == 0) {
            places.push(NoRoom::Shm.into());
        }
        places
    }
}

/// What an unprivileged process may still write.
fn bytes_left(file_system: &Statfs) -> u64 {
    let block = u64::try_from(file_system.block_size()).unwrap_or(0);
    file_system.blocks_available().saturating_mul(block)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use lodge_kernel::mount::tmpfs;
    use nix::fcntl::openat;
    use nix::unistd::{UnlinkatFlags, unlinkat};

    use super::*;

    fn write(dir: &OwnedFd, bytes: usize) {
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(dir, "file", flags, Mode::from_bits_truncate(0o600)).expect("a file");
        let written = File::from(file).write_all(&vec![1; bytes]);
        written.expect("it has room for that");
    }

    fn remove(dir: &OwnedFd) {
        unlinkat(dir, "file", UnlinkatFlags::NoRemoveDir).expect("it is there");
    }

    #[test]
    fn what_is_full_is_told_and_what_has_room_again_is_not() {
        const PAGE: u64 = 4096;
        let disk = Disk {
            root: tmpfs(2 * ROOM, 0o755, 0).expect("a file system"),
            shm: tmpfs(2 * PAGE, 0o755, 0).expect("a file system"),
        };
        let nothing: [i32; 0] = [];
        assert_eq!(disk.without_room(), nothing);
        write(&disk.root, 2 * 1024 * 1024 + 1);
        assert_eq!(disk.without_room(), [i32::from(NoRoom::Root)]);
        write(&disk.shm, 4097);
        assert_eq!(
            disk.without_room(),
            [NoRoom::Root.into(), i32::from(NoRoom::Shm)]
        );
        remove(&disk.root);
        remove(&disk.shm);
        // One page is room: programs fill what they were given, and that is no failure.
        write(&disk.shm, 4096);
        assert_eq!(disk.without_room(), nothing);
    }
}
