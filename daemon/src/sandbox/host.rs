//! The real [`Runtime`]: this host. Each change blocks on the kernel or the disk, so that it is done on a thread for that.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::create;
use super::delete;
use super::found;
use super::handle::Handle;
use super::id::SandboxId;
use super::limits::{EffectiveLimits, LimitStatus, Limits};
use super::live::Live;
use super::pause;
use super::platform::Platform;
use super::runtime::{Cause, Condition, Defaults, Left, New, Relimit, Runtime, Started};
use super::start;
use super::state::State;
use super::stop;
use super::update;
use crate::error::Result;
use crate::fault;
use crate::holder::KnownRun;
use crate::image::{Digest, ImageRef, Pin};
use crate::store::{Record, Unused};

/// This host. Cheap to clone.
#[derive(Clone)]
pub struct Host(Arc<Platform>);

impl Host {
    /// With these parts.
    pub fn new(platform: Platform) -> Self {
        Self(Arc::new(platform))
    }

    /// Its parts.
    pub fn platform(&self) -> &Arc<Platform> {
        &self.0
    }

    /// A change of one sandbox; only so many at once.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Platform>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.in_turn(&self.0.starts, work).await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        turns: &Semaphore,
        work: impl FnOnce(&Arc<Platform>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = turns
            .acquire()
            .await
            .expect("the semaphore is never closed");
        self.on_thread(work).await
    }

    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Platform>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0
            .on_thread("a change of the sandbox failed", work)
            .await
    }
}

impl Runtime for Host {
    type Live = Live;
    type Known = Vec<KnownRun>;
    type Pin = Pin;

    fn defaults(&self) -> Defaults {
        Defaults {
            image: self.0.default_image.clone(),
            limits: self.0.default_limits,
            idle: self.0.default_idle,
            quotas: self.0.quotas.clone(),
        }
    }

    fn expected(&self, limits: &Limits) -> EffectiveLimits {
        self.0.expected(limits)
    }

    async fn resolve_image(&self, image: &ImageRef) -> Result<(Digest, Pin)> {
        let image = image.clone();
        self.on_thread(move |platform| {
            let (image, pin) = platform.images.resolve_pinned(&image)?;
            Ok((image.digest, pin))
        })
        .await
    }

    async fn create(&self, new: New) -> Result<Arc<Record>> {
        let creates = &self.0.creates;
        self.in_turn(creates, move |platform| {
            create::create(platform, new).map(Arc::new)
        })
        .await
    }

    async fn uncreate(&self, record: Arc<Record>) {
        let undone = self.change(move |platform| {
            create::undo(platform, &record);
            Ok(())
        });
        if let Err(error) = undone.await {
            tracing::warn!(error = %error.chain(), "a failed create was not taken back");
        }
    }

    async fn start(&self, record: Arc<Record>) -> Result<Started<Live>> {
        self.change(move |platform| start::start(platform, &record))
            .await
    }

    async fn died(&self, live: &Live) {
        live.holder.died().await;
    }

    async fn end(&self, live: Live, cause: Cause) -> Result<()> {
        self.change(move |platform| stop::end_processes(platform, &live, cause))
            .await
    }

    async fn freeze(&self, live: Live) -> Result<()> {
        pause::freeze(self, live).await
    }

    async fn reclaim(&self, live: Live) -> Option<u64> {
        pause::reclaim(self, live).await
    }

    async fn thaw(&self, live: Live) -> Result<()> {
        pause::thaw(self, live).await
    }

    async fn limit(&self, live: Option<Live>, relimit: Relimit) -> Result<Vec<LimitStatus>> {
        self.on_thread(move |platform| update::limit(platform, live.as_ref(), &relimit))
            .await
    }

    async fn write(&self, record: Arc<Record>) -> Result<()> {
        self.on_thread(move |platform| Ok(platform.store.write(&record)?))
            .await
    }

    async fn note_unused(&self, id: SandboxId, unused: Option<Unused>) {
        let noted = self.on_thread(move |platform| Ok(platform.store.note_unused(&id, unused)?));
        if let Err(error) = noted.await {
            tracing::warn!(error = %error.chain(), "not noted how long a sandbox has not been used");
        }
    }

    async fn unused(&self, id: SandboxId) -> Option<Unused> {
        let unused = self.on_thread(move |platform| Ok(platform.store.unused(&id)));
        unused.await.unwrap_or_default()
    }

    async fn end_leftovers(&self, id: SandboxId) -> Result<()> {
        self.change(move |platform| stop::end_leftovers(platform, &id))
            .await
    }

    async fn put_away(&self, id: SandboxId) -> Result<()> {
        self.change(move |platform| {
            // Where there was nothing live, an earlier daemon may have left something.
            stop::end_leftovers(platform, &id)?;
            delete::put_out_of_sight(platform, &id)
        })
        .await
    }

    async fn discard_unfinished(&self, id: SandboxId) -> Result<()> {
        self.on_thread(move |platform| {
            fault::around("recover.discard unfinished", || {
                delete::put_out_of_sight(platform, &id)
            })
        })
        .await
    }

    fn remove(&self, id: SandboxId, uid_base: Option<u32>) {
        delete::remove_in_background(Arc::clone(&self.0), id, uid_base);
    }

    async fn load(&self) -> Result<Left> {
        let (loaded, trash) = self.on_thread(found::load).await?;
        let finished = trash.len();
        for (id, uid_base) in trash {
            self.remove(id, uid_base);
        }
        Ok(Left { loaded, finished })
    }

    async fn condition(&self, record: Arc<Record>) -> Result<Condition<Self>> {
        found::condition(self, record).await
    }

    async fn recall_runs(&self, handle: &Handle) {
        let (runs, state) = (handle.runs().clone(), handle.state());
        let dir = self.0.store.runs_dir(handle.id());
        let recalled = self.on_thread(move |platform| {
            platform.engine.recall(&dir, &runs);
            if state == State::Stopped {
                platform.engine.settle_dead(&dir, &runs);
            }
            Ok(())
        });
        if let Err(error) = recalled.await {
            tracing::error!(sandbox = %handle.id(), error = %error.chain(), "ended runs are not known");
        }
    }

    async fn adopt(&self, handle: &Handle, live: Live, known: Vec<KnownRun>) -> Result<()> {
        let handle = handle.clone();
        self.on_thread(move |platform| {
            platform.engine.adopt(&handle, &live, known);
            Ok(())
        })
        .await
    }
}
