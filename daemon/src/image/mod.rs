//! Images: what a new sandbox's root file system starts as. The map, in reading order.
//!
//! An image is a list of layers and a config. A layer is stored once: for overlays as a directory with its own files, on
//! btrfs as a subvolume with those of all layers up to it. Everything in an archive is hostile: entries are parsed by the
//! `tar` crate's header types and written by our own extractor, below a directory that we made. No program is ever run on
//! an archive, not even a decompressor.

/// Names and digests.
mod name;
pub use name::{Digest, ImageName, ImageRef};
/// What can go wrong.
mod error;
pub use error::ImageError;

/// The images of a directory: import, look up, list, remove.
mod store;
pub use store::{Image, ImageStore, LayerPath, Pin, Removed};
/// Removing all images that nobody uses.
mod prune;
pub use prune::{Pruned, Pruning, Uses};
/// How much an import may use, and how far it is.
mod budget;
/// Where things lie in the images directory.
mod directory;
/// How layers lie on disk.
mod form;
pub use form::Form;
/// From an archive to unpacked layers and a config.
mod import;
/// The one file that says which images there are.
mod index;
pub use budget::{Beneath, DiskRoom, Limits, Observer, Progress, Stage};

/// The default user of an image that names none.
mod account;
/// gzip and zstd, in this process, with guards against bombs.
mod compression;
/// `docker save` and OCI archives: their manifests and configs.
mod oci;
/// A stretch of a file as a reader.
mod span;
/// From bytes to entries.
mod tar;
/// From entries to files.
mod unpack;

#[cfg(test)]
mod tests;
