//! Waiting for an event, with a deadline. Nothing here sleeps in the hope that something has happened by then.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a test waits for what takes milliseconds on an idle host: a machine that builds beside it takes seconds. Only
/// a test that fails waits this long.
pub const SOON: Duration = Duration::from_secs(20);
/// Between two looks at a condition that the kernel or the API cannot announce.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Looks until `look` gives something; fails with `what` after `deadline`.
pub async fn until<T, F, Fut>(what: &str, deadline: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if start.elapsed() > deadline {
            bail!("not within {deadline:?}: {what}");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// As [`until`], for a look that does not wait.
pub fn until_blocking<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > deadline {
            bail!("not within {deadline:?}: {what}");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
