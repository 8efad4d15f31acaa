//! What only ext4 can do.

use std::os::fd::BorrowedFd;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Gives a mounted ext4 this many blocks: it grows in use, and shrinks not at all. `root` is a directory of it, also one
/// opened with O_PATH or a mount.
///
/// # Errors
/// EPERM without CAP_SYS_RESOURCE, which many a container's root does not have; EINVAL if it has more; ENOSPC or EINVAL if its device has not as many; the kernel's.
pub fn resize(root: BorrowedFd<'_>, blocks: u64) -> nix::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let dir = openat(root, c".", flags, Mode::empty())?;
    crate::sys::ext4::resize(std::os::fd::AsFd::as_fd(&dir), blocks)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::process::{Command, Stdio};

    use nix::errno::Errno;

    use super::*;
    use crate::block::tests::wait_until_gone;
    use crate::block::{LoopDevice, mount};
    use crate::capability::{SYS_RESOURCE, is_effective};
    use crate::mount::attr;

    const MIB: u64 = 1 << 20;
    const BLOCK: u64 = 4096;

    fn formatted(path: &std::path::Path, bytes: u64) -> File {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path);
        let file = file.expect("new");
        file.set_len(bytes).expect("sized");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-b", "4096"])
            .arg(path)
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("mkfs.ext4 of e2fsprogs").success());
        file
    }

    fn blocks(root: BorrowedFd<'_>) -> u64 {
        nix::sys::statvfs::fstatvfs(root).expect("statvfs").blocks()
    }

    #[test]
    fn a_detached_ext4_is_written_to_grows_and_is_found_again() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let file = formatted(&temp.path().join("image"), 16 * MIB);
        let device = LoopDevice::of(&file).expect("made");
        let options: &[(&std::ffi::CStr, _)] =
            &[(c"errors", Some(c"remount-ro")), (c"discard", None)];
        let root = mount(c"ext4", &device.path(), options, attr::NODEV).expect("mounted");

        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        let written = openat(&root, c"file", flags, Mode::S_IRWXU).expect("new");
        File::from(written).write_all(b"kept").expect("written");

        let before = blocks(root.as_fd());
        assert!(
            resize(root.as_fd(), 32 * MIB / BLOCK).is_err(),
            "the device is too small"
        );
        file.set_len(32 * MIB).expect("sized");
        device.resized().expect("taken over");
        let resized = resize(root.as_fd(), 32 * MIB / BLOCK);
        if is_effective(SYS_RESOURCE) {
            resized.expect("grown");
            assert!(blocks(root.as_fd()) > before * 3 / 2);
        } else {
            assert_eq!(resized, Err(Errno::EPERM));
        }

        // The mount alone keeps the device, and a second one of it is the same file system.
        let name = device.name();
        drop(device);
        let device = LoopDevice::of(&file).expect("found");
        assert_eq!(device.name(), name);
        let second = mount(c"ext4", &device.path(), options, attr::NODEV).expect("mounted");
        let kept = openat(&second, c"file", OFlag::O_RDONLY, Mode::empty()).expect("is there");
        assert_eq!(
            std::io::read_to_string(File::from(kept)).expect("read"),
            "kept"
        );
        drop((root, second, device));
        wait_until_gone(&file);
    }
}
