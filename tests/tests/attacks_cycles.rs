//! Attack R30: sandboxes come and go thousands of times, and nothing of the host is used up. `make soak CYCLES=20000`
//! does it at ten times the length.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_tests::api::Api;
use lodge_tests::daemon::Daemon;
use lodge_tests::footprint::Footprint;
use lodge_tests::wait::until;
use tokio::task::JoinSet;

/// Cycles that are measured. A slot has user ids for 128 sandboxes, so that a lease that is not given back would end
/// this soon.
const CYCLES: usize = 2000;
/// Cycles before the first measurement: pools of threads and of memory grow to their size.
const WARM_UP: usize = 200;
/// Cycles at once.
const AT_ONCE: usize = 8;
/// Memory that the daemon and its launcher may each hold more after the cycles than before.
const MORE_MEMORY_KIB: u64 = 10 << 10;
/// Directories go in the background.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

async fn cycle(api: Api, name: String) -> Result<()> {
    let room = api.room(&name).await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(room.delete().await?)
}

async fn cycles(daemon: &Daemon, count: usize) -> Result<()> {
    let socket = daemon.slot().home().join("lodged.sock");
    let mut workers = JoinSet::new();
    for worker in 0..AT_ONCE {
        let api = Api::new(&socket)?;
        workers.spawn(async move {
            for number in 0..count / AT_ONCE {
                let done = cycle(api.clone(), format!("cycle-{worker}")).await;
                done.with_context(|| format!("cycle {number} of worker {worker}"))?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    Ok(())
}

/// What is used when nothing is going on: no removal under way, every thread waits for work.
async fn at_rest(daemon: &Daemon) -> Result<Footprint> {
    until("the daemon is at rest", SETTLED_WITHIN, || async {
        let now = Footprint::of(daemon)?;
        let at_rest = now.trash == 0 && now.processes == 0 && now.busy_threads == 0;
        Ok(at_rest.then_some(now))
    })
    .await
    .with_context(|| format!("{:?}", Footprint::of(daemon)))
}

/// 2,000 sandboxes are created, used and deleted: no group, mount, namespace, lease, descriptor, thread, file or process
/// is left, and memory has not grown by more than 10 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r30_two_thousand_cycles_leak_nothing() -> Result<()> {
    let daemon = Daemon::with_config("log_level = \"warn\"").await?;
    cycles(&daemon, WARM_UP).await?;
    let before = at_rest(&daemon).await?;
    let log_before = fs::read_to_string(daemon.log_file())?;
    cycles(&daemon, CYCLES).await?;
    let after = at_rest(&daemon).await?;
    let grown = |now: u64, then: u64| now.saturating_sub(then);
    for (name, figure) in Footprint::FIGURES {
        let more = grown(figure(&after), figure(&before));
        let most = if name.contains("rss") {
            MORE_MEMORY_KIB
        } else {
            0
        };
        ensure!(
            more <= most,
            "{name} has grown by {more}: {before:?}, {after:?}"
        );
    }
    let log = fs::read_to_string(daemon.log_file())?;
    ensure!(log == log_before, "the daemon warns: {log}");
    Ok(())
}
