//! The failure that a fault point makes, as an error of whatever it interrupts.

use std::io;

use nix::errno::Errno;

use crate::error::Error;

/// A failure that a test asked for. In a build without fault points there is no such value.
#[derive(Debug)]
pub(crate) struct Injected {
    #[cfg(feature = "fault-points")]
    pub(super) point: String,
    #[cfg(not(feature = "fault-points"))]
    never: std::convert::Infallible,
}

impl Injected {
    fn point(&self) -> &str {
        #[cfg(feature = "fault-points")]
        return &self.point;
        #[cfg(not(feature = "fault-points"))]
        match self.never {}
    }
}

impl From<Injected> for Error {
    fn from(injected: Injected) -> Self {
        let text = format!("the fault point {:?} failed", injected.point());
        Self::internal("FAULT_INJECTED", text, io::Error::from(injected))
    }
}

impl From<Injected> for io::Error {
    fn from(injected: Injected) -> Self {
        Errno::from(injected).into()
    }
}

impl From<Injected> for Errno {
    fn from(injected: Injected) -> Self {
        let _ = injected.point();
        Self::EIO
    }
}
