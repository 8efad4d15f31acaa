//! A create that takes a layer that was made ahead, interrupted there. Only the driver overlay has them.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::storage::Driver;
use nix::sys::signal::Signal;
use tonic::Status;

use crate::neighbour::neighbour_is_alone;

/// Of so many creates, one after the other, one finds a layer that is ready.
const CREATES_MAX: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_where_a_layer_made_ahead_is_taken() -> Result<()> {
    for point in ["overlay.place spare", "overlay.place spare.done"] {
        let (mut daemon, status) = interrupted(&format!("{point}=kill@1")).await?;
        ensure!(reason(&status).is_empty(), "{point}: {status:?}");
        let ended = daemon.ended()?;
        ensure!(
            ended.signal() == Some(Signal::SIGKILL as i32),
            "{point}: {ended}"
        );
        daemon.set_env(&[]);
        daemon.start_again()?;
        nothing_is_left(&daemon).await.context(point)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_where_a_layer_made_ahead_is_taken() -> Result<()> {
    for point in ["overlay.place spare", "overlay.place spare.done"] {
        let (daemon, status) = interrupted(&format!("{point}=error@1")).await?;
        ensure!(reason(&status) == "STORAGE_FAILED", "{point}: {status:?}");
        nothing_is_left(&daemon).await.context(point)?;
    }
    Ok(())
}

/// Creates and deletes until a create meets the fault; what that one was told.
async fn interrupted(fault: &str) -> Result<(Daemon, Status)> {
    let options = Options {
        driver: Some(Driver::Overlay),
        env: vec![("LODGE_FAULTS".to_owned(), fault.to_owned())],
        ..Options::default()
    };
    let daemon = Daemon::start(options).await?;
    let neighbour = daemon.api().room("neighbour").await?;
    neighbour.run("echo kept > file; sync").await?.exited(0)?;
    for _ in 0..CREATES_MAX {
        let request = pb::AcquireRequest {
            name: "victim".into(),
            ..Default::default()
        };
        match daemon.api().try_acquire(request).await {
            Ok(made) => {
                let made = made.sandbox.context("an answer without a sandbox")?;
                daemon.api().delete(&made.id).await?;
            }
            Err(status) => return Ok((daemon, status)),
        }
    }
    anyhow::bail!("no create of {CREATES_MAX} took a layer that was made ahead")
}

/// The name can be used, the neighbour did not notice, and of the create that was cut short there is nothing.
async fn nothing_is_left(daemon: &Daemon) -> Result<()> {
    let again = daemon.api().room("victim").await?;
    again
        .run("test ! -e file; echo x > file")
        .await?
        .exited(0)?;
    again.delete().await?;
    neighbour_is_alone(daemon).await
}
