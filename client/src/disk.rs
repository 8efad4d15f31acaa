//! What is stored on the daemon's host, and how much of it each sandbox has.

use lodge_proto::v1 as pb;

use crate::client::Client;
use crate::error::Result;
use crate::info::SandboxState;
use crate::wire::{CALL_DEADLINE, answer, present};

/// Sandboxes asked for at once; the server's maximum.
const PAGE: i32 = 1000;

/// What is stored on the daemon's host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeDisk {
    /// What all sandboxes share.
    pub host: HostDisk,
    /// Bytes of the files of all images. What images share counts for each of them.
    pub images_bytes: u64,
    /// Bytes on disk of the logs of all ended runs that are kept.
    pub logs_bytes: u64,
    /// What the storage driver can hold and do.
    pub abilities: Vec<StorageAbility>,
    /// The caller's sandboxes, by name.
    pub sandboxes: Vec<SandboxDisk>,
}

/// What all sandboxes of a daemon share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostDisk {
    /// The storage driver.
    pub driver: String,
    /// The directory or pool file in which the files of sandboxes lie; empty if the driver does not say.
    pub path: String,
    /// Size of the pool or, without one, of the file system, in bytes.
    pub size_bytes: u64,
    /// What is used of it, in bytes, by whomever.
    pub used_bytes: u64,
    /// What the host's own file system has free, in bytes.
    pub host_free_bytes: u64,
    /// What of that is kept back from sandboxes, in bytes.
    pub reserve_bytes: u64,
    /// Deleted sandboxes whose space has not come back yet.
    pub being_removed: u64,
}

/// One thing that a storage driver can hold or do, or cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageAbility {
    /// `limit_bytes`, `limit_inodes` or `grow`.
    pub name: String,
    /// Whether it can.
    pub supported: bool,
    /// Why not; empty if it can.
    pub reason: String,
}

/// What the files of one sandbox take. A figure that the storage driver does not have is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxDisk {
    /// The sandbox's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: SandboxState,
    /// Bytes on disk, those of the image excluded.
    pub used_bytes: Option<u64>,
    /// The limit that is held, in bytes.
    pub limit_bytes: Option<u64>,
    /// Files, directories and links.
    pub inodes: Option<u64>,
    /// The limit that is held.
    pub limit_inodes: Option<u64>,
}

impl Client {
    /// What is stored on the daemon's host, and how much of it each sandbox has. Never wakes one.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn disk(&self) -> Result<NodeDisk> {
        let mut disk = self.disk_page(String::new()).await?;
        let mut sandboxes = Vec::new();
        loop {
            for sandbox in std::mem::take(&mut disk.sandboxes) {
                sandboxes.push(SandboxDisk::from_wire(sandbox)?);
            }
            if disk.next_page_token.is_empty() {
                return NodeDisk::from_wire(disk, sandboxes);
            }
            disk = self.disk_page(disk.next_page_token).await?;
        }
    }

    async fn disk_page(&self, page_token: String) -> Result<pb::DiskResponse> {
        let request = pb::DiskRequest {
            page_size: PAGE,
            page_token,
        };
        answer(Some(CALL_DEADLINE), self.node().disk(request)).await
    }

    /// Gives the pool in which sandboxes and images are stored this size, in bytes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is larger already; UNIMPLEMENTED if there is no pool.
    pub async fn grow_pool(&self, bytes: u64) -> Result<HostDisk> {
        let request = pb::GrowPoolRequest { bytes };
        let grown = answer(Some(CALL_DEADLINE), self.node().grow_pool(request)).await?;
        let host = present(grown.host, "a grown pool is missing")?;
        Ok(HostDisk::from_wire(host))
    }
}

impl NodeDisk {
    fn from_wire(disk: pb::DiskResponse, sandboxes: Vec<SandboxDisk>) -> Result<Self> {
        let host = present(disk.host, "the host's disk is missing")?;
        let abilities = disk.abilities.into_iter().map(|ability| StorageAbility {
            name: ability.name,
            supported: ability.supported,
            reason: ability.reason,
        });
        Ok(Self {
            host: HostDisk::from_wire(host),
            images_bytes: disk.images_bytes,
            logs_bytes: disk.logs_bytes,
            abilities: abilities.collect(),
            sandboxes,
        })
    }
}

impl HostDisk {
    fn from_wire(host: pb::HostDisk) -> Self {
        Self {
            driver: host.driver,
            path: host.path,
            size_bytes: host.size_bytes,
            used_bytes: host.used_bytes,
            host_free_bytes: host.host_free_bytes,
            reserve_bytes: host.reserve_bytes,
            being_removed: host.being_removed,
        }
    }
}

impl SandboxDisk {
    fn from_wire(sandbox: pb::SandboxDisk) -> Result<Self> {
        Ok(Self {
            state: SandboxState::from_wire(sandbox.state())?,
            id: sandbox.id,
            name: sandbox.name,
            used_bytes: sandbox.used_bytes,
            limit_bytes: sandbox.limit_bytes,
            inodes: sandbox.inodes,
            limit_inodes: sandbox.limit_inodes,
        })
    }
}
