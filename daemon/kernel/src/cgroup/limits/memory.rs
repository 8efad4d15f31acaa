//! The memory limit: of memory, and of memory and swap together, so that swap gives nothing on top.

use std::path::Path;

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::error::Result;
use cgroups_rs::fs::memory::MemController;

use super::Version;
use crate::cgroup::usage::single_value;

/// Sets the limit in bytes and returns what is in force: the kernel rounds down to whole pages.
pub(super) fn set(path: &Path, version: Version, bytes: u64) -> Result<u64> {
    let memory = MemController::new(path.into(), path.into(), version == Version::V2);
    let limit = i64::try_from(bytes).unwrap_or(i64::MAX);
    match version {
        Version::V1 => set_v1(&memory, path, limit)?,
        Version::V2 => {
            memory.set_limit(limit)?;
            if path.join("memory.swap.max").exists() {
                memory.set_memswap_limit(0)?;
            }
        }
    }
    in_force(&memory, path, version)
}

/// The sum of memory and swap may never be below the memory limit, so the order depends on the direction of the
/// change: the first write succeeds only when raising, and the last one always has to. Without swap accounting in
/// the kernel the file is missing.
fn set_v1(memory: &MemController, path: &Path, limit: i64) -> Result<()> {
    let counts_swap = path.join("memory.memsw.limit_in_bytes").exists();
    if counts_swap {
        memory.set_memswap_limit(limit).ok();
    }
    memory.set_limit(limit)?;
    if counts_swap {
        memory.set_memswap_limit(limit)?;
    }
    Ok(())
}

/// Read directly: `memory_stat` of cgroups-rs reads and parses a dozen files for this one figure.
fn in_force(memory: &MemController, path: &Path, version: Version) -> Result<u64> {
    match version {
        Version::V1 => {
            let text = std::fs::read_to_string(path.join("memory.limit_in_bytes"));
            Ok(text.ok().and_then(|text| single_value(&text)).unwrap_or(0))
        }
        Version::V2 => Ok(match memory.get_mem()?.max {
            Some(MaxValue::Value(bytes)) => u64::try_from(bytes).unwrap_or(0),
            _ => 0,
        }),
    }
}
