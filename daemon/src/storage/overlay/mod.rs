//! The overlay driver, for kernels without btrfs: the image's layers below, a writable layer per sandbox above. The overlay
//! itself is mounted by the sandbox, inside its own namespaces.

/// A writable layer that is a plain directory, without a limit: that of a probe, and of sandboxes that were made before there
/// were limits.
mod directories;
/// The driver: a writable layer is an ext4 in a sparse file.
mod driver;
/// How large such an ext4 must be, and what it has room for.
mod geometry;
/// What an image says of itself.
mod superblock;
/// Ready-made empty layers, which a create copies.
mod templates;
/// Making layers of them.
mod maker;
/// Layers made ahead.
mod spares;
/// What is kept mounted of a layer until somebody asks for it.
mod kept;
/// Copies that take no more space than what they copy.
mod sparse;
/// The programs of e2fsprogs.
mod e2fsprogs;
/// The files of one writable layer.
mod layer;
/// A layer that is mounted.
mod mounted;
/// What they may take until the next look.
mod promised;
/// Holding layers back from the host's reserve.
mod reserve;
#[cfg(test)]
mod tests;

pub use directories::Directories;
pub use driver::{Overlay, Settings};
pub use e2fsprogs::PROGRAMS;
