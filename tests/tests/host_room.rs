//! What all sandboxes together may have of the host, and limits that it can never carry.

use std::fs;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use tonic::{Code, Status};

/// More memory than any host that runs these tests has, and within the bounds of the limit: 16 TiB.
const MORE_THAN_ANY: i64 = 16 << 40;

fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn memory_of_host() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    Ok(total.and_then(number).context("MemTotal")? * 1024)
}

fn pids_of_host() -> Result<u64> {
    let of = |path: &str| fs::read_to_string(path).ok().and_then(|t| number(&t));
    of("/proc/sys/kernel/pid_max").context("pid_max")
}

/// What a control file of the parent says, in whichever hierarchy it is.
fn bound(parent: &str, names: [&str; 2]) -> Result<u64> {
    let trees = cgroup::trees(parent)?;
    let files = trees.iter().flat_map(|t| names.map(|n| t.join(n)));
    let said = files.filter_map(|file| fs::read_to_string(file).ok());
    said.filter_map(|text| number(&text))
        .next()
        .with_context(|| format!("none of {names:?} has a number in {trees:?}"))
}

/// D-3: sixteen fork bombs, each within its own limit, took every pid of the host. The group above all sandboxes has bounds of
/// its own that leave the host a reserve, and the doctor shows them.
#[tokio::test(flavor = "multi_thread")]
async fn all_sandboxes_together_leave_the_host_pids_and_memory() -> Result<()> {
    let daemon = Daemon::new().await?;
    daemon.api().room("a").await?.run("true").await?.exited(0)?;
    let pids = bound(&daemon.cgroup(), ["pids.max", "pids.max"])?;
    ensure!(pids < pids_of_host()?, "{pids} pids for sandboxes");
    ensure!(pids >= pids_of_host()? / 4, "only {pids} pids");
    let memory = bound(&daemon.cgroup(), ["memory.max", "memory.limit_in_bytes"])?;
    ensure!(memory < memory_of_host()?, "{memory} bytes for sandboxes");
    ensure!(memory >= memory_of_host()? / 2, "only {memory} bytes");
    let report = daemon.api().node().doctor(pb::DoctorRequest {}).await?;
    let checks = report.into_inner().checks;
    for (name, figure) in [("pids-of-all", pids), ("memory-of-all", memory)] {
        let check = checks.iter().find(|c| c.name == name).context(name)?;
        ensure!(check.detail.contains(&figure.to_string()), "{check:?}");
    }
    Ok(())
}

/// A limit that the host can never carry is refused, with the figures, by create and by update; nothing is left of it.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_the_host_does_not_have_is_refused_with_figures() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let limits = Some(pb::Limits {
        memory_bytes: Some(MORE_THAN_ANY),
        ..Default::default()
    });
    let request = pb::AcquireRequest {
        name: "large".into(),
        limits,
        ..Default::default()
    };
    let refused = api.try_acquire(request).await;
    names_the_figures(&refused.err().context("it was created")?)?;
    ensure!(api.list().await?.is_empty(), "a refused create is listed");
    ensure!(daemon.sandboxes_on_disk()? == 0);
    let room = api.room("small").await?;
    let request = pb::UpdateSandboxRequest {
        limits,
        ..Default::default()
    };
    for stopped in [false, true] {
        if stopped {
            room.stop().await?;
        }
        let refused = room.update(request.clone()).await;
        names_the_figures(&refused.err().context("it was changed")?)?;
    }
    room.start().await?;
    room.run("true").await?.exited(0)?;
    Ok(())
}

fn names_the_figures(refused: &Status) -> Result<()> {
    let total = memory_of_host()?.to_string();
    ensure!(
        refused.code() == Code::ResourceExhausted
            && reason(refused) == "HOST_MEMORY"
            && refused.message().contains(&MORE_THAN_ANY.to_string())
            && refused.message().contains(&total),
        "{refused:?}"
    );
    Ok(())
}
