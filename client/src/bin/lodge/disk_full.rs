//! A sandbox that had no room left when a run had ended: said on a line of its own, with the figures of now.

use lodge_client::{DiskFullPlace, Outcome, Sandbox, SandboxStats};

use crate::{terminal, units};

/// Says where there was no room. The figures are worth a call, but not an error.
pub(crate) async fn tell(outcome: &Outcome, sandbox: &Sandbox) {
    if outcome.disk_full.is_empty() {
        return;
    }
    let stats = sandbox.stats().await.ok();
    for place in &outcome.disk_full {
        terminal::note(&sentence(*place, stats.as_ref()));
    }
}

fn sentence(place: DiskFullPlace, stats: Option<&SandboxStats>) -> String {
    let bytes = stats.and_then(|stats| stats.disk_bytes.zip(stats.disk_limit_bytes));
    let files = stats.and_then(|stats| stats.inodes.zip(stats.inodes_limit));
    match (place, bytes, files) {
        (DiskFullPlace::Root, Some((used, limit)), _) => {
            let (used, limit) = (units::size(used), units::size(limit));
            format!("the sandbox's disk is full ({used} of {limit})")
        }
        (DiskFullPlace::RootInodes, _, Some((used, limit))) => {
            format!("the sandbox may have no more files ({used} of {limit})")
        }
        (DiskFullPlace::RootInodes, ..) => "the sandbox may have no more files".to_owned(),
        (DiskFullPlace::Shm, ..) => "the sandbox's /dev/shm is full".to_owned(),
        _ => "the sandbox's disk is full".to_owned(),
    }
}
