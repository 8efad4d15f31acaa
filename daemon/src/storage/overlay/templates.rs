//! Ready-made empty layers, one per shape: making one takes mkfs.ext4 and tens of milliseconds, a copy of it two.
//!
//! They may be lost at any time: one that is not there, or is no longer whole, is made anew. Layers are copies and need none.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, FileTimes};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::geometry::{BLOCK, Shape};
use super::superblock::Superblock;
use super::{directories, e2fsprogs};
use crate::fault;
use crate::storage::driver::StorageError;
use crate::storage::remove_tree::remove_tree;

/// Their directory, in the state directory.
const DIR: &str = "templates";
/// How many are kept: the one that was not used for the longest time goes.
const KEPT_MAX: usize = 8;
/// Ends their names. A change of what is in them takes another one.
const ENDING: &str = "-1.img";
/// Where one is made: what is there belongs to nobody after a crash.
const NEW: &str = "new";
const TREE: &str = "tree";
const IMAGE: &str = "image";

/// The templates of a state directory.
#[derive(Debug)]
pub(super) struct Templates {
    dir: PathBuf,
    /// Names of those that this process made, or looked through when it met them. Its lock is that of the directory.
    sound: Mutex<HashSet<String>>,
}

impl Templates {
    /// Makes their directory if it is not there.
    pub(super) fn open(state_dir: &Path) -> Result<Self, StorageError> {
        let dir = state_dir.join(DIR);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|e| StorageError::io("create", &dir, e))?;
        Ok(Self {
            dir,
            sound: Mutex::default(),
        })
    }

    /// Removes what a making that was cut short left.
    pub(super) fn sweep(&self) -> Result<(), StorageError> {
        let dir = File::open(&self.dir).map_err(|e| StorageError::io("open", &self.dir, e))?;
        let new = self.dir.join(NEW);
        remove_tree(&dir, NEW).map_err(|e| StorageError::io("remove", &new, e))
    }

    /// One of this shape, open for reading. It is made if there is none.
    pub(super) fn get(&self, shape: &Shape) -> Result<File, StorageError> {
        // Nothing is inserted before it is true, so that a panic meanwhile leaves nothing wrong.
        let mut sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name(shape);
        let path = self.dir.join(&name);
        if !sound.contains(&name) || !is_there(&path, shape) {
            if !(is_there(&path, shape) && e2fsprogs::check(&path).is_ok()) {
                self.make(shape, &path)?;
            }
            sound.insert(name);
        }
        let file = File::open(&path).map_err(|e| StorageError::io("open", &path, e))?;
        // Only the order in which they go depends on it.
        let used = FileTimes::new().set_modified(SystemTime::now());
        if let Err(error) = file.set_times(used) {
            tracing::debug!(%error, path = %path.display(), "not noted as used");
        }
        Ok(file)
    }

    fn make(&self, shape: &Shape, path: &Path) -> Result<(), StorageError> {
        self.sweep()?;
        let new = self.dir.join(NEW);
        let made = fault::around("overlay.make template", || make(&new, shape));
        let placed = made.and_then(|()| {
            fault::around("overlay.place template", || {
                fs::rename(new.join(IMAGE), path)
            })
            .map_err(|e| StorageError::io("rename to", path, e))
        });
        // Also after a failure: on a full disk nothing must be left that takes room.
        let swept = self.sweep();
        placed.and(swept)?;
        self.remove_surplus(path)
    }

    fn remove_surplus(&self, made: &Path) -> Result<(), StorageError> {
        let list = |e| StorageError::io("list", &self.dir, e);
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(list)? {
            let path = entry.map_err(list)?.path();
            let used = path.metadata().and_then(|found| found.modified());
            if path != made {
                others.push((used.map_err(list)?, path));
            }
        }
        others.sort();
        let surplus = (others.len() + 1).saturating_sub(KEPT_MAX);
        for (_, path) in &others[..surplus] {
            fs::remove_file(path).map_err(|e| StorageError::io("remove", path, e))?;
        }
        Ok(())
    }
}

fn name(shape: &Shape) -> String {
    let Shape {
        blocks,
        inodes_per_group,
        journal,
        ..
    } = shape;
    format!("{blocks}-{inodes_per_group}-{journal}{ENDING}")
}

/// Whether a template is there and looks like what is wanted.
fn is_there(path: &Path, shape: &Shape) -> bool {
    File::open(path)
        .and_then(|file| Superblock::read(&file))
        .is_ok_and(|found| is_same(&found.shape, shape) && !found.is_used)
}

/// What mkfs.ext4 leaves the table to grow into differs between its versions, and is of no consequence.
fn is_same(one: &Shape, other: &Shape) -> bool {
    let reserved_table = other.reserved_table;
    Shape {
        reserved_table,
        ..*one
    } == *other
}

/// Makes one in a new directory, on disk when it returns.
fn make(new: &Path, shape: &Shape) -> Result<(), StorageError> {
    let (tree, image) = (new.join(TREE), new.join(IMAGE));
    let make_dir = |path: &Path, mode| {
        DirBuilder::new()
            .mode(mode)
            .create(path)
            .map_err(|e| StorageError::io("create", path, e))
    };
    make_dir(new, 0o700)?;
    make_dir(&tree, 0o755)?;
    for (name, mode) in directories::OF_A_LAYER {
        make_dir(&tree.join(name), mode)?;
    }
    let failed = |e| StorageError::io("write", &image, e);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&image);
    let file = file.map_err(failed)?;
    file.set_len(shape.blocks * BLOCK).map_err(failed)?;
    e2fsprogs::make(&image, shape, &tree)?;
    file.sync_all().map_err(failed)?;
    let made = Superblock::read(&file).map_err(failed)?;
    if !is_same(&made.shape, shape) {
        return Err(StorageError::Unfit {
            what: format!(
                "mkfs.ext4 made {:?} when {shape:?} was asked for",
                made.shape
            ),
            hint: "install e2fsprogs 1.43 or later",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::storage::driver::DiskLimit;
    use crate::storage::overlay::geometry::{Room, new_image};

    fn shape(mib: u64) -> Shape {
        let limit = DiskLimit {
            bytes: mib << 20,
            inodes: 4096,
        };
        new_image(limit, Room::Exact)
    }

    fn names(templates: &Templates) -> HashSet<String> {
        let entries = fs::read_dir(&templates.dir).expect("listed");
        entries
            .map(|entry| {
                entry
                    .expect("listed")
                    .file_name()
                    .into_string()
                    .expect("ours")
            })
            .collect()
    }

    #[test]
    fn one_that_is_damaged_is_made_anew_and_what_a_crash_left_goes() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let wanted = shape(64);
        let path = temp.path().join(DIR).join(name(&wanted));
        let fresh = || Templates::open(temp.path()).expect("opened");
        fresh().get(&wanted).expect("made");

        let damage: [&dyn Fn(&File); 3] = [
            &|file| file.set_len(1 << 20).expect("cut"),
            // Its superblock is whole; what it speaks of is not.
            &|file| file.write_all_at(&[0xFF; 8192], 4096).expect("written"),
            &|file| file.write_all_at(&[0; 4096], 0).expect("written"),
        ];
        for spoil in damage {
            spoil(&File::options().write(true).open(&path).expect("there"));
            let templates = fresh();
            fs::create_dir(templates.dir.join(NEW)).expect("new");
            fs::write(templates.dir.join(NEW).join(IMAGE), "half").expect("written");
            templates.get(&wanted).expect("made anew");
            e2fsprogs::check(&path).expect("sound");
            assert_eq!(names(&templates), HashSet::from([name(&wanted)]));
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let templates = Templates::open(temp.path()).expect("opened");
        let shapes: Vec<_> = (0..=KEPT_MAX as u64).map(|i| shape(64 + i)).collect();
        for shape in &shapes[..KEPT_MAX] {
            templates.get(shape).expect("made");
        }
        templates.get(&shapes[0]).expect("there");
        templates.get(&shapes[KEPT_MAX]).expect("made");
        let mut expected: HashSet<_> = shapes.iter().map(name).collect();
        expected.remove(&name(&shapes[1]));
        assert_eq!(names(&templates), expected);
    }
}
