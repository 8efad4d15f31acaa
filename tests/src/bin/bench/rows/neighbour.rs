//! What a neighbour's runs take while a sandbox does its worst, against what they take while it does nothing. The attacker has the
//! default limits, but where a smaller one has it hit the limit more often. What a health check takes meanwhile is told on standard error.

use std::time::Duration;

use anyhow::{Context, Result};
use lodge_proto::v1 as pb;
use lodge_tests::room::{Ran, Room};
use tokio::task::JoinHandle;
use tonic::Status;

use super::timed_run;
use crate::row::{Compared, Goal, Measuring, Outcome, Row, Samples};
use crate::world::World;

/// Each attack is ended after this and begun anew.
const ATTACK_FOR: Duration = Duration::from_secs(30);
/// A health check that takes longer is a stall.
const HEALTH_WITHIN: Duration = Duration::from_millis(100);
/// Runs that are not counted, in which an attack gets going.
const UNDER_WAY: usize = 20;
const MIB: i64 = 1 << 20;

/// How a row measures.
type Measure = for<'a> fn(&'a mut World, usize) -> Measuring<'a>;

struct Attack {
    /// Its id in the catalogue.
    id: &'static str,
    /// A shell script that goes on for as long as it is let.
    script: &'static str,
    limits: fn() -> pb::Limits,
}

/// A row, with what is measured during its attack.
const fn row(name: &'static str, measure: Measure) -> Row {
    Row {
        name,
        unit: "ms",
        baseline: "the same while the other sandbox is idle",
        compared: Compared::P99,
        goal: Goal::Ceiling(3.0),
        measure,
    }
}

pub(crate) const R01: Row = row("run_true_during_r01_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R01",
        script: "bomb() { bomb | bomb & }; bomb; sleep 100",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R02: Row = row("run_true_during_r02_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R02",
        script: "python3 -c \"
import os, signal
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork(): os._exit(0)
    except OSError: pass\"",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R03: Row = row("run_true_during_r03_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R03",
        script: "python3 -c \"
import threading, time
while True:
    try: threading.Thread(target=lambda: time.sleep(100)).start()
    except RuntimeError: pass\"",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R04: Row = row("run_true_during_r04_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R04",
        script: "while :; do python3 -c 'b = []
while True: b.append(bytearray(1 << 20))' & wait; done",
        limits: || pb::Limits {
            memory_bytes: Some(256 * MIB),
            ..Default::default()
        },
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R07: Row = row("run_true_during_r07_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R07",
        script: "while :; do cat /dev/zero >/dev/shm/x; rm /dev/shm/x; done 2>/dev/null",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R10: Row = row("run_true_during_r10_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R10",
        script: "cd; while :; do cat /dev/zero >big; rm big; done 2>/dev/null",
        limits: || pb::Limits {
            disk_bytes: Some(1024 * MIB),
            ..Default::default()
        },
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R15: Row = row("run_true_during_r15_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R15",
        script: "python3 -c \"
import os
for i in range(100):
    if os.fork() == 0: break
while True:
    kept = []
    try:
        while True: kept += [os.open('/dev/null', 0), os.eventfd(0), os.pidfd_open(os.getpid())]
    except OSError: pass
    for f in kept: os.close(f)\"",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R19: Row = row("run_true_during_r19_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R19",
        script: "for i in 1 2 3 4 5 6 7 8; do nice -n -20 sh -c 'while :; do :; done' & done 2>/dev/null; wait",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R20: Row = row("run_true_during_r20_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R20",
        script: "yes",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

pub(crate) const R21: Row = row("run_true_during_r21_vs_idle", |world, samples| {
    const ATTACK: Attack = Attack {
        id: "R21",
        script: "yes & yes >&2",
        limits: pb::Limits::default,
    };
    Box::pin(during(world, samples, &ATTACK))
});

async fn during(world: &mut World, samples: usize, attack: &Attack) -> Result<Outcome> {
    let mut measured = Samples::default();
    for _ in 0..samples {
        measured
            .baseline
            .append(&mut timed_run(&world.sandbox).await?);
    }
    let request = pb::AcquireRequest {
        name: format!("attacker-{}", attack.id.to_lowercase()),
        limits: Some((attack.limits)()),
        ..Default::default()
    };
    let attacker = world.daemon.api().acquire(request).await?;
    let mut attacking = begin(&attacker, attack);
    for _ in 0..UNDER_WAY {
        timed_run(&world.sandbox).await?;
    }
    let mut slowest = Duration::ZERO;
    while measured.own.len() < samples {
        if attacking.is_finished() {
            attacking = begin(&attacker, attack);
        }
        measured.own.append(&mut timed_run(&world.sandbox).await?);
        slowest = slowest.max(world.daemon.api().health().await?);
    }
    attacker.delete().await.context("delete the attacker")?;
    let word = if slowest < HEALTH_WITHIN {
        "met"
    } else {
        "MISSED"
    };
    eprintln!(
        "bench: during {} a health check took at most {slowest:?}: {word}",
        attack.id
    );
    Ok(Outcome::Measured(measured))
}

fn begin(attacker: &Room, attack: &Attack) -> JoinHandle<Result<Ran, Status>> {
    let command = attacker.run(attack.script).root().timeout(ATTACK_FOR);
    tokio::spawn(command.send())
}
