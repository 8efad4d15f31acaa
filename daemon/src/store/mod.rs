//! What is remembered over a restart. One directory per sandbox, with one versioned record; a lock on them all.
//!
//! Everything here blocks: async callers go through `spawn_blocking`. It never overwrites a record that it could not
//! read, and never resolves a path inside a sandbox's own tree.

/// The directories of sandboxes, and reading and writing their records.
mod directories;
/// Whose sandbox a directory is, should its record be damaged.
mod identity;
/// How long a sandbox has not been used.
mod idle_stamp;
/// The lock that keeps a second daemon out.
mod lock;
/// What tells this state directory from every other one.
mod owner;
/// What a record is, and its form on disk.
mod record;
/// Replacing a file as a whole.
mod replacement;

pub use directories::{Loaded, PROBE_DIR, Store, StoreError};
pub use idle_stamp::{Pace, Unused};
pub use lock::StateLock;
pub use owner::owner;
pub use record::{Damage, Record, Upgrade};
pub(crate) use replacement::{Replacement, replace_file, sync_dir};
