//! What can fail between the daemon and a holder.

use std::io;

use lodge_holder::protocol::{PacketError, Versions};
use lodge_proto::holder::StepFailure;

/// A failure on the way to a holder or the launcher.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A step of making a sandbox failed. Nothing was started.
    #[error("cannot start the sandbox: step {} failed on {}: {}", .0.step, .0.object, io::Error::from_raw_os_error(.0.errno))]
    Step(StepFailure),
    /// The launcher is gone, and no other one is there yet.
    #[error("the launcher process is gone")]
    LauncherGone,
    /// No holder is there.
    #[error("the sandbox has no holder")]
    Gone,
    /// The holder speaks no version of the protocol that this daemon speaks.
    #[error("it speaks {theirs} of the protocol and this lodged {ours}: {}", newer(*.theirs, *.ours))]
    Protocol {
        /// What the holder speaks.
        theirs: Versions,
        /// What this daemon speaks.
        ours: Versions,
    },
    /// The holder did not answer in time.
    #[error("the holder did not answer")]
    Silent,
    /// A packet could not be sent or understood.
    #[error("talking to the holder")]
    Packet(#[from] PacketError),
    /// The operating system refused something.
    #[error("cannot {what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Which way out there is, where two ranges have no version in common.
fn newer(theirs: Versions, ours: Versions) -> &'static str {
    if theirs.oldest > ours.newest {
        "it was started by a newer lodged; upgrade lodged again to reach it"
    } else {
        "it was started by an older lodged; go back to that one to reach it, or delete it"
    }
}

impl HolderError {
    /// For `map_err`: what was tried, with the cause.
    pub(super) fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os {
            what,
            source: source.into(),
        }
    }
}
