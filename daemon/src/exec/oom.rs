//! Want of memory ends a whole run. On cgroup v2 the kernel does that; on v1 it ends one process and tells before it does, and this
//! ends the rest. What the result says is the kernel's counter alone (see `end`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use lodge_kernel::cgroup::SandboxGroup;
use tokio::io::Interest;

use super::run::Run;
use super::table::RunTable;
use crate::reactor;
use crate::sandbox::Live;

/// The counters are looked at so long after each word: the kernel tells before it kills.
const LOOKS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(100),
];

/// Ends what is left of runs that want of memory has hit, for as long as the sandbox is started. Does nothing the second time.
pub(super) fn watch(live: &Live, runs: &RunTable) {
    if let Some(events) = live.oom.take() {
        tokio::spawn(keep(events, Arc::clone(&live.cgroup), runs.clone()));
    }
}

async fn keep(events: OwnedFd, group: Arc<SandboxGroup>, runs: RunTable) {
    let events = match reactor::register(events, Interest::READABLE) {
        Ok(events) => events,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "want of memory is not seen before a run's end");
            return;
        }
    };
    // An earlier daemon may have gone between the kill and the rest.
    look(&runs).await;
    while group.has_memory_v1() {
        let Ok(mut ready) = events.readable().await else {
            return;
        };
        let _ = nix::unistd::read(&events, &mut [0; 8]);
        ready.clear_ready();
        drop(ready);
        for pause in LOOKS {
            tokio::time::sleep(pause).await;
            look(&runs).await;
        }
    }
}

async fn look(runs: &RunTable) {
    let runs = runs.with_processes().await;
    if runs.is_empty() {
        return;
    }
    let looked = tokio::task::spawn_blocking(move || {
        runs.iter().for_each(Run::end_if_out_of_memory);
    });
    if let Err(error) = looked.await {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "runs that want of memory has hit are not ended");
    }
}
