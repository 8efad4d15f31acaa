//! Attacks D03, D05, D13, D14, D25, D26 and D27: what dies under the daemon, what the host refuses it, and what an earlier
//! one left. Sandboxes that were not hit do not notice, and nothing is ever stuck.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::cgroup;
use lodge_tests::daemon::{Daemon, command_without_route};
use lodge_tests::fake_holder::{FakeHolder, Story, cut_in, socket_of};
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until, until_blocking};
use lodge_tests::{binary, host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{Resource, getrlimit, prlimit};
use tokio::task::JoinSet;
use tonic::Code;

/// Longest wait for a PID 1 that does not answer to be found out, which takes the daemon up to 20 s.
const FOUND_OUT: Duration = Duration::from_secs(60);
/// Restarts of D05: each takes about a quarter of a second in a build for tests, and the test some 30 s.
const RESTARTS: usize = 60;

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

/// What a launcher has that its sandboxes inherit: its limit on open files and how many it has open.
fn heritage(launcher: i32) -> Result<(String, usize)> {
    let limits = fs::read_to_string(format!("/proc/{launcher}/limits"))?;
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let environment = fs::read(format!("/proc/{launcher}/environ"))?;
    ensure!(environment.is_empty(), "the launcher has an environment");
    Ok((
        files.context("a limit on open files")?.to_owned(),
        host::open_files(launcher)?,
    ))
}

async fn state(room: &Room) -> Result<SandboxState> {
    Ok(room.get().await?.state())
}

/// A launcher that is killed, as the OOM killer does, is replaced by one like it: sandboxes go on, and others start. A
/// launcher that is killed again and again keeps starts back for a while, and not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_launcher_is_replaced() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("before").await?;
    let mut live = room
        .run("echo begun; until [ -e stop ]; do sleep 0.02; done; echo survived")
        .start()
        .await?;
    live.wait_for("begun").await?;
    let first = launcher_of(&daemon, None)?;
    let heritage_of_first = heritage(first)?;
    let mut last = first;
    for round in 0..4 {
        signal(last, Signal::SIGKILL)?;
        let next = daemon.api().room(&format!("after-{round}")).await?;
        ensure!(next.run("echo fine").await?.ok()? == "fine");
        last = launcher_of(&daemon, Some(last))?;
    }
    let heritage_of_last = heritage(last)?;
    ensure!(
        heritage_of_last == heritage_of_first,
        "{heritage_of_last:?} is not {heritage_of_first:?}"
    );
    ensure!(room.run("ulimit -Sn").await?.ok()? == "4096");
    room.run("touch stop").await?.exited(0)?;
    live.wait_for("survived").await?;
    live.end().await?;
    ensure!(
        host::children(daemon.pid()?)?.len() == 1,
        "a dead launcher was not reaped"
    );
    daemon.stop()
}

/// One PID 1 that is killed takes its own sandbox alone: its run is lost, its processes are gone, and its next run
/// starts it. The same for all of them at once, and a restart is not held up by any.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_holders_take_only_their_own_sandboxes() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let mut rooms = Vec::new();
    for name in ["one", "two", "three"] {
        rooms.push(daemon.api().room(name).await?);
    }
    let mut lives = Vec::new();
    for room in &rooms {
        let mut live = room
            .run("setsid sleep 300 & echo begun; sleep 300")
            .start()
            .await?;
        live.wait_for("begun").await?;
        lives.push(live);
    }
    signal(rooms[0].holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    ensure!(lives[0].end().await?.end_reason() == EndReason::Lost);
    ensure!(state(&rooms[1]).await? == SandboxState::Running);
    ensure!(rooms[1].run("echo fine").await?.ok()? == "fine");

    for room in &rooms[1..] {
        signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    }
    for live in &mut lives[1..] {
        ensure!(live.end().await?.end_reason() == EndReason::Lost);
    }
    until(
        "all are stopped, and nothing of them runs",
        SOON,
        || async {
            for room in &rooms {
                if state(room).await? != SandboxState::Stopped {
                    return Ok(None);
                }
            }
            Ok(cgroup::members(&daemon.cgroup())?.is_empty().then_some(()))
        },
    )
    .await?;
    for room in &rooms {
        ensure!(room.run("echo again").await?.ok()? == "again");
    }
    // And while no daemon is there.
    daemon.kill9()?;
    for room in &rooms {
        signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    }
    daemon.start_again()?;
    for room in &rooms {
        ensure!(state(room).await? == SandboxState::Stopped);
        ensure!(room.run("echo again").await?.ok()? == "again");
    }
    daemon.stop()
}

/// The PID 1 of a paused sandbox is killed: its run is lost, nothing frozen stays, and its next run starts it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_holder_of_a_paused_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("paused").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    let request = pb::PauseSandboxRequest {
        sandbox: lodge_tests::api::by_id(room.id()),
    };
    daemon.api().sandboxes().pause(request).await?;
    ensure!(state(&room).await? == SandboxState::Frozen);
    signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    ensure!(live.end().await?.end_reason() == EndReason::Lost);
    until("nothing of it runs", SOON, || async {
        let gone = cgroup::members(&daemon.cgroup())?.is_empty();
        Ok((gone && state(&room).await? == SandboxState::Stopped).then_some(()))
    })
    .await?;
    ensure!(room.run("echo again").await?.ok()? == "again");
    daemon.stop()
}

/// A PID 1 that is stopped from the host keeps no call for ever: calls of its sandbox get an error that says so, others work,
/// it is all as before once it goes on, and it can be deleted while it is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_stopped_holder_hangs_no_call() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("stopped").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let pid = room.holder_pid(&daemon.cgroup())?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    signal(pid, Signal::SIGSTOP)?;
    let waiting = tokio::time::timeout(FOUND_OUT, room.run("echo late").send()).await;
    unreachable_error(waiting.context("the call hangs")?.err())?;
    let refused = tokio::time::timeout(FOUND_OUT, room.run("echo later").send()).await;
    unreachable_error(refused.context("the next call hangs")?.err())?;
    ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
    signal(pid, Signal::SIGCONT)?;
    until("it answers again", FOUND_OUT, || async {
        Ok(room.run("echo again").send().await.ok().map(drop))
    })
    .await?;
    signal(pid, Signal::SIGSTOP)?;
    room.delete().await?;
    ensure!(
        !Path::new(&format!("/proc/{pid}/cwd")).exists(),
        "PID 1 outlived its sandbox"
    );
    daemon.stop()
}

fn unreachable_error(error: Option<tonic::Status>) -> Result<()> {
    let error = error.context("it was answered")?;
    ensure!(
        error.code() == Code::Unavailable && error.message().contains("does not answer"),
        "{error:?}"
    );
    Ok(())
}

/// A connection to PID 1 that breaks is made again: a run that was under way gives its result, and new ones start.
#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_to_pid_1_is_made_again() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("cut").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    for _ in 0..3 {
        let mut live = room
            .run("echo begun; until [ -e go ]; do sleep 0.02; done; rm go; exit 7")
            .start()
            .await?;
        live.wait_for("begun").await?;
        drop(cut_in(&room, &daemon)?);
        until("a run is started on the new connection", SOON, || async {
            Ok(room.run("touch go").send().await.ok().map(drop))
        })
        .await?;
        ensure!(live.end().await?.exit_code == 7);
    }
    ensure!(
        room.holder_pid(&daemon.cgroup())? == holder,
        "PID 1 was ended"
    );
    daemon.stop()
}

/// A PID 1 that says what is no message is ended with its sandbox, whatever it says; the daemon and all others go on, and the
/// sandbox starts anew.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_that_sandbox_alone() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("liar").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    for story in [Story::Garbage, Story::TooLong] {
        ensure!(room.run("echo fine").await?.ok()? == "fine");
        let socket = socket_of(&room, &daemon);
        daemon.kill9()?;
        let liar = FakeHolder::instead_of(&room, &daemon, story)?;
        daemon.start_again()?;
        until("the sandbox is stopped", SOON, || async {
            Ok((state(&room).await? == SandboxState::Stopped).then_some(()))
        })
        .await?;
        ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
        drop(liar);
        let _ = fs::remove_file(socket);
    }
    ensure!(
        daemon.log_tail().contains("cannot be talked to"),
        "it is not in the log"
    );
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    daemon.stop()
}

/// The runtime directory is wiped under a live daemon: clients find the socket again, sandboxes start, and those that run are
/// found by the next daemon.
#[tokio::test(flavor = "multi_thread")]
async fn wiped_runtime_directory_is_made_again() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("old").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    fs::remove_dir_all(daemon.slot().home().join("run"))?;
    fs::remove_file(daemon.slot().home().join("lodged.sock"))?;
    let fresh = until("the socket is there again", SOON, || async {
        let api = lodge_tests::api::Api::new(&daemon.slot().home().join("lodged.sock"))?;
        Ok(api.health().await.is_ok().then_some(api))
    })
    .await?;
    let new = fresh.room("new").await?;
    ensure!(new.run("echo fine").await?.ok()? == "fine");
    let socket = socket_of(&room, &daemon);
    until("PID 1 has its socket again", SOON, || async {
        Ok(socket.exists().then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(state(&room).await? == SandboxState::Running);
    ensure!(!room.processes_of(&live.run_id).await?.is_empty());
    daemon.stop()
}

/// A restart loop under load: no sandbox is lost or doubled, each has one PID 1, and nothing piles up.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d05_restart_loop_under_load() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let mut rooms = Vec::new();
    for n in 0..4 {
        rooms.push(daemon.api().room(&format!("loop-{n}")).await?);
    }
    let holders = holders(&rooms, &daemon)?;
    let mut load = JoinSet::new();
    for room in rooms.clone() {
        load.spawn(async move {
            loop {
                // Fails whenever the daemon is away.
                let _ = room
                    .run("echo x >> count; head -c 100000 /dev/zero")
                    .send()
                    .await;
                tokio::task::yield_now().await;
            }
        });
    }
    let begun = std::time::Instant::now();
    let mut restarts = 0;
    while restarts < RESTARTS && begun.elapsed() < Duration::from_secs(30) {
        if restarts % 4 == 0 {
            daemon.restart()?;
        } else {
            daemon.kill9()?;
            daemon.start_again()?;
        }
        restarts += 1;
    }
    load.shutdown().await;
    ensure!(restarts >= 10, "only {restarts} restarts");
    ensure!(daemon.api().list().await?.len() == rooms.len());
    ensure!(
        self::holders(&rooms, &daemon)? == holders,
        "a sandbox has another PID 1"
    );
    for room in &rooms {
        ensure!(room.run("echo fine").await?.ok()? == "fine");
    }
    let entries = fs::read_dir(daemon.state_dir().join("sandboxes"))?.count();
    ensure!(entries == rooms.len(), "{entries} directories");
    let holders = fs::read_dir(daemon.slot().home().join("run/holders"))?.flatten();
    let sockets = holders
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "sock"))
        .count();
    ensure!(sockets == rooms.len(), "{sockets} sockets");
    daemon.stop()
}

fn holders(rooms: &[Room], daemon: &Daemon) -> Result<BTreeSet<i32>> {
    rooms
        .iter()
        .map(|room| room.holder_pid(&daemon.cgroup()))
        .collect()
}

/// Sets how many files a process may have open, both limits.
fn limit_files(pid: i32, soft: u64) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
    let new = rustix::process::Rlimit {
        current: Some(soft),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Some(pid), Resource::Nofile, new)?;
    Ok(())
}

/// Without descriptors calls are refused with a reason, nothing panics, and it all works again once there are some.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_no_descriptors() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("descriptors").await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    limit_files(daemon.pid()?, 16)?;
    for _ in 0..5 {
        let refused = room.run("echo x").send().await;
        let status = refused.err().context("a run started without descriptors")?;
        ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
    }
    let refused = daemon.api().room("another").await;
    ensure!(refused.is_err(), "a sandbox started without descriptors");
    daemon.api().health().await?;
    limit_files(daemon.pid()?, 4096)?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    daemon.api().room("another").await?;
    no_panic(&daemon)
}

fn no_panic(daemon: &Daemon) -> Result<()> {
    let log = fs::read_to_string(daemon.log_file())?;
    ensure!(!log.contains("panic"), "it panicked:\n{log}");
    Ok(())
}

/// A group of the pids controller of the test's own, gone when it is dropped.
struct PidsGroup(PathBuf);

impl PidsGroup {
    fn new(daemon: &Daemon) -> Result<Self> {
        let name = format!("{}-few", daemon.cgroup());
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let top = if v1.is_dir() {
            v1
        } else {
            Path::new("/sys/fs/cgroup")
        };
        let dir = top.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self(dir))
    }

    /// No process of `pid`'s may fork or start a thread from here on.
    fn hold(&self, pid: i32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())?;
        Ok(fs::write(self.0.join("pids.max"), "1")?)
    }

    fn let_go(&self) -> Result<()> {
        Ok(fs::write(self.0.join("pids.max"), "max")?)
    }
}

impl Drop for PidsGroup {
    fn drop(&mut self) {
        let _ = self.let_go();
        let root = self.0.parent().map(|top| top.join("cgroup.procs"));
        let procs = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = root.as_ref().map(|root| fs::write(root, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A launcher that cannot fork: the start is refused with a reason, and works once it can.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_launcher_cannot_fork() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("there").await?;
    let few = PidsGroup::new(&daemon)?;
    few.hold(launcher_of(&daemon, None)?)?;
    let request = pb::AcquireRequest {
        name: "refused".into(),
        ..Default::default()
    };
    let status = daemon
        .api()
        .try_acquire(request)
        .await
        .err()
        .context("it was started")?;
    ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    few.let_go()?;
    daemon.api().room("refused").await?;
    no_panic(&daemon)
}

/// A daemon that gets no more threads answers all the same.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_no_more_threads() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("threads").await?;
    let few = PidsGroup::new(&daemon)?;
    few.hold(daemon.pid()?)?;
    let mut calls = JoinSet::new();
    for n in 0..40 {
        let (room, api) = (room.clone(), daemon.api().clone());
        calls.spawn(async move {
            if n % 4 == 0 {
                api.room(&format!("threads-{n}")).await.map(drop)
            } else {
                room.run("echo fine").await?.ok().map(drop)
            }
        });
    }
    let ended = tokio::time::timeout(FOUND_OUT, calls.join_all()).await;
    for call in ended.context("a call hangs")? {
        call?;
    }
    few.let_go()?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    no_panic(&daemon)
}

/// The OOM killer takes the daemon in the middle of a call: sandboxes and runs go on, and the next daemon has them all.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d14_oom_killer_takes_the_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("oom").await?;
    let mut live = room
        .run("echo begun; until [ -e stop ]; do sleep 0.05; done")
        .start()
        .await?;
    live.wait_for("begun").await?;
    let memory = MemoryGroup::new(&daemon)?;
    memory.hold(daemon.pid()?)?;
    let load = tokio::spawn(async move {
        // Large scripts take memory that is not there.
        while room
            .run(format!(": '{}'", "x".repeat(7 << 20)))
            .send()
            .await
            .is_ok()
        {}
        room
    });
    until_blocking("the kernel has killed the daemon", SOON, || {
        Ok(daemon.has_ended()?.then_some(()))
    })?;
    let room = load.await?;
    drop(memory);
    daemon.start_again()?;
    ensure!(state(&room).await? == SandboxState::Running);
    ensure!(
        !room.processes_of(&live.run_id).await?.is_empty(),
        "the run went with the daemon"
    );
    room.run("touch stop").await?.exited(0)?;
    daemon.stop()
}

/// A memory group of the test's own with next to no memory, gone when it is dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(daemon: &Daemon) -> Result<Self> {
        let name = format!("{}-little", daemon.cgroup());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (top, limit) = if v1.is_dir() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let dir = top.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        fs::write(dir.join(limit), (1 << 20).to_string())?;
        Ok(Self(dir))
    }

    fn hold(&self, pid: i32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = until_blocking("the memory group is gone", SOON, || {
            let _ = fs::remove_dir(&self.0);
            Ok((!self.0.exists()).then_some(()))
        });
    }
}

/// Two daemons that start on one state directory at the same time: one serves, the other says why it does not.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d26_two_daemons_race() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("raced").await?;
    for _ in 0..5 {
        daemon.terminate()?;
        let mut second = command_without_route(&binary::path("lodged")?);
        second.arg("--config").arg(daemon.config_file());
        second
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let second = second.spawn()?;
        let first = daemon.start_again();
        match first {
            Ok(()) => {
                let output = second.wait_with_output()?;
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(
                    output.status.code() == Some(1) && text.contains("in use"),
                    "{text}"
                );
            }
            Err(refused) => {
                ensure!(
                    format!("{refused:#}").contains("ended before it was ready"),
                    "{refused:#}"
                );
                until("the winner serves", SOON, || async {
                    Ok(room.run("true").send().await.ok().map(drop))
                })
                .await?;
                signal(second.id().cast_signed(), Signal::SIGTERM)?;
                second.wait_with_output()?;
                daemon.forget_ended()?;
                daemon.start_again()?;
            }
        }
        ensure!(room.run("echo fine").await?.ok()? == "fine");
    }
    daemon.stop()
}

/// What an earlier daemon left and no sandbox has any more is swept if it carries this state directory's mark, and left alone if
/// it only looks like it: groups with the form of ours and processes in them, and files beside the sockets.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d27_residue_is_swept_by_mark_alone() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let kept = daemon.api().room("kept").await?;
    let lost = daemon.api().room("lost").await?;
    let mut live = lost.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    daemon.kill9()?;
    // A sandbox without a record, as a create that was cut short leaves it.
    fs::remove_dir_all(daemon.state_dir().join("sandboxes").join(lost.id()))?;
    // What others might have made in the same place.
    let parent = cgroup::trees(&daemon.cgroup())?
        .into_iter()
        .find(|tree| tree.join(kept.id()).join("cgroup.kill").exists())
        .context("the v2 group of all sandboxes")?;
    let stranger = parent.join("aaaaaaaaaaaaaaaaaaaa");
    fs::create_dir(&stranger)?;
    let mut sleeper = std::process::Command::new("sleep").arg("300").spawn()?;
    fs::write(stranger.join("cgroup.procs"), sleeper.id().to_string())?;
    let holders = daemon.slot().home().join("run/holders");
    let stale = holders.join("bbbbbbbbbbbbbbbbbbbb.sock");
    drop(UnixListener::bind(&stale)?);
    let strange = holders.join("notes.txt");
    fs::write(&strange, "precious")?;

    let started = daemon.start_again();
    let stranger_lives = sleeper.try_wait()?.is_none();
    let stranger_stays = stranger.is_dir();
    sleeper.kill()?;
    sleeper.wait()?;
    started?;
    ensure!(
        stranger_lives && stranger_stays,
        "another's group was swept"
    );
    ensure!(
        !parent.join(lost.id()).exists(),
        "the lost sandbox's group is there"
    );
    ensure!(
        !stale.exists() && strange.exists(),
        "sockets were not swept by their names"
    );
    ensure!(kept.run("echo fine").await?.ok()? == "fine");
    fs::remove_dir(&stranger)?;
    // The mark of another state directory is no better than none.
    daemon.kill9()?;
    fs::write(
        daemon.state_dir().join("owner"),
        "0123456789abcdef0123456789abcdef",
    )?;
    fs::remove_dir_all(daemon.state_dir().join("sandboxes").join(kept.id()))?;
    daemon.start_again()?;
    ensure!(
        parent.join(kept.id()).exists(),
        "a group with another's mark was swept"
    );
    if daemon.api().list().await?.is_empty() {
        return daemon.stop();
    }
    bail!("a sandbox without a record is listed")
}
