//! The daemon is interrupted at every named place of what it does (`lodged fault-points`): case J1 and attacks D02 and
//! D25. Whatever happens there, every sandbox is afterwards as it was said to be, can be used and deleted, leaves
//! nothing, and the others did not notice.

mod build; // who has fault points and who has not
mod full_disk; // a delete for which there is no room
mod ground; // a daemon with a neighbour, on which one fault after another is tried
mod images; // the same for imports and removals of images
mod neighbour; // who must not notice
mod points; // which faults there are to try
mod spares; // a create that takes a layer that was made ahead
mod tour; // what is done with a sandbox while the fault is waited for

use anyhow::{Context as _, Result, ensure};

use ground::{DELAY_MS, Ground, Then};
use points::{Fault, faults};

/// Tries all of these, one after the other on the same ground, and tells every one that went wrong.
async fn sweep(faults: Vec<Fault>, then: Then) -> Result<()> {
    ensure!(!faults.is_empty(), "there is nothing to try");
    let mut ground = Ground::new().await?;
    let mut wrong = Vec::new();
    for fault in &faults {
        if let Err(error) = ground.survives(fault, then).await {
            wrong.push(format!("{fault}: {error:#}"));
            // Who comes after it shall not suffer from what it left.
            ground = Ground::new().await?;
        }
    }
    if let Err(error) = ground.file_systems_are_sound() {
        wrong.push(format!("{error:#}"));
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} went wrong:\n{}",
        wrong.len(),
        faults.len(),
        wrong.join("\n")
    );
    Ok(())
}

/// Killed at any point: what was answered holds, what was not is there fully or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_at_every_point() -> Result<()> {
    sweep(faults("kill@1")?, Then::Restart).await
}

/// Killed while it takes something back.
#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_at_every_undo() -> Result<()> {
    sweep(points::undos("kill@1")?, Then::Restart).await
}

/// A failure at any point fails the call with a reason, or is made up for; the next call works.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_at_every_point() -> Result<()> {
    sweep(faults("error@1")?, Then::GoOn).await
}

/// A failure at any point, and then a kill.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_at_every_point_and_killed_then() -> Result<()> {
    sweep(faults("error@1")?, Then::Restart).await
}

/// A panic at any point is that call's alone.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d25_panic_at_every_point() -> Result<()> {
    sweep(faults("panic@1")?, Then::GoOn).await
}

/// Where one sandbox is held up at any point, the daemon and the others are not.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d17_delayed_at_every_point() -> Result<()> {
    let delay = format!("delay:{DELAY_MS}@1");
    sweep(faults(&delay)?, Then::GoOn).await
}

/// Calls in which the daemon is killed, and up to which one of a kind that a thread makes.
const CALLS: &[(&str, u32)] = &[
    ("mkdir", 4),
    ("rename", 3),
    ("fsync", 5),
    ("unlink", 3),
    ("unlinkat", 6),
    ("rmdir", 8),
    ("openat", 8),
    ("write", 8),
    ("sendmsg", 4),
    ("splice", 2),
    ("memfd_create", 1),
    ("fchmod", 2),
];

/// Killed in a system call, between whatever points there are: those that change the disk, cgroups or PID 1.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_killed_in_system_calls() -> Result<()> {
    let mut ground = Ground::new().await?;
    let (mut tried, mut killed) = (0, 0);
    for (call, most) in CALLS {
        for n in 1..=*most {
            tried += 1;
            let outcome = ground.survives_call(call, n).await;
            killed += u32::from(outcome.with_context(|| format!("{call} {n}"))?);
        }
    }
    ensure!(
        killed * 3 > tried,
        "it was killed {killed} times of {tried}"
    );
    Ok(())
}
