//! Replacing a small file as a whole: after a crash at any moment there is the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Ends the name of a file that is not in its place yet. What is there after a crash is written over.
const NEW: &str = ".new";

/// What is to be a file, on disk beside it.
pub(crate) struct Replacement<'a> {
    new: PathBuf,
    path: &'a Path,
}

impl<'a> Replacement<'a> {
    /// Writes it, for root alone, and waits until it is on disk. Two at once are one too many: the caller has a lock.
    pub(crate) fn write(path: &'a Path, bytes: &[u8]) -> io::Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push(NEW);
        let new = PathBuf::from(new);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(Self { new, path })
    }

    /// Puts it into the file's place. That it is there is on disk once the directory is [synced](sync_dir).
    pub(crate) fn rename(self) -> io::Result<()> {
        fs::rename(self.new, self.path)
    }

    /// Puts it into the file's place, and waits until that is on disk.
    pub(crate) fn place(self) -> io::Result<()> {
        let path = self.path;
        self.rename()?;
        sync_dir(path.parent().expect("a file is in a directory"))
    }
}

/// Replaces the file, or makes it. On disk when this returns.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Replacement::write(path, bytes)?.place()
}

/// Waits until what a directory names is on disk.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_placed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file.json");
        replace_file(&path, b"old").expect("made");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Of a crash, and longer than what comes.
        fs::write(dir.path().join("file.json.new"), "half of another one").expect("written");
        let replacement = Replacement::write(&path, b"new").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        replacement.place().expect("placed");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
