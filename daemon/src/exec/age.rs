//! When something happened, so that its age can be told after a restart.
//!
//! Within one boot of the host the age comes from a clock that nobody can set and that goes on while the host sleeps.
//! After a reboot wall time is all there is: a clock that was wrong then, or is now, makes the age wrong, never negative.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The kernel's name for this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This boot, as a number; zero, which no stamp is compared with, if the kernel does not tell.
static BOOT: LazyLock<u64> = LazyLock::new(|| {
    std::fs::read(BOOT_ID).map_or(0, |id| {
        let hash = Sha256::digest(id.trim_ascii());
        u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
    })
});

/// A moment on the clock of this boot, in milliseconds. Negative: before the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

impl Moment {
    /// Now.
    pub(super) fn now() -> Self {
        let since_boot =
            clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        Self(i64::try_from(since_boot.as_millis()).unwrap_or(i64::MAX))
    }

    /// So many milliseconds after the boot.
    #[cfg(test)]
    pub(super) fn at(ms: i64) -> Self {
        Self(ms)
    }

    /// How long ago it was.
    pub(super) fn age(self, now: Self) -> Duration {
        Duration::from_millis(u64::try_from(now.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

/// When something happened, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    /// Milliseconds since 1970, UTC: for people, and for other boots.
    wall_ms: u64,
    /// Which boot, as [`BOOT`].
    boot: u64,
    /// Milliseconds since that boot.
    since_boot_ms: i64,
}

impl Stamp {
    /// Now.
    pub(super) fn now() -> Self {
        Self {
            wall_ms: wall_ms(SystemTime::now()),
            boot: *BOOT,
            since_boot_ms: Moment::now().0,
        }
    }

    /// The time of day, for people.
    pub(super) fn wall(&self) -> SystemTime {
        wall_time(self.wall_ms)
    }

    /// The moment on this boot's clock.
    pub(super) fn moment(&self) -> Moment {
        self.moment_at(Self::now())
    }

    fn moment_at(&self, now: Self) -> Moment {
        if self.boot == now.boot && self.boot != 0 {
            return Moment(self.since_boot_ms);
        }
        let age = now.wall_ms.saturating_sub(self.wall_ms);
        Moment(now.since_boot_ms.saturating_sub_unsigned(age))
    }
}

/// Milliseconds since 1970, UTC.
pub(super) fn wall_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of day of [`wall_ms`].
pub(super) fn wall_time(ms: u64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(ms))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn stamp(boot: u64, since_boot_ms: i64, wall_ms: u64) -> Stamp {
        Stamp {
            wall_ms,
            boot,
            since_boot_ms,
        }
    }

    fn age(of: Stamp, now: Stamp) -> u64 {
        let age = of.moment_at(now).age(Moment(now.since_boot_ms));
        u64::try_from(age.as_millis()).expect("short")
    }

    #[test]
    fn within_a_boot_the_wall_clock_does_not_count() {
        let ended = stamp(7, 5_000, 100 * HOUR_MS);
        for wall_ms in [0, 100 * HOUR_MS, 9_000 * HOUR_MS] {
            assert_eq!(age(ended, stamp(7, 8_000, wall_ms)), 3_000);
        }
    }

    #[test]
    fn after_a_reboot_it_is_all_there_is_and_no_age_is_negative() {
        let ended = stamp(7, 5_000_000_000, 100 * HOUR_MS);
        assert_eq!(age(ended, stamp(8, 1_000, 103 * HOUR_MS)), 3 * HOUR_MS);
        assert_eq!(age(ended, stamp(8, 1_000, 99 * HOUR_MS)), 0);
        assert_eq!(age(stamp(0, 5, HOUR_MS), stamp(0, 9, 2 * HOUR_MS)), HOUR_MS);
    }

    #[test]
    fn this_boot_has_a_number() {
        assert_ne!(*BOOT, 0);
        assert!(Stamp::now().moment().age(Moment::now()) < Duration::from_secs(60));
    }
}
