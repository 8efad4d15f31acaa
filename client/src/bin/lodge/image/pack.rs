//! A directory as a tar archive, made as it is read: entries in the order of their names, numeric owners only, symbolic
//! links as links. Links that lead out of the directory are packed, never followed. Sockets, devices and pipes are left
//! out, with a message; extended attributes are not packed.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use super::archive::Archive;
use crate::terminal;

/// Bytes that the packer may be ahead of the reader.
const AHEAD_BYTES: usize = 1 << 20;

/// Packs `dir` in a thread of its own, as fast as the result is read.
pub(super) fn pack(dir: PathBuf) -> impl AsyncRead + Send + Unpin + 'static {
    let (near, far) = tokio::io::duplex(AHEAD_BYTES);
    let packing =
        tokio::task::spawn_blocking(move || Packer::new(SyncIoBridge::new(far)).whole(&dir));
    Archive::new(near, async { packing.await.map_err(io::Error::other)? })
}

struct Packer<W: io::Write> {
    archive: Builder<W>,
    /// Where the first name of a file with several was packed, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: io::Write> Packer<W> {
    fn new(to: W) -> Self {
        Self {
            archive: Builder::new(to),
            linked: HashMap::new(),
        }
    }

    fn whole(mut self, dir: &Path) -> io::Result<()> {
        self.directory(dir, Path::new(""))?;
        self.archive.finish()
    }

    fn directory(&mut self, dir: &Path, name: &Path) -> io::Result<()> {
        let mut entries = fs::read_dir(dir)
            .and_then(|entries| entries.collect::<io::Result<Vec<_>>>())
            .map_err(|e| about(dir, e))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            self.entry(&path, &name.join(entry.file_name()))
                .map_err(|e| about(&path, e))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(path)?;
        let kind = meta.file_type();
        if kind.is_dir() {
            self.append_empty(&meta, EntryType::Directory, name)?;
            return self.directory(path, name);
        }
        if kind.is_symlink() {
            let mut header = header(&meta, EntryType::Symlink);
            return self
                .archive
                .append_link(&mut header, name, fs::read_link(path)?);
        }
        if kind.is_socket() || kind.is_fifo() || kind.is_char_device() || kind.is_block_device() {
            terminal::note(&format!(
                "left out {}: neither file, directory nor link",
                path.display()
            ));
            return Ok(());
        }
        self.file(path, &meta, name)
    }

    fn file(&mut self, path: &Path, meta: &Metadata, name: &Path) -> io::Result<()> {
        if meta.nlink() > 1 {
            let identity = (meta.dev(), meta.ino());
            if let Some(first) = self.linked.get(&identity) {
                let mut header = header(meta, EntryType::Link);
                return self.archive.append_link(&mut header, name, first);
            }
            self.linked.insert(identity, name.to_owned());
        }
        let file = File::open(path)?;
        let mut header = header(meta, EntryType::Regular);
        header.set_size(meta.size());
        // A file that shrinks meanwhile is an error, one that grows is cut: else the archive would be out of step.
        let exact = Exactly {
            left: meta.size(),
            file,
        };
        self.archive.append_data(&mut header, name, exact)
    }

    fn append_empty(&mut self, meta: &Metadata, kind: EntryType, name: &Path) -> io::Result<()> {
        self.archive
            .append_data(&mut header(meta, kind), name, io::empty())
    }
}

/// A file's bytes, as many as its header says.
struct Exactly {
    left: u64,
    file: File,
}

impl io::Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let count = self.file.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn header(meta: &Metadata, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(meta.mode() & 0o7777);
    header.set_uid(meta.uid().into());
    header.set_gid(meta.gid().into());
    header.set_mtime(meta.mtime().try_into().unwrap_or(0));
    header.set_size(0);
    header
}

fn about(path: &Path, error: io::Error) -> io::Error {
    // Only the innermost path is wanted; it is there already if the error has a text of its own.
    match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn packed(dir: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        Packer::new(&mut bytes).whole(dir).unwrap();
        bytes
    }

    #[test]
    fn a_directory_is_packed_in_order_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("b")).unwrap();
        fs::write(at("b/file"), "content").unwrap();
        fs::hard_link(at("b/file"), at("b/twin")).unwrap();
        symlink("/etc/passwd", at("a")).unwrap();
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

        let bytes = packed(dir.path());
        assert_eq!(bytes, packed(dir.path()));
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap().map(|l| l.display().to_string());
                assert_eq!(entry.header().username().unwrap(), Some(""));
                (
                    entry.path().unwrap().display().to_string(),
                    entry.header().entry_type(),
                    link,
                )
            })
            .collect();
        assert_eq!(
            entries,
            [
                ("a".into(), EntryType::Symlink, Some("/etc/passwd".into())),
                ("b".into(), EntryType::Directory, None),
                ("b/file".into(), EntryType::Regular, None),
                ("b/twin".into(), EntryType::Link, Some("b/file".into())),
            ]
        );
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_packed_is_an_error_for_the_reader() {
        use tokio::io::AsyncReadExt as _;
        let mut bytes = Vec::new();
        let result = pack("/nonexistent/dir".into())
            .read_to_end(&mut bytes)
            .await;
        assert!(result.is_err_and(|e| e.to_string().contains("/nonexistent/dir")));
    }
}
