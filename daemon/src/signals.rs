//! Signals of the daemon: SIGTERM and SIGINT end it in good order, a second one at once; SIGHUP changes nothing.
//!
//! To be ended at any moment is nothing special for it: what it leaves is what a kill -9 leaves.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::telemetry;

/// Exit status of a daemon that a second signal ended before its calls had drained.
const CUT_SHORT: i32 = 1;

/// SIGTERM and SIGINT, from here on not fatal by themselves.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to watch them, and to ignore SIGHUP. To be called within the runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        tokio::spawn(ignore(hangup));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for one that asks for the end.
    pub async fn asked_to_end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// From here on the next one ends the process at once.
    pub fn end_at_once_next_time(mut self) {
        tokio::spawn(async move {
            self.asked_to_end().await;
            tracing::warn!("told to end a second time: calls are cut; sandboxes and runs go on");
            telemetry::finish();
            std::process::exit(CUT_SHORT);
        });
    }
}

/// A daemon that loses its terminal goes on. Settings are read at the start alone.
async fn ignore(mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        tracing::info!("SIGHUP: nothing is read anew; restart lodged for other settings");
    }
}
