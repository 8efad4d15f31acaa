//! Files as block devices, and block devices mounted by descriptor.
//!
//! A loop device has autoclear set: it is gone with the last [`LoopDevice`] and the last mount of it, whoever dies how.
//! One file never has two devices: two caches of one file system would destroy it.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::mount::FsContext;
use crate::sys::loopback;

/// The driver of loop devices. Its lock is what everybody holds who gives a file a device: see [`LoopDevice::of`].
const CONTROL: &str = "/dev/loop-control";
/// Has an entry for each block device.
const DEVICES: &str = "/sys/block";
/// How often a free device may be snatched away by somebody who does not take the lock, as losetup(8).
const ATTEMPTS: usize = 64;

/// A block device whose content is a file. It is held open, and with that stays.
#[derive(Debug)]
pub struct LoopDevice {
    number: u32,
    device: File,
    is_direct: bool,
}

impl LoopDevice {
    /// The device that has `backing` already, else a new one, past the page cache where the file system can. `backing` is
    /// open for reading and writing.
    ///
    /// # Errors
    /// The kernel's; EBUSY if others take every free device first.
    pub fn of(backing: &File) -> io::Result<Self> {
        let control = File::open(CONTROL)?;
        // Between the look for a device and the making of one, nobody else may make one for the same file.
        let control = Flock::lock(control, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        if let Some(found) = Self::find(backing)? {
            return Ok(found);
        }
        for _ in 0..ATTEMPTS {
            let number = loopback::free_number(control.as_fd())?;
            match Self::make(number, backing) {
                // Taken, or taken out again, by somebody else since.
                Err(Errno::EBUSY | Errno::ENOENT | Errno::ENXIO) => {}
                made => return Ok(made?),
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// The device that has `backing`, if there is one.
    ///
    /// # Errors
    /// Reading /sys or a device.
    pub fn find(backing: &File) -> io::Result<Option<Self>> {
        let wanted = backing.metadata()?;
        for number in bound_devices()? {
            let Some(found) = Self::existing(number)? else {
                continue;
            };
            let (device, status) = found;
            if (status.device, status.inode) == (wanted.dev(), wanted.ino()) {
                return Ok(Some(Self::with(number, device, status)));
            }
        }
        Ok(None)
    }

    /// Opens a device that has a file. From then on it keeps it: asked before it is opened, it might lose it meanwhile.
    fn existing(number: u32) -> nix::Result<Option<(File, loopback::Status)>> {
        // Not for writing: udev looks into every device that somebody had open for writing.
        let opened = File::open(path(number)).map_err(errno);
        let status = opened.and_then(|device| {
            let status = loopback::status(device.as_fd())?;
            Ok((device, status))
        });
        match status {
            Ok(found) => Ok(Some(found)),
            Err(Errno::ENXIO | Errno::ENOENT | Errno::ENODEV) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn make(number: u32, backing: &File) -> nix::Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).open(path(number));
        let device = opened.map_err(errno)?;
        let configure = |flags| {
            loopback::configure(device.as_fd(), backing.as_fd(), loopback::AUTOCLEAR | flags)
        };
        match configure(loopback::DIRECT_IO) {
            // A file system that cannot be read past the page cache: recent kernels do without by themselves.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => configure(0),
            configured => configured,
        }?;
        let status = loopback::status(device.as_fd())?;
        if let Some(bytes) = read_ahead_of(status.device) {
            // Without it large files are read more slowly.
            let _ = loopback::set_read_ahead(device.as_fd(), bytes);
        }
        Ok(Self::with(number, device, status))
    }

    const fn with(number: u32, device: File, status: loopback::Status) -> Self {
        Self {
            number,
            device,
            is_direct: status.flags & loopback::DIRECT_IO != 0,
        }
    }

    /// Its node, as `/dev/loop7`.
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Its name, as `loop7`.
    pub fn name(&self) -> String {
        format!("loop{}", self.number)
    }

    /// Whether it reads and writes its file past the page cache.
    pub const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Has it take over the size that its file has got.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resized(&self) -> io::Result<()> {
        Ok(loopback::set_capacity(self.device.as_fd())?)
    }
}

/// How much is read ahead of who reads files of a file system, in bytes. A loop device has 2.5 MiB, whatever is below it: a disk
/// that is fast because it is asked for much at once is slow through it.
fn read_ahead_of(file_system: u64) -> Option<u64> {
    let (major, minor) = (
        nix::sys::stat::major(file_system),
        nix::sys::stat::minor(file_system),
    );
    // Of one without a block device of its own, like btrfs, nothing is found.
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let said = std::fs::read_to_string(path).ok()?;
    Some(said.trim().parse::<u64>().ok()? << 10)
}

fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The numbers of the loop devices that have a file.
fn bound_devices() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(DEVICES)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        let number = number.and_then(|number| number.parse().ok());
        // A device without a file has no directory of this name: it need not be opened.
        if let Some(number) = number.filter(|_| entry.path().join("loop").exists()) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Mounts a block device, attached nowhere. An option without a value is a flag. `attrs`: see [`crate::mount::attr`].
///
/// # Errors
/// ENODEV if the kernel does not know the file system; else the file system's.
pub fn mount(
    fs: &CStr,
    device: &Path,
    options: &[(&CStr, Option<&CStr>)],
    attrs: u64,
) -> nix::Result<OwnedFd> {
    let source = CString::new(device.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let context = FsContext::open(fs)?;
    context.set(c"source", &source)?;
    for (key, value) in options {
        match value {
            Some(value) => context.set(key, value)?,
            None => context.flag(key)?,
        }
    }
    context.mount(attrs)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;

    const MIB: u64 = 1 << 20;

    pub(crate) fn backing(bytes: u64) -> File {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(bytes).expect("sized");
        file
    }

    /// On a host with udev, somebody else may have the device open for a moment.
    pub(crate) fn wait_until_gone(backing: &File) {
        let end = Instant::now() + Duration::from_secs(10);
        while let Some(device) = LoopDevice::find(backing).expect("looked") {
            assert!(Instant::now() < end, "{} is still there", device.name());
            drop(device);
            std::thread::yield_now();
        }
    }

    #[test]
    fn as_much_is_read_ahead_as_below_it() {
        let file = backing(MIB);
        let device = LoopDevice::of(&file).expect("made");
        let number = device.device.metadata().expect("stat").rdev();
        let below = read_ahead_of(file.metadata().expect("stat").dev());
        // Where that is not known, as for a file in memory, it is the kernel's own choice.
        assert_eq!(read_ahead_of(number), below.or(read_ahead_of(number)));
        loopback::set_read_ahead(device.device.as_fd(), 3 * MIB).expect("set");
        assert_eq!(read_ahead_of(number), Some(3 * MIB));
    }

    #[test]
    fn a_file_has_one_device_and_the_last_user_takes_it_away() {
        let file = backing(MIB);
        assert!(LoopDevice::find(&file).expect("looked").is_none());
        let first = LoopDevice::of(&file).expect("made");
        let second = LoopDevice::of(&file).expect("found");
        let other = LoopDevice::of(&backing(MIB)).expect("made");
        assert_eq!(first.name(), second.name());
        assert_ne!(first.name(), other.name());
        drop(first);
        let found = LoopDevice::find(&file).expect("looked");
        assert_eq!(found.expect("is there").path(), second.path());
        drop(second);
        wait_until_gone(&file);
    }

    #[test]
    fn what_it_says_of_direct_io_is_what_the_kernel_does() {
        let file = backing(MIB);
        let device = LoopDevice::of(&file).expect("made");
        let dio = format!("/sys/block/{}/loop/dio", device.name());
        let dio = std::fs::read_to_string(dio).expect("a loop device");
        assert_eq!(device.is_direct(), dio.trim() == "1");
        let again = LoopDevice::of(&file).expect("found");
        assert_eq!(again.is_direct(), device.is_direct());
    }

    #[test]
    fn a_device_takes_over_the_size_of_its_file() {
        let file = backing(MIB);
        let device = LoopDevice::of(&file).expect("made");
        let sectors = || {
            let path = format!("/sys/block/{}/size", device.name());
            let text = std::fs::read_to_string(path).expect("a block device");
            text.trim().parse::<u64>().expect("a number")
        };
        assert_eq!(sectors() * 512, MIB);
        file.set_len(3 * MIB).expect("sized");
        device.resized().expect("taken over");
        assert_eq!(sectors() * 512, 3 * MIB);
    }

    /// Each round, the device is made by one of them, used by all, and gone again: they meet it in every state.
    #[test]
    fn many_openers_at_once_end_on_one_device() {
        const OPENERS: usize = 8;
        let file = backing(MIB);
        let (start, held) = (Barrier::new(OPENERS), Barrier::new(OPENERS));
        let open = || {
            (0..20)
                .map(|_| {
                    start.wait();
                    let device = LoopDevice::of(&file).expect("opened");
                    let name = device.name();
                    held.wait();
                    name
                })
                .collect::<Vec<_>>()
        };
        let names: Vec<_> = std::thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(open)).collect();
            openers
                .into_iter()
                .map(|o| o.join().expect("ended"))
                .collect()
        });
        assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{names:?}");
        wait_until_gone(&file);
    }

    #[test]
    fn a_device_that_vanishes_meanwhile_is_looked_for_again() {
        let file = backing(MIB);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let device = LoopDevice::of(&file).expect("opened");
                        let status = loopback::status(device.device.as_fd()).expect("has a file");
                        assert_eq!(status.inode, file.metadata().expect("stat").ino());
                    }
                });
            }
        });
        wait_until_gone(&file);
    }

    #[test]
    fn a_mount_that_fails_says_why() {
        let file = backing(MIB);
        let device = LoopDevice::of(&file).expect("made");
        let mounted = mount(c"no-such-fs", &device.path(), &[], 0);
        assert_eq!(mounted.expect_err("no such type"), Errno::ENODEV);
        let mounted = mount(c"ext4", &device.path(), &[], 0);
        assert_eq!(mounted.expect_err("nothing on it"), Errno::EINVAL);
    }
}
