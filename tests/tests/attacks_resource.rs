//! Attacks R01 to R24: using up what is shared. The neighbour and the daemon are watched during the attack.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::Api;
use lodge_tests::arena::{Arena, NEIGHBOUR_WITHIN, no_timeout};
use lodge_tests::host;
use lodge_tests::prober::{self, HOG, program};
use lodge_tests::wait::until;
use tokio::task::JoinSet;

const MIB: i64 = 1 << 20;
/// What the daemon may grow by while a sandbox floods it.
const FLOOD_MEMORY: u64 = 16 << 20;

/// A fork bomb is held by the limit of pids, the neighbour does not notice, and the timeout ends all of it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r01_fork_bomb() -> Result<()> {
    let limits = pb::Limits {
        pids: Some(64),
        memory_bytes: Some(128 * MIB),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let bomb = arena
        .attacker
        .run("bomb() { bomb | bomb & }; bomb; sleep 100")
        .timeout(Duration::from_secs(2));
    let start = Instant::now();
    let ran = arena.while_others_are_fine(bomb).await?;
    ensure!(
        start.elapsed() < Duration::from_millis(2000 + 2000 + 1500),
        "it took {:?}",
        start.elapsed()
    );
    ensure!(
        ran.reason() == pb::EndReason::TimedOut || ran.code() != 0,
        "{}",
        ran.story()
    );
    if ran.reason() != pb::EndReason::TimedOut {
        arena.attacker.kill(&ran.result.run_id).await?;
    }
    arena.check_after(&ran).await
}

/// Threads instead of processes: the same limit holds them.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r03_thread_bomb() -> Result<()> {
    let limits = pb::Limits {
        pids: Some(64),
        memory_bytes: Some(128 * MIB),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let bomb = "
import threading, time
threading.stack_size(1 << 16)
made = 0
try:
    while made < 1000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError: pass
print(f'made: {made < 64}', flush=True)
os.kill(os.getpid(), 9)
";
    let bomb = arena.attacker.python(&program(bomb)).root();
    let ran = arena.while_others_are_fine(bomb).await?;
    ensure!(ran.text() == "made: True\n", "{}", ran.story());
    arena.check_after(&ran).await
}

/// Half a processor.
const HALF: i64 = 500;
const SPINS_FOR: Duration = Duration::from_secs(2);

/// Processes that spin, and ask for more than others have: all together get what the limit says, and no priority.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r19_spin_with_priority() -> Result<()> {
    let limits = pb::Limits {
        cpu_millis: Some(HALF),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let body = "
tell('nice', lambda: os.nice(-20))
tell('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
tell('rr', lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99)))
# struct sched_attr: size, policy 6 (deadline), flags, nice, priority, runtime, deadline, period.
deadline = struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10**6, 10**7, 10**7)
NUMBER['sched_setattr'] = 314 if platform.machine() == 'x86_64' else 274
say('deadline', 'sched_setattr', 0, deadline, 0)
for n in range(4 * os.cpu_count()):
    if os.fork() == 0:
        while True: pass
time.sleep(1000)
";
    let spin = arena.attacker.python(&program(body)).root();
    let mut spin = spin.timeout(Duration::from_secs(100)).start().await?;
    spin.wait_for("deadline").await?;
    let (start, before) = (Instant::now(), cpu_time(&arena).await?);
    while start.elapsed() < SPINS_FOR {
        arena.others_are_fine().await.context("during the attack")?;
    }
    let used = cpu_time(&arena).await? - before;
    let took = start.elapsed();
    arena.attacker.kill(&spin.run_id).await?;
    spin.end().await?;
    let text = String::from_utf8_lossy(&spin.stdout).into_owned();
    let refused = "nice: EPERM\nfifo: EPERM\nrr: EPERM\ndeadline: EPERM\n";
    ensure!(text == refused, "{text}");
    // The quota is given out in periods of a tenth of a second.
    let most = took.mul_f64(HALF as f64 / 1000.0) + Duration::from_millis(200);
    ensure!(used <= most, "{used:?} of the processors in {took:?}");
    ensure!(used >= took / 8, "it did not spin: {used:?} in {took:?}");
    arena.check().await
}

/// Processor time of the attacker.
async fn cpu_time(arena: &Arena) -> Result<Duration> {
    let stats = arena.attacker.stats().await?;
    Ok(Duration::try_from(stats.cpu_time.context("cpu time")?)?)
}

/// A memory bomb is killed by the kernel and reported so; PID 1 lives and the sandbox is usable.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r04_memory_bomb() -> Result<()> {
    let limits = pb::Limits {
        memory_bytes: Some(96 * MIB),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let holder = arena.attacker.holder_pid(&arena.daemon.cgroup())?;
    let bomb = arena
        .attacker
        .python(HOG)
        .root()
        .timeout(Duration::from_secs(30));
    let ran = arena.while_others_are_fine(bomb).await?;
    ensure!(ran.reason() == pb::EndReason::OomKilled, "{}", ran.story());
    ensure!(
        arena.attacker.holder_pid(&arena.daemon.cgroup())? == holder,
        "PID 1 was replaced"
    );
    arena.attack("true").await?.exited(0)?;
    arena.check().await
}

/// A memory bomb in a child of the command takes the rest of the run with it, and the result says so; the sandbox is usable at once.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r04_memory_bomb_in_a_child() -> Result<()> {
    let limits = pb::Limits {
        memory_bytes: Some(96 * MIB),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let hog = "python3 -c 'b=[]; [b.append(bytearray(1<<20)) for _ in iter(int,1)]'";
    let scripts = [
        format!("{hog}; echo done"),
        format!("sleep 300 & {hog}; sleep 60; echo done"),
        format!("sleep 300 >&- 2>&- & {hog} & sleep 60; echo done"),
    ];
    for script in scripts {
        let bomb = arena.attacker.run(script.clone()).root();
        let bomb = bomb.timeout(Duration::from_secs(50));
        let ran = arena.while_others_are_fine(bomb).await?;
        ensure!(
            ran.reason() == pb::EndReason::OomKilled && ran.code() == 137,
            "{script}: {}",
            ran.story()
        );
        ensure!(ran.result.left_running == 0, "{script}: {}", ran.story());
        ensure!(
            ran.took < Duration::from_secs(30),
            "{script}: {:?}",
            ran.took
        );
        let usable = arena.attack("true").await?;
        usable.exited(0)?;
        let run = ran.result.run_id.clone();
        until("nothing of it is left", Duration::from_secs(2), || async {
            let left = arena.attacker.processes_of(&run).await?;
            Ok(left.is_empty().then_some(()))
        })
        .await?;
    }
    arena.check().await
}

/// The ioctls by which a sandbox on btrfs would leave its disk limit are refused on every file system; those that
/// clone ranges of files are left to the file system.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r12_btrfs_ioctls() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
fd = os.open('/root', os.O_RDONLY)
args = ctypes.create_string_buffer(4096)
for label, number in [('SNAP_CREATE', 0x50009401), ('SUBVOL_CREATE', 0x5000940e), ('SYNC', 0x9408),
        ('SNAP_CREATE_V2', 0x50009417), ('SUBVOL_CREATE_V2', 0x50009418), ('DEV_INFO', 0xd000941e),
        ('SNAP_DESTROY', 0x5000940f), ('high bits', 0x1_0000_9408)]:
    say(label, 'ioctl', fd, number, args)
out = os.open('/root/clone', os.O_RDWR | os.O_CREAT)
say('FICLONE', 'ioctl', out, 0x40049409, fd)
";
    let ran = arena.attack_python(&program(body)).await?;
    let denied = [
        "SNAP_CREATE",
        "SUBVOL_CREATE",
        "SYNC",
        "SNAP_CREATE_V2",
        "SUBVOL_CREATE_V2",
        "DEV_INFO",
        "SNAP_DESTROY",
        "high bits",
    ];
    prober::expect(&ran, &denied.map(|l| (l, "EPERM")))?;
    ensure!(
        prober::answers(&ran)?
            .get("FICLONE")
            .is_some_and(|a| a != "EPERM"),
        "{}",
        ran.text()
    );
    arena.check().await
}

/// A flood of standard output is cut, flagged and counted; the daemon does not grow, another run in the same sandbox
/// is not disturbed, and the flood is ended by its timeout and not before.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r20_output_flood() -> Result<()> {
    let arena = Arena::new().await?;
    let daemon = arena.daemon.pid()?;
    host::reset_peak_memory(daemon)?;
    let before = host::memory_field(daemon, "VmHWM")?;
    let flood = arena
        .attacker
        .run("yes")
        .root()
        .timeout(Duration::from_secs(3));
    let beside = async {
        let ran = arena.while_others_are_fine(flood).await?;
        ran.timed_out()?;
        anyhow::Ok(ran)
    };
    let other = arena
        .attacker
        .run("for i in 1 2 3 4 5; do echo $i; sleep 0.2; done")
        .send();
    let (ran, other) = tokio::join!(beside, other);
    let ran = ran?;
    ensure!(other?.text() == "1\n2\n3\n4\n5\n");
    ensure!(ran.took >= Duration::from_secs(3), "it was ended early");
    let kept = (ran.out.head.len() + ran.out.tail.len()) as u64;
    ensure!(
        ran.out.total_bytes > 64 << 20,
        "only {} bytes",
        ran.out.total_bytes
    );
    ensure!(kept <= 1 << 20 && ran.out.dropped_bytes == ran.out.total_bytes - kept);
    let peak = host::memory_field(daemon, "VmHWM")?;
    ensure!(
        peak < before + FLOOD_MEMORY,
        "the daemon grew from {before} to {peak} bytes"
    );
    arena.check().await
}

/// Writers that fill their pipes and then drip, faster than anybody would go to sleep between two drops, four for each turn at
/// moving output: the neighbour's output, and with it the end of its runs, comes as if they were not there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r20_trickle() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "import os, time\n\
        while True:\n  os.write(1, b'x' * 100000)\n  for _ in range(50): os.write(1, b'x'); time.sleep(0.0002)";
    let turns = 4 * 4.max(2 * std::thread::available_parallelism()?.get());
    let mut trickles = JoinSet::new();
    for _ in 0..turns {
        let trickle = arena.attacker.python(body).root();
        trickles.spawn(trickle.timeout(Duration::from_secs(8)).send());
    }
    while arena.attacker.processes().await?.len() < turns {
        tokio::task::yield_now().await;
    }
    let mut slowest = Duration::ZERO;
    while trickles.try_join_next().is_none() {
        let ran = arena.neighbour.run("seq 10000").await?;
        ensure!(ran.exited(0)?.out.total_bytes == 48_894);
        slowest = slowest.max(ran.took);
    }
    ensure!(
        slowest < NEIGHBOUR_WITHIN,
        "the neighbour's output took {slowest:?}"
    );
    while let Some(trickle) = trickles.join_next().await {
        trickle??.timed_out()?;
    }
    arena.check().await
}

/// A flood of both streams at once: each has its own budget and there is no deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r21_flood_of_both_streams() -> Result<()> {
    let arena = Arena::new().await?;
    let flood = arena
        .attacker
        .run("yes out & yes err >&2")
        .root()
        .timeout(Duration::from_secs(2));
    let ran = arena.while_others_are_fine(flood).await?;
    ran.timed_out()?;
    for (name, output, line) in [("stdout", &ran.out, "out\n"), ("stderr", &ran.err, "err\n")] {
        ensure!(output.dropped_bytes > 0, "{name} was not flooded");
        let kept = output.head.len() + output.tail.len();
        ensure!(
            kept <= 1 << 20 && kept > 900 << 10,
            "{name} keeps {kept} bytes"
        );
        ensure!(
            output.head.starts_with(line.as_bytes()),
            "{name} has the other's output"
        );
    }
    arena.check().await
}

/// Clients that never read, at once.
const STALLED: usize = 50;

/// Fifty streams that nobody reads while `yes` runs: memory stays bounded, other calls are served, and each run ends
/// at its timeout.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r22_readers_that_stall() -> Result<()> {
    let arena = Arena::new().await?;
    let daemon = arena.daemon.pid()?;
    host::reset_peak_memory(daemon)?;
    let before = host::memory_field(daemon, "VmHWM")?;
    let mut starts = JoinSet::new();
    let socket = arena.daemon.slot().home().join("lodged.sock");
    for _ in 0..STALLED {
        // 10 MB each: enough to fill every buffer on the way, and bounded on the disk of the machine that tests.
        let flood = "yes | head -c 10000000; sleep 100";
        let command = arena
            .attacker
            .run(flood)
            .root()
            .timeout(Duration::from_secs(5));
        // Each has a connection of its own, as clients have: streams of one connection share its window.
        let command = command.on(&Api::new(&socket)?);
        starts.spawn(async move { command.start().await });
    }
    let mut stalled = Vec::new();
    while let Some(started) = starts.join_next().await {
        stalled.push(started??);
    }
    let watch = arena.attacker.run("sleep 4").with(no_timeout);
    let reader = arena.neighbour.run("seq 100000").send();
    let (watched, read) = tokio::join!(arena.while_others_are_fine(watch), reader);
    watched?.exited(0)?;
    ensure!(read?.out.total_bytes == 588_895);
    let peak = host::memory_field(daemon, "VmHWM")?;
    ensure!(
        peak < before + (64 << 20),
        "the daemon grew from {before} to {peak} bytes"
    );
    for mut live in stalled {
        let result = live.end().await?;
        ensure!(result.end_reason() == pb::EndReason::TimedOut, "{result:?}");
    }
    arena.check().await
}

/// Bytes that are no UTF-8, characters split over pieces, and all bytes from 0x80: they come back as they were.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r24_invalid_utf8() -> Result<()> {
    let arena = Arena::new().await?;
    let ran = arena.attack("printf '\\xff\\xfe\\xed\\xa0\\x80'").await?;
    ensure!(
        ran.exited(0)?.stdout() == b"\xff\xfe\xed\xa0\x80",
        "{:?}",
        ran.stdout()
    );
    let body = "import os, time\nfor i in range(0x80, 0x100): os.write(1, bytes([i]))\n\
        for b in '€😀'.encode() * 100: os.write(2, bytes([b]))";
    let mut live = arena.attacker.python(body).start().await?;
    live.end().await?;
    let high: Vec<u8> = (0x80..=0xff).collect();
    ensure!(live.stdout == high && live.stderr == "€😀".repeat(100).as_bytes());
    arena.check().await
}

/// What an earlier run left fills the memory almost to the limit: a later run that wants more gets the verdict of the out-of-memory
/// killer, and no error of the daemon's.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r06_slow_leak_then_runs() -> Result<()> {
    let limits = pb::Limits {
        memory_bytes: Some(128 << 20),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let leak = "
import os, time
kept = bytearray(100 << 20)
for i in range(0, len(kept), 4096): kept[i] = 1
print('leaked', flush=True)
if os.fork(): os._exit(0)
os.close(1); os.close(2)
time.sleep(600)
";
    arena.attack_python(leak).await?.exited(0)?;
    for _ in 0..3 {
        let ran = arena.attack_python(HOG).await?;
        ensure!(
            ran.result.end_reason() == pb::EndReason::OomKilled,
            "{}",
            ran.story()
        );
        arena.attack("true").await?.exited(0)?;
    }
    arena.check().await
}
