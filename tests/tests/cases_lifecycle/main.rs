//! Cases H, K2 and F6: pausing, the idle policy, changes, and races of the lifecycle's calls.

mod delete; // from every state, and beside an acquire
mod idle; // what becomes of a sandbox that nobody uses
mod pause; // what it keeps, and what happens beside it
mod settings; // limits, labels and policy

use anyhow::Result;
use lodge_proto::v1 as pb;
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};

/// Waits until calls reach the daemon that was started again.
async fn reconnected(daemon: &Daemon) -> Result<()> {
    until("the daemon answers", SOON, || async {
        Ok(daemon.api().health().await.ok())
    })
    .await
    .map(drop)
}

fn policy(freeze: i64, stop: i64, delete: i64) -> pb::IdlePolicy {
    pb::IdlePolicy {
        freeze_after: Some(seconds(freeze)),
        stop_after: Some(seconds(stop)),
        delete_after: Some(seconds(delete)),
    }
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

/// What the kernel holds of a limit.
fn limit(sandbox: &pb::Sandbox, name: &str) -> Option<i64> {
    let found = sandbox.limits.iter().find(|limit| limit.name == name);
    found.and_then(|limit| limit.effective)
}
