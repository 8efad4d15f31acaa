//! `lodge.v1.ImageService`: translates, and takes archives in.
//!
//! An import has one blocking worker, which writes what the caller sends into a file without a name and then unpacks
//! it. Whoever goes away first, caller or worker, the other notices at its next step, and nothing is left.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodge_proto::v1 as wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use wire::import_event::Event;
use wire::import_request::Message;

use super::status::status;
use crate::error::{Error, ErrorKind};
use crate::image::{Image, ImageError, ImageName, ImageRef, ImageStore, Progress, Removed, Stage};
use crate::service::Service;

/// Imports at once. They write to one disk and unpack one after the other.
const IMPORTS_MAX: usize = 4;
/// Largest chunk, as the API says.
const CHUNK_MAX: usize = 1024 * 1024;
/// Chunks between the wire and the disk; beyond them the caller waits.
const CHUNKS_WAITING: usize = 4;
/// Events between the worker and the wire; progress beyond them is dropped.
const EVENTS_WAITING: usize = 4;
/// Progress is told at most four times a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Bytes received between two looks at the disk's free space.
const DISK_CHECK_EVERY: u64 = 64 * 1024 * 1024;

type Events = mpsc::Sender<Result<wire::ImportEvent, Status>>;

/// `lodge.v1.ImageService`.
#[derive(Clone)]
pub struct ImageServer<S> {
    service: S,
    imports: Arc<Semaphore>,
}

impl<S: Service> ImageServer<S> {
    /// Serves `service`.
    pub fn new(service: S) -> Self {
        Self {
            service,
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
        }
    }
}

#[tonic::async_trait]
impl<S: Service> wire::image_service_server::ImageService for ImageServer<S> {
    type ImportStream = ReceiverStream<Result<wire::ImportEvent, Status>>;

    async fn import(
        &self,
        request: Request<Streaming<wire::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        let permit = Arc::clone(&self.imports)
            .try_acquire_owned()
            .map_err(|_| too_many())?;
        let mut stream = request.into_inner();
        let name = first_name(stream.message().await?)?;
        let (pieces_in, pieces) = mpsc::channel(CHUNKS_WAITING);
        let (events, events_out) = mpsc::channel(EVENTS_WAITING);
        let worker = Worker {
            store: self.service.images().clone(),
            pieces,
            events: Reporter {
                events: events.clone(),
                last: None,
            },
            _permit: permit,
        };
        let service = self.service.clone();
        tokio::spawn(forward(stream, pieces_in, events.clone()));
        tokio::spawn(async move {
            let done = tokio::task::spawn_blocking(move || worker.run(&name));
            let last = match done.await {
                Ok(Ok(image)) => Ok(event(Event::Image(to_wire(&service, image)))),
                Ok(Err(error)) => Err(status(&error)),
                Err(panic) => Err(status(&Error::internal(
                    "IMPORT_PANIC",
                    "the import broke",
                    panic,
                ))),
            };
            // A caller that went away misses only the answer.
            let _ = events.send(last).await;
        });
        Ok(Response::new(ReceiverStream::new(events_out)))
    }

    async fn list(
        &self,
        _: Request<wire::ListImagesRequest>,
    ) -> Result<Response<wire::ListImagesResponse>, Status> {
        let images = blocking(self.service.clone(), |service| service.images().list()).await?;
        let images = images
            .into_iter()
            .map(|image| to_wire(&self.service, image))
            .collect();
        Ok(Response::new(wire::ListImagesResponse { images }))
    }

    async fn remove(
        &self,
        request: Request<wire::RemoveImageRequest>,
    ) -> Result<Response<wire::RemoveImageResponse>, Status> {
        let image = ImageRef::parse(&request.into_inner().image).map_err(Error::from)?;
        let removed = blocking(self.service.clone(), move |service| {
            service
                .images()
                .remove(&image, &|digest| service.image_uses(digest))
        });
        let removed = removed.await? == Removed::Image;
        Ok(Response::new(wire::RemoveImageResponse { removed }))
    }
}

/// Runs a blocking call of the store off the runtime's threads.
async fn blocking<S: Service, T: Send + 'static>(
    service: S,
    call: impl FnOnce(&S) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(move || call(&service)).await {
        Ok(result) => result.map_err(|error| status(&error.into())),
        Err(panic) => Err(status(&Error::internal(
            "IMAGE_PANIC",
            "the call broke",
            panic,
        ))),
    }
}

/// What goes from the wire to the worker. A channel that closes before `End` means that the caller went away.
enum Piece {
    Chunk(bytes::Bytes),
    End,
    Refused(Error),
}

/// Hands the caller's messages on, until either side goes away.
async fn forward(
    mut stream: Streaming<wire::ImportRequest>,
    pieces: mpsc::Sender<Piece>,
    events: Events,
) {
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = events.closed() => return,
        };
        let piece = match message {
            Ok(Some(wire::ImportRequest {
                message: Some(Message::Chunk(chunk)),
            })) if chunk.len() <= CHUNK_MAX => Piece::Chunk(chunk),
            Ok(Some(_)) => Piece::Refused(
                Error::invalid("INVALID_CHUNK", "a message after the first is not a chunk")
                    .hint("send chunks of at most 1 MiB after one spec"),
            ),
            Ok(None) => Piece::End,
            Err(_) => return,
        };
        let last = !matches!(piece, Piece::Chunk(_));
        if pieces.send(piece).await.is_err() || last {
            return;
        }
    }
}

/// The blocking side of one import.
struct Worker {
    store: ImageStore,
    pieces: mpsc::Receiver<Piece>,
    events: Reporter,
    _permit: OwnedSemaphorePermit,
}

impl Worker {
    fn run(mut self, name: &ImageName) -> Result<Image, Error> {
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
struct Reporter {
    events: Events,
    last: Option<Instant>,
}

impl Reporter {
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

fn first_name(first: Option<wire::ImportRequest>) -> Result<ImageName, Status> {
    match first.and_then(|request| request.message) {
        Some(Message::Spec(spec)) => {
            ImageName::parse(&spec.name).map_err(|error| status(&error.into()))
        }
        _ => Err(status(&Error::invalid(
            "MISSING_SPEC",
            "the first message is not a spec",
        ))),
    }
}

fn too_many() -> Status {
    let message = format!("{IMPORTS_MAX} imports are going on already");
    status(&Error::new(ErrorKind::ResourceExhausted, "TOO_MANY_IMPORTS", message).hint("try later"))
}

fn event(event: Event) -> wire::ImportEvent {
    wire::ImportEvent { event: Some(event) }
}

fn to_wire(service: &impl Service, image: Image) -> wire::Image {
    wire::Image {
        sandboxes: service.image_uses(&image.digest),
        digest: image.digest.to_string(),
        names: image.names.into_iter().map(String::from).collect(),
        size_bytes: image.size_bytes,
        imported_at: Some(image.imported_at.into()),
        env: image
            .env
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        user: image.user,
        workdir: image.workdir,
        layers: image
            .layers
            .iter()
            .map(|layer| layer.diff_id.to_string())
            .collect(),
        left_out: image.left_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker on a store of its own, and the two ends that belong to the caller.
    fn worker(
        images: &std::path::Path,
    ) -> (
        Worker,
        mpsc::Sender<Piece>,
        mpsc::Receiver<Result<wire::ImportEvent, Status>>,
    ) {
        let store = ImageStore::open(images).expect("opened");
        let permit = Arc::new(Semaphore::new(1))
            .try_acquire_owned()
            .expect("it is free");
        let (pieces_in, pieces) = mpsc::channel(CHUNKS_WAITING);
        let (events, events_out) = mpsc::channel(EVENTS_WAITING);
        let events = Reporter { events, last: None };
        (
            Worker {
                store,
                pieces,
                events,
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
