//! `Watch`: what a watcher is told, as it comes for it. Ends when the daemon ends, so that nobody holds that up.

use std::pin::Pin;
use std::task::{Context, Poll};

use lodge_proto::v1 as wire;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::Status;
use wire::sandbox_event::Event;

use super::messages::{sandbox_ref, to_wire};
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::spec::check_labels;
use crate::sandbox::watch::{Told, Watch, Watching};

/// The events of a watcher. Nothing is made before the connection has room for it.
pub struct Events {
    watch: Watch,
    /// Resolves when the daemon ends.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
}

impl Events {
    /// What `watch` tells, until `draining` has no sender left.
    pub(super) fn new(watch: Watch, mut draining: watch::Receiver<()>) -> Self {
        let ending = async move { while draining.changed().await.is_ok() {} };
        Self {
            watch,
            ending: Box::pin(ending),
            ended: false,
        }
    }
}

impl Stream for Events {
    type Item = Result<wire::SandboxEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.ending.as_mut().poll(cx).is_ready() {
            self.ended = true;
            return Poll::Ready(Some(Err(daemon_ends().into())));
        }
        let told = std::task::ready!(self.watch.poll_told(cx));
        Poll::Ready(told.map(|told| Ok(event(told))))
    }
}

/// What a request asks to watch.
pub(super) fn watching_from(request: wire::WatchSandboxesRequest) -> Result<Watching> {
    if request.sandbox.is_some() && !request.labels.is_empty() {
        return Err(
            Error::invalid("INVALID_WATCH", "the request names a sandbox and labels")
                .hint("watch one sandbox by its name or id, or many by their labels"),
        );
    }
    let labels = request.labels.into_iter().collect();
    check_labels(&labels)?;
    Ok(Watching {
        sandbox: match request.sandbox {
            None => None,
            named => Some(sandbox_ref(named)?),
        },
        labels,
    })
}

fn event(told: Told) -> wire::SandboxEvent {
    let event = match told {
        Told::Sandbox(view) => Event::Sandbox(to_wire(*view)),
        Told::Deleted(id) => Event::Deleted(id.into()),
        Told::Synced => Event::Synced(wire::WatchSynced {}),
    };
    wire::SandboxEvent { event: Some(event) }
}

fn daemon_ends() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "DAEMON_STOPPING",
        "the daemon is stopping",
    )
    .hint("watch again when it is back")
}
