//! From settings to the parts that sandboxes need. Blocks; called once, before anything is served.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use lodge_kernel::cgroup;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::doctor::Bench;
use crate::error::{Error, Result};
use crate::exec::{Engine, EngineSettings, TimeoutPolicy};
use crate::holder::{self, Launcher};
use crate::image::{Beneath, DiskRoom, Form, ImageStore};
use crate::sandbox::platform::{CREATES_AT_ONCE, Platform, STARTS_AT_ONCE};
use crate::sandbox::quota::Quotas;
use crate::sandbox::uid_range::{UidRanges, survey};
use crate::storage::btrfs::Btrfs;
use crate::storage::choice;
use crate::storage::overlay::{self, Directories, Overlay};
use crate::storage::pool::{self, Pool};
use crate::storage::{Choice, Driver, Storage};
use crate::store::{PROBE_DIR, Store, Upgrade, owner};

/// The key by which bodies of requests are hashed, in the state directory.
const REQUEST_KEY: &str = "request.key";

/// Everything that the sandboxes of a daemon need. The caller holds the lock on the state directory.
pub fn platform(config: &Config, choice: Choice, launcher: Launcher) -> Result<Platform> {
    let upgrade = Upgrade {
        idle: config.idle,
        limits: config.limits,
    };
    let store = Store::open(&config.state_dir)?.upgrading_with(upgrade);
    let storage = storage(config, &choice)?;
    choice::remember(&config.state_dir, choice.driver)?;
    sweep(storage.as_ref(), &store)?;
    // What a probe left that was killed.
    Directories.remove(&config.state_dir, PROBE_DIR)?;
    make_holders_dir(&config.holders_dir())?;
    let cgroup_host = cgroup::Host::detect()?.mount_unified(&config.runtime_dir)?;
    let timeouts = TimeoutPolicy {
        default: config.default_timeout,
        maximum: config.max_timeout,
    };
    let settings = EngineSettings {
        timeouts,
        logs_max_bytes: config.run_logs_max_bytes,
    };
    let quotas = Quotas::new(config.caps);
    let engine = Engine::new(
        settings,
        quotas.clone(),
        &config.state_dir.join(REQUEST_KEY),
    );
    engine.keep_house();
    let owner = owner(&config.state_dir)?;
    let images = images(&choice, Arc::clone(&storage))?;
    let cgroup_parent = cgroup_host.parent(&config.cgroup_parent)?.owned_by(&owner);
    let room = cgroup::Room::of_host();
    bound_all(&cgroup_parent, room);
    Ok(Platform {
        store,
        storage,
        images,
        storage_choice: choice,
        engine,
        launcher,
        cgroup_parent,
        room,
        owner,
        cgroup_host,
        cgroup_parent_name: config.cgroup_parent.clone(),
        uids: UidRanges::new(config.uid_block),
        holders_dir: config.holders_dir(),
        default_limits: config.limits,
        default_idle: config.idle,
        quotas,
        default_image: config.default_image.clone(),
        starts: Semaphore::new(STARTS_AT_ONCE),
        creates: Semaphore::new(CREATES_AT_ONCE),
    })
}

/// Has the kernel keep a reserve for the host from all sandboxes together. Where it cannot, each has its own limits all the same.
fn bound_all(parent: &cgroup::Parent, room: cgroup::Room) {
    for bound in parent.hold(room) {
        if let Err(why) = bound.effective {
            tracing::warn!(controller = %bound.controller, why, "all sandboxes together have no bound");
        }
    }
}

/// The driver that has the files of sandboxes.
fn storage(config: &Config, choice: &Choice) -> Result<Arc<dyn Storage>> {
    tracing::info!(driver = %choice.driver, why = choice.why, "storage");
    let (state_dir, reserve_bytes) = (&config.state_dir, config.storage.reserve_bytes);
    let Some(kind) = &choice.pool else {
        let settings = overlay::Settings {
            state_dir: state_dir.clone(),
            reserve_bytes,
        };
        return Ok(Arc::new(Overlay::open(settings)?));
    };
    let pool = Pool::open(pool::Settings {
        state_dir,
        kind,
        bytes: config.storage.pool_bytes,
    })?;
    Ok(Arc::new(Btrfs::open(pool, reserve_bytes)?))
}

/// The images, which leave room also on the disk that has a pool's file.
fn images(choice: &Choice, storage: Arc<dyn Storage>) -> Result<ImageStore> {
    let store = ImageStore::open_as(&choice.images_dir, form(choice))?;
    Ok(store.above(Beneath::new(move || {
        let beneath = storage.beneath().map_err(io::Error::other)?;
        Ok(beneath.map(|disk| DiskRoom {
            free_bytes: disk.free_bytes,
            reserve_bytes: disk.reserve_bytes,
        }))
    })))
}

/// Removes what no sandbox has, before anything is created: what is being made has no record yet, and would pass for nobody's.
fn sweep(storage: &dyn Storage, store: &Store) -> Result<()> {
    let emptied = store.emptied_layers()?;
    if emptied.is_empty() {
        return Ok(storage.sweep(&store.layer_dirs()?)?);
    }
    // Once they are back, theirs is still there.
    tracing::warn!(
        dirs = ?emptied,
        "what seems to be nobody's stays: it may belong to sandboxes whose files are missing"
    );
    Ok(())
}

/// How the driver takes images.
fn form(choice: &Choice) -> Form {
    match choice.driver {
        Driver::Btrfs => Form::Subvolumes,
        Driver::Overlay => Form::Directories,
    }
}

/// What a probe needs, beside a daemon that may be running with the same settings.
pub fn bench(config: &Config, launcher: Launcher) -> Result<Bench> {
    make_holders_dir(&config.holders_dir())?;
    let uids = UidRanges::new(config.uid_block);
    // Ranges in which something lives are that daemon's.
    let found = survey(config.uid_block, &BTreeSet::new())
        .map_err(|e| Error::internal("UID_CHECK_FAILED", "cannot check the uid ranges", e))?;
    for base in found.occupied {
        // False only if it was claimed already.
        let _ = uids.claim(base);
    }
    let cgroup_host = cgroup::Host::detect()?.mount_unified(&config.runtime_dir)?;
    Ok(Bench {
        launcher,
        cgroup_parent: cgroup_host.parent(&config.cgroup_parent)?,
        uids,
        dir: config.state_dir.join(PROBE_DIR),
        holders_dir: config.holders_dir(),
    })
}

fn make_holders_dir(dir: &Path) -> Result<()> {
    holder::make_dir(dir).map_err(|error| {
        Error::internal(
            "RUNTIME_DIR_UNUSABLE",
            format!("cannot create {}", dir.display()),
            error,
        )
    })
}
