//! The Lodge daemon as a library, so that its parts can be tested: the map, in reading order.
//!
//! Dependencies point downwards only: `api` translates the wire into calls of `service`; `service` uses `sandbox`, `exec`
//! and `image`; those use `store`, `storage` and `holder`; only `lodge_kernel` talks to the kernel in unsafe terms.

/// What went wrong, for the caller and for the log.
pub mod error;

/// Places at which tests have the daemon die, fail or wait; nothing in other builds.
pub mod fault;

/// Settings: file, environment and flags, read once at the start.
pub mod config;

/// The log.
pub mod telemetry;

/// What ends the daemon, and what does not.
pub mod signals;

/// From settings to the parts that sandboxes need.
pub mod assemble;

/// What the service manager is told.
pub mod notify;

/// The wire: translates between a protocol and [`service::Service`]. Nothing below knows a wire type.
pub mod api;

/// The calls of Lodge in its own words, and what answers them.
pub mod service;

/// Sandboxes: what they are, what they may do when, and the task that owns each one.
pub mod sandbox;

/// Runs: starting a command, its output and its end.
pub mod exec;

/// Images: what a new sandbox's root file system starts as.
pub mod image;

/// Our side of the sockets to the launcher and to the holders.
pub mod holder;

/// Handing descriptors to the runtime.
pub mod reactor;

/// Where the files of sandboxes live.
pub mod storage;

/// What is remembered over a restart: one record per sandbox, and the lock on them.
pub mod store;

/// Whether this host can run sandboxes, and how to mend it where not.
pub mod doctor;
