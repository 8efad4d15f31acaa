//! The btrfs driver: an image is a subvolume, a sandbox is a writable snapshot of it, and a qgroup of level 1 per sandbox
//! holds its limit. All qgroups are below one of level 2, whose limit keeps the host's reserve. Its number is the pool's own:
//! a file system that the state directory lies on may have other pools, and qgroups of whomever.
//!
//! ```text
//! <pool>/volume                    says the pool's number
//! <pool>/roots/<16 hex>            a sandbox's files; the digits are its number, and the qgroup is 1/<number>
//! <sandbox's directory>/volume     says which one is its own
//! ```
//!
//! Only the file `volume` gives a root to a sandbox. It is on disk before the sandbox's record, and the root before it: what
//! no file names belongs to nobody, and the next start removes it, unless that is a great many and no sandbox names any.

/// What implements the trait.
mod driver;
/// The number of a sandbox's subvolume and qgroup, and the file that says it.
mod volume;
/// Subvolumes and their qgroups in the pool.
mod roots;
/// Roots made ahead.
mod spares;
/// What every first run reads, read ahead.
mod warm;
/// Waiting for what the kernel still removes, in the background.
mod removals;
/// Which roots of no sandbox may go at a start.
mod orphans;
/// How much all sandboxes together may take.
mod brake;

#[cfg(test)]
mod tests;

pub use driver::Btrfs;
