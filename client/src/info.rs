//! What the daemon tells about a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use lodge_proto::v1 as pb;

use crate::error::{Error, Result};
use crate::idle::IdlePolicy;
use crate::wire::{duration, present, time};

/// A sandbox as it was when the daemon answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The daemon's id: 20 characters of `[a-z0-9]`; never reused.
    pub id: String,
    /// The caller's name.
    pub name: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// What it is doing.
    pub state: SandboxState,
    /// Why it is damaged; for one that its idle policy froze or stopped, that it was idle. Empty otherwise.
    pub state_reason: String,
    /// The name under which its image was asked for.
    pub image: String,
    /// The digest of its image.
    pub image_digest: String,
    /// When it was created; `None` if a damaged record does not tell.
    pub created_at: Option<SystemTime>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Variables that every run gets.
    pub env: BTreeMap<String, String>,
    /// Every limit, as asked for and as it is.
    pub limits: Vec<LimitStatus>,
    /// The hostname inside.
    pub hostname: String,
    /// Live runs.
    pub live_runs: u32,
    /// Streams of runs that are open.
    pub open_streams: u32,
    /// Set-user-id programs gain nothing inside.
    pub no_new_privileges: bool,
    /// Its files cannot be changed from inside.
    pub read_only_root: bool,
    /// When it is frozen, stopped and deleted for want of use.
    pub idle: IdlePolicy,
    /// How long it has not been used; `None` while it is in use.
    pub idle_for: Option<Duration>,
}

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SandboxState {
    /// Being made.
    Creating,
    /// It has processes, or can have one in about a millisecond.
    Running,
    /// No CPU is given to it.
    Frozen,
    /// It has files and no processes. The next run starts it.
    Stopped,
    /// It cannot be used; it can be deleted.
    Damaged,
    /// Being removed.
    Deleting,
}

/// One limit as asked for and as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The field's name in [`crate::Limits`].
    pub name: String,
    /// What the caller asked for; `None` if the default applies.
    pub requested: Option<i64>,
    /// What the kernel holds; `None` if nothing does.
    pub effective: Option<i64>,
    /// Whether it is held.
    pub enforcement: Enforcement,
    /// Why it is not enforced; empty if it is.
    pub reason: String,
}

/// How a limit is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// The kernel enforces it.
    Enforced,
    /// The host cannot enforce it; the caller had allowed that.
    Degraded,
    /// Not asked for, and the host or driver cannot enforce it.
    Unsupported,
}

impl SandboxInfo {
    pub(crate) fn from_wire(sandbox: pb::Sandbox) -> Result<Self> {
        let state = SandboxState::from_wire(sandbox.state())?;
        let limits = sandbox.limits.into_iter().map(LimitStatus::from_wire);
        Ok(Self {
            state,
            limits: limits.collect::<Result<_>>()?,
            created_at: sandbox.created_at.map(time).transpose()?,
            labels: sandbox.labels.into_iter().collect(),
            env: sandbox.env.into_iter().collect(),
            id: sandbox.id,
            name: sandbox.name,
            tenant: sandbox.tenant,
            state_reason: sandbox.state_reason,
            image: sandbox.image,
            image_digest: sandbox.image_digest,
            hostname: sandbox.hostname,
            live_runs: sandbox.live_runs,
            open_streams: sandbox.open_streams,
            no_new_privileges: sandbox.no_new_privileges,
            read_only_root: sandbox.read_only_root,
            idle: IdlePolicy::from_wire(sandbox.idle.unwrap_or_default())?,
            idle_for: sandbox.idle_for.map(duration).transpose()?,
        })
    }
}

impl LimitStatus {
    fn from_wire(limit: pb::LimitStatus) -> Result<Self> {
        let enforcement = match limit.enforcement() {
            pb::Enforcement::Enforced => Enforcement::Enforced,
            pb::Enforcement::Degraded => Enforcement::Degraded,
            pb::Enforcement::Unsupported => Enforcement::Unsupported,
            pb::Enforcement::Unspecified => return present(None, "an enforcement is unknown"),
        };
        Ok(Self {
            enforcement,
            name: limit.name,
            requested: limit.requested,
            effective: limit.effective,
            reason: limit.reason,
        })
    }
}

impl SandboxState {
    pub(crate) fn to_wire(self) -> i32 {
        let state = match self {
            Self::Creating => pb::SandboxState::Creating,
            Self::Running => pb::SandboxState::Running,
            Self::Frozen => pb::SandboxState::Frozen,
            Self::Stopped => pb::SandboxState::Stopped,
            Self::Damaged => pb::SandboxState::Damaged,
            Self::Deleting => pb::SandboxState::Deleting,
        };
        state.into()
    }

    pub(crate) fn from_wire(state: pb::SandboxState) -> Result<Self> {
        Ok(match state {
            pb::SandboxState::Creating => Self::Creating,
            pb::SandboxState::Running => Self::Running,
            pb::SandboxState::Frozen => Self::Frozen,
            pb::SandboxState::Stopped => Self::Stopped,
            pb::SandboxState::Damaged => Self::Damaged,
            pb::SandboxState::Deleting => Self::Deleting,
            pb::SandboxState::Unspecified => {
                return Err(Error::Protocol {
                    what: "a sandbox's state is unknown",
                });
            }
        })
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Stopped => "stopped",
            Self::Damaged => "damaged",
            Self::Deleting => "deleting",
        })
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Enforced => "enforced",
            Self::Degraded => "degraded",
            Self::Unsupported => "unsupported",
        })
    }
}
