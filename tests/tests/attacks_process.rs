//! Attacks P01 to P06: processes that do not want to end, or want others to.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::host;
use lodge_tests::live::contains;
use lodge_tests::prober::program;
use lodge_tests::wait::until;

/// A daemon made by double fork holds standard output: the call returns within the drain, the survivor is counted,
/// and no reader of the daemon's own is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p01_double_forked_daemon_holds_stdout() -> Result<()> {
    let arena = Arena::new().await?;
    let before = host::open_files(arena.daemon.pid()?)?;
    for _ in 0..5 {
        let ran = arena.attack("(setsid sleep 600 &) ; echo done").await?;
        ensure!(ran.exited(0)?.text() == "done\n", "{}", ran.story());
        ensure!(
            ran.took < Duration::from_millis(900),
            "it took {:?}",
            ran.took
        );
        ensure!(ran.result.left_running == 1, "{:?}", ran.result);
        ensure!(arena.attacker.kill(&ran.result.run_id).await? == 1);
    }
    until(
        "the daemon closes what it read from",
        Duration::from_secs(5),
        || async { Ok((host::open_files(arena.daemon.pid()?)? <= before + 4).then_some(())) },
    )
    .await?;
    arena.check().await
}

/// A survivor writes on after its command has ended: late bytes go to that run's log and never to the next run.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p02_late_output_goes_to_its_own_run() -> Result<()> {
    let arena = Arena::new().await?;
    let first = arena
        .attack("(while :; do echo late; sleep 0.01; done &)")
        .await?;
    first.exited(0)?;
    for _ in 0..10 {
        let next = arena.attack("sleep 0.05; echo mine").await?;
        ensure!(
            next.exited(0)?.text() == "mine\n" && next.errors().is_empty(),
            "{}",
            next.story()
        );
    }
    let log = arena
        .attacker
        .whole_log(&first.result.run_id, pb::Stream::Stdout)
        .await?;
    ensure!(log.len() as u64 > first.out.total_bytes && contains(&log, b"late\n"));
    ensure!(!contains(&log, b"mine"));
    arena.attacker.kill(&first.result.run_id).await?;
    arena.check().await
}

/// A command that stops itself is ended by its timeout all the same, and the sandbox goes on.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p04_command_stops_itself() -> Result<()> {
    let arena = Arena::new().await?;
    let ran = arena
        .attacker
        .run("kill -STOP $$")
        .root()
        .timeout(Duration::from_secs(1))
        .await?;
    ran.timed_out()?;
    ensure!(
        ran.took < Duration::from_millis(4500),
        "it took {:?}",
        ran.took
    );
    arena.check_after(&ran).await
}

/// A parent waits for a stopped child, and a tracer holds a stopped tracee: both trees are killed as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p05_stopped_trees() -> Result<()> {
    let arena = Arena::new().await?;
    let traced = "
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: signal.pause()
os.waitpid(child, 0)
print('stopped', flush=True)
while True: signal.pause()";
    let stopped = "sh -c 'kill -STOP $$' & echo stopped; trap '' TERM; wait; wait; sleep 100";
    let room = &arena.attacker;
    let (a, b) = tokio::join!(
        room.python(traced)
            .root()
            .timeout(Duration::from_secs(1))
            .send(),
        room.run(stopped)
            .root()
            .timeout(Duration::from_secs(1))
            .send(),
    );
    for ran in [a?, b?] {
        ensure!(ran.timed_out()?.text() == "stopped\n", "{}", ran.story());
        ensure!(
            ran.took < Duration::from_millis(4500),
            "it took {:?}",
            ran.took
        );
        ensure!(room.processes_of(&ran.result.run_id).await?.is_empty());
    }
    arena.check().await
}

/// Seizes every new process and never asks how it ended: the kernel then keeps each as a zombie for this tracer.
const KEEPER: &str = "
print('ready', flush=True)
while True:
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) not in (1, os.getpid()): sc('ptrace', 0x4206, int(name), 0, 0)
";

/// A process of another run holds every new process by ptrace and lets none go: each run still ends by its timeout,
/// and the sandbox is usable afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p05_tracer_that_lets_no_process_go() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    let mut keeper = room
        .python(&program(KEEPER))
        .root()
        .timeout(Duration::from_secs(20))
        .start()
        .await?;
    keeper.wait_for("ready").await?;
    // It may let one through that is quicker than its look.
    for _ in 0..20 {
        let held = room
            .run("echo begun; sleep 0.2")
            .root()
            .timeout(Duration::from_secs(1))
            .await?;
        ensure!(held.text() == "begun\n", "{}", held.story());
        ensure!(
            held.took < Duration::from_millis(4500),
            "it took {:?}",
            held.took
        );
        if held.reason() == pb::EndReason::TimedOut {
            break;
        }
    }
    room.kill(&keeper.run_id).await?;
    arena.attack("true").await?.exited(0)?;
    arena.check().await
}

/// Root in the sandbox kills everything that it can: the run ends, PID 1 and the sandbox live, the next run works.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p06_kill_everything() -> Result<()> {
    let arena = Arena::new().await?;
    let holder = arena.attacker.holder_pid(&arena.daemon.cgroup())?;
    for script in [
        "kill -9 -1; sleep 30",
        "kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1; kill -9 -1",
    ] {
        let ran = arena
            .attacker
            .run(script)
            .root()
            .timeout(Duration::from_secs(5))
            .await?;
        let fine = matches!(
            ran.reason(),
            pb::EndReason::Signaled | pb::EndReason::Exited
        );
        ensure!(
            fine || ran.reason() == pb::EndReason::TimedOut,
            "{}",
            ran.story()
        );
        arena
            .attack("true")
            .await
            .context("the next run")?
            .exited(0)?;
        ensure!(
            arena.attacker.holder_pid(&arena.daemon.cgroup())? == holder,
            "PID 1 was replaced"
        );
    }
    arena.check().await
}
