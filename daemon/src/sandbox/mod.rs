//! Sandboxes: what they are, what they may do when, and the task that owns each one.

/// Ids and names.
pub mod id;

/// Limits: as asked for, as resolved, and as the kernel holds them.
pub mod limits;

/// What happens to a sandbox that nobody uses.
pub mod idle;

/// What a sandbox is made from.
pub mod spec;

/// What is allowed in which state: one pure function.
pub mod state;

/// Host uid ranges, one per sandbox.
pub mod uid_range;
/// What a sandbox may have taken away beyond what every sandbox lacks.
pub mod confinement;
/// What a tenant may have at once.
pub mod quota;

/// What a started sandbox gives to its runs.
pub mod live;

/// A cheap handle on one sandbox.
pub mod handle;

/// All sandboxes of this daemon.
pub mod registry;

/// Whether a sandbox is in use.
mod activity;

/// What is asked of a host: the seam at which a fake takes its place.
pub mod runtime;
/// The host itself.
pub mod host;
/// What the parts below need of the host: store, storage, images, launcher, cgroups.
pub mod platform;

/// Which sandboxes there are, by id and by name.
mod table;
/// Which of them a caller asks for.
mod filter;

/// Who wants to know that a sandbox has changed.
pub(crate) mod changes;
/// Watching sandboxes: each as it is, then each change.
pub mod watch;
/// What a sandbox uses.
pub mod stats;
/// Its files, as the storage driver sees them.
pub mod disk;

/// The task that owns a sandbox.
mod actor;

/// A table of named steps with their undo.
pub(crate) mod steps;

/// Whether the host can carry it.
mod room;
/// Creating: uid range, directory, layer, record.
mod create;

/// What a start fixes.
mod launched;
/// Starting: cgroup, layers, holder, limits.
mod start;

/// Stopping: the end of every process.
mod stop;

/// Pausing: the freeze of the runs.
mod pause;

/// Updating: limits, policy, labels.
pub mod update;

/// Deleting: stopped, out of sight, then removed.
mod delete;

/// What an earlier daemon left.
mod recover;
/// What of it this host finds.
mod found;
/// What it left that belongs to no sandbox.
mod residue;
/// What became of it, in numbers.
mod report;
/// Whether a holder that an earlier daemon left still answers.
mod reach;

/// Failures of the parts below as errors of a call.
mod failure;

/// A host in memory.
#[cfg(test)]
pub(crate) mod fake;
/// What is decided above the seam.
#[cfg(test)]
mod lifecycle_tests;
/// The same where changes panic or fail.
#[cfg(test)]
mod mending_tests;
/// Listing and watching many of them.
#[cfg(test)]
mod view_tests;
/// The same, by random sequences against a model.
#[cfg(test)]
mod model_tests;

pub use activity::{StreamUse, Use};
pub(crate) use delete::waiting as removals_waiting;
pub use disk::Disk;
pub use filter::Filter;
pub use handle::{Admission, Handle, Paused, Resume};
pub use live::Live;
pub use registry::{Acquire, Acquired, Registry, SandboxRef};
pub use report::Recovery;
pub use update::Change;
