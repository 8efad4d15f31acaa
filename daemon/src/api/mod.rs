//! The protocols that Lodge speaks. Each translates to and from [`crate::service::Service`] and decides nothing.

/// The socket that clients connect to.
pub mod listener;

/// Connections from that socket: who has a place, and who is told that there is none.
mod connections;

/// Calls of each connection, and the answer to those without a place.
mod busy;

/// A panic ends the call that it happened in, and nothing else.
mod panics;

/// gRPC, package `lodge.v1`.
pub mod grpc;
