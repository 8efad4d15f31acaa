//! Runs that have ended: they are known by GetRun and ListRuns, with their logs, after the daemon was killed and after the
//! sandbox was stopped, for as long as they are kept; and a call that is made twice runs once (case K3).

mod listing; // what is told of live and ended runs, and of how many
mod on_disk; // what is written down of them
mod request_ids; // a call that is made twice
mod unseen; // what ends while no daemon is there

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};

/// What run `n` does: a line on each stream, and an exit code of its own.
fn command_of(n: usize) -> String {
    format!("echo out {n}; echo err {n} >&2; exit {}", n % 200)
}

/// How many lines a file inside has.
async fn lines(room: &Room, file: &str) -> Result<usize> {
    Ok(room.run(format!("wc -l < {file}")).await?.ok()?.parse()?)
}

fn journal(daemon: &Daemon, room: &Room) -> PathBuf {
    runs_dir(daemon, room).join("journal")
}

fn runs_dir(daemon: &Daemon, room: &Room) -> PathBuf {
    daemon.sandbox_dir(room.id()).join("runs")
}

/// Waits until a journal has a line of this kind, `started` or `ended`, about a run.
async fn written_down(journal: &Path, kind: &str, run_id: &str) -> Result<()> {
    let kind = format!("\"{kind}\":");
    until("it is written down", SOON, || async {
        let text = fs::read_to_string(journal)?;
        let mut lines = text.lines();
        let found = lines.any(|line| line.contains(&kind) && line.contains(run_id));
        Ok(found.then_some(()))
    })
    .await
}
