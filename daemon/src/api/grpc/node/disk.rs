//! `Disk` and `GrowPool`: figures on the wire.

use lodge_proto::v1 as wire;

use crate::api::grpc::sandbox::state_to_wire;
use crate::service::{NodeDisk, SandboxDisk};
use crate::storage::{Abilities, HostDisk};

/// All but the token of the next page.
pub(super) fn disk_to_wire(disk: NodeDisk) -> wire::DiskResponse {
    wire::DiskResponse {
        host: Some(host_to_wire(disk.host)),
        images_bytes: disk.images_bytes,
        logs_bytes: disk.logs_bytes,
        abilities: abilities_to_wire(disk.abilities),
        sandboxes: disk.sandboxes.into_iter().map(sandbox_to_wire).collect(),
        next_page_token: String::new(),
    }
}

pub(super) fn host_to_wire(host: HostDisk) -> wire::HostDisk {
    wire::HostDisk {
        driver: host.driver.to_owned(),
        path: host.path.to_string_lossy().into_owned(),
        size_bytes: host.size_bytes,
        used_bytes: host.used_bytes,
        host_free_bytes: host.host_free_bytes,
        reserve_bytes: host.reserve_bytes,
        being_removed: host.being_removed,
    }
}

fn abilities_to_wire(abilities: Abilities) -> Vec<wire::StorageAbility> {
    [
        ("limit_bytes", abilities.limit_bytes),
        ("limit_inodes", abilities.limit_inodes),
        ("grow", abilities.grow),
    ]
    .into_iter()
    .map(|(name, able)| wire::StorageAbility {
        name: name.to_owned(),
        supported: able.is_ok(),
        reason: able.err().unwrap_or_default().to_owned(),
    })
    .collect()
}

fn sandbox_to_wire(sandbox: SandboxDisk) -> wire::SandboxDisk {
    let usage = sandbox.usage;
    wire::SandboxDisk {
        id: sandbox.identity.id.into(),
        name: sandbox.identity.name.into(),
        state: state_to_wire(sandbox.state).into(),
        used_bytes: usage.bytes,
        limit_bytes: usage.limit_bytes,
        inodes: usage.inodes,
        limit_inodes: usage.inodes_limit,
    }
}
