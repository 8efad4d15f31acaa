//! From entries to files: one layer's tar stream into a directory that we made.

/// The sequence: each entry in its turn, and the times of directories last.
mod layer;
pub(super) use layer::unpack_layer;
/// Calls below the root's descriptor that follow no symbolic link.
mod tree;
pub(super) use tree::Tree;
/// What a layer that is written into a snapshot finds there.
mod below;
/// What was not made, and why.
mod left_out;
/// Owners, permissions, times and attributes.
mod metadata;
/// Entries that mean "what the layers below have here is gone".
mod whiteout;
pub(super) use left_out::LeftOut;
