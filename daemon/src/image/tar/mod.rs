//! From bytes to entries.
//!
//! The `tar` crate decodes the fields of a header and nothing else: it neither walks the archive, since it would read
//! long names without a bound and take a stream's end for the archive's, nor writes a file.

/// The archive's blocks, one entry after the other.
mod reader;
pub(super) use reader::TarReader;
/// One entry, decoded.
mod entry;
pub(super) use entry::{Entry, Kind};
/// Extended headers: PAX records and GNU long names.
mod extended;
/// The map of a sparse file in the old GNU form.
mod sparse;
pub(super) use sparse::SparseMap;
/// An entry's name, made safe.
mod path;
pub(super) use path::EntryPath;
