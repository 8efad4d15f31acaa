//! Attacks L01 to L06: what one sandbox, or one run, may learn of others.

use std::fs;

use anyhow::{Context, Result, ensure};
use lodge_tests::arena::{Arena, canary, find_mention};
use lodge_tests::host;
use lodge_tests::live::contains;

/// Searching everything that can be read for the neighbour's environment: nothing.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l01_neighbours_environment_and_files() -> Result<()> {
    let arena = Arena::new().await?;
    let search = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
        grep -rsa 'CANARY_\\|canary-' /dev/shm /tmp /run /etc /home /sys/fs 2>/dev/null; true";
    let ran = arena.attack(search).await?;
    ensure!(!ran.text().contains("CANARY_NEIGH"), "{}", ran.story());
    arena.check().await
}

/// The files of loop devices have ids of other sandboxes in their paths, and the groups of btrfs tell what each of those has.
#[tokio::test(flavor = "multi_thread")]
async fn devices_and_file_systems_of_the_host_are_out_of_sight() -> Result<()> {
    let arena = Arena::new().await?;
    let on_host = fs::read_dir("/sys/block")?.filter_map(Result::ok);
    let files = on_host.filter(|device| device.path().join("loop/backing_file").exists());
    ensure!(files.count() > 0, "either driver has a loop device");
    let search = "cat /sys/block/*/loop/backing_file /sys/class/block/*/loop/backing_file \
        /sys/devices/virtual/block/*/loop/backing_file 2>/dev/null; ls -A /sys/fs/btrfs /sys/fs/ext4 | grep -v :; true";
    let ran = arena.attacker.run(search).root().await?;
    let ran = ran.exited(0)?;
    ensure!(ran.text().trim().is_empty(), "{}", ran.story());
    arena.check().await
}

/// The environment of a command is exactly what is documented and what the call gave: nothing of the daemon's.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l02_daemons_environment() -> Result<()> {
    let arena = Arena::new().await?;
    let mut expected = vec![
        "HOME=/home/user",
        "LANG=C.UTF-8",
        "LOGNAME=user",
        "OWN=value",
        "SHELL=/bin/bash",
        "USER=user",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ];
    expected.sort_unstable();
    for args in [&["env"][..], &["cat", "/proc/self/environ"][..]] {
        let ran = arena.unseen(arena.attacker.argv(args).env("OWN", "value").await?)?;
        let text = ran.exited(0)?.text().replace('\0', "\n");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        ensure!(lines == expected, "{lines:?}");
    }
    arena
        .attack("cat /proc/*/environ /proc/*/cmdline; env")
        .await?;
    arena.check().await
}

/// After a run with a secret has ended, another run searches processes, memory and files for it: nothing, since every
/// process of such a run ends with it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l03_secret_of_a_former_run() -> Result<()> {
    let arena = Arena::new().await?;
    let secret = canary()?;
    let ran = arena
        .attacker
        .run("setsid sleep 300 & echo $S; echo err $S >&2")
        .root()
        .secret("S", &secret)
        .await?;
    ensure!(
        ran.text() == "«S»\n" && ran.errors() == "err «S»\n",
        "{}",
        ran.story()
    );
    ensure!(
        ran.result.left_running == 0,
        "{} live on",
        ran.result.left_running
    );
    let search = "
import glob, re
needle = b'canary' + b'-'
for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
    try: data = open(path, 'rb').read()
    except OSError: continue
    for m in re.findall(needle + b'[0-9a-f-]{36}', data): print(path, m.decode())
import os
for pid in [p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]:
    try:
        for line in open('/proc/%s/maps' % pid):
            start, end = (int(x, 16) for x in line.split()[0].split('-'))
            with open('/proc/%s/mem' % pid, 'rb') as mem:
                mem.seek(start)
                for m in re.findall(needle + b'[0-9a-f-]{36}', mem.read(end - start)): print(pid, m.decode())
    except (OSError, OverflowError, ValueError): pass
";
    let found = arena.attack_python(search).await?;
    ensure!(found.text().is_empty(), "{}", found.story());
    let files = arena
        .attack("grep -rsal canary- / --exclude-dir=proc --exclude-dir=sys")
        .await?;
    ensure!(files.text().is_empty(), "{}", files.story());
    arena.check().await
}

/// A secret's value in what could not be executed is masked in the result's message like in any output.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_masked_in_messages() -> Result<()> {
    let arena = Arena::new().await?;
    let (room, secret) = (&arena.attacker, "s3cr3tvalue");
    let path = format!("/no/{secret}");
    let cut = format!("/{}{secret}", "x".repeat(505));
    for (command, shown) in [
        (room.argv(&[&path]), "/no/«S»"),
        (room.argv(&[&cut]), "/xxx"),
        (room.argv(&["true"]).cwd(&path), "/no/«S»"),
        (room.argv(&["true"]).user(secret), "«S»"),
    ] {
        let ran = command.secret("S", secret).await?;
        let message = &ran.result.message;
        ensure!(message.contains(shown), "{message:?}");
        ensure!(!message.contains("s3cr"), "{message:?}");
    }
    arena.check().await
}

/// Looking on the host, with the daemon's log at its most talkative: no secret in logs, state, run logs, command lines
/// or environments, neither after a good run, nor a failed exec, nor a refused call.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l06_secret_in_logs_and_state() -> Result<()> {
    let arena = Arena::with_config("log_level = \"trace\"").await?;
    let secret = canary()?;
    let room = &arena.attacker;
    let halves = "import os, time\ns = os.environ['S'].encode()\nfor b in s: os.write(1, bytes([b]))\nos.write(2, s * 3)";
    let split = room.python(halves).secret("S", &secret).await?;
    ensure!(
        split.text() == "«S»" && split.errors() == "«S»«S»«S»",
        "{}",
        split.story()
    );
    room.argv(&["/no/such/program"])
        .secret("S", &secret)
        .await?
        .exited(127)?;
    ensure!(
        room.run("true")
            .secret("S", &secret)
            .secret("A=B", &secret)
            .send()
            .await
            .is_err()
    );
    ensure!(
        room.run("true")
            .secret("S", &secret)
            .cwd("relative")
            .send()
            .await
            .is_err()
    );
    ensure!(room.run("kill -SEGV $$").secret("S", &secret).await?.code() == 139);
    let mut live = room
        .run("echo $S; sleep 100")
        .secret("S", &secret)
        .start()
        .await?;
    live.wait_for("«S»").await?;
    is_nowhere(&arena, &secret)?;
    room.kill(&live.run_id).await?;
    arena.check().await
}

/// Not in the log, in what is stored, nor in the command line or environment of any process of the host.
fn is_nowhere(arena: &Arena, secret: &str) -> Result<()> {
    let log = fs::read(arena.daemon.log_file())?;
    ensure!(!log.is_empty(), "the daemon logs nothing");
    ensure!(
        !contains(&log, secret.as_bytes()),
        "the daemon's log has the secret"
    );
    let mentioned = find_mention(arena.daemon.slot().state(), secret)?;
    ensure!(mentioned.is_none(), "{mentioned:?} has the secret");
    let run_dir = find_mention(&arena.daemon.slot().home().join("run"), secret)?;
    ensure!(run_dir.is_none(), "{run_dir:?} has the secret");
    for pid in host::pids()?
        .into_iter()
        .filter(|p| *p != std::process::id().cast_signed())
    {
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        ensure!(
            !contains(&cmdline, secret.as_bytes()),
            "the command line of {pid} has the secret"
        );
    }
    for pid in [
        arena.daemon.pid()?,
        arena.attacker.holder_pid(&arena.daemon.cgroup())?,
    ] {
        let environ = fs::read(format!("/proc/{pid}/environ")).context("environ of our own")?;
        ensure!(
            !contains(&environ, secret.as_bytes()),
            "the environment of {pid} has the secret"
        );
    }
    Ok(())
}

/// Runs of one user in one sandbox see each other's environment, secrets too, as processes of one user do everywhere: who does not
/// trust a run gives it another user or another sandbox. Root sees all of them, another user sees none.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l05_secret_of_a_concurrent_run() -> Result<()> {
    let arena = Arena::new().await?;
    let secret = canary()?;
    let sleep = arena.attacker.run("echo up; sleep 100");
    let mut live = sleep.secret("S", &secret).start().await?;
    live.wait_for("up").await?;
    let look =
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -a ^S= | cut -c3- | sort -u";
    for (user, sees) in [("1000", true), ("0", true), ("1001", false)] {
        let ran = arena.attacker.run(look).user(user).await?;
        ensure!(
            ran.text().contains(&secret) == sees,
            "{user}: {}",
            ran.story()
        );
    }
    arena.attacker.kill(&live.run_id).await?;
    arena.check().await
}

/// A sandbox with the name of one that was deleted has nothing of it: no file, no process, no shared memory.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l11_what_a_deleted_sandbox_left() -> Result<()> {
    let arena = Arena::new().await?;
    let secret = canary()?;
    let api = arena.daemon.api();
    for round in 0..3 {
        let room = api.room("again").await?;
        let look = "ls -A /home/user /tmp /dev/shm /root /var/tmp | grep -c secret; grep -rsa canary- /home /tmp /dev/shm /root /var | wc -l";
        let ran = room.run(look).root().await?;
        ensure!(ran.text() == "0\n0\n", "round {round}: {}", ran.story());
        let leave = format!(
            "for d in /home/user /tmp /dev/shm /root /var/tmp; do echo {secret} >$d/secret; done; (setsid sleep 1000 &)"
        );
        room.run(leave).root().await?.exited(0)?;
        room.delete().await?;
    }
    arena.check().await
}
