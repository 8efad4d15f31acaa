//! Freezing all runs of a sandbox, by the v2 hierarchy on every kind of host: a frozen process can be killed and traced,
//! unlike one of the v1 freezer. The holder is outside, and is not frozen.

use std::time::Duration;

use super::error::{Error, Result};
use super::events;
use super::sandbox::SandboxGroup;
use super::usage::single_value;

const FREEZE: &str = "cgroup.freeze";

impl SandboxGroup {
    /// Freezes the runs and waits until the kernel says that all are. Within `patience`, or it is undone. Freezing what is
    /// frozen is no error.
    ///
    /// # Errors
    /// [`Error::Unsettled`] after `patience`; [`Error::File`].
    pub fn freeze(&self, patience: Duration) -> Result<()> {
        let runs = self.runs_v2();
        let settled = runs
            .write(FREEZE, "1")
            .and_then(|()| events::wait_for(runs, "frozen", 1, patience));
        if matches!(settled, Ok(true)) {
            return Ok(());
        }
        self.thaw()?;
        settled.and(Err(Error::Unsettled {
            path: runs.path().into(),
        }))
    }

    /// Lets the runs go on.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn thaw(&self) -> Result<()> {
        self.runs_v2().write(FREEZE, "0")
    }

    /// Whether the runs were told to freeze, settled or not.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn is_told_to_freeze(&self) -> Result<bool> {
        Ok(single_value(&self.runs_v2().read(FREEZE)?) == Some(1))
    }
}
