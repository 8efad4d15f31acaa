//! One daemon's life on a host in memory. Dropping it is a kill -9: its tasks end wherever they are.
//!
//! What a test expects of it is not here.

use std::future::Future;

use tokio::task::JoinHandle;

use super::Fake;
use crate::sandbox::handle::Resume;
use crate::sandbox::id::SandboxName;
use crate::sandbox::limits::Shortfall;
use crate::sandbox::registry::{Acquire, Registry};

/// A daemon. Time passes only when all of its tasks wait for it.
pub(in crate::sandbox) struct Daemon {
    pub(in crate::sandbox) registry: Registry<Fake>,
    runtime: tokio::runtime::Runtime,
}

impl Daemon {
    /// Starts one, that takes up what is on the host.
    pub(in crate::sandbox) fn on(fake: &Fake) -> Self {
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

    /// Does something with the daemon's tasks beside it.
    pub(in crate::sandbox) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Begins something on the daemon's own tasks.
    pub(in crate::sandbox) fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.runtime.spawn(work)
    }
}

/// A request for the sandbox of this name, with nothing else said.
pub(in crate::sandbox) fn acquire(name: &str) -> Acquire {
    Acquire {
        name: SandboxName::parse(name).expect("valid"),
        image: None,
        env: Default::default(),
        labels: Default::default(),
        limits: Default::default(),
        shortfall: Shortfall::Refuse,
        idle: Default::default(),
        confine: Default::default(),
        resume: Resume::Auto,
    }
}
