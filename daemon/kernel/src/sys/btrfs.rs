//! The ioctls of btrfs (linux/btrfs.h), on directories that are open for reading.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

const SUBVOL_CREATE: libc::Ioctl = 0x5000_940E;
const SNAP_CREATE_V2: libc::Ioctl = 0x5000_9417;
const SNAP_DESTROY: libc::Ioctl = 0x5000_940F;
const SNAP_DESTROY_V2: libc::Ioctl = 0x5000_943F;
const SUBVOL_GETFLAGS: libc::Ioctl = 0x8008_9419;
const SUBVOL_SETFLAGS: libc::Ioctl = 0x4008_941A;
const RESIZE: libc::Ioctl = 0x5000_9403;
const TREE_SEARCH: libc::Ioctl = 0xD000_9411;
const INO_LOOKUP: libc::Ioctl = 0xD000_9412;
const SYNC: libc::Ioctl = 0x9408;
const START_SYNC: libc::Ioctl = 0x8008_9418;
const WAIT_SYNC: libc::Ioctl = 0x4008_9416;
const FS_INFO: libc::Ioctl = 0x8400_941F;
const QUOTA_CTL: libc::Ioctl = 0xC010_9428;
const QGROUP_ASSIGN: libc::Ioctl = 0x4018_9429;
const QGROUP_CREATE: libc::Ioctl = 0x4010_942A;
const QGROUP_LIMIT: libc::Ioctl = 0x8030_942B;

/// Of a subvolume: nothing in it can be changed.
pub(crate) const SUBVOL_RDONLY: u64 = 1 << 1;
const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;

/// Turns on full quotas.
pub(crate) const QUOTA_ENABLE: u64 = 1;
/// Turns on simple quotas (Linux 6.7).
pub(crate) const QUOTA_ENABLE_SIMPLE: u64 = 4;
/// Of a limit: the member `max_excl` is meant.
pub(crate) const LIMIT_MAX_EXCL: u64 = 1 << 1;

/// The inode number of the root directory of each subvolume.
const FIRST_FREE_OBJECTID: u64 = 256;
const NAME_BYTES: usize = 4088;
const NAME_V2_BYTES: usize = 4040;
const KEY_BYTES: usize = 104;
const FOUND_BYTES: usize = 4096 - KEY_BYTES;

#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    inherit_bytes: u64,
    inherit: *const u64,
    unused: [u64; 2],
    name: [u8; NAME_V2_BYTES],
}

impl VolArgsV2 {
    const EMPTY: Self = Self {
        fd: 0,
        transid: 0,
        flags: 0,
        inherit_bytes: 0,
        inherit: std::ptr::null(),
        unused: [0; 2],
        name: [0; NAME_V2_BYTES],
    };
}

const _: () = assert!(size_of::<VolArgs>() == 4096 && size_of::<VolArgsV2>() == 4096);

/// A name with the NUL that ends it.
fn named<const N: usize>(name: &str) -> nix::Result<[u8; N]> {
    if name.bytes().any(|byte| byte == 0) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; N];
    bytes
        .get_mut(..name.len())
        .filter(|_| name.len() < N)
        .ok_or(Errno::ENAMETOOLONG)?
        .copy_from_slice(name.as_bytes());
    Ok(bytes)
}

fn with_name(request: libc::Ioctl, dir: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    let args = VolArgs {
        fd: 0,
        name: named(name)?,
    };
    // SAFETY: the callers' requests read one btrfs_ioctl_vol_args, whose layout and size (asserted above) `VolArgs` has and which
    // lives until the call returns; its name ends in NUL.
    Errno::result(unsafe { libc::ioctl(dir.as_raw_fd(), request, &raw const args) }).map(drop)
}

pub(crate) fn create_subvolume(dir: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    with_name(SUBVOL_CREATE, dir, name)
}

pub(crate) fn destroy(dir: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    with_name(SNAP_DESTROY, dir, name)
}

/// `size` is a number of bytes, or `max`.
pub(crate) fn resize(fs: BorrowedFd<'_>, size: &str) -> nix::Result<()> {
    with_name(RESIZE, fs, size)
}

/// `groups`: what the snapshot becomes a member of, from the moment it is there.
pub(crate) fn snapshot(
    source: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &str,
    flags: u64,
    groups: &[u64],
) -> nix::Result<()> {
    // btrfs_qgroup_inherit: flags, three counts, a limit of five members, the groups.
    let count = u64::try_from(groups.len()).map_err(|_| Errno::E2BIG)?;
    let mut inherit = vec![0, count, 0, 0, 0, 0, 0, 0, 0];
    inherit.extend_from_slice(groups);
    let args = VolArgsV2 {
        fd: i64::from(source.as_raw_fd()),
        flags: flags | SUBVOL_QGROUP_INHERIT,
        inherit_bytes: u64::try_from(size_of_val(inherit.as_slice())).map_err(|_| Errno::E2BIG)?,
        inherit: inherit.as_ptr(),
        name: named(name)?,
        ..VolArgsV2::EMPTY
    };
    // SAFETY: BTRFS_IOC_SNAP_CREATE_V2 reads one btrfs_ioctl_vol_args_v2, whose layout and size (asserted above) `VolArgsV2` has, and
    // `inherit_bytes` bytes at `inherit`. Both live until the call returns; the name ends in NUL.
    Errno::result(unsafe { libc::ioctl(dir.as_raw_fd(), SNAP_CREATE_V2, &raw const args) })
        .map(drop)
}

/// Linux 5.7.
pub(crate) fn destroy_by_id(fs: BorrowedFd<'_>, id: u64) -> nix::Result<()> {
    let mut name = [0; NAME_V2_BYTES];
    name[..8].copy_from_slice(&id.to_ne_bytes());
    let args = VolArgsV2 {
        flags: SUBVOL_SPEC_BY_ID,
        name,
        ..VolArgsV2::EMPTY
    };
    // SAFETY: BTRFS_IOC_SNAP_DESTROY_V2 reads one btrfs_ioctl_vol_args_v2, which `VolArgsV2` is and which lives until the call returns;
    // with the flag above, what is in place of the name is a u64.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), SNAP_DESTROY_V2, &raw const args) })
        .map(drop)
}

pub(crate) fn flags(root: BorrowedFd<'_>) -> nix::Result<u64> {
    let mut flags = 0_u64;
    // SAFETY: BTRFS_IOC_SUBVOL_GETFLAGS writes one u64 to a place that is valid for the call.
    Errno::result(unsafe { libc::ioctl(root.as_raw_fd(), SUBVOL_GETFLAGS, &raw mut flags) })?;
    Ok(flags)
}

pub(crate) fn set_flags(root: BorrowedFd<'_>, flags: u64) -> nix::Result<()> {
    // SAFETY: BTRFS_IOC_SUBVOL_SETFLAGS reads one u64, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(root.as_raw_fd(), SUBVOL_SETFLAGS, &raw const flags) })
        .map(drop)
}

/// The id of the subvolume that `dir` is in.
pub(crate) fn subvolume_id(dir: BorrowedFd<'_>) -> nix::Result<u64> {
    let mut args = [0_u64; 512];
    args[1] = FIRST_FREE_OBJECTID;
    // SAFETY: BTRFS_IOC_INO_LOOKUP reads and writes one btrfs_ioctl_ino_lookup_args: two u64 and a name, 4,096 bytes in all, as `args`
    // is, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(dir.as_raw_fd(), INO_LOOKUP, args.as_mut_ptr()) })?;
    Ok(args[0])
}

/// Waits until all that was done is on disk.
pub(crate) fn sync(fs: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: BTRFS_IOC_SYNC takes no argument.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), SYNC) }).map(drop)
}

/// Begins a commit, and does not wait for it. The number of the transaction.
pub(crate) fn start_sync(fs: BorrowedFd<'_>) -> nix::Result<u64> {
    let mut transaction = 0_u64;
    // SAFETY: BTRFS_IOC_START_SYNC writes one u64 to a place that is valid for the call.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), START_SYNC, &raw mut transaction) })?;
    Ok(transaction)
}

/// Waits until a transaction is on disk.
pub(crate) fn wait_sync(fs: BorrowedFd<'_>, transaction: u64) -> nix::Result<()> {
    with_numbers(WAIT_SYNC, fs, [transaction])
}

/// The uuid of the file system.
pub(crate) fn uuid(fs: BorrowedFd<'_>) -> nix::Result<[u8; 16]> {
    let mut info = [0_u8; 1024];
    // SAFETY: BTRFS_IOC_FS_INFO writes one btrfs_ioctl_fs_info_args of 1,024 bytes, all of them plain bytes and integers, to `info`, which
    // is valid for the call.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), FS_INFO, info.as_mut_ptr()) })?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&info[16..32]);
    Ok(uuid)
}

/// A call that takes an array of u64 and changes nothing else of this process.
fn with_numbers<const N: usize>(
    request: libc::Ioctl,
    fs: BorrowedFd<'_>,
    mut numbers: [u64; N],
) -> nix::Result<()> {
    // SAFETY: the callers' requests read, and QUOTA_CTL also writes, a struct of exactly N u64, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), request, numbers.as_mut_ptr()) }).map(drop)
}

pub(crate) fn quota(fs: BorrowedFd<'_>, command: u64) -> nix::Result<()> {
    with_numbers(QUOTA_CTL, fs, [command, 0])
}

pub(crate) fn create_group(fs: BorrowedFd<'_>, group: u64) -> nix::Result<()> {
    with_numbers(QGROUP_CREATE, fs, [1, group])
}

pub(crate) fn remove_group(fs: BorrowedFd<'_>, group: u64) -> nix::Result<()> {
    with_numbers(QGROUP_CREATE, fs, [0, group])
}

pub(crate) fn assign(fs: BorrowedFd<'_>, child: u64, parent: u64) -> nix::Result<()> {
    with_numbers(QGROUP_ASSIGN, fs, [1, child, parent])
}

/// `max_exclusive`: all ones take a limit away.
pub(crate) fn limit(fs: BorrowedFd<'_>, group: u64, max_exclusive: u64) -> nix::Result<()> {
    with_numbers(
        QGROUP_LIMIT,
        fs,
        [group, LIMIT_MAX_EXCL, 0, max_exclusive, 0, 0],
    )
}

/// A place in a tree of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub object: u64,
    pub kind: u8,
    pub offset: u64,
}

#[repr(C)]
struct SearchArgs {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_kind: u32,
    max_kind: u32,
    items: u32,
    unused: u32,
    more: [u64; 4],
    found: [u8; FOUND_BYTES],
}

const _: () = assert!(size_of::<SearchArgs>() == 4096);

/// The keys from `from` to `to` of a tree, in order: at most as many as one call gives, and none only if there is none.
pub(crate) fn search(fs: BorrowedFd<'_>, tree: u64, from: Key, to: Key) -> nix::Result<Vec<Key>> {
    const HEADER: usize = 32;
    let mut args = SearchArgs {
        tree,
        min_object: from.object,
        max_object: to.object,
        min_offset: from.offset,
        max_offset: to.offset,
        min_transid: 0,
        max_transid: u64::MAX,
        min_kind: u32::from(from.kind),
        max_kind: u32::from(to.kind),
        items: u32::MAX,
        unused: 0,
        more: [0; 4],
        found: [0; FOUND_BYTES],
    };
    // SAFETY: BTRFS_IOC_TREE_SEARCH reads and writes one btrfs_ioctl_search_args, whose layout and size (asserted above) `SearchArgs` has
    // and which is valid for the call. All of it is plain integers.
    Errno::result(unsafe { libc::ioctl(fs.as_raw_fd(), TREE_SEARCH, &raw mut args) })?;
    let mut keys = Vec::new();
    let mut rest = args.found.as_slice();
    for _ in 0..args.items {
        let (header, after) = rest.split_at_checked(HEADER).ok_or(Errno::EIO)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        // The last eight bytes: the kind, and the length of the item that follows.
        let kind_and_length = number(24).to_ne_bytes();
        let half = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&kind_and_length[at..at + 4]);
            u32::from_ne_bytes(bytes)
        };
        keys.push(Key {
            object: number(8),
            kind: u8::try_from(half(0)).map_err(|_| Errno::EIO)?,
            offset: number(16),
        });
        let length = usize::try_from(half(4)).map_err(|_| Errno::EIO)?;
        rest = after.get(length..).ok_or(Errno::EIO)?;
    }
    Ok(keys)
}
