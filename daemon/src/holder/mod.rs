//! The daemon's side of the processes that hold sandboxes: the launcher that forks them and the holder (PID 1) of each.
//!
//! Everything that comes from a holder is hostile: its packets are capped, its run ids only select among runs that the
//! daemon itself started, and its statuses are only passed on. Nothing here decides what a run's end means.

mod client; // one sandbox's holder: spawn, kill, forget, and the ends of runs
mod connection; // what is sent and heard, and a connection that breaks
mod error; // what can fail
mod launcher; // the launcher process, kept alive, and launches
mod memfd; // what a command gets, outside everybody's heap
mod packets; // packets on tokio
mod private_copy; // the program that the launcher runs, closed to every sandbox
mod proc_stat; // what the kernel says of a process
mod reconnect; // a holder that an earlier daemon left
mod spawn; // a command to be started
mod sockets; // where holders listen
mod watchdog; // holders that do not answer

pub use client::{Clocks, Holder, RunEnd, RunWatch};
pub use error::HolderError;
pub use launcher::{LaunchSpec, Launcher, LauncherProcess, NoNewPrivileges, RootAccess};
pub use lodge_proto::holder::{ExecSpec, Exited, FdRole, StepFailure};
pub use memfd::SCRIPT_ARGUMENT_MAX;
pub use proc_stat::ProcStat;
pub use reconnect::KnownRun;
pub use sockets::make_dir;
pub use spawn::{KillOnExit, Spawn};
