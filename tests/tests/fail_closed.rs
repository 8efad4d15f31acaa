//! Attack D09: a step that makes a sandbox strong fails. Nothing starts then: there is no weaker sandbox, and no command
//! with more rights than it should have.
//!
//! Every call of the steps' kinds is made to fail once, by strace, in the launcher and all that it forks; for a command,
//! in PID 1 and its children.

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::daemon::Daemon;
use lodge_tests::footprint::launcher;
use lodge_tests::host::favour;
use lodge_tests::room::Room;
use lodge_tests::strace::{Strace, was_injected};

/// Calls by which a sandbox is made, and how each fails.
const MAKING: &[(&str, &str)] = &[
    ("unshare", "EPERM"),
    ("mount", "EPERM"),
    ("open_tree", "ENOSYS"),
    ("mount_setattr", "ENOSYS"),
    ("move_mount", "EPERM"),
    ("fsopen", "ENOSYS"),
    ("fsconfig", "EPERM"),
    ("fsmount", "EPERM"),
    ("pivot_root", "EPERM"),
    ("umount2", "EPERM"),
    ("sethostname", "EPERM"),
    ("setgroups", "EPERM"),
    ("setresuid", "EPERM"),
    ("setresgid", "EPERM"),
    ("capset", "EPERM"),
    ("seccomp", "ENOSYS"),
    ("prctl", "EPERM"),
    ("setsid", "EPERM"),
    ("prlimit64", "EPERM"),
    ("sched_setscheduler", "EPERM"),
    ("setpriority", "EACCES"),
    ("ioprio_set", "EPERM"),
    ("clone3", "EAGAIN"),
    ("write", "EPERM"),
];
/// Calls by which a command becomes what it may be.
const BECOMING: &[(&str, &str)] = &[
    ("setgroups", "EPERM"),
    ("setresuid", "EPERM"),
    ("setresgid", "EPERM"),
    ("capset", "EPERM"),
    ("seccomp", "ENOSYS"),
    ("prctl", "EPERM"),
    ("prlimit64", "EPERM"),
    ("setsid", "EPERM"),
    ("clone3", "EAGAIN"),
];
/// More calls of a kind than one process makes on the way.
const CALLS_MAX: usize = 60;
/// What may fail without making anything weaker: a piece of the traced line, and why.
const HARMLESS: &[(&str, &str)] = &[
    ("PR_SET_NAME", "the name is for people alone"),
    ("PR_CAPBSET_READ", "asks how many capabilities there are"),
    ("PR_SET_VMA", "the allocator's names for its memory"),
    (
        "RLIMIT_STACK, NULL",
        "the executed program's own start asks for it",
    ),
];

/// Fails if a call failed by our doing and it all went well.
fn judge(what: &str, went_well: bool, lines: &[String]) -> Result<bool> {
    let injected: Vec<&String> = lines.iter().filter(|line| was_injected(line)).collect();
    let harmful = injected
        .iter()
        .any(|line| !HARMLESS.iter().any(|(piece, _)| line.contains(piece)));
    if harmful && went_well {
        bail!("{what}: nobody minded: {injected:?}");
    }
    Ok(!injected.is_empty())
}

/// Has the n-th call of each kind fail until there is no n-th.
async fn each<F>(
    daemon: &Daemon,
    pid: i32,
    calls: &[(&str, &str)],
    wrong: &mut Vec<String>,
    mut attempt: F,
) -> Result<usize>
where
    F: AsyncFnMut() -> Result<bool>,
{
    let mut tried = 0;
    for (call, error) in calls {
        for n in 1..=CALLS_MAX {
            let log = daemon.slot().home().join("strace");
            let inject = format!("{call}:error={error}:when={n}");
            let strace = Strace::attach(pid, call, Some(&inject), log)?;
            let went_well = attempt().await?;
            let lines = strace.detach()?;
            match judge(&inject, went_well, &lines) {
                Ok(true) => tried += 1,
                Ok(false) => break,
                Err(error) => {
                    tried += 1;
                    wrong.push(format!("{error:#}"));
                }
            }
        }
    }
    Ok(tried)
}

/// A sandbox of which one step failed is not there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d09_sandbox_with_a_failed_step() -> Result<()> {
    let daemon = Daemon::new().await?;
    let pid = launcher(daemon.pid()?)?;
    // Else there is nothing to give up.
    favour(pid)?;
    let mut wrong = Vec::new();
    let tried = each(&daemon, pid, MAKING, &mut wrong, async || {
        let request = pb::AcquireRequest {
            name: "weak".into(),
            ..Default::default()
        };
        let acquired = daemon.api().try_acquire(request).await;
        let Ok(acquired) = acquired else {
            let listed = daemon.api().list().await?;
            ensure!(listed.is_empty(), "it failed and is listed: {listed:?}");
            return Ok(false);
        };
        let room = acquired.sandbox.context("a sandbox")?;
        Room::new(daemon.api().clone(), room).delete().await?;
        Ok(true)
    })
    .await?;
    ensure!(tried > 30, "only {tried} calls were made to fail");
    ensure!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    daemon
        .api()
        .room("strong")
        .await?
        .run("true")
        .await?
        .exited(0)?;
    Ok(())
}

/// A command of which one step failed is not executed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d09_command_with_a_failed_step() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("strong").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    let mut wrong = Vec::new();
    let tried = each(&daemon, holder, BECOMING, &mut wrong, async || {
        // It makes none of these calls itself.
        let ran = room.argv(&["/bin/echo", "executed"]).send().await;
        Ok(ran.is_ok_and(|ran| ran.text().contains("executed")))
    })
    .await?;
    ensure!(tried > 5, "only {tried} calls were made to fail");
    ensure!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    room.run("true").await?.exited(0)?;
    Ok(())
}
