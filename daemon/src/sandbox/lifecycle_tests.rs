//! What actor, registry and recovery do, on the host in memory.

use std::time::Duration;

use super::fake::{Daemon, Fake, FakeLive, acquire, turns};
use super::filter::Filter;
use super::handle::{Handle, Resume};
use super::id::Tenant;
use super::idle::{After, IdleChange};
use super::limits::Shortfall;
use super::runtime::Motion;
use super::state::State;
use super::update::Change;
use crate::error::Result;

impl Daemon {
    /// The sandbox of this name, made if there is none.
    pub(super) async fn acquire(&self, name: &str) -> Result<Handle<FakeLive>> {
        let tenant = Tenant::default();
        let acquired = self.registry.acquire(&tenant, &acquire(name)).await?;
        let id = acquired.sandbox.identity.id;
        self.registry.get(&tenant, &super::SandboxRef::Id(id))
    }

    /// A new sandbox with this idle policy.
    pub(super) async fn acquire_with(&self, policy: IdleChange) -> Handle<FakeLive> {
        let handle = self.acquire("a").await.expect("made");
        handle.change(idle(policy)).await.expect("changed");
        handle
    }

    /// The first of all sandboxes.
    pub(super) fn first(&self) -> Handle<FakeLive> {
        let all = self
            .registry
            .list(&Tenant::default(), &Filter::default(), None, 1);
        all[0].clone()
    }
}

#[test]
fn a_sandbox_outlives_the_daemon_and_is_the_same() {
    let fake = Fake::default();
    let first = Daemon::on(&fake);
    let id = first.run(async { first.acquire("a").await.expect("made").id().clone() });
    drop(first);
    let second = Daemon::on(&fake);
    let handle = second.run(second.acquire("a")).expect("there");
    assert_eq!((handle.id(), handle.state()), (&id, State::Running));
    assert_eq!(fake.world().alive[&id].life, 1);
}

#[test]
fn after_a_reboot_it_is_stopped_and_the_next_use_starts_it() {
    let fake = Fake::default();
    let first = Daemon::on(&fake);
    first.run(first.acquire("a")).expect("made");
    drop(first);
    fake.reboot();
    let second = Daemon::on(&fake);
    let handle = second.first();
    assert_eq!(handle.state(), State::Stopped);
    second.run(async {
        let admission = handle.admit(Resume::Auto).await.expect("started");
        assert_eq!(admission.live().life, 2);
    });
}

#[test]
fn a_sandbox_whose_holder_dies_is_stopped_and_its_next_use_starts_it() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire("a").await.expect("made");
        fake.kill_holder(handle.id());
        while handle.state() != State::Stopped {
            tokio::task::yield_now().await;
        }
        assert_eq!(handle.live(Resume::Auto).await.expect("started").life, 2);
    });
}

/// A policy of seconds.
pub(super) fn seconds(freeze: i64, stop: i64, delete: i64) -> IdleChange {
    let after = |seconds| Some(After::parse(seconds, 0).expect("valid"));
    IdleChange {
        freeze: after(freeze),
        stop: after(stop),
        delete: after(delete),
    }
}

pub(super) fn idle(policy: IdleChange) -> Change {
    Change {
        limits: Default::default(),
        shortfall: Shortfall::Refuse,
        idle: policy,
        set_labels: Default::default(),
        remove_labels: Vec::new(),
    }
}

/// Lets its task get as far as it gets by this time.
pub(super) async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    turns(50).await;
}

/// Case H6, at the place where it is decided: each step of the policy at its time, none while it is in use.
#[test]
fn the_idle_policy_freezes_then_stops_then_deletes() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire_with(seconds(10, 20, 30)).await;
        let in_use = handle.use_now();
        after(100).await;
        assert_eq!(handle.state(), State::Running);
        drop(in_use);
        for (wait, state) in [
            (9, State::Running),
            (1, State::Frozen),
            (10, State::Stopped),
        ] {
            after(wait).await;
            assert_eq!(handle.state(), state);
            assert_eq!(handle.view().reason.is_empty(), state == State::Running);
        }
        after(10).await;
        assert_eq!(handle.state(), State::Deleting);
        handle.gone().await;
    });
    assert!(fake.world().records.is_empty());
}

#[test]
fn one_that_a_caller_paused_is_not_swept_and_counts_on_when_it_goes_on() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire_with(seconds(10, 20, 0)).await;
        handle.pause().await.expect("paused");
        after(1000).await;
        assert_eq!(handle.state(), State::Frozen);
        handle.resume().await.expect("resumed");
        after(9).await;
        assert_eq!(handle.state(), State::Running);
        after(2).await;
        assert_eq!(handle.state(), State::Frozen);
        // Now it is the caller's: the policy waits.
        handle.pause().await.expect("paused");
        after(1000).await;
        assert_eq!(handle.state(), State::Frozen);
        assert_eq!(handle.view().reason, "");
    });
    drop(daemon);
    // Also for the next daemon.
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.first();
        after(1000).await;
        assert_eq!(handle.state(), State::Frozen);
    });
}

/// Looking is no use, and every use begins the time anew.
#[test]
fn a_use_puts_the_policy_off_and_a_look_does_not() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire_with(seconds(10, 0, 0)).await;
        for _ in 0..20 {
            after(5).await;
            drop(handle.admit(Resume::Auto).await.expect("running"));
        }
        assert_eq!(handle.state(), State::Running);
        for _ in 0..11 {
            after(1).await;
            handle.view();
        }
        assert_eq!(handle.state(), State::Frozen);
        let refused = handle.admit(Resume::Error).await.err().expect("refused");
        assert_eq!(refused.reason(), "SANDBOX_IS_FROZEN");
        drop(handle.admit(Resume::Auto).await.expect("thawed"));
        assert_eq!(handle.state(), State::Running);
    });
}

/// The note of its want of use outlives the daemon, and a use takes it away.
#[test]
fn want_of_use_counts_on_over_a_restart() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        daemon.acquire_with(seconds(0, 200, 0)).await;
        after(150).await;
    });
    drop(daemon);
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.first();
        // Noted after one minute.
        after(130).await;
        assert_eq!(handle.state(), State::Running);
        after(11).await;
        assert_eq!(handle.state(), State::Stopped);
        handle.live(Resume::Auto).await.expect("started");
        after(1).await;
        assert!(fake.world().unused.is_empty());
    });
}

/// A use that begins and ends while the first note is being written takes that note away, whenever in between it comes.
#[test]
fn a_use_at_the_moment_of_the_first_note_takes_it_away() {
    for late in 0..12 {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire("a").await.expect("made");
            after(59).await;
            tokio::time::advance(Duration::from_secs(1)).await;
            turns(late).await;
            drop(handle.admit(Resume::Auto).await.expect("it runs"));
            turns(50).await;
            assert_eq!(fake.world().unused.len(), 0, "used after {late} turns");
        });
    }
}

/// A note that was made while the sandbox was in use is an hour old shortly after that use: it is written anew, once, and the
/// sandbox's task does not look again and again until a minute has passed.
#[test]
fn a_note_is_written_anew_each_hour_also_after_a_late_use() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire_with(seconds(0, 9000, 0)).await;
        let in_use = handle.admit(Resume::Auto).await.expect("it runs").use_on();
        fake.world().failing.push("freeze");
        handle.pause().await.expect_err("it fails");
        after(3590).await;
        drop(in_use);
        tokio::time::advance(Duration::from_secs(11)).await;
        turns(50).await;
        let noted = fake.world().unused[handle.id()].time;
        assert_eq!(noted.as_secs(), 11);
    });
}

/// Who has leave to spawn meets no sandbox that is half-gone: a stop and a delete wait for it, but not for ever.
#[test]
fn a_stop_waits_for_who_is_about_to_spawn() {
    for deleted in [false, true] {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire("a").await.expect("made");
            let admission = handle.admit(Resume::Auto).await.expect("it runs");
            let other = handle.clone();
            let ended = tokio::spawn(async move {
                match deleted {
                    true => other.delete().await,
                    false => other.stop().await,
                }
            });
            turns(50).await;
            assert!(fake.world().alive.contains_key(handle.id()));
            drop(admission);
            ended.await.expect("no panic").expect("ended");
            assert!(!fake.world().alive.contains_key(handle.id()));
        });
    }
}

/// A run and the sweep at the same moment: whoever runs gets in.
#[test]
fn a_run_and_the_idle_policy_never_race_into_an_error() {
    for yields in 0..40 {
        for policy in [seconds(10, 0, 0), seconds(0, 10, 0)] {
            let fake = Fake::default();
            let daemon = Daemon::on(&fake);
            daemon.run(async {
                let handle = daemon.acquire_with(policy).await;
                tokio::time::sleep(Duration::from_secs(10)).await;
                turns(yields).await;
                let admission = handle.admit(Resume::Auto).await.expect("admitted");
                let world = fake.world();
                assert_eq!(world.alive[handle.id()].motion, Motion::Running);
                assert_eq!(world.alive[handle.id()].life, admission.live().life);
            });
        }
    }
}

/// Case H5, at the place where it is decided.
#[test]
fn what_was_changed_holds_over_stop_start_and_restart() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    let mut change = idle(seconds(7, 8, 9));
    change.limits.pids = Some(64);
    change.set_labels.insert("team".into(), "a".into());
    let view = daemon.run(async {
        let handle = daemon.acquire("a").await.expect("made");
        let view = handle.change(change).await.expect("changed");
        handle.stop().await.expect("stopped");
        handle.live(Resume::Auto).await.expect("started");
        view
    });
    drop(daemon);
    let daemon = Daemon::on(&fake);
    let after = daemon.first().view();
    assert_eq!(
        (&after.idle, &after.labels, &after.limits),
        (&view.idle, &view.labels, &view.limits)
    );
    assert_eq!(after.labels["team"], "a");
}

/// All or nothing: neither the kernel's refusal nor the disk's leaves a half.
#[test]
fn a_change_that_fails_changes_nothing() {
    for failing in ["limit", "write"] {
        let fake = Fake::default();
        let daemon = Daemon::on(&fake);
        daemon.run(async {
            let handle = daemon.acquire("a").await.expect("made");
            let before = handle.view();
            let record = fake.world().records[handle.id()].clone();
            fake.world().failing.push(failing);
            let mut change = idle(seconds(1, 1, 1));
            change.limits.pids = Some(64);
            change.set_labels.insert("team".into(), "a".into());
            handle.change(change).await.expect_err("it fails");
            let after = handle.view();
            assert_eq!(
                (after.idle, after.labels, after.limits),
                (before.idle, before.labels, before.limits)
            );
            assert_eq!(fake.world().records[handle.id()], record);
        });
    }
}

/// A pause that does not settle leaves a sandbox that runs; one that others undo is no error to who runs.
#[test]
fn a_pause_that_fails_leaves_it_running() {
    let fake = Fake::default();
    let daemon = Daemon::on(&fake);
    daemon.run(async {
        let handle = daemon.acquire("a").await.expect("made");
        fake.world().failing.push("freeze");
        handle.pause().await.expect_err("it fails");
        assert_eq!(handle.state(), State::Running);
        drop(handle.admit(Resume::Error).await.expect("it runs"));
        handle.pause().await.expect("it can be paused");
    });
}
