//! Case A7 and its kin: the daemon is killed at any instant, and runs go on. Their deadlines are kept meanwhile, their
//! output is whole, their secrets stay masked, their survivors stay listed; and nothing that a sandbox's PID 1 says
//! keeps the next daemon from serving the others.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::holder::{FdRole, RunState};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::arena::{canary, find_mention, leaves_nothing};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::fake_holder::{FakeHolder, Story, Told, socket_of};
use lodge_tests::live::contains;
use lodge_tests::room::{Command, Ran, Room};
use lodge_tests::wait::{SOON, until, until_blocking};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::SignalFd;
use tokio::task::JoinSet;

/// More than may live at once in a sandbox.
const SURVIVORS: usize = 300;
/// Runs that a test starts at once.
const AT_ONCE: usize = 50;

/// Host pids of a run's processes, as the kernel has them, whether a daemon runs or not.
fn members(daemon: &Daemon, run_id: &str) -> Result<usize> {
    let mut count = 0;
    for group in cgroup::containing(&daemon.cgroup(), run_id)? {
        let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        count += pids.lines().count();
    }
    Ok(count)
}

async fn log_that_ends_with(room: &Room, run_id: &str, end: &str) -> Result<String> {
    until(&format!("the log ends with {end:?}"), SOON, || async {
        let log = room.whole_log(run_id, pb::Stream::Stdout).await?;
        Ok(log
            .ends_with(end.as_bytes())
            .then(|| String::from_utf8_lossy(&log).into_owned()))
    })
    .await
}

/// A deadline that passes while no daemon is there ends the command all the same; the next daemon knows how it ended
/// and what it wrote, and no process is left.
#[tokio::test(flavor = "multi_thread")]
async fn case_a7_deadline_passes_while_the_daemon_is_dead() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("a7").await?;
    let command = room.run("echo begun; setsid sleep 300 & sleep 300");
    let mut live = command.timeout(Duration::from_secs(1)).start().await?;
    live.wait_for("begun\n").await?;
    daemon.kill9()?;
    ensure!(
        members(&daemon, &live.run_id)? > 0,
        "it did not outlive the daemon"
    );
    until_blocking("the run's processes are gone", SOON, || {
        Ok((members(&daemon, &live.run_id)? == 0).then_some(()))
    })?;

    daemon.start_again()?;
    ensure!(log_that_ends_with(&room, &live.run_id, "begun\n").await? == "begun\n");
    ensure!(room.processes_of(&live.run_id).await?.is_empty());
    until("the daemon knows of the timeout", SOON, || async {
        let log = fs::read_to_string(daemon.log_file())?;
        let mut lines = log.lines();
        let told = lines.any(|line| line.contains(&live.run_id) && line.contains("TimedOut"));
        Ok(told.then_some(()))
    })
    .await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(())
}

/// Counts aloud until the file `stop` is there.
fn counting(suffix: &str) -> String {
    format!(
        "i=0; until [ -e stop ]; do echo \"$i{suffix}\"; i=$((i + 1)); sleep 0.002; done; echo \"end $i\""
    )
}

/// Fails unless every number is there once, in order, each with `suffix`.
fn counted(log: &str, suffix: &str) -> Result<usize> {
    let lines: Vec<&str> = log.lines().collect();
    let (last, numbers) = lines.split_last().context("the log is empty")?;
    for (number, line) in numbers.iter().enumerate() {
        ensure!(
            *line == format!("{number}{suffix}"),
            "line {number} is {line:?}"
        );
    }
    ensure!(
        *last == format!("end {}", numbers.len()),
        "the log ends with {last:?}"
    );
    Ok(numbers.len())
}

async fn grown(room: &Room, run_id: &str, from: usize) -> Result<usize> {
    until("the log grows", SOON, || async {
        let log = room.whole_log(run_id, pb::Stream::Stdout).await?;
        Ok(Some(log.len()).filter(|len| *len > from + 400))
    })
    .await
}

/// Every line is in the log exactly once, however often the daemon is killed in the middle of the output.
#[tokio::test(flavor = "multi_thread")]
async fn output_across_kill_9_is_whole_and_not_doubled() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("lines").await?;
    let live = room.run(counting("")).start().await?;
    let mut seen = 0;
    for _ in 0..4 {
        seen = grown(&room, &live.run_id, seen).await?;
        daemon.kill9()?;
        daemon.start_again()?;
    }
    grown(&room, &live.run_id, seen).await?;
    room.run("touch stop").await?.exited(0)?;
    let last = until("the command has ended", SOON, || async {
        let log = room.whole_log(&live.run_id, pb::Stream::Stdout).await?;
        Ok(contains(&log, b"end ").then_some(log))
    })
    .await?;
    ensure!(counted(&String::from_utf8(last)?, "")? > 400);
    Ok(())
}

/// A secret is masked by the next daemon as by the first, is in no file, and the run's processes end with it.
#[tokio::test(flavor = "multi_thread")]
async fn secret_across_kill_9_stays_masked_and_leaves_no_survivor() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("secret").await?;
    let secret = canary()?;
    let script = format!("setsid sleep 300 & {}", counting(" $S"));
    let live = room.run(script).secret("S", &secret).start().await?;
    let mut seen = 0;
    for _ in 0..3 {
        seen = grown(&room, &live.run_id, seen).await?;
        daemon.kill9()?;
        daemon.start_again()?;
    }
    grown(&room, &live.run_id, seen).await?;
    let mentioned = find_mention(daemon.slot().state(), &secret)?;
    ensure!(mentioned.is_none(), "{mentioned:?} has the secret");
    room.run("touch stop").await?.exited(0)?;
    let log = until("the command has ended", SOON, || async {
        let log = room.whole_log(&live.run_id, pb::Stream::Stdout).await?;
        Ok(contains(&log, b"end ").then_some(log))
    })
    .await?;
    counted(&String::from_utf8(log)?, " «S»")?;
    until("no process of the run is left", SOON, || async {
        Ok((members(&daemon, &live.run_id)? == 0).then_some(()))
    })
    .await?;
    ensure!(room.processes_of(&live.run_id).await?.is_empty());
    Ok(())
}

/// A survivor of a run that ended before the restart is listed and can be killed after it.
#[tokio::test(flavor = "multi_thread")]
async fn survivor_is_listed_and_killable_after_kill_9() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("survivor").await?;
    let ran = room.run("setsid sleep 300 & echo done").await?;
    ensure!(ran.exited(0)?.result.left_running == 1, "{}", ran.story());
    daemon.kill9()?;
    daemon.start_again()?;
    let run_id = &ran.result.run_id;
    let listed = room.processes_of(run_id).await?;
    ensure!(
        listed.len() == 1 && listed[0].command.contains("sleep 300"),
        "{listed:?}"
    );
    until("the run is known to have ended", SOON, || async {
        let listed = room.processes_of(run_id).await?;
        Ok(listed.iter().all(|one| !one.run_live).then_some(()))
    })
    .await?;
    ensure!(room.whole_log(run_id, pb::Stream::Stdout).await? == b"done\n");
    ensure!(room.kill(run_id).await? == 1);
    ensure!(room.processes_of(run_id).await?.is_empty());
    Ok(())
}

async fn all_at_once(command: &Command) -> Result<Vec<Ran>> {
    let mut runs = JoinSet::new();
    for _ in 0..AT_ONCE {
        runs.spawn(command.clone().send());
    }
    let ended = runs.join_all().await;
    Ok(ended.into_iter().collect::<Result<_, _>>()?)
}

/// Runs that have ended take none of the places of live ones: all of them are taken over, and new ones can be started.
#[tokio::test(flavor = "multi_thread")]
async fn more_survivors_than_live_runs_are_taken_over() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("many").await?;
    // They hold the output, so that each run is looked at for a moment when it is taken over.
    for _ in 0..SURVIVORS / AT_ONCE {
        for ran in all_at_once(&room.run("sleep 300 &")).await? {
            ran.exited(0)?;
        }
    }
    daemon.kill9()?;
    daemon.start_again()?;
    let listed = room.processes().await?;
    ensure!(listed.len() == SURVIVORS, "{} are listed", listed.len());
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(())
}

/// A holder that lives and cannot be reached is not taken for dead: its sandbox is damaged, its run goes on, and once
/// it can be reached again all is as before. A damaged one can be deleted with all that runs in it.
#[tokio::test(flavor = "multi_thread")]
async fn unreachable_holder_keeps_its_runs() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("unreachable").await?;
    let base = room.uid_base(&daemon.cgroup())?;
    let live = room.run(counting("")).start().await?;
    grown(&room, &live.run_id, 0).await?;
    let socket = socket_of(&room, &daemon);
    let aside = socket.with_extension("aside");
    daemon.kill9()?;
    fs::rename(&socket, &aside)?;
    daemon.start_again()?;
    damaged(&room, "cannot be reached").await?;
    ensure!(members(&daemon, &live.run_id)? > 0, "the run was ended");
    daemon.kill9()?;
    fs::rename(&aside, &socket)?;
    daemon.start_again()?;
    ensure!(room.get().await?.state() == SandboxState::Running);
    grown(&room, &live.run_id, 0).await?;
    daemon.kill9()?;
    fs::rename(&socket, &aside)?;
    daemon.start_again()?;
    damaged(&room, "cannot be reached").await?;
    fs::remove_file(&aside)?;
    room.delete().await?;
    leaves_nothing(&daemon, room.id(), base).await
}

/// A stop ends the processes that cannot be reached and keeps the files; the next run starts it. A run alone ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unreachable_holder_is_ended_by_a_stop() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("unreachable").await?;
    room.run("echo kept >file").await?.ok()?;
    let live = room.run(counting("")).start().await?;
    grown(&room, &live.run_id, 0).await?;
    daemon.kill9()?;
    fs::remove_file(socket_of(&room, &daemon))?;
    daemon.start_again()?;
    damaged(&room, "cannot be reached").await?;
    ensure!(room.run("true").await.is_err(), "it ran");
    ensure!(
        members(&daemon, &live.run_id)? > 0,
        "a run ended the other one"
    );
    room.stop().await?;
    ensure!(room.get().await?.state() == SandboxState::Stopped);
    ensure!(members(&daemon, &live.run_id)? == 0, "processes are left");
    ensure!(room.run("cat file").await?.ok()? == "kept");
    Ok(())
}

async fn damaged(room: &Room, why: &str) -> Result<()> {
    let seen = room.get().await?;
    ensure!(
        seen.state() == SandboxState::Damaged && seen.state_reason.contains(why),
        "{seen:?}"
    );
    Ok(())
}

/// A holder that says nothing is asked a few times, then its sandbox is damaged; nothing of it is ended.
#[tokio::test(flavor = "multi_thread")]
async fn silent_holder_keeps_its_runs() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("silent").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    daemon.kill9()?;
    let liar = FakeHolder::instead_of(&room, &daemon, Story::Silence)?;
    daemon.start_again()?;
    damaged(&room, "cannot be reached").await?;
    ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
    ensure!(members(&daemon, &live.run_id)? > 0, "the run was ended");
    drop(liar);
    daemon.restart()?;
    ensure!(room.processes_of(&live.run_id).await?.len() >= 1);
    ensure!(room.kill(&live.run_id).await? >= 1);
    Ok(())
}

fn holding(bytes: &[u8]) -> Result<File> {
    let mut file = File::from(memfd_create(c"lie", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// A run of which two pipes, an almost empty spool each, and `secrets` are said to have been kept.
fn told(run_id: &str, spool: &File, secrets: OwnedFd) -> Result<Told> {
    let state = RunState {
        run_id: run_id.to_owned(),
        ..Default::default()
    };
    let mut fds = vec![(FdRole::Secrets, secrets)];
    for role in [FdRole::StdoutRead, FdRole::StderrRead] {
        fds.push((role, nix::unistd::pipe()?.0));
    }
    for role in [FdRole::StdoutSpool, FdRole::StderrSpool] {
        fds.push((role, spool.try_clone()?.into()));
    }
    Ok((state, fds))
}

/// Whatever a compromised PID 1 hands over as what it kept of its runs, the next daemon starts and serves the others.
#[tokio::test(flavor = "multi_thread")]
async fn lying_holder_does_not_keep_the_daemon_from_starting() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("liar").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    daemon.kill9()?;
    let id = &live.run_id;
    // One page of header, then raw bytes that nobody masked yet.
    let little = holding(&[&[0; 4096][..], b"raw"].concat())?;
    let endless = holding(b"")?;
    endless.set_len(1 << 46)?;
    let never_ready = SignalFd::new(&SigSet::empty())?;
    let never_ready: OwnedFd = std::os::fd::AsFd::as_fd(&never_ready).try_clone_to_owned()?;
    // Lengths of name and value, then both.
    let empty_value = [&1u32.to_le_bytes()[..], &0u32.to_le_bytes(), b"A"].concat();
    let good = [&1u32.to_le_bytes()[..], &4u32.to_le_bytes(), b"Afour"].concat();
    let lies = vec![
        told(id, &little, holding(&empty_value)?.into())?,
        told(id, &endless, holding(&good)?.into())?,
        told(id, &little, never_ready)?,
    ];
    let liar = FakeHolder::instead_of(&room, &daemon, Story::Runs(lies))?;
    daemon.start_again()?;
    ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
    ensure!(daemon.api().list().await?.len() == 2);
    drop(liar);
    Ok(())
}
