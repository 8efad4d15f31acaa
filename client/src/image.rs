//! Importing, listing and removing images.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::SystemTime;

use futures_core::Stream as _;
use lodge_proto::v1 as pb;
use pb::import_event::Event;
use pb::import_request::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tonic::Streaming;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::upload::{Reader, Upload, UploadFailure};
use crate::wire::{CALL_DEADLINE, answer, time};

/// Bytes that are read before the call begins: as many as a pipe gives at once.
const FIRST_BYTES: usize = 4096;

/// An image: what a new sandbox's root file system starts as.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Image {
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Its names.
    pub names: Vec<String>,
    /// Bytes of its files, unpacked.
    pub size_bytes: u64,
    /// When it was imported.
    pub imported_at: Option<SystemTime>,
    /// Variables that every run in it gets, as `NAME=value`.
    pub env: Vec<String>,
    /// User that runs get; empty if it names none.
    pub user: String,
    /// Working directory that runs get; empty if it names none.
    pub workdir: String,
    /// Layers, from the lowest.
    pub layers: Vec<String>,
    /// Sandboxes that use it.
    pub sandboxes: u32,
    /// Entries that were left out for safety, at most 100, each with its reason.
    pub left_out: Vec<String>,
}

/// What [`Images::prune`] removed, or what it would.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The images, by their first names.
    pub images: Vec<PrunedImage>,
    /// Bytes of their files, of layers that no other image has.
    pub freed_bytes: u64,
}

/// An image that went, or would go.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunedImage {
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// The names that it had.
    pub names: Vec<String>,
    /// Bytes of its files, unpacked; also of layers that other images have.
    pub size_bytes: u64,
}

/// How far an import is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What is being done, e.g. `receiving` or `unpacking`.
    pub stage: String,
    /// Bytes of the archive handled in this stage.
    pub bytes: u64,
    /// Entries unpacked so far.
    pub entries: u64,
}

/// The images of a daemon.
#[derive(Debug, Clone)]
pub struct Images {
    client: Client,
}

/// An import. Await it for the [`Image`].
#[must_use = "nothing is imported until it is awaited"]
pub struct Import {
    client: Client,
    name: String,
    archive: Reader,
    on_progress: Option<Box<dyn FnMut(Progress) + Send>>,
}

impl Images {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// All images, by their first names.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn list(&self) -> Result<Vec<Image>> {
        let mut service = self.client.image_service();
        let list = answer(Some(CALL_DEADLINE), service.list(pb::ListImagesRequest {})).await?;
        list.images.into_iter().map(Image::from_wire).collect()
    }

    /// Imports an archive under a name: a root file system as tar (plain, gzip or zstd), or one of `docker save` or
    /// OCI. A name in use moves to the new image.
    pub fn import(
        &self,
        name: impl Into<String>,
        archive: impl AsyncRead + Send + 'static,
    ) -> Import {
        Import {
            client: self.client.clone(),
            name: name.into(),
            archive: Box::pin(archive),
            on_progress: None,
        }
    }

    /// Imports an archive from a file.
    ///
    /// # Errors
    /// [`Error::Upload`] if the file cannot be opened.
    pub async fn import_file(
        &self,
        name: impl Into<String>,
        path: impl AsRef<Path>,
    ) -> Result<Import> {
        let file = tokio::fs::File::open(path).await.map_err(Error::Upload)?;
        Ok(self.import(name, file))
    }

    /// Removes a name (or, by digest, an image). Returns whether the image itself went, which it does with its last
    /// name.
    ///
    /// # Errors
    /// NOT_FOUND if there is none, FAILED_PRECONDITION if a sandbox uses it.
    pub async fn remove(&self, image: impl Into<String>) -> Result<bool> {
        let request = pb::RemoveImageRequest {
            image: image.into(),
        };
        let mut service = self.client.image_service();
        Ok(answer(Some(CALL_DEADLINE), service.remove(request))
            .await?
            .removed)
    }

    /// Removes all images that no sandbox uses, with all their names.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while there is a sandbox whose record cannot be read: it may be made from any of them.
    pub async fn prune(&self) -> Result<Pruned> {
        self.pruned(false).await
    }

    /// What [`prune`](Self::prune) would remove now. Changes nothing.
    ///
    /// # Errors
    /// Those of [`prune`](Self::prune).
    pub async fn prunable(&self) -> Result<Pruned> {
        self.pruned(true).await
    }

    async fn pruned(&self, dry_run: bool) -> Result<Pruned> {
        let mut service = self.client.image_service();
        let request = pb::PruneImagesRequest { dry_run };
        // Any number of images, each with any number of files: as long as it takes.
        let pruned = answer(None, service.prune(request)).await?;
        Ok(Pruned {
            images: pruned
                .images
                .into_iter()
                .map(PrunedImage::from_wire)
                .collect(),
            freed_bytes: pruned.freed_bytes,
        })
    }
}

impl Import {
    /// Calls back with how far it is, at most four times a second.
    pub fn on_progress(mut self, callback: impl FnMut(Progress) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(callback));
        self
    }

    async fn import(self) -> Result<Image> {
        let archive = begun(self.archive).await?;
        let spec = pb::ImportSpec { name: self.name };
        let first = pb::ImportRequest {
            message: Some(Message::Spec(spec)),
        };
        let (upload, mut failure) = Upload::new(first, Some(archive), |bytes| pb::ImportRequest {
            message: Some(Message::Chunk(bytes)),
        });
        let mut service = self.client.image_service();
        let mut on_progress = self.on_progress;
        let mut events = failure.or_response(service.import(upload)).await?;
        while let Some(event) = next_event(&mut events, &mut failure).await? {
            match event {
                Event::Image(image) => return Image::from_wire(image),
                Event::Progress(progress) => {
                    if let Some(callback) = &mut on_progress {
                        callback(Progress::from_wire(progress));
                    }
                }
            }
        }
        Err(Error::StreamCut {
            missing: "the image",
        })
    }
}

/// Waits for the archive's first bytes. A builder writes none for minutes, and the daemon, which has few places for
/// imports, gives up on a caller who is silent.
async fn begun(mut archive: Reader) -> Result<Reader> {
    let mut first = vec![0; FIRST_BYTES];
    let count = archive.read(&mut first).await.map_err(Error::Upload)?;
    first.truncate(count);
    Ok(Box::pin(std::io::Cursor::new(first).chain(archive)))
}

async fn next_event(
    events: &mut Streaming<pb::ImportEvent>,
    failure: &mut UploadFailure,
) -> Result<Option<Event>> {
    let next = poll_fn(|cx| match Pin::new(&mut *events).poll_next(cx) {
        Poll::Ready(event) => Poll::Ready(event.transpose().map_err(Error::from)),
        Poll::Pending => failure.poll(cx).map(|error| Err(Error::Upload(error))),
    });
    match next.await? {
        None => Ok(None),
        Some(pb::ImportEvent { event: Some(event) }) => Ok(Some(event)),
        Some(_) => Err(Error::Protocol {
            what: "an event is empty or unknown",
        }),
    }
}

impl IntoFuture for Import {
    type Output = Result<Image>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Image>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.import())
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Progress {
    fn from_wire(progress: pb::ImportProgress) -> Self {
        Self {
            stage: progress.stage,
            bytes: progress.bytes,
            entries: progress.entries,
        }
    }
}

impl PrunedImage {
    fn from_wire(image: pb::PrunedImage) -> Self {
        Self {
            digest: image.digest,
            names: image.names,
            size_bytes: image.size_bytes,
        }
    }
}

impl Image {
    fn from_wire(image: pb::Image) -> Result<Self> {
        Ok(Self {
            imported_at: image.imported_at.map(time).transpose()?,
            digest: image.digest,
            names: image.names,
            size_bytes: image.size_bytes,
            env: image.env,
            user: image.user,
            workdir: image.workdir,
            layers: image.layers,
            sandboxes: image.sandboxes,
            left_out: image.left_out,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The daemon would give up on `lodge image build` before mmdebstrap has written a byte.
    #[tokio::test]
    async fn an_import_begins_with_the_first_bytes() {
        let (mut producer, archive) = tokio::io::duplex(64);
        let mut beginning = Box::pin(begun(Box::pin(archive)));
        let early = poll_fn(|cx| Poll::Ready(beginning.as_mut().poll(cx).is_ready())).await;
        assert!(!early, "nothing was written yet");
        producer.write_all(b"all ").await.expect("read");
        let mut archive = beginning.await.expect("begun");
        producer.write_all(b"of it").await.expect("there is room");
        drop(producer);
        let mut text = String::new();
        archive.read_to_string(&mut text).await.expect("text");
        assert_eq!(text, "all of it");
    }
}
