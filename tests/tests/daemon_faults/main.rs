//! Attacks D03, D05, D13, D14, D25, D26 and D27: what dies under the daemon, what the host refuses it, and what an earlier
//! one left. Sandboxes that were not hit do not notice, and nothing is ever stuck.

mod processes; // launchers and holders die, hang or lie
mod restarts; // daemons one after the other, and two at once
mod shortage; // the host has no more of something

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use lodge_proto::v1::SandboxState;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until_blocking};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest wait for a PID 1 that does not answer to be found out, which takes the daemon up to 20 s.
const FOUND_OUT: Duration = Duration::from_secs(60);

fn signal(pid: i32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(pid), signal).with_context(|| format!("{signal} to {pid}"))
}

/// The daemon's launcher, once there is one that is not `not`.
fn launcher_of(daemon: &Daemon, not: Option<i32>) -> Result<i32> {
    let daemon = daemon.pid()?;
    until_blocking("there is a launcher", SOON, || {
        let mut children = host::children(daemon)?.into_iter();
        Ok(children.find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "lodge-launcher" && Some(*pid) != not
        }))
    })
}

async fn state(room: &Room) -> Result<SandboxState> {
    Ok(room.get().await?.state())
}
