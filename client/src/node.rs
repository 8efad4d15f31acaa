//! The daemon and its host.

use std::fmt;

use lodge_proto::v1 as pb;

use crate::error::{Error, Result};

/// What the daemon is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The daemon's version.
    pub daemon_version: String,
    /// The API's version.
    pub api_version: String,
    /// The oldest client version that works with it.
    pub min_client_version: String,
    /// What it can do beyond version 1, by name.
    pub features: Vec<String>,
    /// The storage driver in use.
    pub storage_driver: String,
    /// How cgroups are mounted: `v2`, `hybrid` or `v1`.
    pub cgroup_mode: String,
    /// The default image's name.
    pub default_image: String,
}

/// What the doctor found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoctorReport {
    /// Every check, in the order in which they matter.
    pub checks: Vec<Check>,
    /// Whether sandboxes can be run: no check failed.
    pub ok: bool,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// A stable name.
    pub name: String,
    /// How it went.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// How to mend it; empty if there is nothing to mend.
    pub hint: String,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, with less safety or fewer features.
    Warn,
    /// Sandboxes cannot be run.
    Fail,
}

impl NodeInfo {
    pub(crate) fn from_wire(info: pb::InfoResponse) -> Self {
        Self {
            daemon_version: info.daemon_version,
            api_version: info.api_version,
            min_client_version: info.min_client_version,
            features: info.features,
            storage_driver: info.storage_driver,
            cgroup_mode: info.cgroup_mode,
            default_image: info.default_image,
        }
    }
}

impl DoctorReport {
    pub(crate) fn from_wire(report: pb::DoctorResponse) -> Result<Self> {
        let checks = report.checks.into_iter().map(Check::from_wire);
        Ok(Self {
            checks: checks.collect::<Result<_>>()?,
            ok: report.ok,
        })
    }
}

impl Check {
    fn from_wire(check: pb::Check) -> Result<Self> {
        let status = match check.status() {
            pb::CheckStatus::Ok => CheckStatus::Ok,
            pb::CheckStatus::Warn => CheckStatus::Warn,
            pb::CheckStatus::Fail => CheckStatus::Fail,
            pb::CheckStatus::Unspecified => {
                return Err(Error::Protocol {
                    what: "a check's status is unknown",
                });
            }
        };
        Ok(Self {
            status,
            name: check.name,
            detail: check.detail,
            hint: check.hint,
        })
    }
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}
