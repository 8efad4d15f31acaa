//! The protocols that Lodge speaks. Each translates to and from [`crate::service::Service`] and decides nothing.

/// The socket that clients connect to.
pub mod listener;

/// Connections from that socket, at most so many at once.
mod connections;

/// A panic ends the call that it happened in, and nothing else.
mod panics;

/// gRPC, package `lodge.v1`.
pub mod grpc;
