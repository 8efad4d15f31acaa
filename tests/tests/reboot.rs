//! Case J3 and attack D07: the host reboots. What only the kernel held is gone: processes, cgroups, namespaces, and all
//! of `/run`; the disk stays.

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::arena::{leaves_nothing, no_timeout};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::prctl;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// Tries to get a certain pid: others fork too.
const TRIES: usize = 2_000;

/// A process that is nobody's of ours, with a pid that a holder had before.
struct Decoy(Child);

impl Decoy {
    /// Makes the kernel give `pid` out again. The holder that had it is dead, and if nobody reaped it yet an orphan of ours.
    fn with_pid(pid: i32) -> Result<Self> {
        match waitpid(Pid::from_raw(pid), None) {
            // One that was stopped was reaped by its launcher.
            Ok(_) | Err(Errno::ECHILD) => {}
            Err(errno) => bail!("holder {pid} cannot be reaped: {errno}"),
        }
        for _ in 0..TRIES {
            fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
                .context("the kernel lets nobody choose pids")?;
            let mut sleep = Command::new("sleep");
            let child = sleep.arg("3000").stdin(Stdio::null()).spawn()?;
            let decoy = Self(child);
            if decoy.0.id().cast_signed() == pid {
                return Ok(decoy);
            }
        }
        bail!("pid {pid} could not be had")
    }

    fn lives(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes everything that does not outlive a reboot. The daemon is dead already.
fn reboot(daemon: &Daemon) -> Result<()> {
    cgroup::remove(&daemon.cgroup())?;
    let slot = daemon.slot();
    host::kill_uids(slot.uid_start(), slot.uid_count())?;
    let runtime = slot.home().join("run");
    for mount in host::mounts_below(&runtime)?.iter().rev() {
        umount2(mount, MntFlags::MNT_DETACH)?;
    }
    fs::remove_dir_all(&runtime)?;
    let socket = slot.home().join("lodged.sock");
    if socket.exists() {
        fs::remove_file(socket)?;
    }
    Ok(())
}

/// After a reboot every sandbox is listed as stopped, with its files, and its next run starts it.
#[tokio::test(flavor = "multi_thread")]
async fn case_j3_host_reboots() -> Result<()> {
    host_reboots(OldPids::Free).await
}

/// A process that has got the pid of a dead holder is not touched: not by the start, not by a run, not by a stop, not by a
/// delete.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d07_reboot_with_reused_pids() -> Result<()> {
    host_reboots(OldPids::Reused).await
}

/// What became of the pids of the dead holders.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OldPids {
    Free,
    Reused,
}

async fn host_reboots(old_pids: OldPids) -> Result<()> {
    // Dead holders keep their pids until they are reaped: we do it.
    prctl::set_child_subreaper(true)?;
    let mut daemon = Daemon::new().await?;
    let mut rooms = Vec::new();
    for name in ["busy", "idle", "stopped"] {
        let room = daemon.api().room(name).await?;
        room.run(format!("echo {name} > file; sync"))
            .await?
            .exited(0)?;
        let base = room.uid_base(&daemon.cgroup())?;
        let holder = room.holder_pid(&daemon.cgroup())?;
        rooms.push((name, room, base, holder));
    }
    let mut live = rooms[0]
        .1
        .run("echo begun; exec sleep 3000")
        .with(no_timeout)
        .start()
        .await?;
    live.wait_for("begun").await?;
    rooms[2].1.stop().await?;
    daemon.kill9()?;
    reboot(&daemon)?;
    let mut decoys = Vec::new();
    for (_, _, _, holder) in rooms.iter().filter(|_| old_pids == OldPids::Reused) {
        decoys.push(Decoy::with_pid(*holder)?);
    }

    daemon.start_again()?;
    let listed = daemon.api().list().await?;
    ensure!(listed.len() == rooms.len(), "{listed:?}");
    for one in &listed {
        ensure!(one.state() == SandboxState::Stopped, "{one:?}");
    }
    for (name, room, _, _) in &rooms {
        ensure!(room.run("cat file").await?.ok()? == *name);
        ensure!(room.processes().await?.is_empty(), "{name} has processes");
    }
    rooms[1].1.stop().await?;
    for (_, room, base, _) in &rooms {
        room.delete().await?;
        leaves_nothing(&daemon, room.id(), *base).await?;
    }
    for decoy in &mut decoys {
        ensure!(
            decoy.lives()?,
            "a process with a holder's old pid was killed"
        );
    }
    Ok(())
}
