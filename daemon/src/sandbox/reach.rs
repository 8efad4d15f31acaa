//! Who is in a sandbox's holder group after a restart of the daemon, and whether it answers.
//!
//! It ends nothing: that a holder does not answer is no proof that it is dead, and with it every run would go.

use std::path::Path;
use std::time::{Duration, Instant};

use lodge_kernel::cgroup::SandboxGroup;

use crate::error::Result;
use crate::holder::{Holder, HolderError, KnownRun};

/// How long a holder is asked again that does not answer as it should. It may be on its way out, which takes a while where
/// many processes go with it; or the host is very busy.
const PATIENCE: Duration = Duration::from_secs(3);
/// From one try to the next.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Who was found in a sandbox's holder group.
pub(super) enum Reached {
    /// One that answers, with the runs that it knows.
    Holder(Holder, Vec<KnownRun>),
    /// No process, so none in the whole sandbox.
    Nobody,
    /// One that does not answer as it should. Its runs may be well: nothing of it is ended.
    Deaf(HolderError),
}

/// Looks who is there, and talks to it. Never ends anything.
pub(super) async fn reach(group: &SandboxGroup, socket: &Path) -> Result<Reached> {
    let begun = Instant::now();
    loop {
        // Looked at each time anew: one that is on its way out is gone at the next try.
        let Some(pid) = group.holder_pid()? else {
            return Ok(Reached::Nobody);
        };
        match Holder::reconnect(pid, socket).await {
            Ok((holder, known)) => return Ok(Reached::Holder(holder, known)),
            Err(error @ HolderError::Protocol { .. }) => return Ok(Reached::Deaf(error)),
            Err(error) if begun.elapsed() >= PATIENCE => return Ok(Reached::Deaf(error)),
            Err(_) => tokio::time::sleep(BETWEEN_TRIES).await,
        }
    }
}
