// Images: whatever is imported, and one that nobody uses.

use lodge_proto::v1 as pb;
use pb::image_service_server::ImageService;
use tonic::{Request, Response, Streaming};

use super::{Answer, Events, Fake};

#[tonic::async_trait]
impl ImageService for Fake {
    type ImportStream = Events<pb::ImportEvent>;

    /// Answers with an image whose size is what came, and whose digest is the name that was asked for.
    async fn import(
        &self,
        request: Request<Streaming<pb::ImportRequest>>,
    ) -> Answer<Self::ImportStream> {
        let mut messages = request.into_inner();
        let mut image = pb::Image::default();
        while let Some(message) = messages.message().await? {
            match message.message.expect("no empty message") {
                pb::import_request::Message::Spec(spec) => image.names.push(spec.name),
                pb::import_request::Message::Chunk(chunk) => image.size_bytes += chunk.len() as u64,
            }
        }
        let progress = pb::ImportProgress {
            stage: "unpacking".into(),
            bytes: 1,
            entries: 1,
        };
        let events = [
            pb::import_event::Event::Progress(progress),
            pb::import_event::Event::Image(image),
        ];
        let events = events.map(|event| Ok(pb::ImportEvent { event: Some(event) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn list(&self, _: Request<pb::ListImagesRequest>) -> Answer<pb::ListImagesResponse> {
        Ok(Response::new(pb::ListImagesResponse::default()))
    }

    async fn remove(&self, _: Request<pb::RemoveImageRequest>) -> Answer<pb::RemoveImageResponse> {
        Ok(Response::new(pb::RemoveImageResponse { removed: true }))
    }

    /// Answers with one image that has two names, or with none if it was no dry run.
    async fn prune(
        &self,
        request: Request<pb::PruneImagesRequest>,
    ) -> Answer<pb::PruneImagesResponse> {
        if !request.into_inner().dry_run {
            return Ok(Response::new(pb::PruneImagesResponse::default()));
        }
        let image = pb::PrunedImage {
            digest: format!("sha256:{}", "0".repeat(64)),
            names: vec!["old".into(), "older".into()],
            size_bytes: 3 << 20,
        };
        Ok(Response::new(pb::PruneImagesResponse {
            images: vec![image],
            freed_bytes: 2 << 20,
        }))
    }
}
