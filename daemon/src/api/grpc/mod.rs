//! gRPC, package `lodge.v1`: one file per service, and one table of errors.

/// `lodge.v1.ExecService`.
pub mod exec;
/// `lodge.v1.ImageService`.
pub mod image;
/// `lodge.v1.NodeService`.
pub mod node;
/// `lodge.v1.SandboxService`.
pub mod sandbox;
/// The server with all services, and its bounds.
mod server;
/// Errors of the domain as gRPC statuses.
pub mod status;

pub use server::{ServeError, serve};
