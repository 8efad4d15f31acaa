//! Keeps a launcher there: when one dies (the OOM killer, a kill -9) or answers nobody any more, another is started, at a bounded rate.
//! Sandboxes that an earlier one forked go on without it.

use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::line::Line;
use super::process::{Program, Spawned};
use crate::error::chain;
use crate::holder::error::HolderError;

/// From one start to the next where launchers do not last: doubled each time, up to the second.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(10);
/// A launcher that lived this long had nothing wrong with it: the next one is started at once.
const LASTED: Duration = Duration::from_secs(30);

/// The line to the launcher that is there now.
pub(super) type Current = watch::Sender<Option<Arc<Line>>>;

/// Sees to one launcher after the other. Ends with the runtime.
pub(super) async fn keep(program: Program, current: Arc<Current>, mut child: Child) {
    let mut pause = Duration::ZERO;
    loop {
        let born = Instant::now();
        let line = current.borrow().clone();
        if let Some(line) = line {
            line.serve().await;
            current.send_replace(None);
            tracing::error!(
                pid = line.pid(),
                "the launcher process is gone; starting another"
            );
        }
        reap(child).await;
        if born.elapsed() >= LASTED {
            pause = Duration::ZERO;
        }
        child = start(&program, &current, &mut pause).await;
    }
}

/// Starts another one, trying for as long as it takes.
async fn start(program: &Program, current: &Current, pause: &mut Duration) -> Child {
    loop {
        sleep(*pause).await;
        *pause = (*pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
        match spawn(program) {
            Ok((line, child)) => {
                tracing::warn!(pid = line.pid(), "another launcher process is there");
                current.send_replace(Some(Arc::new(line)));
                return child;
            }
            Err(error) => tracing::error!(error = %chain(&error), "no launcher could be started"),
        }
    }
}

/// Starts one. It blocks for the few milliseconds of an exec, which is what the whole daemon may lose to it in the worst case.
fn spawn(program: &Program) -> Result<(Line, Child), HolderError> {
    let Spawned { socket, child } = program.spawn()?;
    Ok((Line::new(socket, child.id())?, child))
}

/// Makes sure that it has ended, and takes its status, so that no zombie stays.
async fn reap(mut child: Child) {
    // Dead already, or of no use: it closed its socket, or answers nobody.
    let _ = child.kill();
    // A killed process may take a while to go, on a thread that may wait.
    let _ = tokio::task::spawn_blocking(move || child.wait()).await;
}
