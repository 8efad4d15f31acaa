//! Values that are not shown and are wiped. What the transport copies on its way to the daemon is beyond this.

use std::fmt;

use zeroize::Zeroizing;

/// A secret value. Never shown by `Debug`, wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(Zeroizing::new(value))
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self::from(value.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
