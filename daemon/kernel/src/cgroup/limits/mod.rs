//! The limits of a sandbox: what was asked for, and what the kernel says is in force. One controller, one file.

mod cpu;
mod memory;
mod pids;

use std::error::Error as StdError;
use std::path::Path;

use super::controller::Controller;

/// What all runs of a sandbox may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, page cache and kernel memory included; swap gives nothing on top.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processor time per second of wall time, in thousandths of one CPU.
    pub cpu_millis: u64,
}

impl Limits {
    /// The figure that belongs to a controller; devices have none.
    pub(super) fn of(&self, controller: Controller) -> u64 {
        match controller {
            Controller::Memory => self.memory_bytes,
            Controller::Pids => self.pids,
            Controller::Cpu => self.cpu_millis,
            Controller::Devices => 0,
        }
    }
}

/// One limit as it was asked for and as the kernel holds it, in the unit of [`Limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveLimit {
    /// Which controller holds it.
    pub controller: Controller,
    /// What was asked for.
    pub requested: u64,
    /// What was read back after setting it, or why there is none.
    pub effective: Result<u64, String>,
}

/// Which file names a controller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// Sets one limit on the group at `path` unless it is in force already, and reads back what the kernel made of it.
pub(super) fn set(
    controller: Controller,
    path: &Path,
    version: Version,
    requested: u64,
) -> Result<u64, String> {
    let outcome = match controller {
        Controller::Memory => memory::set(path, version, requested),
        Controller::Pids => pids::set(path, version, requested),
        Controller::Cpu => cpu::set(path, version, requested),
        Controller::Devices => return Err("devices carry no limit".into()),
    };
    outcome.map_err(|error| reason(&error))
}

/// An error and its causes on one line, for the person who asked for the limit.
pub(super) fn reason(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
