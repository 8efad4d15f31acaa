//! Making empty layers, from templates.

use std::path::Path;

use super::geometry::{self, BLOCK, IMAGE_MAX, Room, Shape, inodes_of, needed};
use super::layer::Layer;
use super::templates::Templates;
use crate::storage::driver::{DiskLimit, StorageError};

/// Makes layers, and says what their images must be.
#[derive(Debug)]
pub(super) struct Maker {
    room: Room,
    templates: Templates,
}

impl Maker {
    /// One that keeps its templates in a state directory.
    pub(super) fn open(state_dir: &Path, room: Room) -> Result<Self, StorageError> {
        let templates = Templates::open(state_dir)?;
        Ok(Self { room, templates })
    }

    /// Removes what a making that was cut short left.
    pub(super) fn sweep(&self) -> Result<(), StorageError> {
        self.templates.sweep()
    }

    /// Makes a layer, or makes it anew. On disk when this returns, but for the limit that is noted.
    pub(super) fn make(&self, layer: &Layer, limit: DiskLimit) -> Result<(), StorageError> {
        let template = self.templates.get(&self.new_image(limit)?)?;
        layer.make(&template)?;
        layer.note_limit(limit)
    }

    /// Bytes that the file system of a new layer keeps for itself.
    pub(super) fn metadata(&self, limit: DiskLimit) -> Result<u64, StorageError> {
        Ok(self.new_image(limit)?.metadata())
    }

    /// The image of a new layer.
    fn new_image(&self, limit: DiskLimit) -> Result<Shape, StorageError> {
        if limit.bytes > IMAGE_MAX {
            return Err(too_large());
        }
        let shape = geometry::new_image(limit, self.room);
        if shape.blocks * BLOCK <= IMAGE_MAX {
            return Ok(shape);
        }
        within_bounds(geometry::new_image(limit, Room::Exact))
    }

    /// What an image must become for a limit to be held in it, if it is not that already.
    pub(super) fn grown(
        &self,
        shape: &Shape,
        limit: DiskLimit,
    ) -> Result<Option<Shape>, StorageError> {
        if geometry::has_room_for(shape, limit) {
            return Ok(None);
        }
        if limit.bytes > IMAGE_MAX {
            return Err(too_large());
        }
        // As a new one would be, so that the next rise is one in use.
        let ahead = match self.room {
            Room::Exact => needed(limit),
            Room::Ahead => self.new_image(limit)?.usable(),
        };
        within_bounds(shape.grown_to(ahead, inodes_of(limit))).map(Some)
    }
}

fn within_bounds(shape: Shape) -> Result<Shape, StorageError> {
    if shape.blocks * BLOCK <= IMAGE_MAX {
        return Ok(shape);
    }
    Err(too_large())
}

fn too_large() -> StorageError {
    StorageError::Unsupported {
        what: "a limit of this size",
        driver: super::driver::NAME,
        why: format!("an image has at most {IMAGE_MAX} bytes"),
    }
}
