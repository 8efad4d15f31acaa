//! From an archive to unpacked layers and a config, all of it in a staging directory.
//!
//! What the archive is, is told by its content: a root file system is one layer without a config; an archive of layers
//! has both. A layer that the store has already is not unpacked again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::budget::{Budget, Stage, Watched};
use super::compression::{Compression, Decompressed};
use super::directory::{Directory, Staging};
use super::form::ROOT;
use super::oci::{self, Members, PlannedLayer, RunConfig};
use super::span::Span;
use super::unpack::{LeftOut, unpack_layer};
use super::{Digest, ImageError, account};
use crate::fault;

const LAYER_FILE: &str = "layer.json";
const BUFFER: usize = 256 * 1024;

/// What an import is made of, before it is an image.
pub(super) struct Staged {
    /// From the lowest.
    pub(super) layers: Vec<StagedLayer>,
    pub(super) run: RunConfig,
}

/// One layer, in staging or already in the store.
pub(super) struct StagedLayer {
    pub(super) diff_id: Digest,
    /// Under which it lies in the store.
    pub(super) key: Digest,
    pub(super) info: LayerInfo,
    /// The directory with `root` and `layer.json` in it.
    pub(super) path: PathBuf,
}

impl Staged {
    /// Whether any layer is not in the store yet.
    pub(super) fn is_new(&self, directory: &Directory) -> bool {
        self.layers
            .iter()
            .any(|layer| layer.path != directory.layer(&layer.key))
    }
}

impl StagedLayer {
    pub(super) fn root(&self) -> PathBuf {
        self.path.join(ROOT)
    }
}

/// What is remembered of a layer beside its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerInfo {
    version: u32,
    pub(super) size_bytes: u64,
    pub(super) left_out: LeftOut,
}

impl LayerInfo {
    pub(super) fn read(layer: &Path) -> Option<Self> {
        let text = fs::read(layer.join(LAYER_FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn write(&self, layer: &Path) -> Result<(), ImageError> {
        let text = serde_json::to_vec(self).expect("numbers and strings are always JSON");
        fs::write(layer.join(LAYER_FILE), text).map_err(|e| ImageError::io("write", LAYER_FILE, e))
    }
}

/// Unpacks an archive. The caller holds the store's lock.
pub(super) fn stage(
    archive: &File,
    directory: &Directory,
    staging: &Staging,
    budget: &mut Budget<'_>,
) -> Result<Staged, ImageError> {
    budget.stage(Stage::Checking)?;
    let stream = Decompressed::new(Span::whole(archive), budget.limits())?;
    let compression = stream.compression();
    let mut staged = match Members::scan(Watched::new(stream, budget))? {
        None => stage_root(archive, directory, staging, budget)?,
        Some(members) if compression == Compression::None => {
            stage_layers(archive, &members, directory, staging, budget)?
        }
        Some(_) => {
            let plain = inflate(archive, directory, budget)?;
            budget.stage(Stage::Checking)?;
            let stream = BufReader::with_capacity(BUFFER, Span::whole(&plain));
            let scanned = Members::scan(Watched::new(stream, budget))?;
            let members = scanned.expect("the same bytes were an archive of layers before");
            stage_layers(&plain, &members, directory, staging, budget)?
        }
    };
    let roots = directory.form().roots(&staged.layers);
    let roots: Vec<_> = roots.iter().map(StagedLayer::root).collect();
    let roots: Vec<_> = roots.iter().map(PathBuf::as_path).collect();
    account::complete(&mut staged.run, &roots)?;
    Ok(staged)
}

fn stage_root(
    archive: &File,
    directory: &Directory,
    staging: &Staging,
    budget: &mut Budget<'_>,
) -> Result<Staged, ImageError> {
    // Reading it once costs a tenth of writing it, and the same archive comes often: each `make` imports it again.
    let diff_id = digest_plain(archive, budget)?;
    budget.stage(Stage::Unpacking)?;
    let place = Place::new(directory, staging, 0, &[diff_id], None);
    let layer = match place.stored() {
        Some(stored) => stored,
        None => place.unpack(Span::whole(archive), budget)?,
    };
    Ok(Staged {
        layers: vec![layer],
        run: RunConfig::default(),
    })
}

fn stage_layers(
    archive: &File,
    members: &Members,
    directory: &Directory,
    staging: &Staging,
    budget: &mut Budget<'_>,
) -> Result<Staged, ImageError> {
    let mut plan = oci::plan(archive, members)?;
    budget.stage(Stage::Unpacking)?;
    let planned = uppermost(std::mem::take(&mut plan.layers));
    let diff_ids: Vec<_> = planned.iter().map(|layer| layer.diff_id).collect();
    let mut layers: Vec<StagedLayer> = Vec::with_capacity(planned.len());
    for (number, planned) in planned.iter().enumerate() {
        let below = layers.last().map(StagedLayer::root);
        let place = Place::new(directory, staging, number, &diff_ids[..=number], below);
        layers.push(stage_layer(archive, planned, place, budget)?);
    }
    Ok(Staged {
        layers,
        run: plan.run,
    })
}

/// Of layers that are there more than once, the uppermost. An overlay refuses one directory twice. A layer that comes
/// again further up (an empty one, mostly) has all that its first place had, and hides all that that hid.
fn uppermost(mut layers: Vec<PlannedLayer>) -> Vec<PlannedLayer> {
    let mut seen = BTreeSet::new();
    layers.reverse();
    layers.retain(|layer| seen.insert(layer.diff_id));
    layers.reverse();
    layers
}

fn stage_layer(
    archive: &File,
    planned: &PlannedLayer,
    place: Place<'_>,
    budget: &mut Budget<'_>,
) -> Result<StagedLayer, ImageError> {
    if let Some(stored) = place.stored() {
        return Ok(stored);
    }
    // Before a byte of it is parsed.
    planned
        .member
        .verify(Watched::new(planned.member.reader(archive), budget))?;
    let layer = place.unpack(planned.member.reader(archive), budget)?;
    if layer.diff_id == planned.diff_id {
        return Ok(layer);
    }
    let member = planned.member.name.clone();
    Err(ImageError::Member {
        member,
        problem: "does not have the content that the config says",
    })
}

/// Where one layer of an import goes.
struct Place<'a> {
    directory: &'a Directory,
    staging: &'a Staging,
    number: usize,
    diff_id: Digest,
    key: Digest,
    /// Root of the layer below.
    below: Option<PathBuf>,
}

impl<'a> Place<'a> {
    /// For the layer of this number. `chain`: digests of it and of all below, from the lowest.
    fn new(
        directory: &'a Directory,
        staging: &'a Staging,
        number: usize,
        chain: &[Digest],
        below: Option<PathBuf>,
    ) -> Self {
        let uppermost = "a layer has at least itself";
        Self {
            directory,
            staging,
            number,
            diff_id: *chain.last().expect(uppermost),
            key: *directory.form().keys(chain).last().expect(uppermost),
            below,
        }
    }

    /// The layer, if the store has it: complete, since it was synced before it got its place.
    fn stored(&self) -> Option<StagedLayer> {
        let path = self.directory.layer(&self.key);
        Some(StagedLayer {
            diff_id: self.diff_id,
            key: self.key,
            info: LayerInfo::read(&path)?,
            path,
        })
    }

    /// Unpacks it into staging. Its digest is that of what was read.
    fn unpack(&self, source: Span<'_>, budget: &mut Budget<'_>) -> Result<StagedLayer, ImageError> {
        let form = self.directory.form();
        let path = self.staging.layer(self.number)?;
        let tree = fault::around("image.make layer", || {
            form.make(&path, self.below.as_deref())
        })?;
        let hasher = Rc::new(RefCell::new(Sha256::new()));
        let plain = Decompressed::new(source, budget.limits())?;
        let hashed = Hashed {
            inner: plain,
            hasher: Rc::clone(&hasher),
        };
        let stream = BufReader::with_capacity(BUFFER, hashed);
        let unpacked = fault::around("image.unpack layer", || unpack_layer(stream, tree, budget))?;
        let info = LayerInfo {
            version: 1,
            size_bytes: unpacked.size,
            left_out: unpacked.left_out,
        };
        fault::around("image.finish layer", || {
            form.finish(&path)?;
            info.write(&path)
        })?;
        Ok(StagedLayer {
            diff_id: Digest::from_hasher(hasher.take()),
            key: self.key,
            info,
            path,
        })
    }
}

/// The digest of the uncompressed stream.
fn digest_plain(archive: &File, budget: &mut Budget<'_>) -> Result<Digest, ImageError> {
    budget.stage(Stage::Checking)?;
    let mut stream = Decompressed::new(Span::whole(archive), budget.limits())?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = stream.read(&mut buffer).map_err(ImageError::from_read)?;
        if count == 0 {
            return Ok(Digest::from_hasher(hasher));
        }
        budget.read(count as u64)?;
        hasher.update(&buffer[..count]);
    }
}

/// Decompresses an archive of layers into a file, so that its members can be read in any order.
fn inflate(
    archive: &File,
    directory: &Directory,
    budget: &mut Budget<'_>,
) -> Result<File, ImageError> {
    budget.stage(Stage::Decompressing)?;
    let mut plain = directory.nameless_file()?;
    let mut stream = Decompressed::new(Span::whole(archive), budget.limits())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = stream.read(&mut buffer).map_err(ImageError::from_read)?;
        if count == 0 {
            return Ok(plain);
        }
        budget.written(count as u64)?;
        plain
            .write_all(&buffer[..count])
            .map_err(|e| ImageError::io("write", "the decompressed archive", e))?;
    }
}

/// Digests what passes through.
struct Hashed<R> {
    inner: R,
    hasher: Rc<RefCell<Sha256>>,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.borrow_mut().update(&buffer[..count]);
        Ok(count)
    }
}
