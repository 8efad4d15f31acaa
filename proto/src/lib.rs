//! Lodge's wire types, generated from the .proto files beside this crate.
//!
//! [`v1`] is the public gRPC API (features `client` and `server`); [`holder`] is the private protocol
//! between the daemon and PID 1 of a sandbox (feature `holder`). Nothing here is written by hand but
//! this map and two `Debug`s that keep secrets to themselves: field meanings, units and the meaning of zero are in the .proto files.
// Generated code is not ours to document or lint.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

/// The public API, package `lodge.v1`.
#[cfg(any(feature = "client", feature = "server"))]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/lodge.v1.rs"));

    impl std::fmt::Debug for EnvVar {
        /// Shows the name alone: the value may be a secret.
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("EnvVar")
                .field("name", &self.name)
                .finish_non_exhaustive()
        }
    }

    /// The encoded `FileDescriptorSet` of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/lodge_v1.bin"));
}

/// The daemon-holder protocol, package `lodge.holder.v1`.
#[cfg(feature = "holder")]
pub mod holder {
    include!(concat!(env!("OUT_DIR"), "/lodge.holder.v1.rs"));

    impl std::fmt::Debug for ExecSpec {
        /// Shows neither command nor environment.
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("ExecSpec")
                .field("shell", &self.shell)
                .field("user", &self.user)
                .finish_non_exhaustive()
        }
    }
}
