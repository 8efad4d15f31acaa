//! The gRPC server: all services, and the bounds that keep one client from starving the others.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures_core::Stream;
use lodge_proto::v1 as wire;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tower::layer::layer_fn;
use wire::exec_service_server::ExecServiceServer;
use wire::image_service_server::ImageServiceServer;
use wire::node_service_server::NodeServiceServer;
use wire::sandbox_service_server::SandboxServiceServer;

use super::exec::ExecServer;
use super::image::ImageServer;
use super::node::NodeServer;
use super::sandbox::SandboxServer;
use crate::api::busy::count_calls;
use crate::api::connections::Connection;
use crate::api::listener::Door;
use crate::api::panics::catch_panics;
use crate::service::Service;

/// Calls at once on one connection: more than the live runs that a sandbox may have.
const STREAMS_PER_CONNECTION: u32 = 512;
/// Largest request, in bytes: a script of 8 MiB, variables and standard input.
const REQUEST_MAX: usize = 16 << 20;
/// Largest answer, in bytes: two streams of 8 MiB, and what is around them.
const ANSWER_MAX: usize = (16 << 20) + (64 << 10);
/// Headers of one call, in bytes. Ours have a few hundred.
const HEADER_LIST_MAX: u32 = 16 << 10;
/// Streams that a client has reset and that are not yet forgotten (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 32;
/// Bytes in flight to one connection, and to one stream of it: what a pipe and a log page hold several times.
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
/// A quiet connection is asked whether it lives this often; commands may be quiet for hours.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
/// It has this long to answer.
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(20);
/// Calls that are still going on when the daemon ends have this long. Runs go on without it.
const DRAIN: Duration = Duration::from_secs(5);

/// A generated server with our bound on messages.
macro_rules! sized {
    ($server:ident, $service:expr) => {
        $server::new($service)
            .max_decoding_message_size(REQUEST_MAX)
            .max_encoding_message_size(ANSWER_MAX)
    };
}

/// The server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The transport failed.
    #[error("cannot serve gRPC")]
    Transport(#[from] tonic::transport::Error),
    /// The generated descriptors cannot be read.
    #[error("cannot describe the services")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `stop` resolves, then lets calls end for a short time.
pub async fn serve<S: Service>(
    service: S,
    door: Door,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(wire::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let (draining, drained) = watch::channel(());
    let router = bounded()
        .layer(layer_fn(count_calls))
        .layer(layer_fn(catch_panics))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(sized!(
            SandboxServiceServer,
            SandboxServer::new(service.clone(), drained.clone())
        ))
        .add_service(sized!(ExecServiceServer, ExecServer::new(service.clone())))
        .add_service(sized!(
            ImageServiceServer,
            ImageServer::new(service.clone())
        ))
        .add_service(sized!(NodeServiceServer, NodeServer::new(service)));
    let stopping = async {
        stop.await;
        health
            .set_service_status("", ServingStatus::NotServing)
            .await;
        drop(draining);
    };
    let serving = router.serve_with_incoming_shutdown(connections(door), stopping);
    tokio::select! {
        served = serving => Ok(served?),
        () = drain_ends(drained) => Ok(()),
    }
}

/// Every connection that finds room, as long as it is asked for.
fn connections(door: Door) -> impl Stream<Item = io::Result<Connection>> {
    futures_util::stream::unfold(door, |mut door| async move {
        let connection = door.next().await;
        Some((Ok(connection), door))
    })
}

fn bounded() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_LIST_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_PATIENCE))
}

/// Resolves when the time for draining is over.
async fn drain_ends(mut drained: watch::Receiver<()>) {
    // An error means that the sender is gone: draining has begun.
    while drained.changed().await.is_ok() {}
    tokio::time::sleep(DRAIN).await;
    tracing::info!("calls that went on were cut; their runs go on");
}
