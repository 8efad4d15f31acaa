//! Tests of imports, with archives made by hand. They need root, since owners and whiteouts do, and fail without it.

/// Archives, made entry by entry, honest or not.
mod archive;
/// A store in a directory of its own, and what an attack must not touch.
mod arena;
/// A btrfs of its own, in a file.
mod pool;

/// `docker save` and OCI archives.
mod layers;
/// Removing what nobody uses.
mod prune;
/// Layers as subvolumes.
mod subvolumes;
/// Names, sharing, removal, interruption.
mod store;
/// What an honest archive becomes.
mod unpacking;

/// Attributes that steer the kernel.
mod attacks_attributes;
/// A few bytes that become many.
mod attacks_bombs;
/// Headers that lie.
mod attacks_headers;
/// Names that leave the root, directly or by links.
mod attacks_names;
