//! The gRPC clients, all on one connection to a daemon's unix socket. Raw on purpose: a test may send what the client
//! crate would refuse.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hyper_util::rt::TokioIo;
use lodge_proto::v1::exec_service_client::ExecServiceClient;
use lodge_proto::v1::image_service_client::ImageServiceClient;
use lodge_proto::v1::node_service_client::NodeServiceClient;
use lodge_proto::v1::sandbox_service_client::SandboxServiceClient;
use lodge_proto::v1::{self as pb, sandbox_ref};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::room::Room;

/// Larger than any answer: two streams of 8 MiB and a little.
const MESSAGE_MAX: usize = 32 << 20;
/// Bytes of an archive in one message; the API's maximum is 1 MiB.
const CHUNK: usize = 512 << 10;

/// A connection.
#[derive(Debug, Clone)]
pub struct Api {
    channel: Channel,
}

impl Api {
    /// Will connect to the unix socket at the first call, and again after the daemon was restarted.
    pub fn new(socket: &Path) -> Result<Self> {
        let socket = socket.to_owned();
        let connect = move |_| {
            let socket: PathBuf = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
        };
        let endpoint =
            Endpoint::from_static("http://lodge").connect_timeout(Duration::from_secs(5));
        Ok(Self {
            channel: endpoint.connect_with_connector_lazy(tower::service_fn(connect)),
        })
    }

    /// The connection itself, for calls that no client makes.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Sandboxes.
    pub fn sandboxes(&self) -> SandboxServiceClient<Channel> {
        SandboxServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Runs.
    pub fn exec(&self) -> ExecServiceClient<Channel> {
        ExecServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(4 * MESSAGE_MAX)
    }

    /// Images.
    pub fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone())
    }

    /// The node.
    pub fn node(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone())
    }

    /// How long a health check takes; an error if the daemon does not serve.
    pub async fn health(&self) -> Result<Duration> {
        let start = Instant::now();
        let reply = HealthClient::new(self.channel.clone())
            .check(HealthCheckRequest::default())
            .await
            .context("health check")?;
        ensure!(
            reply.into_inner().status == 1,
            "the daemon does not report SERVING"
        );
        Ok(start.elapsed())
    }

    /// Gets or creates a sandbox of the default image.
    pub async fn room(&self, name: &str) -> Result<Room> {
        self.acquire(pb::AcquireRequest {
            name: name.into(),
            ..Default::default()
        })
        .await
    }

    /// Gets or creates a sandbox.
    pub async fn acquire(&self, request: pb::AcquireRequest) -> Result<Room> {
        let name = request.name.clone();
        let reply = self.try_acquire(request).await;
        let reply = reply.with_context(|| format!("acquire {name}"))?;
        let info = reply.sandbox.context("the answer has a sandbox")?;
        Ok(Room::new(self.clone(), info))
    }

    /// Gets or creates a sandbox; the error as the daemon gave it.
    pub async fn try_acquire(
        &self,
        request: pb::AcquireRequest,
    ) -> Result<pb::AcquireResponse, Status> {
        Ok(self.sandboxes().acquire(request).await?.into_inner())
    }

    /// All sandboxes, over all pages.
    pub async fn list(&self) -> Result<Vec<pb::Sandbox>> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListSandboxesRequest {
                page_token,
                ..Default::default()
            };
            let page = self.sandboxes().list(request).await?.into_inner();
            all.extend(page.sandboxes);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
    }

    /// Deletes a sandbox by its id.
    pub async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = pb::DeleteSandboxRequest { sandbox: by_id(id) };
        self.sandboxes().delete(request).await.map(drop)
    }

    /// Imports an archive from memory; the error as the daemon gave it.
    pub async fn import(&self, name: &str, archive: &[u8]) -> Result<pb::Image, Status> {
        let mut messages = vec![import_spec(name)];
        messages.extend(archive.chunks(CHUNK).map(import_chunk));
        self.import_messages(tokio_stream::iter(messages)).await
    }

    /// Imports an archive from a file, without holding it in memory.
    pub async fn import_file(&self, name: &str, archive: &Path) -> Result<pb::Image> {
        let mut file = tokio::fs::File::open(archive).await?;
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        sender.send(import_spec(name)).await?;
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0u8; CHUNK];
            loop {
                let n = file.read(&mut buffer).await?;
                if n == 0 || sender.send(import_chunk(&buffer[..n])).await.is_err() {
                    return Ok::<_, std::io::Error>(());
                }
            }
        });
        let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let image = self.import_messages(messages).await?;
        reading.await??;
        Ok(image)
    }

    /// All images.
    pub async fn list_images(&self) -> Result<Vec<pb::Image>, Status> {
        let reply = self.images().list(pb::ListImagesRequest {}).await?;
        Ok(reply.into_inner().images)
    }

    /// Removes an image by name or digest; whether the image itself went.
    pub async fn remove_image(&self, image: &str) -> Result<bool, Status> {
        let request = pb::RemoveImageRequest {
            image: image.into(),
        };
        Ok(self.images().remove(request).await?.into_inner().removed)
    }

    async fn import_messages(
        &self,
        messages: impl tokio_stream::Stream<Item = pb::ImportRequest> + Send + 'static,
    ) -> Result<pb::Image, Status> {
        let mut events = self.images().import(messages).await?.into_inner();
        while let Some(event) = events.message().await? {
            if let Some(pb::import_event::Event::Image(image)) = event.event {
                return Ok(image);
            }
        }
        Err(Status::data_loss(
            "the import's stream ended without an image",
        ))
    }
}

fn import_spec(name: &str) -> pb::ImportRequest {
    let spec = pb::ImportSpec { name: name.into() };
    pb::ImportRequest {
        message: Some(pb::import_request::Message::Spec(spec)),
    }
}

fn import_chunk(data: &[u8]) -> pb::ImportRequest {
    pb::ImportRequest {
        message: Some(pb::import_request::Message::Chunk(data.to_vec().into())),
    }
}

/// A reference by the daemon's id.
pub fn by_id(id: &str) -> Option<pb::SandboxRef> {
    Some(pb::SandboxRef {
        r#ref: Some(sandbox_ref::Ref::Id(id.into())),
    })
}

/// A reference by the caller's name.
pub fn by_name(name: &str) -> Option<pb::SandboxRef> {
    Some(pb::SandboxRef {
        r#ref: Some(sandbox_ref::Ref::Name(name.into())),
    })
}

/// Fails unless the call was refused with this code. Returns the message.
pub fn refused<T>(outcome: Result<T, Status>, code: tonic::Code, what: &str) -> Result<String> {
    match outcome {
        Ok(_) => bail!("{what} was accepted"),
        Err(status) if status.code() == code => Ok(status.message().to_owned()),
        Err(status) => bail!(
            "{what} was refused as {:?}, not {code:?}: {}",
            status.code(),
            status.message()
        ),
    }
}

/// The reason code of a refusal. Empty where the daemon gave none: then it was the connection that failed.
pub fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map(|info| info.reason).unwrap_or_default()
}
