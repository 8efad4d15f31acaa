//! `lodge.v1.ImageService`: translates, and takes archives in.
//!
//! An import has one blocking worker, which writes what the caller sends into a file without a name and then unpacks
//! it. Whoever goes away first, caller or worker, the other notices at its next step, and nothing is left.

/// What the caller sends.
mod incoming;
/// The blocking side of an import.
mod worker;

use std::sync::Arc;

use lodge_proto::v1 as wire;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use wire::import_event::Event;

use self::incoming::{first_name, forward};
use self::worker::{Reporter, Worker};
use super::status::status;
use crate::error::{Error, ErrorKind};
use crate::image::{Digest, Image, ImageError, ImageRef, Pruning, Removed, Uses};
use crate::service::Service;

/// Imports at once. They write to one disk and unpack one after the other.
const IMPORTS_MAX: usize = 4;
/// Chunks between the wire and the disk; beyond them the caller waits.
const CHUNKS_WAITING: usize = 4;
/// Events between the worker and the wire; progress beyond them is dropped.
const EVENTS_WAITING: usize = 4;

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
        let name = first_name(&mut stream).await?;
        let (pieces_in, pieces) = mpsc::channel(CHUNKS_WAITING);
        let (events, events_out) = mpsc::channel(EVENTS_WAITING);
        let worker = Worker {
            store: self.service.images().clone(),
            pieces,
            events: Reporter::new(events.clone()),
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
            service.images().remove(&image, &UsesOf(service))
        });
        let removed = removed.await? == Removed::Image;
        Ok(Response::new(wire::RemoveImageResponse { removed }))
    }

    async fn prune(
        &self,
        request: Request<wire::PruneImagesRequest>,
    ) -> Result<Response<wire::PruneImagesResponse>, Status> {
        let pruning = match request.into_inner().dry_run {
            true => Pruning::Tried,
            false => Pruning::Done,
        };
        let pruned = blocking(self.service.clone(), move |service| {
            service.images().prune(pruning, &UsesOf(service))
        });
        let pruned = pruned.await?;
        if pruning == Pruning::Done {
            let (images, bytes) = (pruned.images.len(), pruned.freed_bytes);
            tracing::info!(images, bytes, "images pruned");
        }
        Ok(Response::new(wire::PruneImagesResponse {
            images: pruned.images.into_iter().map(pruned_to_wire).collect(),
            freed_bytes: pruned.freed_bytes,
        }))
    }
}

/// The sandboxes of a service as users of images.
struct UsesOf<'a, S>(&'a S);

impl<S: Service> Uses for UsesOf<'_, S> {
    fn of(&self, image: &Digest) -> u32 {
        self.0.image_uses(image)
    }

    fn unknown(&self) -> u32 {
        self.0.image_uses_unknown()
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

fn too_many() -> Status {
    let message = format!("{IMPORTS_MAX} imports are going on already");
    status(&Error::new(ErrorKind::ResourceExhausted, "TOO_MANY_IMPORTS", message).hint("try later"))
}

fn event(event: Event) -> wire::ImportEvent {
    wire::ImportEvent { event: Some(event) }
}

fn pruned_to_wire(image: Image) -> wire::PrunedImage {
    wire::PrunedImage {
        digest: image.digest.to_string(),
        names: image.names.into_iter().map(String::from).collect(),
        size_bytes: image.size_bytes,
    }
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
