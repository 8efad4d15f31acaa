//! Readers to whom the output is owed. While one is there, an ended log's file stays open: who deletes the sandbox takes
//! the path away, and with it what they could reopen.

use std::sync::Arc;

use super::StreamLog;

/// Keeps a log readable beyond its end, whatever becomes of its path. It costs a descriptor: for who waits, not for who
/// may come back.
pub struct Pin(Arc<StreamLog>);

impl StreamLog {
    /// Keeps it readable. Of use before its end only: an ended log's file is closed.
    pub fn pin(self: &Arc<Self>) -> Pin {
        self.lock().pins += 1;
        Pin(Arc::clone(self))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.pins -= 1;
        state.close_if_unused();
    }
}
