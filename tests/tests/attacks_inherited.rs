//! What a sandbox would have of whoever started lodged, or of what was done in it before: limits, priorities, broken files.

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::daemon::Daemon;
use lodge_tests::footprint::launcher;
use lodge_tests::host;
use lodge_tests::prober::{self, program};
use lodge_tests::storage::Driver;

/// Lodged was started with limits and priorities of its own, as from a shell after `ulimit` and `nice`: nothing inside has them, and
/// what an earlier run set for itself is no later run's.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p14_limits_of_others() -> Result<()> {
    let daemon = Daemon::new().await?;
    let launcher = launcher(daemon.pid()?)?;
    for limit in [
        "--fsize=1000000:",
        "--cpu=77:",
        "--as=8000000000:",
        "--data=7000000000:",
        "--stack=1000000:",
    ] {
        host::adjust("prlimit", &[limit, "--pid"], launcher)?;
    }
    host::favour(launcher)?;
    let room = daemon.api().room("a").await?;
    let said =
        "ulimit -Sf; ulimit -St; ulimit -Sv; ulimit -Sd; ulimit -Ss; ulimit -Hc; nice; umask;
        python3 -c 'import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)'; ionice";
    let fresh = "unlimited\nunlimited\nunlimited\nunlimited\n8192\n0\n0\n0022\nTrue\nnone: prio 0";
    ensure!(
        room.run(said).await?.ok()? == fresh,
        "{}",
        room.run(said).await?.story()
    );
    room.run("umask 777; ulimit -f 0; ulimit -n 3; ulimit -u 1; nice -n 9 true")
        .await?;
    ensure!(room.run(said).await?.ok()? == fresh);
    Ok(())
}

/// Nobody inside is spared where memory runs out, and nobody can see to that. What lodged has above zero, its sandboxes have too; what
/// it has below, as its unit says, they have not.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p24_oom_score() -> Result<()> {
    let daemon = Daemon::new().await?;
    let launcher = launcher(daemon.pid()?)?;
    // To lower a score takes it.
    let lowered: &[(i32, &str)] = if host::has_cap_sys_resource() {
        &[(-900, "0")]
    } else {
        &[]
    };
    for (of_lodged, inside) in [(300, "300")].iter().chain(lowered) {
        std::fs::write(
            format!("/proc/{launcher}/oom_score_adj"),
            of_lodged.to_string(),
        )?;
        let room = daemon.api().room("a").await?;
        let body = "
score = '/proc/self/oom_score_adj'
print('has:', open(score).read().strip())
for wanted in ('-1000', '-1', '1000'):
    tell(wanted, lambda: os.write(os.open(score, os.O_WRONLY), wanted.encode()))
print('then:', open(score).read().strip())
";
        let ran = room.python(&program(body)).root().await?;
        let expected = [
            ("has", *inside),
            ("-1000", "EACCES"),
            ("-1", "EACCES"),
            ("1000", "OK"),
            ("then", "1000"),
        ];
        prober::expect(&ran, &expected).with_context(|| format!("lodged has {of_lodged}"))?;
        room.delete().await?;
    }
    Ok(())
}

/// Files without a byte: each file system in memory has a bound on their number as well.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r07_files_of_no_bytes() -> Result<()> {
    let limits = pb::Limits {
        shm_bytes: Some(1 << 20),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let body = "
for place in ('/dev', '/dev/shm'):
    made = 0
    try:
        while made < 5000:
            os.close(os.open(f'{place}/r07-{made}', os.O_CREAT | os.O_WRONLY))
            made += 1
        answer = 'OK'
    except OSError as e: answer = errno.errorcode[e.errno]
    print(f'{place}: {made <= 1024} {answer}')
";
    let ran = arena.attacker.python(&program(body)).root().await?;
    prober::expect(
        &ran,
        &["/dev", "/dev/shm"].map(|place| (place, "True ENOSPC")),
    )?;
    arena
        .attack("rm /dev/r07-* /dev/shm/r07-*")
        .await?
        .exited(0)?;
    arena.check_after(&ran).await
}

/// Files without which nothing runs are replaced or gone: the run says so, and the sandbox can be started again and deleted.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p09_broken_files() -> Result<()> {
    let daemon = Daemon::new().await?;
    for (name, harm, exits) in [
        (
            "junk-shell",
            "echo junk >/junk; chmod +x /junk; for f in /usr/bin/bash /usr/bin/dash /usr/bin/sh; do cp --remove-destination /junk $f; done",
            126,
        ),
        (
            "junk-libc",
            "printf x >/usr/lib/x86_64-linux-gnu/libc.so.6",
            127,
        ),
        ("no-rights", "chmod 000 /usr/bin /bin", 126),
        ("nothing", "rm -rf --no-preserve-root / 2>/dev/null", 126),
    ] {
        let room = daemon.api().room(name).await?;
        room.run(harm).root().await?;
        for start in ["as it is", "started again"] {
            let ran = room.run("true").await?;
            ensure!(ran.code() == exits, "{name}, {start}: {}", ran.story());
            room.stop().await?;
            room.start()
                .await
                .with_context(|| format!("{name} is not started"))?;
        }
        room.delete().await?;
    }
    Ok(())
}

/// A directory with something in it lies where a file of ours is mounted: the start puts it aside, and loses nothing. On overlay the
/// kernel moves no directory of the image.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p09_directories_in_the_way() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    let body = "
try:
    os.rename('/etc', '/etc2')
    print('renamed: OK')
except OSError as e: print('renamed: ' + errno.errorcode[e.errno])
else:
    for name in ('hostname', 'hosts', 'resolv.conf'):
        os.makedirs(f'/etc/{name}')
        open(f'/etc/{name}/mine', 'w').write('kept')
";
    let ran = room.python(&program(body)).root().await?;
    let renamed = match Driver::of_tests()? {
        Driver::Overlay => "EXDEV",
        Driver::Btrfs => "OK",
    };
    prober::expect(&ran, &[("renamed", renamed)])?;
    room.stop().await?;
    room.start().await?;
    let kept = room
        .run("cat /etc/*/mine 2>/dev/null; grep -c localhost /etc/hosts")
        .root()
        .await?;
    let expected = match renamed {
        "OK" => "keptkeptkept2",
        _ => "2",
    };
    ensure!(kept.ok()? == expected, "{}", kept.story());
    Ok(())
}

/// Below /proc and /sys nothing can be written to but what is a process's own; what is masked is the null device. As root, and as a
/// user.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e30_writable_files_of_the_kernel() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    let find = "find /proc /sys -path '/proc/[0-9]*' -prune -o -type f -writable -exec test -f {} ';' -print 2>/dev/null; find /proc/self/status";
    for run in [room.run(find).root(), room.run(find)] {
        let ran = run.await?;
        ensure!(ran.text().trim() == "/proc/self/status", "{}", ran.story());
    }
    Ok(())
}

/// What tells of the whole host is empty or absent.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l08_what_the_kernel_tells_of_the_host() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    let read = "cd /proc; for f in diskstats key-users kmsg mtrr partitions swaps kallsyms config.gz; do
        [ ! -e $f ] || [ -z \"$(timeout 1 head -c 1 $f | tr '\\0' x)\" ] || echo $f; done; ls pressure 2>/dev/null";
    for run in [room.run(read).root(), room.run(read)] {
        let ran = run.await?;
        ensure!(ran.ok()?.is_empty(), "{}", ran.story());
    }
    Ok(())
}
