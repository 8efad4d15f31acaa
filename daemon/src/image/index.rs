//! The one file that says which images there are: `index.json` in the images directory.
//!
//! It is replaced as a whole (temporary file, fsync, rename, fsync of the directory), so an import or a removal either
//! happened or did not. An index that cannot be read is an error and is never written over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::form::Form;
use super::oci::RunConfig;
use super::{Digest, ImageError, ImageName, ImageRef};
use crate::fault;
use crate::store::{Replacement, replace_file};

const VERSION: u32 = 1;

/// All images and their names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    version: u32,
    pub(super) names: BTreeMap<ImageName, Digest>,
    pub(super) images: BTreeMap<Digest, Record>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Digests of its layers' tar streams, from the lowest.
    pub(super) layers: Vec<Digest>,
    pub(super) run: RunConfig,
    pub(super) size_bytes: u64,
    /// Seconds since 1970.
    pub(super) imported_at: u64,
    pub(super) left_out: Vec<String>,
}

impl Record {
    /// The image's digest: over its layers and its config, in this very form.
    pub(super) fn digest(&self) -> Digest {
        #[derive(Serialize)]
        struct Canonical<'a> {
            version: u32,
            layers: &'a [Digest],
            run: &'a RunConfig,
        }
        let canonical = Canonical {
            version: VERSION,
            layers: &self.layers,
            run: &self.run,
        };
        let text = serde_json::to_vec(&canonical).expect("strings and lists are always JSON");
        Digest::of(&text)
    }
}

impl Index {
    /// Its name in the images directory.
    pub(super) const FILE: &str = "index.json";

    /// Reads the index of a directory. One that has no index and no layers either is new; layers without an index are images
    /// that got lost, and nobody's to remove.
    pub(super) fn read(directory: &Directory) -> Result<Self, ImageError> {
        let failed = |e| ImageError::io("read", Self::FILE, e);
        let text = match fs::read(directory.path().join(Self::FILE)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return if directory.has_layers().map_err(failed)? {
                    Err(ImageError::IndexLost)
                } else {
                    Ok(Self::empty())
                };
            }
            Err(e) => return Err(failed(e)),
        };
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(&text).map_err(ImageError::Index)?;
        if version != VERSION {
            return Err(ImageError::IndexVersion { version });
        }
        serde_json::from_slice(&text).map_err(ImageError::Index)
    }

    /// Gives a new directory an index of no images, so that one without is never taken for new once it has layers. The caller
    /// holds the store's lock.
    pub(super) fn begin(directory: &Directory) -> Result<(), ImageError> {
        let index = Self::read(directory)?;
        let path = directory.path().join(Self::FILE);
        let failed = |e| ImageError::io("write", Self::FILE, e);
        if path.try_exists().map_err(failed)? {
            return Ok(());
        }
        replace_file(&path, &index.text()).map_err(failed)
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("strings and lists are always JSON")
    }

    /// Replaces the index. The caller holds the store's lock.
    pub(super) fn write(&self, directory: &Directory) -> Result<(), ImageError> {
        let failed = |e| ImageError::io("write", Self::FILE, e);
        let text = self.text();
        let path = directory.path().join(Self::FILE);
        let new = fault::around("image.write index", || Replacement::write(&path, &text));
        let new = new.map_err(failed)?;
        fault::around("image.place index", || new.place()).map_err(failed)
    }

    /// The digest that a reference means.
    pub(super) fn find(&self, image: &ImageRef) -> Option<Digest> {
        match image {
            ImageRef::Name(name) => self.names.get(name).copied(),
            ImageRef::Digest(digest) => self.images.contains_key(digest).then_some(*digest),
        }
    }

    /// The names of an image, in order.
    pub(super) fn names_of(&self, digest: &Digest) -> Vec<ImageName> {
        let named = self.names.iter().filter(|(_, d)| *d == digest);
        named.map(|(name, _)| name.clone()).collect()
    }

    /// Keys of all layers that some image has, in a store of this form.
    pub(super) fn layers(&self, form: Form) -> BTreeSet<Digest> {
        self.images
            .values()
            .flat_map(|record| form.keys(&record.layers))
            .collect()
    }

    fn empty() -> Self {
        Self {
            version: VERSION,
            names: BTreeMap::new(),
            images: BTreeMap::new(),
        }
    }
}
