//! Owners, permissions, times and attributes of what was made.
//!
//! Owners first, since changing them clears setuid. Of attributes only `user.*` is kept, without `user.overlay.*`, which
//! would steer the overlay that sandboxes are mounted with; `security.capability`, `trusted.*` and ACLs are left out.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, flistxattr,
    fremovexattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::LeftOut;
use crate::image::ImageError;
use crate::image::tar::Entry;

/// Largest value of an attribute: the kernel's XATTR_SIZE_MAX.
const XATTR_VALUE_MAX: usize = 64 * 1024;
/// The attributes that an owner of a file may set.
const USER: &[u8] = b"user.";

/// What is set on a file or directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata {
    mode: u32,
    uid: u32,
    gid: u32,
    times: (i64, u32),
}

impl Metadata {
    pub(super) fn of(entry: &Entry) -> Self {
        let times = (entry.mtime.seconds, entry.mtime.nanos);
        Self {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            times,
        }
    }

    /// A directory that the archive uses and does not list.
    pub(super) fn implied() -> Self {
        Self {
            mode: 0o755,
            uid: 0,
            gid: 0,
            times: (0, 0),
        }
    }

    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn timestamps(&self) -> Timestamps {
        let time = Timespec {
            tv_sec: self.times.0,
            tv_nsec: i64::from(self.times.1),
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    }

    /// Sets all of it on an open file or directory.
    pub(super) fn apply(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        let (uid, gid) = self.owner();
        fchown(&fd, uid, gid)?;
        fchmod(&fd, Mode::from_raw_mode(self.mode))?;
        futimens(&fd, &self.timestamps())
    }

    /// Sets what a symbolic link has, on the link itself.
    pub(super) fn apply_to_link(&self, parent: impl AsFd, name: &[u8]) -> rustix::io::Result<()> {
        let (uid, gid) = self.owner();
        chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        utimensat(&parent, name, &self.timestamps(), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Sets the attributes that are allowed, and notes the others.
pub(super) fn set_xattrs(
    fd: impl AsFd,
    entry: &Entry,
    left_out: &mut LeftOut,
) -> Result<(), ImageError> {
    for (name, value) in &entry.xattrs {
        if !is_allowed(name) || value.len() > XATTR_VALUE_MAX {
            note(entry, name, left_out);
            continue;
        }
        match fsetxattr(&fd, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) => {}
            // The file system holds fewer or smaller attributes than the archive has.
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::OPNOTSUPP | Errno::RANGE) => {
                note(entry, name, left_out);
            }
            Err(e) => return Err(ImageError::io("set an attribute of", &entry.path, e)),
        }
    }
    Ok(())
}

/// Removes the attributes that [`set_xattrs`] sets.
pub(super) fn clear_xattrs(fd: impl AsFd) -> rustix::io::Result<()> {
    // The kernel's XATTR_LIST_MAX.
    let mut list = vec![0; 64 * 1024];
    let length = flistxattr(&fd, &mut list[..])?;
    let names = list[..length].split(|b| *b == 0);
    for name in names.filter(|name| name.starts_with(USER)) {
        fremovexattr(&fd, name)?;
    }
    Ok(())
}

/// Notes all attributes of what can have none.
pub(super) fn leave_out_xattrs(entry: &Entry, left_out: &mut LeftOut) {
    for (name, _) in &entry.xattrs {
        note(entry, name, left_out);
    }
}

fn note(entry: &Entry, name: &[u8], left_out: &mut LeftOut) {
    let name = crate::image::error::shown(name);
    left_out.note(entry.path.as_bytes(), format_args!("attribute {name}"));
}

fn is_allowed(name: &[u8]) -> bool {
    const NAME_MAX: usize = 255;
    name.starts_with(USER)
        && !name.starts_with(b"user.overlay.")
        && name.len() > USER.len()
        && name.len() <= NAME_MAX
        && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_user_attributes_are_kept() {
        assert!(is_allowed(b"user.mime_type"));
        for name in [
            "user.overlay.opaque",
            "user.overlay.redirect",
            "user.",
            "trusted.overlay.opaque",
            "security.capability",
            "system.posix_acl_access",
            "SCHILY.acl.access",
            "user.a\0b",
            "xuser.a",
        ] {
            assert!(!is_allowed(name.as_bytes()), "{name}");
        }
    }
}
