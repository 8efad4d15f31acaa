//! What is stored on this host, and how much there is room for: `lodge df`, and a pool that grows.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::sandbox::handle::Identity;
use crate::sandbox::platform::Platform;
use crate::sandbox::state::State;
use crate::sandbox::stats::disk_usage;
use crate::sandbox::{Handle, removals_waiting};
use crate::storage::{Abilities, DiskUsage, HostDisk, Storage};

/// What is told of a panic.
const FAILED: &str = "looking at the disk failed";

/// What is stored on this host.
#[derive(Debug, Clone)]
pub struct NodeDisk {
    /// What all sandboxes share.
    pub host: HostDisk,
    /// What the storage driver can hold and do.
    pub abilities: Abilities,
    /// Bytes of the files of all images.
    pub images_bytes: u64,
    /// Bytes on disk of the logs of all ended runs that are kept.
    pub logs_bytes: u64,
    /// Each sandbox that was asked for.
    pub sandboxes: Vec<SandboxDisk>,
}

/// What the files of one sandbox take.
#[derive(Debug, Clone)]
pub struct SandboxDisk {
    /// Which one.
    pub identity: Identity,
    /// What it is doing.
    pub state: State,
    /// What they take, and may take.
    pub usage: DiskUsage,
}

/// Looks at the host's storage and at these sandboxes.
pub(super) async fn look(
    platform: &Arc<Platform>,
    sandboxes: Vec<Handle>,
    logs_bytes: u64,
) -> Result<NodeDisk> {
    platform
        .on_thread(FAILED, move |platform| {
            let images = platform.images.list()?;
            let sandboxes = sandboxes.iter().map(|handle| SandboxDisk {
                identity: handle.identity().clone(),
                state: handle.state(),
                usage: disk_usage(platform, handle.id(), handle.live_now().as_ref()),
            });
            Ok(NodeDisk {
                host: with_waiting(platform.storage.host()?),
                abilities: platform.storage.abilities(),
                images_bytes: images.iter().map(|image| image.size_bytes).sum(),
                logs_bytes,
                sandboxes: sandboxes.collect(),
            })
        })
        .await
}

/// Gives the pool this size.
pub(super) async fn grow(platform: &Arc<Platform>, bytes: u64) -> Result<HostDisk> {
    platform
        .on_thread(FAILED, move |platform| {
            grown(&*platform.storage, bytes).map(with_waiting)
        })
        .await
}

/// The driver knows those whose files are removed and whose space has not come back.
fn with_waiting(host: HostDisk) -> HostDisk {
    HostDisk {
        being_removed: host.being_removed + removals_waiting(),
        ..host
    }
}

/// The driver is asked first whether it has a pool at all: what size that has is of no use otherwise.
fn grown(storage: &dyn Storage, bytes: u64) -> Result<HostDisk> {
    if storage.abilities().grow.is_ok() {
        let size = storage.host()?.size_bytes;
        if bytes < size {
            return Err(Error::invalid(
                "POOL_TOO_SMALL",
                format!("the pool has {size} bytes already, more than the {bytes} asked for"),
            )
            .hint("a pool only grows; what it does not need it gives back to the host by itself"));
        }
    }
    Ok(storage.grow(bytes)?)
}
