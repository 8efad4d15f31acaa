//! Where the files of sandboxes live. One trait, one file per driver.
//!
//! All calls block. A driver works with descriptors that it opened before the sandbox first ran; it never resolves a
//! path inside a tree that a sandbox can still change.

/// What a panic of a driver is.
mod caught;
/// The trait that drivers implement.
mod driver;
/// What is made ahead, in the background.
mod spares;
/// Which driver a state directory has, and why.
pub mod choice;
/// The btrfs file system in which sandboxes of the btrfs driver live.
pub mod pool;
/// Who has sandboxes held back from the host's reserve, once a second.
pub mod reserve;
/// Snapshots of images, with the limit of a group each.
pub mod btrfs;
/// For kernels without btrfs: image layers below, a writable layer per sandbox above.
pub mod overlay;
/// Programs of the host that make file systems.
pub mod program;
/// Removing a tree that a sandbox or an archive has made.
pub mod remove_tree;

pub use choice::{Choice, Driver, Wish};
pub use driver::{
    Abilities, Beneath, DiskLimit, DiskUsage, HostDisk, OWN_DIR, Place, Root, Storage,
    StorageError, Writable,
};
