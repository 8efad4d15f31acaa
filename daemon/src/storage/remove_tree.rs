//! Removing a tree that a sandbox or an archive has made: by descriptor, never following a link, in bounded memory and with a bounded
//! number of descriptors, whatever the shape of the tree.
//!
//! A tree deeper than [`DEPTH_MAX`] is flattened: its deep directories are moved up to the root of the tree and removed
//! from there. Nobody else works on the tree meanwhile; if somebody did, entries would be missed and the last step would
//! fail with ENOTEMPTY, never touch anything outside.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Directories held open at once; a process may have 1,024 at the least.
const DEPTH_MAX: usize = 64;
/// Prefix of the names of moved directories.
const MOVED: &str = ".lodge-moved-";

/// Removes the entry `name` of `parent` with everything below it. One that is not there is no error.
pub fn remove_tree(parent: impl AsFd, name: impl Arg + Copy) -> Result<()> {
    let parent = parent.as_fd();
    match open_child(parent, name) {
        Ok(mut root) => {
            // A second descriptor, since the first one belongs to the listing.
            let target = rustix::io::fcntl_dupfd_cloexec(root.fd()?, 0)?;
            let mut removal = Removal {
                root: target.as_fd(),
                moved: 0,
            };
            removal.empty(&mut root, 0)?;
            missing_is_done(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
        }
        Err(Errno::NOTDIR | Errno::LOOP) => {
            missing_is_done(rustix::fs::unlinkat(parent, name, AtFlags::empty()))
        }
        Err(errno) => missing_is_done(Err(errno)),
    }
}

struct Removal<'a> {
    root: BorrowedFd<'a>,
    /// Directories moved up so far; makes their names differ.
    moved: u64,
}

impl Removal<'_> {
    /// Removes every entry of `dir`, also those that are moved into it meanwhile.
    fn empty(&mut self, dir: &mut Dir, depth: usize) -> Result<()> {
        let mut found = true;
        while std::mem::take(&mut found) {
            dir.rewind();
            while let Some(entry) = dir.read() {
                let entry = entry?;
                if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    continue;
                }
                found = true;
                self.remove(dir.fd()?, entry.file_name(), entry.file_type(), depth)?;
            }
        }
        Ok(())
    }

    fn remove(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
        depth: usize,
    ) -> Result<()> {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                // A file system that does not tell the type in its listing.
                Err(Errno::ISDIR) => {}
                other => return missing_is_done(other),
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return missing_is_done(other),
        }
        if depth >= DEPTH_MAX {
            return self.move_up(parent, name);
        }
        self.empty(&mut open_child(parent, name)?, depth + 1)?;
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
    }

    /// Moves a deep directory to the root of the tree, under a name that nothing there has.
    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        loop {
            let target = format!("{MOVED}{}", self.moved);
            self.moved += 1;
            match rustix::fs::renameat(parent, name, self.root, target.as_str()) {
                // The sandbox made that very name itself: the next one, then.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                other => return other,
            }
        }
    }
}

fn open_child(parent: BorrowedFd<'_>, name: impl Arg) -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Dir::new(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn missing_is_done(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::*;

    fn remove(dir: &Path) {
        remove_tree(File::open(dir).expect("open"), "tree").expect("removed");
        assert!(!dir.join("tree").exists());
    }

    #[test]
    fn a_tree_goes_and_what_its_links_point_to_stays() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let outside = temp.path().join("outside");
        fs::create_dir(&outside).expect("new");
        fs::write(outside.join("kept"), "x").expect("file");
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).expect("new");
        fs::write(tree.join("a/b/file"), "x").expect("file");
        fs::hard_link(outside.join("kept"), tree.join("a/hard")).expect("link");
        symlink(&outside, tree.join("a/link")).expect("link");
        symlink("/", tree.join("root")).expect("link");
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).expect("chmod");

        remove(temp.path());
        assert_eq!(
            fs::read_to_string(outside.join("kept")).expect("still there"),
            "x"
        );
    }

    #[test]
    fn a_link_in_the_place_of_the_tree_is_not_followed() {
        let temp = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(temp.path().join("outside")).expect("new");
        fs::write(temp.path().join("outside/kept"), "x").expect("file");
        symlink("outside", temp.path().join("tree")).expect("link");
        remove(temp.path());
        assert!(temp.path().join("outside/kept").exists());
    }

    /// A path of 5,000 components is far longer than PATH_MAX, and than descriptors allow.
    #[test]
    fn a_tree_of_any_depth_goes_with_few_descriptors() {
        let temp = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(temp.path().join("tree")).expect("new");
        let mut dir: OwnedFd = File::open(temp.path().join("tree")).expect("open").into();
        let names = ["d", ".lodge-moved-0", ".lodge-moved-1"];
        for depth in 0..5_000 {
            rustix::fs::mkdirat(&dir, names[depth % 3], Mode::RWXU).expect("new");
            rustix::fs::mkdirat(&dir, "side", Mode::RWXU).expect("new");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            dir = rustix::fs::openat(&dir, names[depth % 3], flags, Mode::empty()).expect("open");
        }
        remove(temp.path());
    }

    #[test]
    fn what_is_not_there_is_removed_already() {
        let temp = tempfile::tempdir().expect("temporary directory");
        remove(temp.path());
    }
}
