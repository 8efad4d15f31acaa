//! A panic is the failure of what panicked, and of nothing else.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::StorageError;

/// Does `work` on `path`; its panic is an error like others. What `work` leaves then is left by its guards, as after an error.
pub(super) fn caught<T>(
    action: &'static str,
    path: &Path,
    work: impl FnOnce() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let source = io::Error::other("a fault of lodged cut it off");
        Err(StorageError::io(action, path, source))
    })
}
