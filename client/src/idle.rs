//! What becomes of a sandbox that nobody uses, and what a call does that needs a frozen one.

use std::time::Duration;

use lodge_proto::v1 as pb;

use crate::error::Result;
use crate::wire::{duration, duration_on_wire};

/// When a sandbox is frozen, stopped and deleted for want of use. Each time counts from the end of the last use: a live
/// run and an open stream are use, looking at it is not. [`Duration::ZERO`] means never. `None` takes the server's
/// default for a new sandbox, and in an update leaves it as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Frozen after this long: no CPU for its processes until the next call that needs it.
    pub freeze_after: Option<Duration>,
    /// Stopped after this long: its processes end, its files stay.
    pub stop_after: Option<Duration>,
    /// Deleted, with its files, after this long.
    pub delete_after: Option<Duration>,
}

/// What a call does that needs a frozen sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResumeMode {
    /// It thaws it.
    #[default]
    Auto,
    /// It is refused: FAILED_PRECONDITION, reason `SANDBOX_IS_FROZEN`.
    Error,
}

impl IdlePolicy {
    /// Absent if nothing is set.
    pub(crate) fn into_wire(self) -> Result<Option<pb::IdlePolicy>> {
        if self == Self::default() {
            return Ok(None);
        }
        let field = |what, after: Option<Duration>| {
            after.map(|after| duration_on_wire(what, after)).transpose()
        };
        Ok(Some(pb::IdlePolicy {
            freeze_after: field("freeze_after", self.freeze_after)?,
            stop_after: field("stop_after", self.stop_after)?,
            delete_after: field("delete_after", self.delete_after)?,
        }))
    }

    pub(crate) fn from_wire(policy: pb::IdlePolicy) -> Result<Self> {
        Ok(Self {
            freeze_after: policy.freeze_after.map(duration).transpose()?,
            stop_after: policy.stop_after.map(duration).transpose()?,
            delete_after: policy.delete_after.map(duration).transpose()?,
        })
    }
}

impl ResumeMode {
    pub(crate) fn to_wire(self) -> i32 {
        let mode = match self {
            Self::Auto => pb::ResumeMode::Auto,
            Self::Error => pb::ResumeMode::Error,
        };
        mode.into()
    }
}
