//! The failure that a fault point makes, as an error of whatever it interrupts.

use std::io;

use nix::errno::Errno;

use crate::error::Error;

/// A failure that a test asked for. In a build without fault points there is no such value.
#[derive(Debug)]
pub(crate) struct Injected {
    #[cfg(feature = "fault-points")]
    pub(super) point: String,
    /// What the kernel would have said.
    #[cfg(feature = "fault-points")]
    pub(super) errno: Errno,
    #[cfg(not(feature = "fault-points"))]
    never: std::convert::Infallible,
}

impl Injected {
    #[cfg(feature = "fault-points")]
    fn parts(&self) -> (&str, Errno) {
        (&self.point, self.errno)
    }

    #[cfg(not(feature = "fault-points"))]
    fn parts(&self) -> (&str, Errno) {
        match self.never {}
    }
}

impl From<Injected> for Error {
    fn from(injected: Injected) -> Self {
        let (point, _) = injected.parts();
        let text = format!("the fault point {point:?} failed");
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
        let (_, errno) = injected.parts();
        errno
    }
}
