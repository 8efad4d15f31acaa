//! The limit on processes and threads.

use std::path::Path;

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::error::Result;
use cgroups_rs::fs::pid::PidController;

use super::Version;

/// Sets the limit and returns what is in force.
pub(super) fn set(path: &Path, version: Version, count: u64) -> Result<u64> {
    let pids = PidController::new(path.into(), path.into(), version == Version::V2);
    pids.set_pid_max(MaxValue::Value(i64::try_from(count).unwrap_or(i64::MAX)))?;
    Ok(match pids.get_pid_max()? {
        MaxValue::Value(count) => u64::try_from(count).unwrap_or(0),
        MaxValue::Max => u64::MAX,
    })
}
