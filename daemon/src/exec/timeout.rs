//! How long a run may take: from what a caller wrote to what the holder enforces.
//!
//! It enforces nothing: the holder alone has the clock.

use std::time::Duration;

use crate::error::{Error, Result};

/// Longest timeout that can be asked for, in seconds (366 days). Beyond that, zero says what is meant.
const LONGEST_SECONDS: i64 = 366 * 24 * 3600;
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A duration as it came over the wire: seconds and nanoseconds, of either sign, checked by nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDuration {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds; in a valid duration of the same sign as `seconds` and below a second.
    pub nanos: i32,
}

/// What the server allows.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutPolicy {
    /// For calls that name none; `None` means no limit.
    pub default: Option<Duration>,
    /// The most that a call may ask for; `None` means that it may also ask for no limit.
    pub maximum: Option<Duration>,
}

impl TimeoutPolicy {
    /// The time that a run gets; `None` means no limit. Whole milliseconds, rounded up.
    pub fn resolve(&self, asked: Option<RawDuration>) -> Result<Option<Duration>> {
        let Some(raw) = asked else {
            return Ok(match (self.default, self.maximum) {
                (Some(default), Some(maximum)) => Some(default.min(maximum)),
                (default, maximum) => default.or(maximum),
            });
        };
        let wanted = self.checked(raw)?;
        match self.maximum {
            Some(_) if wanted.is_zero() => Err(self.refused(
                "TIMEOUT_ABOVE_MAXIMUM",
                "no timeout (zero) is not allowed here",
            )),
            Some(maximum) if wanted > maximum => {
                Err(self.refused("TIMEOUT_ABOVE_MAXIMUM", "the timeout is too long"))
            }
            _ if wanted.is_zero() => Ok(None),
            _ => Ok(Some(whole_millis(wanted))),
        }
    }

    fn checked(&self, raw: RawDuration) -> Result<Duration> {
        let mismatched = raw.seconds.signum() * i64::from(raw.nanos.signum()) < 0;
        if mismatched || raw.nanos.unsigned_abs() >= NANOS_PER_SECOND {
            return Err(self.refused("INVALID_TIMEOUT", "the timeout is not a valid duration"));
        }
        if raw.seconds < 0 || raw.nanos < 0 {
            return Err(self.refused("INVALID_TIMEOUT", "the timeout is negative"));
        }
        if raw.seconds > LONGEST_SECONDS {
            return Err(self.refused("TIMEOUT_ABOVE_MAXIMUM", "the timeout is too long"));
        }
        Ok(Duration::new(
            raw.seconds.unsigned_abs(),
            raw.nanos.unsigned_abs(),
        ))
    }

    fn refused(&self, reason: &'static str, what: &str) -> Error {
        let maximum = self
            .maximum
            .map_or(LONGEST_SECONDS.unsigned_abs(), |m| m.as_secs());
        let error = Error::invalid(reason, format!("{what}; the maximum is {maximum} s"));
        match self.maximum {
            Some(_) => error,
            None => error.hint("zero means no limit"),
        }
    }
}

/// The holder counts milliseconds and takes zero as no limit: a nanosecond must not become that.
fn whole_millis(wanted: Duration) -> Duration {
    let millis = wanted.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: TimeoutPolicy = TimeoutPolicy {
        default: Some(Duration::from_secs(120)),
        maximum: None,
    };
    const CAPPED: TimeoutPolicy = TimeoutPolicy {
        default: Some(Duration::from_secs(120)),
        maximum: Some(Duration::from_secs(60)),
    };

    fn raw(seconds: i64, nanos: i32) -> Option<RawDuration> {
        Some(RawDuration { seconds, nanos })
    }

    #[test]
    fn absent_takes_the_default_and_zero_means_none() {
        assert_eq!(
            OPEN.resolve(None).expect("ok"),
            Some(Duration::from_secs(120))
        );
        assert_eq!(OPEN.resolve(raw(0, 0)).expect("ok"), None);
        assert_eq!(
            CAPPED.resolve(None).expect("ok"),
            Some(Duration::from_secs(60))
        );
    }

    #[test]
    fn a_nanosecond_is_a_millisecond_and_not_for_ever() {
        assert_eq!(
            OPEN.resolve(raw(0, 1)).expect("ok"),
            Some(Duration::from_millis(1))
        );
        assert_eq!(
            OPEN.resolve(raw(1, 500_000_001)).expect("ok"),
            Some(Duration::from_millis(1501))
        );
    }

    #[test]
    fn hostile_durations_are_refused_with_the_maximum() {
        for bad in [
            raw(-1, 0),
            raw(0, -1),
            raw(1, -1),
            raw(-1, 1),
            raw(0, i32::MIN),
            raw(0, 1_000_000_000),
            raw(i64::MAX, 0),
            raw(i64::MIN, 0),
            raw(LONGEST_SECONDS + 1, 0),
        ] {
            let error = OPEN.resolve(bad).expect_err("must be refused");
            assert!(error.to_string().contains("31622400 s"), "{error}");
        }
        for bad in [
            raw(0, 0),
            raw(61, 0),
            raw(60, 1),
            raw(i64::MAX, 999_999_999),
        ] {
            let error = CAPPED.resolve(bad).expect_err("must be refused");
            assert!(error.to_string().contains("the maximum is 60 s"), "{error}");
            assert_eq!(error.reason(), "TIMEOUT_ABOVE_MAXIMUM");
        }
    }
}
