//! The images of a directory: import, look up, list, remove. All calls block.
//!
//! The index is the truth. Layers that no image has are what a crash or a removal left; they go at the next start. A
//! directory may be shared by daemons for reading; imports and removals exclude one another by a lock. Whether
//! sandboxes use an image is known only to the daemon that asks, so sharing is for images that nobody removes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::syncfs;

use super::budget::{Beneath, Budget, Limits, Observer, Stage};
use super::directory::{Directory, Staging};
use super::form::{Form, ROOT};
use super::import::{self, Staged};
use super::index::{Index, Record};
use super::prune::{Uses, refuse_unknown};
use super::unpack::LeftOut;
use super::{Digest, ImageError, ImageName, ImageRef};
use crate::error::chain;
use crate::fault;

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Over its layers and its config.
    pub digest: Digest,
    /// Its names, in order; none if all have moved to other images.
    pub names: Vec<ImageName>,
    /// Its layers, from the lowest.
    pub layers: Vec<LayerPath>,
    /// Variables that every run gets.
    pub env: Vec<(String, String)>,
    /// User that runs get: a name or a number, perhaps with `:` and a group. Never empty.
    pub user: String,
    /// Absolute working directory that runs get. Never empty.
    pub workdir: String,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// When it was imported here.
    pub imported_at: SystemTime,
    /// What was left out for safety, at most 100 lines.
    pub left_out: Vec<String>,
    form: Form,
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPath {
    /// Digest of its uncompressed tar stream.
    pub diff_id: Digest,
    /// The directory with its files: its own, or in a store of subvolumes those of all layers up to it. Owners on disk are
    /// 0 to 65,535.
    pub path: PathBuf,
}

impl Image {
    /// What a storage driver makes a root file system from: its directories, the lowest first; of subvolumes the
    /// uppermost alone.
    pub fn roots(&self) -> Vec<PathBuf> {
        let roots = self.form.roots(&self.layers).iter();
        roots.map(|layer| layer.path.clone()).collect()
    }
}

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// Only a name went; the image has others.
    Name,
    /// The image went, with all layers that no other image has.
    Image,
}

/// The images of a directory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ImageStore {
    pub(super) directory: Directory,
    limits: Limits,
    beneath: Option<Beneath>,
    pub(super) pins: Arc<Pins>,
}

/// Images that somebody is about to use, and how many times.
pub(super) type Pins = Mutex<HashMap<Digest, u32>>;

/// Keeps an image from being removed, from its look-up until a record says that a sandbox uses it.
#[derive(Debug)]
pub struct Pin {
    digest: Digest,
    pins: Arc<Pins>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pins.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.digest);
            }
        }
    }
}

impl ImageStore {
    /// Opens a directory, makes what is missing, and removes what an interrupted import or removal left.
    pub fn open(images_dir: &Path) -> Result<Self, ImageError> {
        Self::open_as(images_dir, Form::Directories)
    }

    /// As [`Self::open`], with layers of this form.
    pub fn open_as(images_dir: &Path, form: Form) -> Result<Self, ImageError> {
        Self::open_with(images_dir, form, Limits::default())
    }

    /// As [`Self::open_as`], with other bounds on imports.
    pub fn open_with(images_dir: &Path, form: Form, limits: Limits) -> Result<Self, ImageError> {
        let directory = Directory::open(images_dir, form)?;
        let store = Self {
            directory,
            limits,
            beneath: None,
            pins: Arc::default(),
        };
        // Without the lock an import is going on, and staging is its.
        if let Some(_lock) = store.directory.try_lock()? {
            store.sweep();
        }
        Ok(store)
    }

    /// Has imports leave room on another disk as well.
    #[must_use]
    pub fn above(self, beneath: Beneath) -> Self {
        Self {
            beneath: Some(beneath),
            ..self
        }
    }

    /// The bounds on imports.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// An empty file to receive an archive into. It has no name, so nothing is left of it when it is dropped.
    pub fn receive(&self) -> Result<File, ImageError> {
        self.directory.nameless_file()
    }

    /// Refuses if the disk has less than its reserve left.
    pub fn check_disk(&self, file: &File) -> Result<(), ImageError> {
        super::budget::check_disk(file, self.beneath.as_ref(), &self.limits)
    }

    /// Looks an image up.
    pub fn resolve(&self, image: &ImageRef) -> Result<Image, ImageError> {
        let index = Index::read(&self.directory)?;
        let digest = index.find(image).ok_or_else(|| ImageError::NotFound {
            image: image.clone(),
        })?;
        let image = self.image(&index, digest);
        let form = self.directory.form();
        match image.layers.iter().find(|l| !form.is_layer(&l.path)) {
            Some(layer) => Err(ImageError::LayerMissing {
                image: digest,
                layer: layer.diff_id,
            }),
            None => Ok(image),
        }
    }

    /// Looks an image up and keeps it from being removed for as long as the pin lives.
    pub fn resolve_pinned(&self, image: &ImageRef) -> Result<(Image, Pin), ImageError> {
        // Pinned under the same lock that a removal looks under, so it is either found gone or kept.
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let image = self.resolve(image)?;
        *pins.entry(image.digest).or_insert(0) += 1;
        let pin = Pin {
            digest: image.digest,
            pins: Arc::clone(&self.pins),
        };
        Ok((image, pin))
    }

    /// All images, in the order of their first names; those without a name last.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let index = Index::read(&self.directory)?;
        let mut images: Vec<_> = index
            .images
            .keys()
            .map(|d| self.image(&index, *d))
            .collect();
        images.sort_by(|a, b| {
            let key = |image: &Image| (image.names.is_empty(), image.names.first().cloned());
            key(a).cmp(&key(b)).then(a.digest.cmp(&b.digest))
        });
        Ok(images)
    }

    /// Imports an archive under a name, which moves if another image has it. The same content is the same image.
    /// On failure nothing is left.
    pub fn import(
        &self,
        name: &ImageName,
        archive: &File,
        observer: &mut Observer<'_>,
    ) -> Result<Image, ImageError> {
        let _lock = self.directory.lock()?;
        Index::begin(&self.directory)?;
        let disk = File::open(self.directory.path())
            .map_err(|e| ImageError::io("open", "the images directory", e))?;
        let staging = Staging::new(&self.directory)?;
        let mut budget = Budget::new(self.limits, &disk, self.beneath.as_ref(), observer);
        let staged = import::stage(archive, &self.directory, &staging, &mut budget)?;
        if staged.is_new(&self.directory) {
            // On the disk before anything refers to it: one sync of the file system, not one of each file.
            budget.stage(Stage::Syncing)?;
            fault::around("image.sync", || Ok::<_, io::Error>(syncfs(&disk)?))
                .map_err(|e| ImageError::io("sync", "the images directory", e))?;
        }
        let entered = self
            .adopt(staged)
            .and_then(|record| self.enter(name, record));
        // It may have layers in their places that no image has.
        entered.inspect_err(|_| self.sweep_layers())
    }

    /// Removes a name, or by digest all names, and with the last one the image. One that a sandbox uses, or may use, is not
    /// removed.
    pub fn remove(&self, image: &ImageRef, uses: &dyn Uses) -> Result<Removed, ImageError> {
        let _lock = self.directory.lock()?;
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let mut index = Index::read(&self.directory)?;
        let digest = index.find(image).ok_or_else(|| ImageError::NotFound {
            image: image.clone(),
        })?;
        if let ImageRef::Name(name) = image
            && index.names_of(&digest).len() > 1
        {
            index.names.remove(name);
            index.write(&self.directory)?;
            return Ok(Removed::Name);
        }
        let sandboxes = uses
            .of(&digest)
            .saturating_add(pins.get(&digest).copied().unwrap_or(0));
        if sandboxes > 0 {
            return Err(ImageError::InUse {
                image: image.clone(),
                sandboxes,
            });
        }
        refuse_unknown(uses)?;
        index.names.retain(|_, named| *named != digest);
        index.images.remove(&digest);
        index.write(&self.directory)?;
        drop(pins);
        self.remove_unused_layers(&index)?;
        Ok(Removed::Image)
    }

    /// Moves new layers into the store and describes the image.
    fn adopt(&self, staged: Staged) -> Result<Record, ImageError> {
        let mut left_out = LeftOut::default();
        let mut record = Record {
            layers: Vec::new(),
            run: staged.run,
            size_bytes: 0,
            imported_at: seconds_now(),
            left_out: Vec::new(),
        };
        for layer in staged.layers {
            let stored = self.directory.layer(&layer.key);
            if !stored.exists() {
                fault::around("image.place layer", || fs::rename(&layer.path, &stored))
                    .map_err(|e| ImageError::io("store", layer.diff_id.to_string(), e))?;
            }
            record.layers.push(layer.diff_id);
            record.size_bytes = record.size_bytes.saturating_add(layer.info.size_bytes);
            left_out.extend(layer.info.left_out);
        }
        record.left_out = left_out.into_lines();
        let layers = self.directory.layers();
        fault::around("image.sync layers", || File::open(layers)?.sync_all())
            .map_err(|e| ImageError::io("sync", "layers", e))?;
        Ok(record)
    }

    /// Writes the image into the index: from here on it exists.
    fn enter(&self, name: &ImageName, record: Record) -> Result<Image, ImageError> {
        let mut index = Index::read(&self.directory)?;
        let digest = record.digest();
        index.images.entry(digest).or_insert(record);
        index.names.insert(name.clone(), digest);
        index.write(&self.directory)?;
        Ok(self.image(&index, digest))
    }

    fn image(&self, index: &Index, digest: Digest) -> Image {
        let record = &index.images[&digest];
        let form = self.directory.form();
        let layer = |(diff_id, key): (&Digest, Digest)| LayerPath {
            diff_id: *diff_id,
            path: self.directory.layer(&key).join(ROOT),
        };
        let layers = record.layers.iter().zip(form.keys(&record.layers));
        Image {
            digest,
            names: index.names_of(&digest),
            layers: layers.map(layer).collect(),
            env: record.run.env.clone(),
            user: record.run.user.clone(),
            workdir: record.run.workdir.clone(),
            size_bytes: record.size_bytes,
            imported_at: UNIX_EPOCH + Duration::from_secs(record.imported_at),
            left_out: record.left_out.clone(),
            form,
        }
    }

    /// Layers go by way of staging, so that half of one never looks like a layer.
    pub(super) fn remove_unused_layers(&self, index: &Index) -> Result<(), ImageError> {
        let failed = |e| ImageError::io("remove", "an unused layer", e);
        let used = index.layers(self.directory.form());
        let staging = Staging::new(&self.directory)?;
        for layer in fs::read_dir(self.directory.layers()).map_err(failed)? {
            let layer = layer.map_err(failed)?;
            let key = layer.file_name().to_str().and_then(Digest::from_hex);
            if !key.is_some_and(|key| used.contains(&key)) {
                fault::around("image.bury layer", || staging.bury(&layer.path()))
                    .map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Failures are logged, not returned: an index that cannot be read must not keep the daemon from starting.
    fn sweep(&self) {
        if let Err(error) = self.empty_staging() {
            tracing::warn!(error = %chain(&error), "cannot empty the images' staging directory");
        }
        self.sweep_layers();
    }

    fn sweep_layers(&self) {
        let swept = Index::read(&self.directory).and_then(|i| self.remove_unused_layers(&i));
        if let Err(error) = swept {
            tracing::error!(error = %chain(&error), "cannot sweep unused layers");
        }
    }

    fn empty_staging(&self) -> std::io::Result<()> {
        for entry in fs::read_dir(self.directory.staging())? {
            self.directory.form().remove(&entry?.path())?;
        }
        Ok(())
    }
}

fn seconds_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
