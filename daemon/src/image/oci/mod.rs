//! `docker save` and OCI archives: which blobs they hold, in which order, and the image's config.
//!
//! Nothing of these archives is unpacked as it lies: their names only point to blobs inside the archive file itself.

/// The archive as a list of members with their places.
mod members;
pub(super) use members::{Member, Members};
/// The config that both have.
mod config;
/// `manifest.json`, as `docker save` writes it.
mod docker;
/// `index.json` with its manifests: an OCI image layout.
mod layout;
pub(super) use config::{ImageConfig, RunConfig};

use std::fs::File;

use super::{Digest, ImageError};

/// Most layers of an image: what Docker allows, and well below what an overlay takes.
const LAYERS_MAX: usize = 127;

/// What is to be unpacked.
pub(super) struct Plan {
    /// How runs in it start.
    pub(super) run: RunConfig,
    /// From the lowest.
    pub(super) layers: Vec<PlannedLayer>,
}

/// One layer of a plan.
pub(super) struct PlannedLayer {
    /// Digest of its uncompressed tar stream, as the config says.
    pub(super) diff_id: Digest,
    /// Its place in the archive.
    pub(super) member: Member,
}

/// Reads the manifest and the config of an archive of layers.
pub(super) fn plan(archive: &File, members: &Members) -> Result<Plan, ImageError> {
    if members.has(docker::MANIFEST) {
        docker::plan(archive, members)
    } else {
        layout::plan(archive, members)
    }
}

fn assemble(config: ImageConfig, layers: Vec<Member>) -> Result<Plan, ImageError> {
    config.check_platform()?;
    let diff_ids = config.diff_ids()?;
    if layers.is_empty() {
        return Err(ImageError::Config {
            problem: "it has no layers",
        });
    }
    if layers.len() > LAYERS_MAX {
        return Err(ImageError::Limit {
            what: "layers",
            limit: LAYERS_MAX as u64,
        });
    }
    if layers.len() != diff_ids.len() {
        return Err(ImageError::Config {
            problem: "its layers and their digests differ in number",
        });
    }
    let layers = diff_ids.into_iter().zip(layers);
    let layers = layers
        .map(|(diff_id, member)| PlannedLayer { diff_id, member })
        .collect();
    Ok(Plan {
        run: config.run()?,
        layers,
    })
}
