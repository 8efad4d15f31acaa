//! What is left of a sandbox where a change of it panics or fails, and where a paused one is used, on the host in memory.

use std::time::Duration;

use super::fake::{Daemon, Fake, FakeLive, Moment};
use super::handle::{Handle, Resume};
use super::lifecycle_tests::{after, idle, seconds};
use super::runtime::Motion;
use super::state::State;
use crate::error::{Error, Result};

/// A stream that opened and closed, or a call that is refused because it is frozen, does not end the caller's pause: not
/// for this daemon and not for the next one.
#[test]
fn one_that_a_caller_paused_stays_so_over_a_restart_though_it_was_used() {
    let uses: [fn(&Handle<FakeLive>); 2] = [
        |handle| drop(handle.open_stream()),
        |handle| drop(handle.use_now()),
    ];
    for used in uses {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire("a").await.expect("made");
            let policy = idle(seconds(10, 20, 30));
            handle.change(policy).await.expect("changed");
            handle.pause().await.expect("paused");
            for _ in 0..3 {
                used(&handle);
                after(5).await;
            }
            let refused = handle.admit(Resume::Error).await.err().expect("refused");
            assert_eq!(refused.reason(), "SANDBOX_IS_FROZEN");
            after(5).await;
        });
        drop(daemon);
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.first();
            after(1000).await;
            assert_eq!(handle.state(), State::Frozen);
            // Thawed, it is its policy's again.
            handle.resume().await.expect("resumed");
            after(11).await;
            assert_eq!(handle.state(), State::Frozen);
        });
    }
}

/// Who is about to spawn holds the idle policy up, and not for ever: its requests are served meanwhile.
#[test]
fn the_idle_policy_does_not_wait_for_the_gate_without_a_bound() {
    for policy in [seconds(0, 10, 0), seconds(0, 0, 10)] {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire_with(policy).await;
            after(9).await;
            // Without a use, which no caller can: so that it stays due.
            let gate = handle.hold_gate().await;
            after(2).await;
            let answer = tokio::time::timeout(Duration::from_secs(5), handle.pause()).await;
            let refused = answer.expect("served").expect_err("the gate is held");
            assert_eq!(refused.reason(), "FREEZE_DID_NOT_SETTLE");
            drop(gate);
            after(100).await;
            assert_ne!(handle.state(), State::Running);
        });
    }
}

/// A change that a panic interrupts, and what the sandbox is then.
struct Interrupted {
    op: Op,
    change: &'static str,
    then: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Pause,
    Resume,
    Update,
    Stop,
    Start,
    Delete,
}

impl Op {
    /// What comes before it.
    async fn prepare(self, handle: &Handle<FakeLive>) -> Result<()> {
        match self {
            Self::Resume => handle.pause().await.map(drop),
            Self::Start => handle.stop().await,
            Self::Pause | Self::Update | Self::Stop | Self::Delete => Ok(()),
        }
    }

    async fn call(self, handle: &Handle<FakeLive>) -> Result<()> {
        match self {
            Self::Pause => handle.pause().await.map(drop),
            Self::Resume => handle.resume().await,
            Self::Update => handle.change(idle(seconds(1, 2, 3))).await.map(drop),
            Self::Stop => handle.stop().await,
            Self::Start => handle.live(Resume::Auto).await.map(drop),
            Self::Delete => handle.delete().await,
        }
    }
}

const INTERRUPTED: [Interrupted; 7] = [
    interrupted(Op::Pause, "freeze", State::Running),
    interrupted(Op::Resume, "thaw", State::Frozen),
    interrupted(Op::Update, "write", State::Running),
    interrupted(Op::Stop, "end", State::Stopped),
    interrupted(Op::Start, "start", State::Stopped),
    interrupted(Op::Delete, "end", State::Damaged),
    interrupted(Op::Delete, "put away", State::Damaged),
];

const fn interrupted(op: Op, change: &'static str, then: State) -> Interrupted {
    Interrupted { op, change, then }
}

/// Attack D25 at the place where it is decided: who asked is told of a fault, the sandbox is what it is said to be, and can
/// be deleted.
#[test]
fn attack_d25_a_panic_is_one_changes_alone() {
    for Interrupted { op, change, then } in INTERRUPTED {
        for moment in [Moment::Before, Moment::Done] {
            let fake = Fake::default();
            let daemon = Daemon::on(&fake);
            daemon.run(async {
                let handle = daemon.acquire("a").await.expect("made");
                op.prepare(&handle).await.expect("prepared");
                fake.world().panicking = Some((change, moment));
                let told = op.call(&handle).await.expect_err("it panics");
                let case = format!("{op:?}, {change} {moment:?}");
                assert_eq!(told.reason(), "INTERNAL", "{case}");
                after(0).await;
                assert_eq!(handle.state(), then, "{case}");
                assert!(is_so(&fake, &handle), "{case}");
                if then != State::Damaged {
                    drop(handle.admit(Resume::Auto).await.expect("it can be used"));
                }
                handle.delete().await.expect("deleted");
            });
            let world = fake.world();
            assert!(world.records.is_empty() && world.alive.is_empty());
        }
    }
}

/// Whether the host agrees with what the sandbox says that it is.
fn is_so(fake: &Fake, handle: &Handle<FakeLive>) -> bool {
    let world = fake.world();
    let motion = world.alive.get(handle.id()).map(|alive| alive.motion);
    match handle.state() {
        State::Running => motion == Some(Motion::Running),
        State::Frozen => motion == Some(Motion::Frozen),
        State::Stopped => motion.is_none(),
        State::Damaged | State::Creating | State::Deleting => true,
    }
}

/// A pause that a panic cut off does not stand still: its policy goes on, also for the next daemon.
#[test]
fn a_pause_that_panicked_is_no_pause() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire("a").await.expect("made");
        let policy = idle(seconds(0, 100, 0));
        handle.change(policy).await.expect("changed");
        fake.world().panicking = Some(("freeze", Moment::Done));
        handle.pause().await.expect_err("it panics");
        after(101).await;
        assert_eq!(handle.state(), State::Stopped);
    });
}

#[test]
fn a_create_that_panics_frees_the_name() {
    for change in ["create", "start"] {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            fake.world().panicking = Some((change, Moment::Before));
            let told = daemon.acquire("a").await.err().expect("it panics");
            assert_eq!(told.reason(), "INTERNAL");
            daemon.acquire("a").await.expect("made");
        });
        assert_eq!(fake.world().records.len(), 1);
    }
}

/// Of one whose processes could not be ended, the next stop tries again, and so does who needs it.
#[test]
fn an_end_that_failed_is_tried_again() {
    let retries: [(Op, State); 2] = [(Op::Stop, State::Stopped), (Op::Start, State::Running)];
    for (retry, then) in retries {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire("a").await.expect("made");
            fake.world().failing.extend(["end", "end"]);
            for _ in 0..2 {
                let failed = handle.stop().await.expect_err("it fails");
                assert_eq!(failed.reason(), "FAKE_FAILURE");
                assert_eq!(handle.state(), State::Damaged);
            }
            let refused: Error = handle.pause().await.expect_err("it is damaged");
            assert_eq!(refused.reason(), "SANDBOX_DAMAGED");
            retry.call(&handle).await.expect("this time it works");
            assert_eq!((handle.state(), handle.view().reason.as_str()), (then, ""));
            assert!(is_so(&fake, &handle));
        });
    }
}

/// One that could not be deleted is not brought back by that: of it a part may be gone.
#[test]
fn a_delete_that_failed_is_not_undone_by_a_start() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire("a").await.expect("made");
        fake.world().failing.extend(["put away"]);
        handle.delete().await.expect_err("it fails");
        handle.stop().await.expect("there is nothing to do");
        let refused = handle.live(Resume::Auto).await.err().expect("refused");
        assert_eq!(refused.reason(), "SANDBOX_DAMAGED");
        handle.delete().await.expect("deleted");
    });
}
