//! Whether this host can run sandboxes: each kernel feature that is used, settings that make it safer, and a probe sandbox
//! that is really booted. What fails names what to do about it.

/// Kernel features.
mod kernel;
/// A sandbox that is booted, runs one command and goes.
mod probe;
/// What was found.
mod report;
/// Settings of the host that make it safer.
mod settings;

pub use probe::Bench;
pub use report::{Check, Outcome, Report};

use crate::error::Result;
use crate::sandbox::platform::Platform;

/// Examines the host of a running daemon.
pub async fn examine(platform: &Platform) -> Report {
    examine_with(Bench::of(platform)).await
}

/// Examines this host. A host on which not even the parts for a probe can be had fails that check.
pub async fn examine_with(bench: Result<Bench>) -> Report {
    let mut checks = look().await;
    checks.push(match bench {
        Ok(bench) => bench.probe().await,
        Err(error) => probe::failed(&error),
    });
    Report { checks }
}

/// Everything that can be told by looking.
async fn look() -> Vec<Check> {
    let looked = tokio::task::spawn_blocking(|| {
        let mut checks = kernel::checks();
        checks.extend(settings::checks());
        checks
    });
    looked
        .await
        .unwrap_or_else(|error| vec![Check::fail("doctor", error.to_string(), "")])
}
