//! The rows, in the order in which they are measured and printed. To add one: a file, a `mod` line, a place in `ALL`.

mod acquire_run_vs_docker_run;
mod acquire_run_vs_runc_run;
mod attach_vs_read_log;
mod files;
mod freeze_and_thaw;
mod hardening;
mod idle_sandbox_rss;
mod neighbour;
mod recovery;
mod run_true_idle_vs_posix_spawn;
mod run_true_vs_docker_exec;
mod run_true_vs_posix_spawn;
mod run_true_vs_runc_exec;
mod runs_50_concurrent_vs_posix_spawn;
mod stream_1gib_vs_pipe;

use std::time::Instant;

use anyhow::{Result, ensure};
use lodge_client::Sandbox;

use crate::row::{Row, millis};

/// Every row.
pub(crate) static ALL: &[Row] = &[
    run_true_vs_posix_spawn::ROW,
    run_true_idle_vs_posix_spawn::ROW,
    run_true_vs_docker_exec::ROW,
    run_true_vs_runc_exec::ROW,
    acquire_run_vs_runc_run::ROW,
    acquire_run_vs_docker_run::ROW,
    acquire_run_vs_runc_run::OVERLAY,
    acquire_run_vs_runc_run::BTRFS,
    acquire_run_vs_docker_run::OVERLAY,
    acquire_run_vs_docker_run::BTRFS,
    files::SMALL_OVERLAY,
    files::SMALL_BTRFS,
    files::WRITE_OVERLAY,
    files::WRITE_BTRFS,
    files::READ_OVERLAY,
    files::READ_BTRFS,
    files::FSYNC_OVERLAY,
    files::FSYNC_BTRFS,
    hardening::RUN,
    hardening::ACQUIRE,
    idle_sandbox_rss::ROW,
    idle_sandbox_rss::FROZEN_ROW,
    freeze_and_thaw::FREEZE,
    freeze_and_thaw::THAW,
    attach_vs_read_log::ROW,
    recovery::OF_100,
    recovery::OF_500,
    stream_1gib_vs_pipe::ROW,
    stream_1gib_vs_pipe::LINES_ROW,
    runs_50_concurrent_vs_posix_spawn::ROW,
    neighbour::R01,
    neighbour::R02,
    neighbour::R03,
    neighbour::R04,
    neighbour::R07,
    neighbour::R10,
    neighbour::R15,
    neighbour::R19,
    neighbour::R20,
    neighbour::R21,
];

/// One `run("true")`, from the call to its answer, in milliseconds.
async fn timed_run(sandbox: &Sandbox) -> Result<Vec<f64>> {
    let started = Instant::now();
    let output = sandbox.run("true").await?;
    let took = started.elapsed();
    ensure!(
        output.exit_code() == 0,
        "true ended with {}",
        output.exit_code()
    );
    Ok(millis(took))
}
