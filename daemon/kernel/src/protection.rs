//! Protections that a test may switch off, to see that the attack which each answers then succeeds: a test that passes either way
//! proves nothing.
//!
//! Compiled in by the cargo feature `weaken` alone, which `lodged/fault-points` brings; without it nothing is ever off. In a build that
//! has it the variable `LODGE_TEST_WEAKEN` names what is off: `masks,base-filter,…`, or `all`.

/// Variable that says which protections are off.
pub const VARIABLE: &str = "LODGE_TEST_WEAKEN";

/// What stands between a sandbox and the host, each of which can be missed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The filter of system calls of PID 1, and so of all.
    BaseFilter,
    /// What each run adds to it.
    RunFilter,
    /// No further namespaces, by the user namespace's own quotas.
    NamespaceQuotas,
    /// Files of /proc and /sys that tell of the host are hidden.
    Masks,
    /// Settings in /proc are read-only.
    ReadOnlyProc,
    /// What root may have of capabilities.
    BoundingSet,
    /// Memory of the holder and of a run before its exec is out of reach.
    NonDumpable,
    /// No favour of the scheduler or of the out-of-memory killer, and the resource limits of an ordinary process.
    Ordinary,
    /// The list of devices that may be opened.
    Devices,
    /// The limit of memory.
    Memory,
    /// The limit of processes and threads.
    Pids,
    /// The limit of processor time.
    Cpu,
    /// The limit of open files of a process.
    OpenFiles,
}

impl Protection {
    /// All that there are, with their names.
    pub const ALL: [(Self, &str); 13] = [
        (Self::BaseFilter, "base-filter"),
        (Self::RunFilter, "run-filter"),
        (Self::NamespaceQuotas, "namespace-quotas"),
        (Self::Masks, "masks"),
        (Self::ReadOnlyProc, "read-only-proc"),
        (Self::BoundingSet, "bounding-set"),
        (Self::NonDumpable, "non-dumpable"),
        (Self::Ordinary, "ordinary"),
        (Self::Devices, "devices"),
        (Self::Memory, "memory"),
        (Self::Pids, "pids"),
        (Self::Cpu, "cpu"),
        (Self::OpenFiles, "open-files"),
    ];

    /// Whether a test has switched it off.
    #[must_use]
    #[inline]
    pub fn is_off(self) -> bool {
        imp::is_off(self)
    }
}

/// Why what was asked for cannot be switched off.
#[derive(Debug, thiserror::Error)]
pub enum WeakenError {
    /// This build has no switch.
    #[error("{VARIABLE} is set, and this build has all of its protections for good")]
    NotCompiledIn,
    /// There is no such protection.
    #[error("{VARIABLE}: there is no protection {0:?}")]
    Unknown(String),
}

/// Makes sure that the variable, if it is set, names what there is. To be called at the start: later nobody would hear of it.
///
/// # Errors
/// [`WeakenError`].
pub fn check() -> Result<(), WeakenError> {
    imp::check()
}

#[cfg(feature = "weaken")]
mod imp {
    use std::sync::OnceLock;

    use super::{Protection, VARIABLE, WeakenError};

    static OFF: OnceLock<Vec<Protection>> = OnceLock::new();

    pub(super) fn is_off(protection: Protection) -> bool {
        let off = OFF.get_or_init(|| asked().unwrap_or_default());
        off.contains(&protection)
    }

    pub(super) fn check() -> Result<(), WeakenError> {
        asked().map(drop)
    }

    fn asked() -> Result<Vec<Protection>, WeakenError> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(Vec::new());
        };
        let text = text.to_string_lossy();
        if text == "all" {
            return Ok(Protection::ALL.map(|(protection, _)| protection).into());
        }
        let named = |name: &str| {
            let known = Protection::ALL.iter().find(|(_, known)| *known == name);
            known.map(|(protection, _)| *protection)
        };
        text.split(',')
            .map(|name| named(name).ok_or_else(|| WeakenError::Unknown(name.to_owned())))
            .collect()
    }
}

#[cfg(not(feature = "weaken"))]
mod imp {
    use super::{Protection, VARIABLE, WeakenError};

    #[inline(always)]
    pub(super) const fn is_off(_: Protection) -> bool {
        false
    }

    /// Who asks is told so, and does not take a daemon with all its protections for a weak one that held.
    pub(super) fn check() -> Result<(), WeakenError> {
        match std::env::var_os(VARIABLE) {
            Some(_) => Err(WeakenError::NotCompiledIn),
            None => Ok(()),
        }
    }
}
