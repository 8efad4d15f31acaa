//! The blocking side of one import: writes what comes to a file, imports it, and tells how far it is. It knows nothing of
//! HTTP; that the caller is gone it sees by a closed channel.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use lodge_proto::v1 as wire;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use wire::import_event::Event;

use super::incoming::Piece;
use super::{Events, event};
use crate::error::Error;
use crate::image::{Image, ImageError, ImageName, ImageStore, Progress, Stage};

/// Progress is told at most four times a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Bytes received between two looks at the disk's free space.
const DISK_CHECK_EVERY: u64 = 64 * 1024 * 1024;

/// The blocking side of one import.
pub(super) struct Worker {
    pub(super) store: ImageStore,
    pub(super) pieces: mpsc::Receiver<Piece>,
    pub(super) events: Reporter,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Worker {
    /// Takes the archive in and imports it.
    pub(super) fn run(mut self, name: &ImageName) -> Result<Image, Error> {
        let archive = self.receive()?;
        let events = &mut self.events;
        let image = self
            .store
            .import(name, &archive, &mut |progress| events.report(progress))?;
        tracing::info!(%name, digest = %image.digest, bytes = image.size_bytes, "image imported");
        Ok(image)
    }

    fn receive(&mut self) -> Result<File, Error> {
        let mut archive = self.store.receive()?;
        let limit = self.store.limits().archive_bytes;
        let (mut bytes, mut check_at) = (0, 0);
        loop {
            let chunk = match self.pieces.blocking_recv() {
                Some(Piece::Chunk(chunk)) => chunk,
                Some(Piece::End) => return Ok(archive),
                Some(Piece::Refused(error)) => return Err(error),
                None => return Err(ImageError::Cancelled.into()),
            };
            bytes += chunk.len() as u64;
            if bytes > limit {
                return Err(ImageError::Limit {
                    what: "bytes",
                    limit,
                }
                .into());
            }
            if bytes > check_at {
                self.store.check_disk(&archive)?;
                check_at = bytes + DISK_CHECK_EVERY;
            }
            archive.write_all(&chunk).map_err(|source| ImageError::Io {
                doing: "write",
                object: "the received archive".to_owned(),
                source,
            })?;
            let progress = Progress {
                stage: Stage::Receiving,
                bytes,
                entries: 0,
            };
            if self.events.report(progress).is_break() {
                return Err(ImageError::Cancelled.into());
            }
        }
    }
}

/// Tells the caller how far the import is, and the import whether the caller is still there.
pub(super) struct Reporter {
    events: Events,
    last: Option<Instant>,
}

impl Reporter {
    pub(super) fn new(events: Events) -> Self {
        Self { events, last: None }
    }

    fn report(&mut self, progress: Progress) -> ControlFlow<()> {
        if self.events.is_closed() {
            return ControlFlow::Break(());
        }
        let now = Instant::now();
        let due = self
            .last
            .is_none_or(|at| now.duration_since(at) >= PROGRESS_EVERY);
        if due {
            self.last = Some(now);
            let progress = wire::ImportProgress {
                stage: progress.stage.as_str().to_owned(),
                bytes: progress.bytes,
                entries: progress.entries,
            };
            // A slow caller misses some; the next one says more.
            let _ = self.events.try_send(Ok(event(Event::Progress(progress))));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::super::{CHUNKS_WAITING, EVENTS_WAITING};
    use super::*;

    /// A worker on a store of its own, and the two ends that belong to the caller.
    fn worker(
        images: &std::path::Path,
    ) -> (
        Worker,
        mpsc::Sender<Piece>,
        mpsc::Receiver<Result<wire::ImportEvent, tonic::Status>>,
    ) {
        let store = ImageStore::open(images).expect("opened");
        let permit = std::sync::Arc::new(Semaphore::new(1))
            .try_acquire_owned()
            .expect("it is free");
        let (pieces_in, pieces) = mpsc::channel(CHUNKS_WAITING);
        let (events, events_out) = mpsc::channel(EVENTS_WAITING);
        (
            Worker {
                store,
                pieces,
                events: Reporter::new(events),
                _permit: permit,
            },
            pieces_in,
            events_out,
        )
    }

    fn left_in(images: &std::path::Path) -> usize {
        ["staging", "layers"]
            .iter()
            .map(|part| std::fs::read_dir(images.join(part)).expect("there").count())
            .sum()
    }

    fn name() -> ImageName {
        ImageName::parse("test").expect("valid")
    }

    #[test]
    fn a_caller_that_goes_away_in_the_middle_leaves_nothing() {
        let images = tempfile::tempdir().expect("a directory");
        let (worker, pieces, _events) = worker(images.path());
        pieces
            .try_send(Piece::Chunk(vec![1; 512].into()))
            .expect("there is room");
        drop(pieces);
        assert_eq!(
            worker.run(&name()).expect_err("cancelled").reason(),
            "IMPORT_CANCELLED"
        );
        assert_eq!(left_in(images.path()), 0);
    }

    #[test]
    fn a_caller_that_listens_no_more_leaves_nothing() {
        let images = tempfile::tempdir().expect("a directory");
        let (worker, pieces, events) = worker(images.path());
        pieces
            .try_send(Piece::Chunk(vec![0; 1024].into()))
            .expect("there is room");
        pieces.try_send(Piece::End).expect("there is room");
        drop(events);
        assert_eq!(
            worker.run(&name()).expect_err("cancelled").reason(),
            "IMPORT_CANCELLED"
        );
        assert_eq!(left_in(images.path()), 0);
    }

    #[test]
    fn a_whole_archive_becomes_an_image() {
        let images = tempfile::tempdir().expect("a directory");
        let (worker, pieces, mut events) = worker(images.path());
        // Only the zeros that end an archive: an image without files.
        pieces
            .try_send(Piece::Chunk(vec![0; 1024].into()))
            .expect("there is room");
        pieces.try_send(Piece::End).expect("there is room");
        let image = worker.run(&name()).expect("imported");
        assert_eq!(image.names, [name()]);
        let first = events
            .try_recv()
            .expect("progress")
            .expect("no error")
            .event;
        let Some(Event::Progress(progress)) = first else {
            panic!("{first:?}")
        };
        assert_eq!(
            (progress.stage.as_str(), progress.bytes),
            ("receiving", 1024)
        );
    }
}
