//! `index.json` with its manifests: an OCI image layout.
//!
//! Each step goes by a descriptor with a digest and a size, and both are checked.

use std::fs::File;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::config::HOST_ARCHITECTURE;
use super::{Member, Members, Plan, assemble};
use crate::image::ImageError;
use crate::image::name::Digest;

pub(super) const INDEX: &str = "index.json";
/// Deepest nesting of an index in an index: the layout's own, and one of several platforms.
const NESTING_MAX: usize = 3;

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Descriptor {
    fn member(&self, members: &Members) -> Result<Member, ImageError> {
        let digest = Digest::parse(&self.digest)
            .map_err(|_| Member::problem(&self.digest, "is not a SHA-256 digest"))?;
        let member = members.blob(digest)?;
        if member.size() != self.size {
            return Err(Member::problem(
                &member.name,
                "does not have the size that is said of it",
            ));
        }
        Ok(member)
    }

    fn json<T: DeserializeOwned>(
        &self,
        archive: &File,
        members: &Members,
        what: &'static str,
    ) -> Result<T, ImageError> {
        self.member(members)?.json(archive, what)
    }

    fn is_index(&self) -> bool {
        self.media_type.contains("image.index") || self.media_type.contains("manifest.list")
    }

    /// Descriptors without a platform fit; signatures and attestations have the platform `unknown`.
    fn fits(&self) -> bool {
        self.platform
            .as_ref()
            .is_none_or(|p| p.os == "linux" && p.architecture == HOST_ARCHITECTURE)
    }
}

pub(super) fn plan(archive: &File, members: &Members) -> Result<Plan, ImageError> {
    let mut index: Index = members.get(INDEX)?.json(archive, "image index")?;
    for _ in 0..NESTING_MAX {
        let chosen = choose(index.manifests)?;
        if !chosen.is_index() {
            let manifest: Manifest = chosen.json(archive, members, "image manifest")?;
            let config = manifest.config.json(archive, members, "image config")?;
            let layers = manifest.layers.iter().map(|layer| layer.member(members));
            return assemble(config, layers.collect::<Result<_, _>>()?);
        }
        index = chosen.json(archive, members, "image index")?;
    }
    Err(Member::problem(INDEX, "nests its indexes too deep"))
}

/// The one image for this host.
fn choose(manifests: Vec<Descriptor>) -> Result<Descriptor, ImageError> {
    let offered = manifests.iter().find_map(|m| m.platform.clone());
    let mut fitting = manifests.into_iter().filter(Descriptor::fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(Member::problem(INDEX, "holds more than one image")),
        (None, _) => Err(ImageError::Platform {
            platform: offered.map_or("none".into(), |p| format!("{}/{}", p.os, p.architecture)),
            host: HOST_ARCHITECTURE,
        }),
    }
}
