//! Attacks P16, P17, P20 and P21: the end of a command is told exactly, however soon it comes and whatever the command does against it.

use std::time::Duration;

use anyhow::{Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::daemon::Daemon;

/// Every exit code is told as it is, and every signal that ends a command as that signal: 137 is not SIGKILL.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p16_every_code_and_signal() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    for code in 0..=255 {
        let ran = room.argv(&["bash", "-c", &format!("exit {code}")]).await?;
        ensure!(
            ran.code() == code && ran.result.signal.is_none(),
            "{code}: {}",
            ran.story()
        );
    }
    for signal in 1..=64 {
        let end = format!("import os, signal; os.kill(os.getpid(), {signal}); print('lives')");
        let ran = room.argv(&["python3", "-S", "-c", &format!(
            "import signal\ntry: signal.signal({signal}, signal.SIG_DFL)\nexcept (OSError, ValueError): pass\n{end}"
        )]).timeout(Duration::from_secs(2)).await?;
        // Ignored unless handled: CHLD, CONT, URG, WINCH, and in an orphaned group also TSTP, TTIN, TTOU. Stopped until the timeout: STOP.
        match signal {
            17 | 18 | 20..=23 | 28 => ensure!(ran.text() == "lives\n", "{signal}: {}", ran.story()),
            19 => {
                ran.timed_out()?;
            }
            _ => ensure!(
                ran.result.signal == Some(signal) && ran.code() == 128 + signal,
                "{signal}: {}",
                ran.story()
            ),
        }
    }
    Ok(())
}

/// A thousand commands that end at once: none is lost, and none loses what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p17_commands_that_end_at_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    for n in 0..1000 {
        let ran = room.argv(&["printf", &n.to_string()]).await?;
        ensure!(
            ran.code() == 0 && ran.text() == n.to_string(),
            "{n}: {}",
            ran.story()
        );
    }
    Ok(())
}

/// A tree that changes its group and session, takes in orphans and asks for a signal at its parent's death is killed as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p20_groups_sessions_and_subreapers() -> Result<()> {
    let arena = Arena::new().await?;
    let program = "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)
for i in range(3):
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 10, 0, 0, 0)
        if os.fork() == 0:
            os.setpgid(0, 0)
            if os.fork() == 0: time.sleep(600)
            time.sleep(600)
        os._exit(0)
time.sleep(600)
";
    let run = arena.attacker.python(program).root();
    let ran = run.timeout(Duration::from_secs(1)).await?;
    ran.timed_out()?;
    arena.check_after(&ran).await
}

/// Programs that ignore what they can and take their time to exit: the deadline holds.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p21_programs_that_do_not_want_to_end() -> Result<()> {
    let arena = Arena::new().await?;
    let program = "
import atexit, os, signal, threading, time
for s in (1, 2, 3, 15): signal.signal(s, lambda *_: time.sleep(600))
atexit.register(lambda: time.sleep(600))
threading.Thread(target=lambda: time.sleep(600)).start()
raise SystemExit(3)
";
    let run = arena.attacker.python(program).root();
    let ran = run.timeout(Duration::from_secs(1)).await?;
    ran.timed_out()?;
    ensure!(
        ran.result.end_reason() == pb::EndReason::TimedOut && ran.took < Duration::from_secs(5),
        "{}",
        ran.story()
    );
    arena.check_after(&ran).await
}
