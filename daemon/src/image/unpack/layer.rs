//! The sequence: each entry in its turn, and the permissions and times of directories last.
//!
//! An entry that is refused refuses the archive. Devices, fifos and foreign attributes are left out and listed.
//! Of two entries with one name the last wins, as in every tar reader, except that two directories become one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, XattrFlags, fsetxattr, linkat, mknodat, openat, statat,
    symlinkat,
};
use rustix::io::Errno;

use super::metadata::{Metadata, leave_out_xattrs, set_xattrs};
use super::tree::{Replaced, make_directory};
use super::whiteout::{Marker, OPAQUE_XATTR, is_whiteout};
use super::{LeftOut, Tree};
use crate::image::ImageError;
use crate::image::budget::Budget;
use crate::image::tar::{Entry, EntryPath, Kind, SparseMap, TarReader};

/// Bytes written at once.
const BUFFER: usize = 128 * 1024;

/// What came of a layer.
pub(in crate::image) struct Unpacked {
    /// Bytes of its files, holes included.
    pub(in crate::image) size: u64,
    /// What was not made.
    pub(in crate::image) left_out: LeftOut,
}

/// Writes all entries of a stream below `tree`'s root, and reads the stream to its end.
pub(in crate::image) fn unpack_layer(
    stream: impl Read,
    tree: Tree,
    budget: &mut Budget<'_>,
) -> Result<Unpacked, ImageError> {
    let mut layer = Layer {
        reader: TarReader::new(stream),
        tree,
        budget,
        directories: BTreeMap::new(),
        directory_bytes: 0,
        done: Unpacked {
            size: 0,
            left_out: LeftOut::default(),
        },
        buffer: vec![0; BUFFER],
    };
    while let Some(entry) = layer.reader.next()? {
        layer.budget.entry()?;
        layer.entry(&entry)?;
    }
    layer.finish_directories()?;
    layer.reader.drain()?;
    Ok(layer.done)
}

struct Layer<'a, 'b, R> {
    reader: TarReader<R>,
    tree: Tree,
    budget: &'a mut Budget<'b>,
    /// What directories get at the end, since each file that is put into one changes its times.
    directories: BTreeMap<Vec<u8>, Metadata>,
    directory_bytes: u64,
    done: Unpacked,
    buffer: Vec<u8>,
}

impl<R: Read> Layer<'_, '_, R> {
    fn entry(&mut self, entry: &Entry) -> Result<(), ImageError> {
        let (parent, name) = entry.path.split();
        let refused = |problem| ImageError::entry(entry.path.as_bytes(), problem);
        if parent
            .split(|b| *b == b'/')
            .any(|part| part.starts_with(b".wh."))
        {
            return Err(refused("it lies inside a whiteout"));
        }
        match Marker::of(name).map_err(refused)? {
            Marker::None => self.make(entry),
            Marker::Gone(gone) => self.whiteout(&entry.path.with_name(gone)),
            Marker::Opaque => self.opaque(&entry.path),
            Marker::Reserved => {
                self.leave_out(entry, "bookkeeping of another system");
                Ok(())
            }
        }
    }

    fn make(&mut self, entry: &Entry) -> Result<(), ImageError> {
        if entry.path.is_root() && entry.kind != Kind::Directory {
            return Err(ImageError::entry(b"/", "the root can only be a directory"));
        }
        match &entry.kind {
            Kind::Directory => self.directory(entry),
            Kind::File => self.file(entry, None),
            Kind::Sparse(map) => self.file(entry, Some(map)),
            Kind::Symlink(target) => self.symlink(entry, target),
            Kind::HardLink(target) => self.hard_link(entry, target),
            Kind::LeftOut(what) => {
                self.leave_out(entry, what);
                Ok(())
            }
        }
    }

    fn leave_out(&mut self, entry: &Entry, what: &'static str) {
        self.done.left_out.note(entry.path.as_bytes(), what);
    }

    fn directory(&mut self, entry: &Entry) -> Result<(), ImageError> {
        self.remember_directory(&entry.path, Metadata::of(entry))?;
        if entry.path.is_root() {
            return set_xattrs(self.tree.root(), entry, &mut self.done.left_out);
        }
        let failed = |e| ImageError::io("make the directory", &entry.path, e);
        let (_, name) = entry.path.split();
        let fd = match make_directory(self.tree.parent_of(&entry.path)?, name) {
            Err(Errno::EXIST) => self.directory_in_place(&entry.path)?,
            other => other.map_err(failed)?,
        };
        set_xattrs(&fd, entry, &mut self.done.left_out)
    }

    /// A directory's place is taken: by a directory, which is kept, or by something else, which goes.
    fn directory_in_place(&mut self, path: &EntryPath) -> Result<OwnedFd, ImageError> {
        if let Some(fd) = self.tree.take_over(path)? {
            return Ok(fd);
        }
        let replaced = self.clear(path)?;
        let made = make_directory(self.tree.parent_of(path)?, path.split().1);
        let fd = made.map_err(|e| ImageError::io("make the directory", path, e))?;
        if replaced == Replaced::Whiteout {
            // Gone below and new here: without this, both would be merged.
            set_opaque(&fd, path)?;
        }
        Ok(fd)
    }

    fn file(&mut self, entry: &Entry, sparse: Option<&SparseMap>) -> Result<(), ImageError> {
        let size = sparse.map_or(entry.size, |map| map.real_size);
        self.budget.file(size)?;
        self.done.size += size;
        let file = self.create(&entry.path)?;
        let failed = |e| ImageError::io("write", &entry.path, e);
        match sparse {
            None => self.write(&file, 0, entry)?,
            Some(map) => {
                for (offset, length) in &map.stretches {
                    self.write_stretch(&file, *offset, *length, entry)?;
                }
                file.set_len(map.real_size).map_err(failed)?;
            }
        }
        set_xattrs(&file, entry, &mut self.done.left_out)?;
        Metadata::of(entry)
            .apply(&file)
            .map_err(|e| failed(e.into()))
    }

    fn create(&mut self, path: &EntryPath) -> Result<File, ImageError> {
        const NEW: OFlags = OFlags::WRONLY
            .union(OFlags::CREATE)
            .union(OFlags::EXCL)
            .union(OFlags::NOFOLLOW)
            .union(OFlags::CLOEXEC);
        let (_, name) = path.split();
        let mode = Mode::from_raw_mode(0o600);
        let first = openat(self.tree.parent_of(path)?, name, NEW, mode);
        let fd = match first {
            Err(Errno::EXIST) => {
                self.clear(path)?;
                openat(self.tree.parent_of(path)?, name, NEW, mode)
            }
            other => other,
        };
        fd.map(File::from)
            .map_err(|e| ImageError::io("create", path, e))
    }

    fn write(&mut self, file: &File, offset: u64, entry: &Entry) -> Result<(), ImageError> {
        self.write_stretch(file, offset, entry.size, entry)
    }

    fn write_stretch(
        &mut self,
        file: &File,
        mut offset: u64,
        length: u64,
        entry: &Entry,
    ) -> Result<(), ImageError> {
        let end = offset + length;
        while offset < end {
            let want = BUFFER.min(usize::try_from(end - offset).unwrap_or(BUFFER));
            let count = self.reader.read_content(&mut self.buffer[..want])?;
            if count == 0 {
                return Err(ImageError::entry(
                    entry.path.as_bytes(),
                    "it has less than its map says",
                ));
            }
            self.budget.written(count as u64)?;
            file.write_all_at(&self.buffer[..count], offset)
                .map_err(|e| ImageError::io("write", &entry.path, e))?;
            offset += count as u64;
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, target: &[u8]) -> Result<(), ImageError> {
        self.clear(&entry.path)?;
        let (_, name) = entry.path.split();
        let parent = self.tree.parent_of(&entry.path)?;
        symlinkat(target, parent, name)
            .and_then(|()| Metadata::of(entry).apply_to_link(parent, name))
            .map_err(|e| ImageError::io("make the symbolic link", &entry.path, e))?;
        leave_out_xattrs(entry, &mut self.done.left_out);
        Ok(())
    }

    /// Links a name to a file or a symbolic link that this layer has already; neither end follows a link.
    fn hard_link(&mut self, entry: &Entry, target: &EntryPath) -> Result<(), ImageError> {
        let refused = |problem| ImageError::entry(entry.path.as_bytes(), problem);
        const MISSING: &str = "the target of its hard link is not in this layer";
        if target.is_root() || *target == entry.path {
            return Err(refused("it is a hard link to itself or to the root"));
        }
        let (_, target_name) = target.split();
        let target_parent = self
            .tree
            .existing_parent_of(target)
            .map_err(|_| refused(MISSING))?;
        let stat = statat(&target_parent, target_name, AtFlags::SYMLINK_NOFOLLOW)
            .ok()
            .filter(|stat| self.tree.is_own(stat))
            .ok_or_else(|| refused(MISSING))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            _ => {
                return Err(refused(
                    "its hard link leads to something that is not a file",
                ));
            }
        }
        self.clear(&entry.path)?;
        let (_, name) = entry.path.split();
        let parent = self.tree.parent_of(&entry.path)?;
        linkat(&target_parent, target_name, parent, name, AtFlags::empty()).map_err(|e| match e {
            // The target lay in the directory that this entry has just replaced.
            Errno::NOENT => refused(MISSING),
            e => ImageError::io("make the hard link", &entry.path, e),
        })
    }

    /// `path` is gone from the layers below. What this layer itself has there stays.
    fn whiteout(&mut self, path: &EntryPath) -> Result<(), ImageError> {
        if self.tree.hide(path)? {
            return Ok(());
        }
        let (_, name) = path.split();
        let parent = self.tree.parent_of(path)?;
        let failed = |e| ImageError::io("make the whiteout", path, e);
        let device = (FileType::CharacterDevice, Mode::empty(), 0);
        match mknodat(parent, name, device.0, device.1, device.2) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                match self.tree.directory(path.as_bytes())? {
                    Some(fd) if !is_whiteout(&stat) => set_opaque(&fd, path),
                    _ => Ok(()),
                }
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// The directory that the marker lies in hides what it had in the layers below.
    fn opaque(&mut self, marker: &EntryPath) -> Result<(), ImageError> {
        if self.tree.hide_beside(marker)? {
            return Ok(());
        }
        let parent = self.tree.parent_of(marker)?;
        set_opaque(parent, marker)
    }

    fn clear(&mut self, path: &EntryPath) -> Result<Replaced, ImageError> {
        let replaced = self.tree.clear(path)?;
        if replaced == Replaced::Directory {
            self.forget_directories(path);
        }
        Ok(replaced)
    }

    fn remember_directory(&mut self, path: &EntryPath, of: Metadata) -> Result<(), ImageError> {
        if self
            .directories
            .insert(path.as_bytes().to_vec(), of)
            .is_none()
        {
            self.directory_bytes += path.as_bytes().len() as u64;
        }
        let limit = self.budget.limits().directory_bytes;
        if self.directory_bytes > limit {
            return Err(ImageError::Limit {
                what: "bytes of directory names",
                limit,
            });
        }
        Ok(())
    }

    /// A replaced directory and all below it get nothing at the end.
    fn forget_directories(&mut self, path: &EntryPath) {
        self.directories.remove(path.as_bytes());
        let mut prefix = path.as_bytes().to_vec();
        prefix.push(b'/');
        let below = self.directories.range(prefix.clone()..);
        let gone: Vec<_> = below
            .map(|(path, _)| path.clone())
            .take_while(|p| p.starts_with(&prefix))
            .collect();
        for path in gone {
            self.directories.remove(&path);
        }
    }

    /// Deepest first, since setting a child's times does not touch its parent's.
    fn finish_directories(&mut self) -> Result<(), ImageError> {
        for (path, metadata) in self.directories.iter().rev() {
            if let Some(fd) = self.tree.directory(path)? {
                metadata
                    .apply(&fd)
                    .map_err(|e| ImageError::io("set the owner of", path, e))?;
            }
        }
        Ok(())
    }
}

fn set_opaque(directory: &OwnedFd, path: &EntryPath) -> Result<(), ImageError> {
    fsetxattr(directory, OPAQUE_XATTR, b"y", XattrFlags::empty())
        .map_err(|e| ImageError::io("make opaque", path, e))
}
