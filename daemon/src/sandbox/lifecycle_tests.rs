//! What actor, registry and recovery do, on the host in memory.

use std::future::Future;

use super::fake::{Fake, FakeLive};
use super::filter::Filter;
use super::handle::{Handle, Resume};
use super::id::{SandboxName, Tenant};
use super::limits::Shortfall;
use super::registry::{Acquire, Registry};
use super::state::State;
use crate::error::Result;

/// One daemon's life on a host: dropped with its tasks, as by kill -9.
struct Daemon {
    registry: Registry<Fake>,
    runtime: tokio::runtime::Runtime,
}

impl Daemon {
    fn on(fake: &Fake) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads");
        let registry = runtime
            .block_on(Registry::open(fake.clone()))
            .expect("opened");
        Self { registry, runtime }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    async fn acquire(&self, name: &str) -> Result<Handle<FakeLive>> {
        let request = Acquire {
            name: SandboxName::parse(name).expect("valid"),
            image: None,
            env: Default::default(),
            labels: Default::default(),
            limits: Default::default(),
            shortfall: Shortfall::Refuse,
            resume: Resume::Auto,
        };
        let tenant = Tenant::default();
        let acquired = self.registry.acquire(&tenant, &request).await?;
        let id = acquired.sandbox.identity.id;
        self.registry.get(&tenant, &super::SandboxRef::Id(id))
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
    let all = second
        .registry
        .list(&Tenant::default(), &Filter::default(), None, 10);
    assert_eq!(all[0].state(), State::Stopped);
    second.run(async {
        let admission = all[0].admit(Resume::Auto).await.expect("started");
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
