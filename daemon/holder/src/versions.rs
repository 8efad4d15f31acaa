//! Versions of the protocol. Both sides say from which version to which they speak; the newest that both speak is used.
//!
//! A version only adds messages and fields: who speaks an older one is not sent what came later. A version that takes something
//! away raises [`Versions::OURS`]'s `oldest`, and with it sandboxes that older daemons started can no longer be taken over.

use std::fmt;

/// The version that brought `Ping`, `Pong` and `Listen`.
pub const WITH_PING: u32 = 2;

/// From the oldest version that is spoken to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest one.
    pub oldest: u32,
    /// The newest one.
    pub newest: u32,
}

impl Versions {
    /// What this program speaks.
    pub const OURS: Self = Self {
        oldest: 1,
        newest: WITH_PING,
    };

    /// What the other side said. The first version had no `oldest`: who does not say it speaks one version alone.
    #[must_use]
    pub fn said(newest: u32, oldest: u32) -> Self {
        let oldest = if oldest == 0 { newest } else { oldest };
        Self { oldest, newest }
    }

    /// The newest version that both speak.
    #[must_use]
    pub fn agree(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.newest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_used() {
        let range = |oldest, newest| Versions { oldest, newest };
        for (one, other, agreed) in [
            (range(1, 2), range(1, 2), Some(2)),
            (range(1, 2), Versions::said(1, 0), Some(1)),
            (range(1, 2), range(2, 3), Some(2)),
            (range(1, 2), range(3, 3), None),
            (range(2, 3), Versions::said(1, 0), None),
            (range(1, 2), range(0, 0), None),
            // What contradicts itself agrees with nobody.
            (range(1, 2), Versions::said(1, 2), None),
        ] {
            assert_eq!(one.agree(other), agreed, "{one} and {other}");
            assert_eq!(other.agree(one), agreed, "{other} and {one}");
        }
    }
}
