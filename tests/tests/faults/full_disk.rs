//! A delete for which the disk has no room: it takes the record away where it is, and is interrupted there.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use lodge_tests::api::reason;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::Room;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::neighbour::neighbour_is_alone;

const POINTS: [&str; 2] = ["discard.forget", "discard.forget.done"];

#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_where_a_delete_has_no_room() -> Result<()> {
    for point in POINTS {
        let (mut daemon, victim) = with_victim(&format!("{point}=kill@1")).await?;
        ensure!(
            victim.delete().await.is_err(),
            "{point}: it was not reached"
        );
        let ended = daemon.ended()?;
        let signal = ended.signal();
        ensure!(signal == Some(Signal::SIGKILL as i32), "{point}: {ended}");
        daemon.set_env(&[]);
        daemon.start_again()?;
        nothing_is_left(&daemon, &victim).await.context(point)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_where_a_delete_has_no_room() -> Result<()> {
    for point in POINTS {
        let (daemon, victim) = with_victim(&format!("{point}=error@1")).await?;
        let refused = daemon.api().delete(victim.id()).await.err();
        let refused = refused.context("it was not reached")?;
        ensure!(reason(&refused) == "STORE_FAILED", "{point}: {refused:?}");
        nothing_is_left(&daemon, &victim).await.context(point)?;
    }
    Ok(())
}

/// A sandbox whose delete meets a full disk, and then the fault.
async fn with_victim(fault: &str) -> Result<(Daemon, Room)> {
    let faults = format!("discard.rename=full@1,{fault}");
    let options = Options {
        env: vec![("LODGE_FAULTS".to_owned(), faults)],
        ..Options::default()
    };
    let daemon = Daemon::start(options).await?;
    for name in ["neighbour", "victim"] {
        let room = daemon.api().room(name).await?;
        room.run("echo kept > file; sync").await?.exited(0)?;
    }
    let victim = daemon.api().room("victim").await?;
    Ok((daemon, victim))
}

/// Whatever there is of it goes with the next delete; the neighbour did not notice.
async fn nothing_is_left(daemon: &Daemon, victim: &Room) -> Result<()> {
    if let Err(status) = daemon.api().delete(victim.id()).await {
        ensure!(status.code() == Code::NotFound, "{status:?}");
    }
    neighbour_is_alone(daemon).await
}
