//! Creating: admission, a uid range, a directory, a layer, a record. A crash between two steps leaves a directory that recovery
//! knows: without a record it is unfinished and goes, with one it is a stopped sandbox.

use std::sync::Arc;

use super::delete;
use super::id::SandboxId;
use super::platform::Platform;
use super::room;
use super::runtime::New;
use super::steps::{Step, nothing, run_all};
use super::uid_range::UidLease;
use crate::error::{Error, Result};
use crate::image::{Digest, ImageRef};
use crate::storage::Place;
use crate::store::Record;

pub(super) struct Creation {
    platform: Arc<Platform>,
    new: New,
    lease: Option<UidLease>,
    record: Option<Record>,
}

pub(super) const STEPS: &[Step<Creation>] = &[
    // Before anything is made: what there is keeps what the host has left.
    Step {
        name: "admit",
        run: admit,
        undo: nothing,
    },
    Step {
        name: "lease uid range",
        run: lease_uids,
        undo: |creation| creation.lease = None,
    },
    Step {
        name: "make directory",
        run: make_directory,
        undo: discard_directory,
    },
    // What these two leave is in the directory.
    Step {
        name: "prepare layer",
        run: prepare_layer,
        undo: nothing,
    },
    Step {
        name: "write record",
        run: write_record,
        undo: nothing,
    },
];

/// Makes everything of a sandbox that lasts. Blocks.
pub(super) fn create(platform: &Arc<Platform>, new: New) -> Result<Record> {
    let platform = Arc::clone(platform);
    let mut creation = Creation {
        platform,
        new,
        lease: None,
        record: None,
    };
    run_all("create", STEPS, &mut creation)?;
    if let Some(lease) = creation.lease {
        lease.keep();
    }
    Ok(creation.record.expect("the last step sets it"))
}

/// Takes a created sandbox back that could not be started. Blocks.
pub(super) fn undo(platform: &Platform, record: &Record) {
    match discard(platform, &record.id) {
        Ok(()) => platform.uids.release(record.uid_base),
        Err(error) => left_behind(&record.id, &error),
    }
}

fn admit(creation: &mut Creation) -> Result<()> {
    let Creation { platform, new, .. } = creation;
    room::admit(platform.room, &new.spec.requested)?;
    Ok(platform.storage.admit()?)
}

fn lease_uids(creation: &mut Creation) -> Result<()> {
    creation.lease = Some(creation.platform.uids.lease()?);
    Ok(())
}

fn make_directory(creation: &mut Creation) -> Result<()> {
    Ok(creation.platform.store.make_dir(&creation.new.id)?)
}

fn discard_directory(creation: &mut Creation) {
    if let Err(error) = discard(&creation.platform, &creation.new.id) {
        left_behind(&creation.new.id, &error);
        if let Some(lease) = creation.lease.take() {
            lease.keep();
        }
    }
}

fn prepare_layer(creation: &mut Creation) -> Result<()> {
    let Creation { platform, new, .. } = creation;
    let digest = Digest::parse(&new.spec.image_digest)?;
    let image = platform.images.resolve(&ImageRef::Digest(digest))?;
    let place = Place {
        dir: &platform.store.layer_dir(&new.id),
        image: &image.roots(),
    };
    Ok(platform.storage.prepare(place, new.spec.limits.disk())?)
}

fn write_record(creation: &mut Creation) -> Result<()> {
    let lease = creation.lease.as_ref().expect("an earlier step leased it");
    let record = Record {
        id: creation.new.id.clone(),
        created_at_ms: creation.new.created_at_ms,
        uid_base: lease.base(),
        spec: creation.new.spec.clone(),
    };
    creation.platform.store.write(&record)?;
    creation.record = Some(record);
    Ok(())
}

/// The directory holds next to nothing: it goes at once. Only then may the uid range be used again.
fn discard(platform: &Platform, id: &SandboxId) -> Result<()> {
    delete::put_out_of_sight(platform, id)?;
    delete::remove_all(platform, id)
}

/// Nobody is told but the log: the caller hears why the create failed.
fn left_behind(id: &SandboxId, error: &Error) {
    tracing::warn!(
        sandbox = %id, error = %error.chain(),
        "what a failed create left stays, and keeps its uid range, until the next start"
    );
}
