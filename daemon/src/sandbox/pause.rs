//! Pausing on this host: the runs' cgroup is frozen, and PID 1, which is outside it, is told that deadlines stand still.
//!
//! The order is what makes a pause that is cut in the middle harmless: PID 1 is told before the freeze and after the thaw,
//! so that no run is frozen while its deadline counts down. The next daemon finds out from the cgroup which it is, and
//! tells PID 1 again; where there is none, PID 1 looks by itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::host::Host;
use super::live::Live;
use super::runtime::Motion;
use crate::error::Result;
use crate::fault;
use crate::holder::Clocks;

/// How long the kernel may take to freeze all processes; it takes less than a millisecond unless one is stuck in it.
pub(super) const SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// Reclaims at once: each may keep a thread and a disk busy for seconds, and many sandboxes may be frozen together.
static RECLAIMS: Semaphore = Semaphore::const_new(4);

/// Freezes the runs, or leaves them as they were.
pub(super) async fn freeze(host: &Host, live: Live) -> Result<()> {
    let frozen = try_to_freeze(host, &live).await;
    if frozen.is_err()
        && let Err(error) = thaw(host, live).await
    {
        // Whoever asked hears why it did not freeze.
        tracing::error!(error = %error.chain(), "a freeze was not undone");
    }
    frozen
}

async fn try_to_freeze(host: &Host, live: &Live) -> Result<()> {
    fault::point("pause.tell holder")?;
    live.holder.set_clocks(Clocks::Stopped).await?;
    fault::point("pause.tell holder.done")?;
    let group = Arc::clone(&live.cgroup);
    host.on_thread(move |_| fault::around("pause.freeze", || Ok(group.freeze(SETTLES_WITHIN)?)))
        .await
}

/// Lets the runs go on.
pub(super) async fn thaw(host: &Host, live: Live) -> Result<()> {
    let group = Arc::clone(&live.cgroup);
    let thawed = host.on_thread(move |_| {
        let thawed: Result<()> = fault::around("resume.thaw", || Ok(group.thaw()?));
        match (thawed, group.is_told_to_freeze()) {
            // Whatever failed came after it: deadlines must not stand while it runs.
            (Err(error), Ok(false)) => {
                tracing::warn!(error = %error.chain(), "thawed all the same");
                Ok(())
            }
            (thawed, _) => thawed,
        }
    });
    thawed.await?;
    live.holder.set_clocks(Clocks::Going).await?;
    Ok(())
}

/// Gives memory back to the host.
pub(super) async fn reclaim(host: &Host, live: Live) -> Option<u64> {
    let turn = RECLAIMS
        .acquire()
        .await
        .expect("the semaphore is never closed");
    let reclaimed = host.on_thread(move |_| {
        let _turn = turn;
        fault::around("pause.reclaim", || Ok(live.cgroup.reclaim()))
    });
    reclaimed.await.unwrap_or_else(|error| {
        // It is frozen all the same.
        tracing::warn!(error = %error.chain(), "memory of a frozen sandbox not given back");
        None
    })
}

/// Settles a sandbox that an earlier daemon left, frozen or half-way to it, and sets its deadlines by that.
pub(super) async fn settle(host: &Host, live: &Live) -> Result<Motion> {
    let group = Arc::clone(&live.cgroup);
    let motion = host.on_thread(move |_| {
        if !group.is_told_to_freeze()? {
            return Ok(Motion::Running);
        }
        // It may have been on its way; one that does not get there goes on.
        match group.freeze(SETTLES_WITHIN) {
            Ok(()) => Ok(Motion::Frozen),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "thawed");
                Ok(Motion::Running)
            }
        }
    });
    let motion = motion.await?;
    let clocks = match motion {
        Motion::Running => Clocks::Going,
        Motion::Frozen => Clocks::Stopped,
    };
    live.holder.set_clocks(clocks).await?;
    Ok(motion)
}
