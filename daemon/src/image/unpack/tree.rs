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

use super::below::Below;
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
    /// What the layers below have in this very tree; `None` if they are elsewhere and an overlay joins them.
    below: Option<Below>,
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
        Ok(Self {
            root,
            parent: None,
            below: None,
        })
    }

    /// The tree below the root of a subvolume, which has the files of the layers below the one that is to be written.
    pub(in crate::image) fn open_above(path: &Path) -> Result<Self, ImageError> {
        let mut tree = Self::open(path)?;
        let below = Below::of(&tree.root);
        tree.below = Some(below.map_err(|e| ImageError::io("look at", "a layer's directory", e))?);
        Ok(tree)
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

    /// Removes what the layers below have at `path`, if they are in this tree. Returns whether they are.
    pub(super) fn hide(&mut self, path: &EntryPath) -> Result<bool, ImageError> {
        self.hide_with(path, |below, parent| {
            below.hide(parent.as_fd(), path.split().1)
        })
    }

    /// Removes all that the layers below have in the directory that the entry lies in, if they are in this tree.
    /// Returns whether they are.
    pub(super) fn hide_beside(&mut self, path: &EntryPath) -> Result<bool, ImageError> {
        self.hide_with(path, Below::hide_all)
    }

    fn hide_with(
        &mut self,
        path: &EntryPath,
        hide: impl FnOnce(&Below, &OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<bool, ImageError> {
        self.parent_of(path)?;
        let (Some(below), Some((_, parent))) = (&self.below, &self.parent) else {
            return Ok(false);
        };
        hide(below, parent).map_err(|e| ImageError::io("remove what is hidden by", path, e))?;
        Ok(true)
    }

    /// Whether this layer made what has this status.
    pub(super) fn is_own(&self, stat: &Stat) -> bool {
        !self.below.as_ref().is_some_and(|below| below.has(stat))
    }

    /// Opens a directory that is there for the layer to have it, too; `None` if it is no directory.
    pub(super) fn take_over(&mut self, path: &EntryPath) -> Result<Option<OwnedFd>, ImageError> {
        let directory = self.directory(path.as_bytes())?;
        if let (Some(fd), Some(below)) = (&directory, &mut self.below) {
            let touched = below.touch(fd);
            touched.map_err(|e| ImageError::io("set the owner of", path, e))?;
        }
        Ok(directory)
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

    fn lookup_or_make(&mut self, entry: &EntryPath, wanted: &[u8]) -> Result<OwnedFd, ImageError> {
        // Where the layers below are in this tree, each directory on the way must be touched.
        let known = match self.below {
            None => below(&self.root, wanted, OFlags::RDONLY | DIRECTORY),
            Some(_) => Err(Errno::NOENT),
        };
        match known {
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

    fn make_parents(&mut self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let mut at = below(&self.root, b"", OFlags::RDONLY | DIRECTORY)?;
        for part in path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            at = match make_implied(&at, part) {
                Err(Errno::EXIST) => self.existing_parent(&at, part)?,
                other => other?,
            };
        }
        Ok(at)
    }

    fn existing_parent(&mut self, at: &OwnedFd, part: &[u8]) -> rustix::io::Result<OwnedFd> {
        let there = below(at, part, OFlags::RDONLY | DIRECTORY);
        let Some(below) = &mut self.below else {
            return there;
        };
        match there {
            Ok(fd) => below.touch(&fd).map(|()| fd),
            Err(Errno::LOOP | Errno::NOTDIR) if below.has_at(at, part)? => {
                unlinkat(at, part, AtFlags::empty())?;
                make_implied(at, part)
            }
            refused => refused,
        }
    }
}

/// Makes a directory that the archive uses and does not list: it never says who owns it.
fn make_implied(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let fd = make_directory(parent, name)?;
    super::metadata::Metadata::implied().apply(&fd)?;
    Ok(fd)
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
