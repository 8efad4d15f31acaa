//! What a layer that is written into a snapshot finds there: the files of the layers below.
//!
//! An overlay keeps layers apart; here they are in one tree, and an entry must do to it what an overlay would show:
//! a whiteout takes away what the layers below had and never what the layer itself makes, in whatever order the archive has
//! them; a directory of below that the layer touches gets owner, mode and attributes from the layer alone; a link of below
//! is no way to anywhere, but a name to be replaced.
//!
//! Both kinds are told apart by inode number: within a subvolume btrfs gives them in ascending order and never one
//! again, so whatever is below the first number that this layer could get was there before.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::{Errno, Result};

use super::metadata::{Metadata, clear_xattrs};
use crate::storage::remove_tree::remove_tree;

/// What the tree had before the layer's first entry.
#[derive(Debug)]
pub(super) struct Below {
    /// Inode number that nothing from below reaches.
    first_own: u64,
    /// Directories from below that the layer has entries of, or in; all directories above one are here, too.
    touched: HashSet<u64>,
}

impl Below {
    /// Of the tree as it is now. The layer gets the root for its own.
    pub(super) fn of(root: impl AsFd) -> Result<Self> {
        let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let probe = openat(&root, ".", nameless, Mode::RUSR)?;
        let mut below = Self {
            first_own: fstat(probe)?.st_ino,
            touched: HashSet::new(),
        };
        below.touch(root)?;
        Ok(below)
    }

    /// Whether this is from below.
    pub(super) fn has(&self, stat: &Stat) -> bool {
        stat.st_ino < self.first_own
    }

    /// Whether an entry that is in the way of a directory is from below, so that the directory hides it.
    pub(super) fn has_at(&self, parent: impl AsFd, name: &[u8]) -> Result<bool> {
        Ok(self.has(&statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// A directory gets an entry of the layer, or in it. The first time it loses what it is below: an overlay shows of
    /// a directory what the uppermost layer says, or else what it gives to one that it uses and does not list.
    pub(super) fn touch(&mut self, directory: impl AsFd) -> Result<()> {
        let stat = fstat(&directory)?;
        if self.has(&stat) && self.touched.insert(stat.st_ino) {
            clear_xattrs(&directory)?;
            Metadata::implied().apply(&directory)?;
        }
        Ok(())
    }

    /// Removes what the layers below have under this name.
    pub(super) fn hide(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !self.has(&stat) {
            Ok(())
        } else if !is_directory {
            unlinkat(parent, name, AtFlags::empty())
        } else if self.touched.contains(&stat.st_ino) {
            self.hide_all(&open_directory(parent, name)?)
        } else {
            remove_tree(parent, name)
        }
    }

    /// Removes all that the layers below have in a directory. Recurses into touched ones alone, which are no deeper
    /// than an entry's name may be.
    pub(super) fn hide_all(&self, directory: &OwnedFd) -> Result<()> {
        for name in names(directory)? {
            self.hide(directory.as_fd(), name.as_bytes())?;
        }
        Ok(())
    }
}

/// All of them at once, since a listing need not be right while entries go.
fn names(directory: &OwnedFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}
