//! What a watcher is told, as it came, and waiting for what is to come.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lodge_proto::v1::{self as pb, sandbox_event};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::api::Api;

/// Longest wait for an event that a test expects.
const EVENT_WITHIN: Duration = Duration::from_secs(60);

/// A watcher.
#[derive(Debug)]
pub struct Watcher {
    events: Streaming<pb::SandboxEvent>,
    /// All that was told, in its order.
    pub told: Vec<sandbox_event::Event>,
}

impl Watcher {
    /// Watches; the error as the daemon gave it. Reads nothing yet.
    pub async fn open(api: &Api, request: pb::WatchSandboxesRequest) -> Result<Self, Status> {
        let events = api.sandboxes().watch(request).await?.into_inner();
        let told = Vec::new();
        Ok(Self { events, told })
    }

    /// Watches all sandboxes, and reads until those that there are have been told.
    pub async fn synced(api: &Api) -> Result<Self> {
        let mut watcher = Self::open(api, pb::WatchSandboxesRequest::default()).await?;
        watcher
            .until("synced", |event| {
                matches!(event, sandbox_event::Event::Synced(_))
            })
            .await?;
        Ok(watcher)
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Result<Result<Option<sandbox_event::Event>, Status>> {
        let event = match timeout(EVENT_WITHIN, self.events.message())
            .await
            .context("no event came")?
        {
            Ok(event) => event,
            Err(status) => return Ok(Err(status)),
        };
        let Some(event) = event else {
            return Ok(Ok(None));
        };
        let event = event.event.context("an event is empty")?;
        self.told.push(event.clone());
        Ok(Ok(Some(event)))
    }

    /// Reads until an event is as wanted.
    pub async fn until(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&sandbox_event::Event) -> bool,
    ) -> Result<sandbox_event::Event> {
        loop {
            match self.next().await.context(what.to_owned())?? {
                Some(event) if wanted(&event) => return Ok(event),
                Some(_) => {}
                None => bail!("the events ended before {what}; told: {:?}", self.told),
            }
        }
    }

    /// Reads until this sandbox is told in a way that is as wanted.
    pub async fn until_sandbox(
        &mut self,
        what: &str,
        id: &str,
        wanted: impl Fn(&pb::Sandbox) -> bool,
    ) -> Result<()> {
        let is_it = |event: &sandbox_event::Event| match event {
            sandbox_event::Event::Sandbox(sandbox) => sandbox.id == id && wanted(sandbox),
            _ => false,
        };
        self.until(what, is_it).await.map(drop)
    }

    /// Reads until this sandbox is told to be gone.
    pub async fn until_deleted(&mut self, id: &str) -> Result<()> {
        let is_it = |event: &sandbox_event::Event| matches!(event, sandbox_event::Event::Deleted(gone) if gone == id);
        self.until("the deletion", is_it).await.map(drop)
    }
}
