//! Limits: as a caller asked for them, as they are resolved against the defaults, and as the kernel holds them.
//!
//! Promise 8: limits cannot lie. A value outside what makes sense is refused and the bound is named; a limit that the
//! host cannot enforce is refused, or granted as degraded if the caller said so.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::storage::DiskLimit;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The least and the most that a limit may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Its field's name in the API and in the configuration.
    pub name: &'static str,
    /// The option of `lodge` that says it.
    pub option: &'static str,
    /// The least that still lets a command run.
    pub min: u64,
    /// The most that still means something.
    pub max: u64,
}

/// Memory, in bytes. Below 16 MiB a shell with one tool is OOM-killed; no host that we know of has 16 TiB.
pub const MEMORY_BYTES: Bounds = Bounds {
    name: "memory_bytes",
    option: "--memory",
    min: 16 * MIB,
    max: 16 * 1024 * GIB,
};
/// Processes and threads. The kernel never has more than 4 Mi pids, and some must be left for the host.
pub const PIDS: Bounds = Bounds {
    name: "pids",
    option: "--pids",
    min: 16,
    max: (4 << 20) - 4096,
};
/// Thousandths of a CPU. The kernel's period of 100 ms has no slice below 1 ms; no host has 4,096 CPUs.
pub const CPU_MILLIS: Bounds = Bounds {
    name: "cpu_millis",
    option: "--cpus",
    min: 10,
    max: 4_096_000,
};
/// Open files of a process. The most is the hard limit, which common hosts grant to root.
pub const OPEN_FILES: Bounds = Bounds {
    name: "open_files",
    option: "--open-files",
    min: 64,
    max: 20_000,
};
/// Size of /dev/shm, in bytes. It also counts as memory.
pub const SHM_BYTES: Bounds = Bounds {
    name: "shm_bytes",
    option: "--shm",
    min: MIB,
    max: 16 * 1024 * GIB,
};
/// Bytes of the sandbox's files. Less than 64 MiB is no file system; no host that we know of has a PiB.
pub const DISK_BYTES: Bounds = Bounds {
    name: "disk_bytes",
    option: "--disk",
    min: 64 * MIB,
    max: 1 << 50,
};
/// Files of the sandbox, where the driver counts them. Fewer do not hold what a package manager keeps; ext4 has 32-bit numbers.
pub const INODES: Bounds = Bounds {
    name: "inodes",
    option: "--inodes",
    min: 4096,
    max: 1 << 31,
};

/// Limits as a caller gave them. Absent means the server's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestedLimits {
    /// Memory of all runs together, in bytes.
    pub memory_bytes: Option<i64>,
    /// Processes and threads of all runs together.
    pub pids: Option<i64>,
    /// Processor time, in thousandths of one CPU.
    pub cpu_millis: Option<i64>,
    /// Bytes of the sandbox's files.
    pub disk_bytes: Option<i64>,
    /// Open files per process.
    pub open_files: Option<i64>,
    /// Size of /dev/shm, in bytes.
    pub shm_bytes: Option<i64>,
    /// Files of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<i64>,
}

/// Limits of a sandbox, each within its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all runs together, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads of all runs together.
    pub pids: u64,
    /// Processor time, in thousandths of one CPU.
    pub cpu_millis: u64,
    /// Open files per process: the soft RLIMIT_NOFILE.
    pub open_files: u64,
    /// Size of /dev/shm, in bytes.
    pub shm_bytes: u64,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Its files, where the driver counts them.
    pub inodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 2 * GIB,
            pids: 2048,
            cpu_millis: 2000,
            open_files: 4096,
            shm_bytes: 256 * MIB,
            disk_bytes: 10 * GIB,
            inodes: 1 << 20,
        }
    }
}

impl Limits {
    /// What the storage driver is to hold.
    pub fn disk(&self) -> DiskLimit {
        DiskLimit {
            bytes: self.disk_bytes,
            inodes: self.inodes,
        }
    }
}

impl Bounds {
    /// `value`, if it is within the bounds.
    pub fn check(&self, value: i64) -> Result<u64> {
        let Self {
            name,
            option,
            min,
            max,
        } = *self;
        let hint = || {
            format!("leave it out to take the server's default; the option of lodge is `{option}`")
        };
        match u64::try_from(value) {
            Ok(value) if value >= min && value <= max => Ok(value),
            Ok(value) if value > max => Err(Error::invalid(
                "LIMIT_TOO_LARGE",
                format!("{name} is {value}, more than the maximum of {max}"),
            )
            .hint(hint())),
            _ => Err(Error::invalid(
                "LIMIT_TOO_SMALL",
                format!("{name} is {value}, less than the minimum of {min}"),
            )
            .hint(hint())),
        }
    }

    fn resolve(&self, requested: Option<i64>, default: u64) -> Result<u64> {
        requested.map_or(Ok(default), |value| self.check(value))
    }
}

impl RequestedLimits {
    /// The limits that follow, or the first one that is out of bounds.
    pub fn resolve(&self, defaults: &Limits) -> Result<Limits> {
        Ok(Limits {
            memory_bytes: MEMORY_BYTES.resolve(self.memory_bytes, defaults.memory_bytes)?,
            pids: PIDS.resolve(self.pids, defaults.pids)?,
            cpu_millis: CPU_MILLIS.resolve(self.cpu_millis, defaults.cpu_millis)?,
            open_files: OPEN_FILES.resolve(self.open_files, defaults.open_files)?,
            shm_bytes: SHM_BYTES.resolve(self.shm_bytes, defaults.shm_bytes)?,
            disk_bytes: DISK_BYTES.resolve(self.disk_bytes, defaults.disk_bytes)?,
            inodes: INODES.resolve(self.inodes, defaults.inodes)?,
        })
    }
}

/// How a limit is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// The kernel holds it.
    Enforced,
    /// The host cannot hold it, for this reason; the caller had allowed that.
    Degraded(String),
    /// The host cannot hold it, for this reason; nobody had asked for it.
    Unsupported(String),
}

/// One limit as asked for and as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// Its field's name.
    pub name: &'static str,
    /// What the caller asked for.
    pub requested: Option<i64>,
    /// What the kernel holds.
    pub effective: Option<u64>,
    /// Whether it is held.
    pub enforcement: Enforcement,
}

/// Whether a caller takes a limit that is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    /// Refuse.
    Refuse,
    /// Grant it as degraded.
    Degrade,
}

/// What one limit came to: the value that the kernel holds, or why it holds none.
pub type Effective = Result<u64, String>;

/// What each limit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// Held by the memory controller.
    pub memory_bytes: Effective,
    /// Held by the pids controller.
    pub pids: Effective,
    /// Held by the cpu controller.
    pub cpu_millis: Effective,
    /// Held by the storage driver.
    pub disk_bytes: Effective,
    /// Held by RLIMIT_NOFILE.
    pub open_files: Effective,
    /// Held by the tmpfs at /dev/shm.
    pub shm_bytes: Effective,
    /// Held by the storage driver.
    pub inodes: Effective,
}

/// Every limit's status, in the order of the API; or the refusal of one that was asked for and cannot be held.
pub fn statuses(
    requested: &RequestedLimits,
    effective: &EffectiveLimits,
    shortfall: Shortfall,
) -> Result<Vec<LimitStatus>> {
    [
        (
            "memory_bytes",
            requested.memory_bytes,
            &effective.memory_bytes,
        ),
        ("pids", requested.pids, &effective.pids),
        ("cpu_millis", requested.cpu_millis, &effective.cpu_millis),
        ("disk_bytes", requested.disk_bytes, &effective.disk_bytes),
        ("open_files", requested.open_files, &effective.open_files),
        ("shm_bytes", requested.shm_bytes, &effective.shm_bytes),
        ("inodes", requested.inodes, &effective.inodes),
    ]
    .into_iter()
    .map(|(name, requested, effective)| status(name, requested, effective, shortfall))
    .collect()
}

fn status(
    name: &'static str,
    requested: Option<i64>,
    effective: &Effective,
    shortfall: Shortfall,
) -> Result<LimitStatus> {
    let enforcement = match (effective, requested, shortfall) {
        (Ok(_), _, _) => Enforcement::Enforced,
        (Err(why), None, _) => Enforcement::Unsupported(why.clone()),
        (Err(why), Some(_), Shortfall::Degrade) => Enforcement::Degraded(why.clone()),
        (Err(why), Some(_), Shortfall::Refuse) => return Err(unenforceable(name, why)),
    };
    Ok(LimitStatus {
        name,
        requested,
        effective: effective.as_ref().ok().copied(),
        enforcement,
    })
}

fn unenforceable(name: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "LIMIT_NOT_ENFORCEABLE",
        format!("{name} cannot be enforced here: {why}"),
    )
    .hint(
        "leave it out, or go without it: `--allow-degraded` of lodge, `allow_degraded` in the API",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_held() -> EffectiveLimits {
        EffectiveLimits {
            memory_bytes: Ok(1),
            pids: Ok(2),
            cpu_millis: Ok(3),
            disk_bytes: Ok(4),
            open_files: Ok(5),
            shm_bytes: Ok(6),
            inodes: Ok(7),
        }
    }

    /// ATTACKS A05.
    #[test]
    fn limits_out_of_bounds_are_refused_and_the_bound_is_named() {
        type Field = fn(&mut RequestedLimits) -> &mut Option<i64>;
        let fields: [(Bounds, Field); 7] = [
            (MEMORY_BYTES, |asked| &mut asked.memory_bytes),
            (PIDS, |asked| &mut asked.pids),
            (CPU_MILLIS, |asked| &mut asked.cpu_millis),
            (OPEN_FILES, |asked| &mut asked.open_files),
            (SHM_BYTES, |asked| &mut asked.shm_bytes),
            (DISK_BYTES, |asked| &mut asked.disk_bytes),
            (INODES, |asked| &mut asked.inodes),
        ];
        for value in [0, -1, i64::MIN, 1, i64::MAX] {
            for (bounds, field) in &fields {
                let mut request = RequestedLimits::default();
                *field(&mut request) = Some(value);
                let error = request
                    .resolve(&Limits::default())
                    .expect_err("out of bounds");
                let bound = if value == i64::MAX {
                    bounds.max
                } else {
                    bounds.min
                };
                let text = error.to_string();
                assert!(
                    text.contains(bounds.name) && text.contains(&bound.to_string()),
                    "{text}"
                );
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            }
        }
    }

    #[test]
    fn absent_limits_take_the_defaults() {
        let limits = RequestedLimits {
            pids: Some(32),
            ..Default::default()
        }
        .resolve(&Limits::default())
        .expect("within bounds");
        assert_eq!(
            limits,
            Limits {
                pids: 32,
                ..Limits::default()
            }
        );
    }

    #[test]
    fn a_limit_that_was_asked_for_and_is_not_held_is_refused_or_degraded() {
        let effective = EffectiveLimits {
            disk_bytes: Err("no driver".into()),
            ..all_held()
        };
        let asked = RequestedLimits {
            disk_bytes: Some(1 << 30),
            ..Default::default()
        };

        let refused = statuses(&asked, &effective, Shortfall::Refuse).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("disk_bytes"));

        let granted = statuses(&asked, &effective, Shortfall::Degrade).expect("granted");
        assert_eq!(
            granted[3].enforcement,
            Enforcement::Degraded("no driver".into())
        );
        assert_eq!(
            (granted[3].requested, granted[3].effective),
            (Some(1 << 30), None)
        );
    }

    #[test]
    fn a_limit_that_nobody_asked_for_is_shown_as_unsupported() {
        let effective = EffectiveLimits {
            cpu_millis: Err("no controller".into()),
            ..all_held()
        };
        let shown = statuses(&RequestedLimits::default(), &effective, Shortfall::Refuse)
            .expect("nothing was asked for");
        assert_eq!(
            shown[2].enforcement,
            Enforcement::Unsupported("no controller".into())
        );
        assert_eq!(shown[0].enforcement, Enforcement::Enforced);
    }
}
