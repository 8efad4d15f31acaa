//! Removing all images that nobody uses, at once.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use super::import::LayerInfo;
use super::index::Index;
use super::store::ImageStore;
use super::{Digest, Image, ImageError};

/// Whether a pruning happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pruning {
    /// Images are removed.
    Done,
    /// Nothing is changed: what would go is told.
    Tried,
}

/// Who uses images.
pub trait Uses {
    /// How many sandboxes use this one.
    fn of(&self, image: &Digest) -> u32;

    /// How many sandboxes there are that may use any: what they are made from cannot be read.
    fn unknown(&self) -> u32;
}

/// What went, or would go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pruned {
    /// As they were, in the order of their first names.
    pub images: Vec<Image>,
    /// Bytes of the files of all layers that no other image has.
    pub freed_bytes: u64,
}

/// Refuses where any image may be in use.
pub(super) fn refuse_unknown(uses: &dyn Uses) -> Result<(), ImageError> {
    match uses.unknown() {
        0 => Ok(()),
        sandboxes => Err(ImageError::UsesUnknown { sandboxes }),
    }
}

impl ImageStore {
    /// Removes all images with all their names that no sandbox uses and that no pin keeps.
    pub fn prune(&self, pruning: Pruning, uses: &dyn Uses) -> Result<Pruned, ImageError> {
        let _lock = self.directory.lock()?;
        // As for one image: whoever resolves one meanwhile waits, and then finds it gone, or has pinned it before.
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        refuse_unknown(uses)?;
        let mut images = self.list()?;
        images.retain(|image| uses.of(&image.digest) == 0 && !pins.contains_key(&image.digest));
        let mut index = Index::read(&self.directory)?;
        let form = self.directory.form();
        let before = index.layers(form);
        let gone: BTreeSet<_> = images.iter().map(|image| image.digest).collect();
        index.names.retain(|_, named| !gone.contains(named));
        index.images.retain(|digest, _| !gone.contains(digest));
        let freed_bytes = self.size_of(before.difference(&index.layers(form)));
        if pruning == Pruning::Done && !gone.is_empty() {
            index.write(&self.directory)?;
            drop(pins);
            self.remove_unused_layers(&index)?;
        }
        Ok(Pruned {
            images,
            freed_bytes,
        })
    }

    /// Bytes of the files of these layers; one that is missing has none.
    fn size_of<'a>(&self, layers: impl Iterator<Item = &'a Digest>) -> u64 {
        let sizes = layers.filter_map(|key| LayerInfo::read(&self.directory.layer(key)));
        sizes.map(|info| info.size_bytes).sum()
    }
}
