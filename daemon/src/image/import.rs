//! From an archive to unpacked layers and a config, all of it in a staging directory.
//!
//! What the archive is, is told by its content: a root file system is one layer without a config; an archive of layers
//! has both. A layer that the store has already is not unpacked again.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::budget::{Budget, Stage, Watched};
use super::compression::{Compression, Decompressed};
use super::directory::{Directory, Staging};
use super::oci::{self, Members, PlannedLayer, RunConfig};
use super::span::Span;
use super::unpack::{LeftOut, Tree, unpack_layer};
use super::{Digest, ImageError, account};

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
    pub(super) info: LayerInfo,
    /// The directory with `root` and `layer.json` in it.
    pub(super) path: PathBuf,
}

impl Staged {
    /// Whether any layer is not in the store yet.
    pub(super) fn is_new(&self, directory: &Directory) -> bool {
        self.layers
            .iter()
            .any(|layer| layer.path != directory.layer(&layer.diff_id))
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
    fn read(layer: &Path) -> Option<Self> {
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
    let roots: Vec<_> = staged
        .layers
        .iter()
        .map(|layer| layer.path.join("root"))
        .collect();
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
    let layer = match stored_layer(directory, diff_id) {
        Some(stored) => stored,
        None => unpack(Span::whole(archive), staging.layer(0)?, budget)?,
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
    let plan = oci::plan(archive, members)?;
    budget.stage(Stage::Unpacking)?;
    let mut layers = Vec::with_capacity(plan.layers.len());
    for (number, planned) in plan.layers.iter().enumerate() {
        // An overlay refuses one directory twice. A layer that comes again further up (an empty one, mostly) has all
        // that its first place had, and hides all that that hid.
        if plan.layers[number + 1..]
            .iter()
            .any(|above| above.diff_id == planned.diff_id)
        {
            continue;
        }
        layers.push(stage_layer(
            archive, planned, number, directory, staging, budget,
        )?);
    }
    Ok(Staged {
        layers,
        run: plan.run,
    })
}

fn stage_layer(
    archive: &File,
    planned: &PlannedLayer,
    number: usize,
    directory: &Directory,
    staging: &Staging,
    budget: &mut Budget<'_>,
) -> Result<StagedLayer, ImageError> {
    if let Some(stored) = stored_layer(directory, planned.diff_id) {
        return Ok(stored);
    }
    // Before a byte of it is parsed.
    planned
        .member
        .verify(Watched::new(planned.member.reader(archive), budget))?;
    let layer = unpack(
        planned.member.reader(archive),
        staging.layer(number)?,
        budget,
    )?;
    if layer.diff_id == planned.diff_id {
        return Ok(layer);
    }
    let member = planned.member.name.clone();
    Err(ImageError::Member {
        member,
        problem: "does not have the content that the config says",
    })
}

/// A layer that the store has: complete, since it was synced before it got its place.
fn stored_layer(directory: &Directory, diff_id: Digest) -> Option<StagedLayer> {
    let path = directory.layer(&diff_id);
    let info = LayerInfo::read(&path)?;
    Some(StagedLayer {
        diff_id,
        info,
        path,
    })
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

fn unpack(
    source: Span<'_>,
    path: PathBuf,
    budget: &mut Budget<'_>,
) -> Result<StagedLayer, ImageError> {
    let hasher = Rc::new(RefCell::new(Sha256::new()));
    let plain = Decompressed::new(source, budget.limits())?;
    let hashed = Hashed {
        inner: plain,
        hasher: Rc::clone(&hasher),
    };
    let stream = BufReader::with_capacity(BUFFER, hashed);
    let unpacked = unpack_layer(stream, Tree::open(&path.join("root"))?, budget)?;
    let info = LayerInfo {
        version: 1,
        size_bytes: unpacked.size,
        left_out: unpacked.left_out,
    };
    info.write(&path)?;
    Ok(StagedLayer {
        diff_id: Digest::from_hasher(hasher.take()),
        info,
        path,
    })
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
