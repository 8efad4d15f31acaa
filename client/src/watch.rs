//! Changes of sandboxes as they happen.
//!
//! The events go on when the daemon is restarted: the watch asks again, for a bounded time, and works out itself what
//! went meanwhile. So it keeps the ids and names of the sandboxes that it has told, and nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use lodge_proto::v1 as pb;
use pb::sandbox_event::Event as Wire;
use tonic::Streaming;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::info::SandboxInfo;
use crate::reconnect::{Tries, is_break};
use crate::sandbox::SandboxRef;
use crate::wire::{CALL_DEADLINE, answer, present};

/// Which sandboxes to watch. Await it for their events.
#[derive(Debug, Clone)]
#[must_use = "nothing is watched until it is awaited"]
pub struct Watch {
    client: Client,
    sandbox: Option<SandboxRef>,
    labels: BTreeMap<String, String>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SandboxEvent {
    /// A sandbox as it is now: it is new, or something in it has changed. With a filter by labels, one that has them no
    /// longer is told a last time.
    Changed(Box<SandboxInfo>),
    /// A sandbox is gone.
    Deleted {
        /// Its id.
        id: String,
        /// The name that it had.
        name: String,
    },
    /// Every sandbox that there was has been told. Comes again each time that the daemon was gone and all were told anew.
    Synced,
}

/// The events of [`Watch`]. Whoever reads slowly gets the newest state of a sandbox and not those between.
///
/// They go on when the daemon is restarted. They end when the one sandbox that they are about is gone, and with an error
/// when the daemon refuses, or is gone for longer than [`reconnect_within`](crate::Client::reconnect_within) says.
pub struct SandboxEvents {
    watch: Watch,
    /// `None` while the daemon is gone.
    // Boxed: a stream of tonic is large, and this one is moved.
    stream: Option<Box<Streaming<pb::SandboxEvent>>>,
    known: BTreeMap<String, Known>,
    /// Counts the streams: what is known from an older one and not told by this one is gone.
    round: u64,
    /// Known, and not told by this stream.
    missing: VecDeque<(String, Known)>,
    tries: Tries,
    ended: bool,
}

/// A sandbox that was told.
#[derive(Debug, Clone)]
struct Known {
    name: String,
    round: u64,
}

impl Watch {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            sandbox: None,
            labels: BTreeMap::new(),
        }
    }

    /// Only this one. One that does not exist is NOT_FOUND; the events end when it is gone.
    pub fn sandbox(mut self, sandbox: impl Into<SandboxRef>) -> Self {
        self.sandbox = Some(sandbox.into());
        self
    }

    /// Only those with this label, beside the labels asked for before. Not together with [`Watch::sandbox`].
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    async fn open(&self) -> Result<Box<Streaming<pb::SandboxEvent>>> {
        let request = pb::WatchSandboxesRequest {
            sandbox: self.sandbox.as_ref().map(SandboxRef::to_wire),
            labels: self.labels.clone().into_iter().collect(),
        };
        let mut service = self.client.sandboxes();
        answer(Some(CALL_DEADLINE), service.watch(request))
            .await
            .map(Box::new)
    }

    fn matches(&self, sandbox: &SandboxInfo) -> bool {
        let mut labels = self.labels.iter();
        labels.all(|(name, value)| sandbox.labels.get(name) == Some(value))
    }
}

impl IntoFuture for Watch {
    type Output = Result<SandboxEvents>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async {
            let stream = self.open().await?;
            let tries = Tries::new(self.client.reconnect);
            Ok(SandboxEvents {
                watch: self,
                stream: Some(stream),
                known: BTreeMap::new(),
                round: 0,
                missing: VecDeque::new(),
                tries,
                ended: false,
            })
        })
    }
}

impl SandboxEvents {
    /// The next event; `None` after the last. An error is the last one. Nothing is lost if it is dropped before it is
    /// ready.
    pub async fn next(&mut self) -> Option<Result<SandboxEvent>> {
        loop {
            if self.ended {
                return None;
            }
            match self.step().await {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }

    /// One step towards the next event.
    async fn step(&mut self) -> Result<Option<SandboxEvent>> {
        if self.stream.is_none() {
            return self.reconnect().await;
        }
        match self.hear().await {
            Err(error) if is_break(&error) => {
                self.lost();
                self.tries.pause(error).await?;
                Ok(None)
            }
            heard => heard,
        }
    }

    /// What the stream tells next, after what went while there was none.
    async fn hear(&mut self) -> Result<Option<SandboxEvent>> {
        if let Some((id, _)) = self.missing.front() {
            let still = self.look_for(id).await?;
            let gone = self.missing.pop_front();
            return Ok(still.or_else(|| gone.map(|(id, known)| deleted(id, known))));
        }
        let stream = self
            .stream
            .as_mut()
            .expect("there is one, or it is made first");
        match stream.message().await? {
            Some(event) => self.take(event).map(Some),
            None => Err(Error::StreamCut {
                missing: "the next change",
            }),
        }
    }

    fn take(&mut self, event: pb::SandboxEvent) -> Result<SandboxEvent> {
        Ok(
            match present(event.event, "an event is empty or unknown")? {
                Wire::Sandbox(sandbox) => self.changed(SandboxInfo::from_wire(sandbox)?),
                Wire::Deleted(id) => {
                    let name = self.known.remove(&id).map(|known| known.name);
                    // Nothing more can come of the only one.
                    self.ended = self.watch.sandbox.is_some();
                    let name = name.unwrap_or_default();
                    SandboxEvent::Deleted { id, name }
                }
                Wire::Synced(_) => {
                    let round = self.round;
                    let known = std::mem::take(&mut self.known).into_iter();
                    let (told, missing) = known.partition(|(_, known)| known.round == round);
                    (self.known, self.missing) = (told, BTreeMap::into_iter(missing).collect());
                    SandboxEvent::Synced
                }
            },
        )
    }

    fn changed(&mut self, sandbox: SandboxInfo) -> SandboxEvent {
        if self.watch.matches(&sandbox) {
            let (name, round) = (sandbox.name.clone(), self.round);
            self.known.insert(sandbox.id.clone(), Known { name, round });
        } else {
            self.known.remove(&sandbox.id);
        }
        SandboxEvent::Changed(Box::new(sandbox))
    }

    /// A sandbox that the stream after a restart did not tell: it is gone, unless only its labels have changed.
    async fn look_for(&self, id: &str) -> Result<Option<SandboxEvent>> {
        match self.watch.client.get(SandboxRef::Id(id.to_owned())).await {
            Ok(sandbox) => Ok(Some(SandboxEvent::Changed(Box::new(sandbox)))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The daemon is gone. What it told stays known.
    fn lost(&mut self) {
        self.stream = None;
        self.known.extend(self.missing.drain(..));
        self.round += 1;
        // By its id from now on: another one may have its name when the daemon is back.
        if let (Some(sandbox), Some(id)) = (&mut self.watch.sandbox, self.known.keys().next()) {
            *sandbox = SandboxRef::Id(id.clone());
        }
    }

    /// Asks until the daemon answers or the time is over.
    async fn reconnect(&mut self) -> Result<Option<SandboxEvent>> {
        let (watch, tries) = (&self.watch, &mut self.tries);
        match tries.answer(|| watch.open()).await {
            Ok(stream) => {
                self.stream = Some(stream);
                Ok(None)
            }
            // The one that is watched went meanwhile.
            Err(error) if error.is_not_found() && !self.known.is_empty() => {
                self.ended = true;
                Ok(self.known.pop_first().map(|(id, known)| deleted(id, known)))
            }
            Err(error) => Err(error),
        }
    }
}

fn deleted(id: String, known: Known) -> SandboxEvent {
    let name = known.name;
    SandboxEvent::Deleted { id, name }
}

impl fmt::Debug for SandboxEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxEvents")
            .field("watch", &self.watch)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
