//! What is done with a sandbox while the fault is waited for: everything that a caller can do, once. What was answered
//! is remembered: it must hold, whatever happened then.

use std::process::ExitStatus;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::{Ran, Room};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Larger than what is kept of a stream: 8 MiB of its beginning, 22 MiB of its end, and a step on top.
const FLOOD: &str = "head -c 34000000 /dev/zero";
/// A value to mask.
const SECRET: &str = "not for the log";

/// A label that is set, to the sandbox's name.
pub(crate) const LABEL: &str = "tour";
/// The reason of a refusal by a sandbox that is damaged.
const DAMAGED: &str = "SANDBOX_DAMAGED";

/// Whether a command writes more than is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flood {
    No,
    Yes,
}

/// What was answered.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The sandbox was acquired.
    pub(crate) room: Option<Room>,
    /// The file was written.
    pub(crate) written: bool,
    /// The label was set.
    pub(crate) updated: bool,
    /// A delete was asked for, whether it was answered or not.
    pub(crate) delete_asked: bool,
    /// It was deleted.
    pub(crate) deleted: bool,
    /// A failure left the sandbox damaged: of its processes nobody knew whether they had ended.
    pub(crate) damaged: bool,
    /// How the daemon ended, if it did.
    pub(crate) end: Option<ExitStatus>,
}

/// Whether a call may be made again.
enum Outcome<T> {
    /// It was not called again: the sandbox is damaged.
    Damaged,
    Answered(T),
    /// There is no daemon any more; it ended so.
    Dead(ExitStatus),
}

/// The tour, as far as the daemon lives to see it.
pub(crate) async fn tour(daemon: &mut Daemon, name: &str, flood: Flood) -> Result<Told> {
    let mut told = Told::default();
    match go(daemon, name, flood, &mut told).await? {
        Outcome::Dead(status) => told.end = Some(status),
        Outcome::Damaged => told.damaged = true,
        Outcome::Answered(()) => {}
    }
    Ok(told)
}

async fn go(daemon: &mut Daemon, name: &str, flood: Flood, told: &mut Told) -> Result<Outcome<()>> {
    macro_rules! answered {
        ($call:expr) => {
            match again(daemon, || $call).await? {
                Outcome::Answered(answer) => answer,
                Outcome::Damaged => return Ok(Outcome::Damaged),
                Outcome::Dead(status) => return Ok(Outcome::Dead(status)),
            }
        };
    }
    let api = daemon.api().clone();
    let request = pb::AcquireRequest {
        name: name.to_owned(),
        limits: Some(disk(1)),
        ..Default::default()
    };
    let acquired = answered!(api.try_acquire(request.clone()));
    let room = Room::new(api.clone(), acquired.sandbox.unwrap_or_default());
    told.room = Some(room.clone());
    succeeded(&answered!(room.run("echo kept > file; echo said").send()))?;
    told.written = true;
    let secret = room.run("echo \"$S\"; echo err >&2").secret("S", SECRET);
    let ran = answered!(secret.clone().send());
    ensure!(!ran.text().contains(SECRET), "the secret was told");
    if flood == Flood::Yes {
        succeeded(&answered!(room.run(FLOOD).send()))?;
    }
    let update = pb::UpdateSandboxRequest {
        set_labels: [(LABEL.to_owned(), name.to_owned())].into(),
        // More than the image of an overlay layer has room for.
        limits: Some(disk(5)),
        // Not every driver, nor every kernel, holds it in use.
        allow_degraded: true,
        ..Default::default()
    };
    answered!(room.update(update.clone()));
    told.updated = true;
    answered!(room.pause());
    answered!(room.resume());
    answered!(room.pause());
    // It thaws it.
    succeeded(&answered!(room.run("cat file").send()))?;
    answered!(room.stop());
    let larger = pb::UpdateSandboxRequest {
        limits: Some(disk(6)),
        ..Default::default()
    };
    answered!(room.update(larger.clone()));
    let ran = answered!(room.run("cat file").send());
    ensure!(ran.code() == 0, "the file is gone: {}", ran.story());
    told.delete_asked = true;
    answered!(async {
        match room.delete().await {
            // An earlier call deleted it, though it failed then.
            Err(status) if status.code() == Code::NotFound => Ok(()),
            other => other,
        }
    });
    told.deleted = true;
    Ok(Outcome::Answered(()))
}

/// A limit of so many GiB on its files.
fn disk(gib: i64) -> pb::Limits {
    pb::Limits {
        disk_bytes: Some(gib << 30),
        ..Default::default()
    }
}

/// A command that should succeed did, whatever became of its log.
fn succeeded(ran: &Ran) -> Result<()> {
    ensure!(ran.code() == 0, "{}", ran.story());
    Ok(())
}

/// Calls, and once more after a failure: that one is the fault's, and past. A failure says its reason.
async fn again<T, F>(daemon: &mut Daemon, call: impl Fn() -> F) -> Result<Outcome<T>>
where
    F: Future<Output = Result<T, Status>>,
{
    let first = match call().await {
        Ok(answer) => return Ok(Outcome::Answered(answer)),
        Err(status) => status,
    };
    // The connection ends a moment before the process can be waited for.
    if is_broken(&first) {
        let ended = daemon.ended();
        let status = ended.with_context(|| format!("the connection broke: {first}"))?;
        return Ok(Outcome::Dead(status));
    }
    ensure!(!reason(&first).is_empty(), "no reason: {first:?}");
    match call().await {
        Ok(answer) => Ok(Outcome::Answered(answer)),
        Err(second) if reason(&second) == DAMAGED => Ok(Outcome::Damaged),
        Err(second) => bail!("failed twice: {first}, then {second}"),
    }
}

/// Whether the transport failed, and not the daemon: such a status has no reason.
fn is_broken(status: &Status) -> bool {
    status.get_details_error_info().is_none()
        && matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
        )
}
