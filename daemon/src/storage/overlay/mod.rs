//! The overlay driver, for kernels without btrfs: the image's layers below, a writable layer per sandbox above. The overlay
//! itself is mounted by the sandbox, inside its own namespaces.

/// A writable layer that is a plain directory, without a limit: that of a probe, and of sandboxes that were made before there
/// were limits.
mod directories;

pub use directories::Directories;
