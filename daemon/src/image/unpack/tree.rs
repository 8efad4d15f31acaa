//! Calls below the root's descriptor that follow no symbolic link.
//!
//! Every look-up of a parent is `openat2` with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS: the kernel refuses to leave the
//! root or to pass through a link, whatever earlier entries made. Last parts are only created, linked or removed, never
//! opened through.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, mkdirat, open, openat2, statat,
    unlinkat,
};
use rustix::io::Errno;

use crate::image::ImageError;
use crate::image::tar::EntryPath;
use crate::storage::remove_tree::remove_tree;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Permissions while a layer is being written; what the archive says is set at the end.
const WORKING_MODE: u32 = 0o700;

/// A directory of ours and what is below it.
pub(in crate::image) struct Tree {
    root: OwnedFd,
    /// The last parent that was looked up: entries of one directory come together.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

/// What was in an entry's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    Nothing,
    File,
    Whiteout,
    Directory,
}

impl Tree {
    /// The tree below a directory of the store.
    pub(in crate::image) fn open(path: &Path) -> Result<Self, ImageError> {
        let root = open(path, OFlags::RDONLY | DIRECTORY, Mode::empty())
            .map_err(|e| ImageError::io("open", "a layer's directory", e))?;
        Ok(Self { root, parent: None })
    }

    /// Opens what is there, for reading. Links are not followed, not even at the end.
    pub(in crate::image) fn open_at(
        &self,
        path: &str,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        below(&self.root, path.as_bytes(), flags)
    }

    /// Looks at what is there without following a link at the end.
    pub(in crate::image) fn stat(&self, path: &str) -> rustix::io::Result<Stat> {
        let path = EntryPath::parse(path.as_bytes()).map_err(|_| Errno::INVAL)?;
        let (parent, name) = path.split();
        let parent = below(&self.root, parent, OFlags::PATH | DIRECTORY)?;
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens a directory that is there; `None` if it is no longer.
    pub(super) fn directory(&self, path: &[u8]) -> Result<Option<OwnedFd>, ImageError> {
        match below(&self.root, path, OFlags::RDONLY | DIRECTORY) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(ImageError::io("open", path, e)),
        }
    }

    /// The directory that holds the entry, made if the archive does not list it.
    pub(super) fn parent_of(&mut self, path: &EntryPath) -> Result<&OwnedFd, ImageError> {
        let (wanted, _) = path.split();
        let cached = self
            .parent
            .as_ref()
            .is_some_and(|(known, _)| known == wanted);
        if !cached {
            let fd = self.lookup_or_make(path, wanted)?;
            self.parent = Some((wanted.to_vec(), fd));
        }
        Ok(&self.parent.as_ref().expect("it was just put there").1)
    }

    /// The parent of a link's target, which must be there.
    pub(super) fn existing_parent_of(&self, path: &EntryPath) -> rustix::io::Result<OwnedFd> {
        below(&self.root, path.split().0, OFlags::RDONLY | DIRECTORY)
    }

    /// Removes what is in the entry's place, whatever it is; links are removed, not followed.
    pub(super) fn clear(&mut self, path: &EntryPath) -> Result<Replaced, ImageError> {
        let (_, name) = path.split();
        let parent = self.parent_of(path)?;
        let failed = |e| ImageError::io("replace", path, e);
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Replaced::Nothing),
            Err(e) => return Err(failed(e)),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            remove_tree(parent, name).map_err(failed)?;
            // The cached parent may be a directory that has just gone.
            self.parent = None;
            return Ok(Replaced::Directory);
        }
        unlinkat(parent, name, AtFlags::empty()).map_err(failed)?;
        Ok(if super::whiteout::is_whiteout(&stat) {
            Replaced::Whiteout
        } else {
            Replaced::File
        })
    }

    fn lookup_or_make(&self, entry: &EntryPath, wanted: &[u8]) -> Result<OwnedFd, ImageError> {
        match below(&self.root, wanted, OFlags::RDONLY | DIRECTORY) {
            Err(Errno::NOENT) => self.make_parents(wanted),
            other => other,
        }
        .map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => ImageError::entry(
                entry.as_bytes(),
                "its name leads through something that is not a directory",
            ),
            e => ImageError::io("open the directory of", entry, e),
        })
    }

    fn make_parents(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let mut at = below(&self.root, b"", OFlags::RDONLY | DIRECTORY)?;
        for part in path.split(|b| *b == b'/') {
            at = match make_directory(&at, part) {
                Ok(fd) => {
                    // The archive never says who owns it.
                    super::metadata::Metadata::implied().apply(&fd)?;
                    fd
                }
                Err(Errno::EXIST) => below(&at, part, OFlags::RDONLY | DIRECTORY)?,
                Err(e) => return Err(e),
            };
        }
        Ok(at)
    }
}

/// Makes a new directory and opens it.
pub(super) fn make_directory(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    mkdirat(&parent, name, Mode::from_raw_mode(WORKING_MODE))?;
    let fd = below(&parent, name, OFlags::RDONLY | DIRECTORY)?;
    // A parent with setgid hands it on.
    fchmod(&fd, Mode::from_raw_mode(WORKING_MODE))?;
    Ok(fd)
}

fn below(root: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS)
        .union(ResolveFlags::NO_XDEV);
    let path = if path.is_empty() { b"." } else { path };
    openat2(
        root,
        path,
        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        RESOLVE,
    )
}
