//! Subvolumes, snapshots, and qgroups that have quotas, on btrfs.
//!
//! Descriptors are those of directories that are open for reading: O_PATH is not enough for an ioctl. The id of a qgroup is
//! its level, shifted left by [`LEVEL_SHIFT`], with its number; that of level 0 is the id of a subvolume.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use nix::unistd::read;

use crate::sys::btrfs::{self as sys, Key};

/// Bits of a qgroup's id below its level.
pub const LEVEL_SHIFT: u32 = 48;

/// The tree of roots: an item for each subvolume that is there, also for one that is destroyed and not yet gone.
const ROOT_TREE: u64 = 1;
const ROOT_ITEM: u8 = 132;
/// Of a subvolume, with the id of one that lies in it.
const ROOT_REF: u8 = 156;
/// First and last id that a subvolume can have.
const SUBVOLUMES: (u64, u64) = (256, u64::MAX - 256);
/// The tree of quotas: an item for each qgroup.
const QUOTA_TREE: u64 = 8;
const GROUP_INFO: u8 = 242;
/// Of a qgroup, with the id of one that is a member of it, or that it is a member of.
const RELATION: u8 = 246;

/// Whether a snapshot can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// By everybody whom its files let.
    ReadWrite,
    /// By nobody, until [`set_read_only`] changes that.
    ReadOnly,
}

/// How the file system counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotas {
    /// An extent is counted for the subvolume that wrote it, as long as anybody has it (Linux 6.7). Costs next to nothing.
    Simple,
    /// By who has it now. A snapshot that becomes a member of a qgroup makes the figures wrong until all is counted anew.
    Full,
}

/// What a qgroup has. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupUsage {
    /// What its members refer to.
    pub referenced: u64,
    /// What nobody else refers to: what a limit is about. With simple quotas the same as `referenced`.
    pub exclusive: u64,
    /// What is promised to files whose data is not on disk yet: a limit is about this, too. What is promised to changes of
    /// directories is left out: it is many times what they take, and given back before a write is refused.
    pub reserved: u64,
    /// The limit, if there is one.
    pub limit: Option<u64>,
}

/// Whether `fd` is on btrfs.
///
/// # Errors
/// fstatfs(2)'s.
pub fn is_btrfs(fd: impl AsFd) -> nix::Result<bool> {
    Ok(fstatfs(fd.as_fd())?.filesystem_type() == BTRFS_SUPER_MAGIC)
}

/// Makes an empty subvolume.
///
/// # Errors
/// EEXIST if there is something of the name; the kernel's.
pub fn create_subvolume(dir: impl AsFd, name: &str) -> nix::Result<()> {
    sys::create_subvolume(dir.as_fd(), name)
}

/// Makes a snapshot of the subvolume `source`, as a member of `groups` from the beginning (not of level 0). One that is not there is passed over by
/// the kernel. A commit: some milliseconds.
///
/// # Errors
/// EEXIST if there is something of the name; the kernel's.
pub fn snapshot(
    source: impl AsFd,
    dir: impl AsFd,
    name: &str,
    access: Access,
    groups: &[u64],
) -> nix::Result<()> {
    let flags = match access {
        Access::ReadWrite => 0,
        Access::ReadOnly => sys::SUBVOL_RDONLY,
    };
    sys::snapshot(source.as_fd(), dir.as_fd(), name, flags, groups)
}

/// Takes a subvolume out of sight. The kernel removes its files later: [`is_dropped`].
///
/// # Errors
/// ENOTEMPTY if a subvolume lies in it; the kernel's.
pub fn destroy(dir: impl AsFd, name: &str) -> nix::Result<()> {
    sys::destroy(dir.as_fd(), name)
}

/// As [`destroy`], wherever it lies.
///
/// # Errors
/// ENOENT if there is none of this id; ENOTEMPTY if a subvolume lies in it; the kernel's.
pub fn destroy_by_id(fs: impl AsFd, id: u64) -> nix::Result<()> {
    sys::destroy_by_id(fs.as_fd(), id)
}

/// Has nobody write to a subvolume from now on.
///
/// # Errors
/// The kernel's.
pub fn set_read_only(root: impl AsFd) -> nix::Result<()> {
    let flags = sys::flags(root.as_fd())?;
    sys::set_flags(root.as_fd(), flags | sys::SUBVOL_RDONLY)
}

/// The id of the subvolume that a directory is in.
///
/// # Errors
/// The kernel's.
pub fn id(dir: impl AsFd) -> nix::Result<u64> {
    sys::subvolume_id(dir.as_fd())
}

/// Waits until all that was done on the file system is on disk.
///
/// # Errors
/// The kernel's.
pub fn sync(fs: impl AsFd) -> nix::Result<()> {
    sys::sync(fs.as_fd())
}

/// Begins a commit, after which the kernel removes what was destroyed. Does not wait, and files are not written for it.
///
/// # Errors
/// The kernel's.
pub fn start_commit(fs: impl AsFd) -> nix::Result<()> {
    sys::start_sync(fs.as_fd()).map(drop)
}

/// Waits for a commit: what was removed is counted no more. Files are not written for it, other than by [`sync`].
///
/// # Errors
/// The kernel's.
pub fn commit(fs: impl AsFd) -> nix::Result<()> {
    let transaction = sys::start_sync(fs.as_fd())?;
    sys::wait_sync(fs.as_fd(), transaction)
}

/// Gives the file system this size on its only device.
///
/// # Errors
/// EINVAL or EFBIG if the device has not as much; ENOSPC if more is in use.
pub fn resize(fs: impl AsFd, bytes: u64) -> nix::Result<()> {
    sys::resize(fs.as_fd(), &bytes.to_string())
}

/// The ids of the subvolumes that lie in the one with this id, not those in them.
///
/// # Errors
/// The kernel's; EPERM without CAP_SYS_ADMIN.
pub fn subvolumes(fs: impl AsFd, id: u64) -> nix::Result<Vec<u64>> {
    let range = |offset| Key {
        object: id,
        kind: ROOT_REF,
        offset,
    };
    let keys = search_all(fs.as_fd(), ROOT_TREE, range(0), range(u64::MAX))?;
    Ok(keys.into_iter().map(|key| key.offset).collect())
}

/// The ids of all subvolumes in the one with this id, each behind the one that it lies in.
///
/// # Errors
/// The kernel's; EPERM without CAP_SYS_ADMIN.
pub fn below(fs: impl AsFd, id: u64) -> nix::Result<Vec<u64>> {
    let mut found = subvolumes(&fs, id)?;
    let mut next = 0;
    while let Some(id) = found.get(next) {
        found.extend(subvolumes(&fs, *id)?);
        next += 1;
    }
    Ok(found)
}

/// Destroys subvolumes as [`below`] lists them: nothing goes that has something in it. One that is gone is no error.
///
/// # Errors
/// The kernel's; those in it may be gone by then.
pub fn destroy_all(fs: impl AsFd, ids: &[u64]) -> nix::Result<()> {
    ids.iter()
        .rev()
        .try_for_each(|id| match destroy_by_id(&fs, *id) {
            Err(nix::errno::Errno::ENOENT) => Ok(()),
            other => other,
        })
}

/// Whether nothing is left of a subvolume: its files are removed.
///
/// # Errors
/// The kernel's; EPERM without CAP_SYS_ADMIN.
pub fn is_dropped(fs: impl AsFd, id: u64) -> nix::Result<bool> {
    let range = |offset| Key {
        object: id,
        kind: ROOT_ITEM,
        offset,
    };
    let keys = sys::search(fs.as_fd(), ROOT_TREE, range(0), range(u64::MAX))?;
    Ok(keys.is_empty())
}

/// The ids of all subvolumes that are there or not yet gone.
///
/// # Errors
/// The kernel's; EPERM without CAP_SYS_ADMIN.
pub fn all_subvolumes(fs: impl AsFd) -> nix::Result<Vec<u64>> {
    let range = |object, offset| Key {
        object,
        kind: ROOT_ITEM,
        offset,
    };
    let (from, to) = (range(SUBVOLUMES.0, 0), range(SUBVOLUMES.1, u64::MAX));
    let keys = search_all(fs.as_fd(), ROOT_TREE, from, to)?;
    let subvolumes = keys.into_iter().filter(|key| key.kind == ROOT_ITEM);
    Ok(subvolumes.map(|key| key.object).collect())
}

/// The ids of all qgroups.
///
/// # Errors
/// ENOENT without quotas; the kernel's; EPERM without CAP_SYS_ADMIN.
pub fn groups(fs: impl AsFd) -> nix::Result<Vec<u64>> {
    let range = |offset| Key {
        object: 0,
        kind: GROUP_INFO,
        offset,
    };
    let keys = search_all(fs.as_fd(), QUOTA_TREE, range(0), range(u64::MAX))?;
    Ok(keys.into_iter().map(|key| key.offset).collect())
}

/// The ids of the qgroups that are members of one.
///
/// # Errors
/// As for [`groups`].
pub fn members(fs: impl AsFd, group: u64) -> nix::Result<Vec<u64>> {
    let range = |offset| Key {
        object: group,
        kind: RELATION,
        offset,
    };
    let keys = search_all(fs.as_fd(), QUOTA_TREE, range(0), range(u64::MAX))?;
    let related = keys.into_iter().map(|key| key.offset);
    Ok(related
        .filter(|other| other >> LEVEL_SHIFT < group >> LEVEL_SHIFT)
        .collect())
}

fn search_all(fs: BorrowedFd<'_>, tree: u64, from: Key, to: Key) -> nix::Result<Vec<Key>> {
    let mut all = Vec::new();
    let mut next = Some(from);
    while let Some(from) = next {
        let found = sys::search(fs, tree, from, to)?;
        next = found.last().and_then(|last| after(*last));
        all.extend(found);
    }
    Ok(all)
}

/// The least key that is greater.
fn after(key: Key) -> Option<Key> {
    let first = Key { offset: 0, ..key };
    if let Some(offset) = key.offset.checked_add(1) {
        Some(Key { offset, ..key })
    } else if let Some(kind) = key.kind.checked_add(1) {
        Some(Key { kind, ..first })
    } else {
        let object = key.object.checked_add(1)?;
        Some(Key {
            object,
            kind: 0,
            offset: 0,
        })
    }
}

/// Has the file system count, in the simple way where the kernel knows it. One that counts already goes on as it does.
///
/// # Errors
/// The kernel's.
pub fn enable_quotas(fs: impl AsFd) -> io::Result<Quotas> {
    let fs = fs.as_fd();
    // Also where it counts already: whoever is just about to turn it on is waited for.
    match sys::quota(fs, sys::QUOTA_ENABLE_SIMPLE) {
        Err(Errno::EINVAL | Errno::ENOTTY | Errno::EOPNOTSUPP) => {
            sys::quota(fs, sys::QUOTA_ENABLE)?;
        }
        enabled => enabled?,
    }
    quotas(fs)?.ok_or_else(|| Errno::ENOTSUP.into())
}

/// Whether the kernel, which has btrfs, can count in the simple way.
pub fn kernel_has_simple_quotas() -> bool {
    // What can be asked tells more than a version: there are kernels with parts of later ones.
    let features = Path::new("/sys/fs/btrfs/features");
    if features.exists() {
        return features.join("simple_quota").exists();
    }
    let release = nix::sys::utsname::uname().map(|name| name.release().to_owned());
    release.is_ok_and(|release| is_since_simple_quotas(&release.to_string_lossy()))
}

/// Whether this is the release of a kernel that could have them.
fn is_since_simple_quotas(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    number().zip(number()) >= Some((6, 7))
}

/// How the file system counts, if it does.
///
/// # Errors
/// The kernel's.
pub fn quotas(fs: impl AsFd) -> io::Result<Option<Quotas>> {
    let dir = groups_dir(fs.as_fd())?;
    if !dir.exists() {
        return Ok(None);
    }
    match std::fs::read_to_string(dir.join("mode")) {
        Ok(mode) if mode.trim() == "squota" => Ok(Some(Quotas::Simple)),
        Ok(_) => Ok(Some(Quotas::Full)),
        // Kernels before 6.7 have one way to count, and no file that says which.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Quotas::Full)),
        Err(error) => Err(error),
    }
}

/// Makes a qgroup without members and limits.
///
/// # Errors
/// EEXIST if it is there; ENOTCONN without quotas; the kernel's.
pub fn create_group(fs: impl AsFd, group: u64) -> nix::Result<()> {
    sys::create_group(fs.as_fd(), group)
}

/// Removes a qgroup.
///
/// # Errors
/// ENOENT if it is not there; EBUSY while it has members or anything is counted for it; the kernel's.
pub fn remove_group(fs: impl AsFd, group: u64) -> nix::Result<()> {
    sys::remove_group(fs.as_fd(), group)
}

/// Makes a qgroup a member of one of a higher level.
///
/// # Errors
/// EEXIST if it is; the kernel's.
pub fn assign(fs: impl AsFd, child: u64, parent: u64) -> nix::Result<()> {
    sys::assign(fs.as_fd(), child, parent)
}

/// Limits what the members of a qgroup have for themselves, to so many bytes or not at all.
///
/// # Errors
/// ENOENT if the qgroup is not there; the kernel's.
pub fn set_limit(fs: impl AsFd, group: u64, bytes: Option<u64>) -> nix::Result<()> {
    /// What the kernel takes for: no limit.
    const NONE: u64 = u64::MAX;
    sys::limit(fs.as_fd(), group, bytes.unwrap_or(NONE))
}

/// What a qgroup has now, from the kernel's memory: the quota tree has it as of the last commit. Nothing if there is no such
/// qgroup.
///
/// # Errors
/// Reading /sys.
pub fn usage(fs: impl AsFd, group: u64) -> io::Result<Option<GroupUsage>> {
    /// Of the limits: the one on what is exclusive is held.
    const MAX_EXCLUSIVE: u64 = sys::LIMIT_MAX_EXCL;
    let number = group & ((1 << LEVEL_SHIFT) - 1);
    let name = format!("{}_{number}", group >> LEVEL_SHIFT);
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // One look is five files: below a directory that is found once.
    let dir = match open(&groups_dir(fs.as_fd())?.join(name), flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(None),
        other => other?,
    };
    let figure = |name: &CStr| figure_of(dir.as_fd(), name);
    let read = || -> io::Result<GroupUsage> {
        let limited = figure(c"limit_flags")? & MAX_EXCLUSIVE != 0;
        let limit = figure(c"max_exclusive")?;
        Ok(GroupUsage {
            referenced: figure(c"referenced")?,
            exclusive: figure(c"exclusive")?,
            reserved: figure(c"rsv_data")?,
            limit: limited.then_some(limit),
        })
    };
    match read() {
        Ok(usage) => Ok(Some(usage)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The qgroup was removed while it was read.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number that the kernel shows in a file.
fn figure_of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<u64> {
    /// Longer than any number of 64 bits with what is around it.
    const DIGITS_MAX: usize = 32;
    let file = openat(dir, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut bytes = [0; DIGITS_MAX];
    let read = read(&file, &mut bytes)?;
    let text = std::str::from_utf8(&bytes[..read]).map_err(io::Error::other)?;
    let text = text.trim();
    let parsed = text.strip_prefix("0x").map_or_else(
        || text.parse(),
        |hexadecimal| u64::from_str_radix(hexadecimal, 16),
    );
    parsed.map_err(io::Error::other)
}

/// Where the kernel shows its qgroups: there while it counts.
fn groups_dir(fs: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let mut name = String::new();
    for (at, byte) in sys::uuid(fs)?.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            name.push('-');
        }
        write!(name, "{byte:02x}").expect("writing to a string cannot fail");
    }
    Ok(PathBuf::from(format!("/sys/fs/btrfs/{name}/qgroups")))
}

#[cfg(test)]
mod tests;
