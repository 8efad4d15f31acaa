//! The ioctls of loop devices (linux/loop.h).

use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

use nix::errno::Errno;

/// The device goes away with its last user.
pub(crate) const AUTOCLEAR: u32 = 4;
/// The device reads and writes its file past the page cache.
pub(crate) const DIRECT_IO: u32 = 16;

const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;

const BLKRASET: libc::Ioctl = 0x1262;
/// Bytes of what the kernel calls a sector, whatever the device's own are.
const SECTOR: u64 = 512;

const NAME_BYTES: usize = 64;
const KEY_BYTES: usize = 32;

#[repr(C)]
struct Info64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; KEY_BYTES],
    init: [u64; 2],
}

impl Info64 {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME_BYTES],
        crypt_name: [0; NAME_BYTES],
        encrypt_key: [0; KEY_BYTES],
        init: [0; 2],
    };
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info64,
    reserved: [u64; 8],
}

/// What a loop device tells about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    /// Device number of the file system that its file is on, as in stat(2).
    pub device: u64,
    /// Inode number of its file.
    pub inode: u64,
    /// [`AUTOCLEAR`], [`DIRECT_IO`] and others.
    pub flags: u32,
}

/// The number of a device that has no file now; it is made where there is none.
pub(crate) fn free_number(control: BorrowedFd<'_>) -> nix::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    let number = Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
    u32::try_from(number).map_err(|_| Errno::EOVERFLOW)
}

/// Gives a device its file, with these flags. EBUSY if it has one.
pub(crate) fn configure(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    flags: u32,
) -> nix::Result<()> {
    let config = Config {
        fd: file_number(file)?,
        block_size: 0,
        info: Info64 {
            flags,
            ..Info64::EMPTY
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one loop_config, whose layout `Config` has and which lives until the call returns. The kernel takes
    // a reference of its own to the file.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })
        .map(drop)
}

fn file_number(file: BorrowedFd<'_>) -> nix::Result<u32> {
    let number: RawFd = file.as_raw_fd();
    u32::try_from(number).map_err(|_| Errno::EBADF)
}

/// ENXIO if the device has no file.
pub(crate) fn status(device: BorrowedFd<'_>) -> nix::Result<Status> {
    let mut info = Info64::EMPTY;
    // SAFETY: LOOP_GET_STATUS64 writes one loop_info64, whose layout `Info64` has, to a place that is valid for the call.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    Ok(Status {
        device: info.device,
        inode: info.inode,
        flags: info.flags,
    })
}

/// Has a device take over the size of its file.
pub(crate) fn set_capacity(device: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no pointer.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY, 0) }).map(drop)
}

/// Has so many bytes read ahead of who reads a device (linux/fs.h, BLKRASET).
pub(crate) fn set_read_ahead(device: BorrowedFd<'_>, bytes: u64) -> nix::Result<()> {
    let sectors = libc::c_ulong::try_from(bytes / SECTOR).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: BLKRASET takes a number, and no pointer.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), BLKRASET, sectors) }).map(drop)
}
