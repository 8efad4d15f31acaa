//! What can fail between the daemon and a holder.

use std::io;

use lodge_holder::protocol::PacketError;
use lodge_proto::holder::StepFailure;

/// A failure on the way to a holder or the launcher.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A step of making a sandbox failed. Nothing was started.
    #[error("cannot start the sandbox: step {} failed on {}: {}", .0.step, .0.object, io::Error::from_raw_os_error(.0.errno))]
    Step(StepFailure),
    /// The launcher is gone; new sandboxes cannot be started until lodged is restarted.
    #[error("the launcher process is gone")]
    LauncherGone,
    /// No holder is there.
    #[error("the sandbox has no holder")]
    Gone,
    /// The holder speaks another version of the protocol.
    #[error("the holder speaks protocol {0}, which this daemon does not understand")]
    Protocol(u32),
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

impl HolderError {
    /// For `map_err`: what was tried, with the cause.
    pub(super) fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os {
            what,
            source: source.into(),
        }
    }
}
