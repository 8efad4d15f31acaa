//! Where things lie in the images directory.
//!
//! ```text
//! lock                  held by whoever imports or removes
//! index.json            which images there are
//! form                  which form the layers have, if it is not that of directories
//! layers/<key>/root     the files of one layer; which digest its key is, depends on the store's form
//! layers/<key>/layer.json
//! staging/              what is being made; emptied at the next start
//! ```
//! All of these are made by us, 0700; no name in them is a caller's or an archive's.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::form::{Form, make_private};
use super::index::Index;
use super::{Digest, ImageError};
use crate::error::chain;
use crate::fault;
use crate::store::replace_file;

const PRIVATE: u32 = 0o700;
/// Which form the layers have. A store of directories has none, as those that older versions made.
const FORM: &str = "form";

/// The images directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    form: Form,
}

impl Directory {
    /// Opens it; makes what is missing.
    pub(super) fn open(path: &Path, form: Form) -> Result<Self, ImageError> {
        let directory = Self {
            path: path.to_owned(),
            form,
        };
        for (part, path) in [
            ("the images directory", directory.path.clone()),
            ("layers", directory.layers()),
            ("staging", directory.staging()),
        ] {
            DirBuilder::new()
                .recursive(true)
                .mode(PRIVATE)
                .create(path)
                .map_err(|e| ImageError::io("make", part, e))?;
        }
        form.check(path)?;
        directory.check_form()?;
        Ok(directory)
    }

    /// Refuses a store that was made with layers of another form: all of them would look unused.
    fn check_form(&self) -> Result<(), ImageError> {
        let failed = |e| ImageError::io("read", FORM, e);
        let found = match fs::read_to_string(self.path.join(FORM)) {
            Ok(text) if text == Form::Subvolumes.as_str() => Form::Subvolumes,
            Ok(_) => return Err(failed(io::ErrorKind::InvalidData.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Form::Directories,
            Err(e) => return Err(failed(e)),
        };
        if found == self.form {
            return Ok(());
        }
        let is_new = found == Form::Directories && self.is_empty().map_err(failed)?;
        if is_new {
            return self.remember_form();
        }
        Err(ImageError::OtherForm {
            found: found.as_str(),
            wanted: self.form.as_str(),
        })
    }

    fn is_empty(&self) -> io::Result<bool> {
        let indexed = self.path.join(Index::FILE).try_exists()?;
        Ok(!indexed && !self.has_layers()?)
    }

    pub(super) fn has_layers(&self) -> io::Result<bool> {
        Ok(fs::read_dir(self.layers())?.next().is_some())
    }

    /// On the disk before there is any layer of that form.
    fn remember_form(&self) -> Result<(), ImageError> {
        fault::around("image.remember form", || {
            replace_file(&self.path.join(FORM), self.form.as_str().as_bytes())
        })
        .map_err(|e| ImageError::io("write", FORM, e))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    /// Where the layer of this key is, with its root and what is remembered of it.
    pub(super) fn layer(&self, key: &Digest) -> PathBuf {
        self.layers().join(key.hex())
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.path.join("staging")
    }

    /// Waits for the lock that imports and removals take. It goes with the file.
    pub(super) fn lock(&self) -> Result<File, ImageError> {
        let file = self.lock_file()?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::INTR) => {}
                Err(e) => return Err(ImageError::io("lock", "the images directory", e)),
            }
        }
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_lock(&self) -> Result<Option<File>, ImageError> {
        let file = self.lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(e) => Err(ImageError::io("lock", "the images directory", e)),
        }
    }

    fn lock_file(&self) -> Result<File, ImageError> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join("lock"))
            .map_err(|e| ImageError::io("open", "lock", e))
    }

    /// A file without a name: whatever happens to its owner, nothing is left of it.
    pub(super) fn nameless_file(&self) -> Result<File, ImageError> {
        let path = self.staging().join(random_name());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| ImageError::io("make a file in", "staging", e))?;
        match fs::remove_file(&path) {
            // A sweep came first.
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(ImageError::io("unlink a file in", "staging", e))
            }
            _ => Ok(file),
        }
    }
}

/// A directory in staging that goes with this guard, whatever is in it by then.
pub(super) struct Staging {
    path: PathBuf,
    form: Form,
}

impl Staging {
    pub(super) fn new(directory: &Directory) -> Result<Self, ImageError> {
        let path = directory.staging().join(random_name());
        make_private(&path)?;
        let form = directory.form();
        Ok(Self { path, form })
    }

    /// A new directory for the layer of this number.
    pub(super) fn layer(&self, number: usize) -> Result<PathBuf, ImageError> {
        let path = self.path.join(number.to_string());
        make_private(&path)?;
        Ok(path)
    }

    /// Moves a layer that goes into staging, to vanish with it.
    pub(super) fn bury(&self, layer: &Path) -> io::Result<()> {
        match fs::rename(layer, self.path.join(random_name())) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let removed = fault::around("image.empty staging", || self.form.remove(&self.path));
        if let Err(error) = removed {
            // The sweep at the next start takes what is left.
            tracing::warn!(error = %chain(&error), "cannot empty an import's staging directory");
        }
    }
}

fn random_name() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .expect("the kernel's random source does not fail once it is seeded");
    hex::encode(bytes)
}
