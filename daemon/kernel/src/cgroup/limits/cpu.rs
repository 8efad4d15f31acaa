//! The limit on processor time: a quota per period.

use std::path::Path;

use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::error::Result;

use super::Version;

/// The period in microseconds: the kernel's default, short enough that a throttled run still answers.
const PERIOD_US: u64 = 100_000;
const MILLIS_PER_CPU: u64 = 1000;

/// Sets the limit in thousandths of one CPU and returns what is in force.
pub(super) fn set(path: &Path, version: Version, millis: u64) -> Result<u64> {
    let cpu = CpuController::new(path.into(), path.into(), version == Version::V2);
    let quota = millis.saturating_mul(PERIOD_US / MILLIS_PER_CPU);
    let quota = i64::try_from(quota).unwrap_or(i64::MAX);
    cpu.set_cfs_quota_and_period(Some(quota), Some(PERIOD_US))?;
    let in_force = u64::try_from(cpu.cfs_quota()?).unwrap_or(0);
    Ok(in_force.saturating_mul(MILLIS_PER_CPU) / cpu.cfs_period()?.max(1))
}
