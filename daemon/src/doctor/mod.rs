//! Whether this host can run sandboxes: each kernel feature that is used, settings that make it safer, and a probe sandbox
//! that is really booted. What fails names what to do about it.

/// Bounds on all sandboxes together.
mod bounds;
/// Kernel features.
mod kernel;
/// A sandbox that is booted, runs one command and goes.
mod probe;
/// What was found.
mod report;
/// Settings of the host that make it safer.
mod settings;
/// Where the files of sandboxes are.
mod storage;

pub use probe::Bench;
pub use report::{Check, Outcome, Report};
pub use storage::Files;

use crate::error::Result;
use crate::sandbox::platform::Platform;

/// Examines the host of a running daemon.
pub async fn examine(platform: &Platform) -> Report {
    examine_with(Bench::of(platform), Files::of(platform)).await
}

/// Examines this host. A host on which not even the parts for a probe can be had fails that check.
pub async fn examine_with(bench: Result<Bench>, files: Files) -> Report {
    let mut checks = look(files).await;
    match bench {
        Ok(bench) => {
            let parent = bench.cgroup_parent.clone();
            checks.extend(blocking(move || bounds::checks(&parent)).await);
            checks.push(bench.probe().await);
        }
        Err(error) => checks.push(probe::failed(&error)),
    }
    Report { checks }
}

/// A host on which no sandbox can be run.
#[derive(Debug, thiserror::Error)]
#[error("this host cannot run sandboxes:{}", list(.0))]
pub struct UnfitHost(Vec<Check>);

fn list(checks: &[Check]) -> String {
    let line = |check: &Check| {
        format!(
            "\n  {}: {}\n    hint: {}",
            check.name, check.detail, check.hint
        )
    };
    checks.iter().map(line).collect()
}

/// Refuses a host that lacks what no sandbox can do without. There is no flag by which it is done without.
///
/// # Errors
/// Everything that is missing, each with how to mend it.
pub fn refuse_unfit_host() -> Result<(), UnfitHost> {
    let mut missing = kernel::checks();
    missing.retain(|check| check.outcome == Outcome::Fail);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(UnfitHost(missing))
    }
}

/// Everything that can be told by looking.
async fn look(files: Files) -> Vec<Check> {
    blocking(move || {
        let mut checks = kernel::checks();
        checks.extend(files.checks());
        checks.extend(settings::checks());
        checks
    })
    .await
}

async fn blocking(look: impl FnOnce() -> Vec<Check> + Send + 'static) -> Vec<Check> {
    tokio::task::spawn_blocking(look)
        .await
        .unwrap_or_else(|error| vec![Check::fail("doctor", error.to_string(), "")])
}
