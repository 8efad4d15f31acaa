//! `manifest.json`, as `docker save` writes it.

use std::fs::File;

use serde::Deserialize;

use super::{Member, Members, Plan, assemble};
use crate::image::ImageError;

pub(super) const MANIFEST: &str = "manifest.json";

/// One image of the archive. Tags are not used: the caller names the image.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

pub(super) fn plan(archive: &File, members: &Members) -> Result<Plan, ImageError> {
    let saved: Vec<Saved> = members.get(MANIFEST)?.json(archive, "list of images")?;
    let [saved] = saved.as_slice() else {
        return Err(Member::problem(MANIFEST, "does not hold exactly one image"));
    };
    let config = members.get(&saved.config)?.json(archive, "image config")?;
    let layers = saved
        .layers
        .iter()
        .map(|name| members.get(name))
        .collect::<Result<_, _>>()?;
    assemble(config, layers)
}
