//! Turns at moving output. A sandbox has at most half of them, whatever its runs write: the others are for its neighbours.

use std::io;
use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Turns of all sandboxes at once. A thread for each of a thousand flooding runs would leave the reactor no time; too few
/// would let one slow disk hold everybody up.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(all()));

/// The turns of one sandbox. Cheap to clone.
#[derive(Clone)]
pub(super) struct Turns(Arc<Semaphore>);

/// A turn; dropping it gives it back.
pub(super) struct Turn {
    _of_sandbox: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(all() / 2)))
    }
}

impl Turns {
    /// Waits for a turn. The sandbox's own comes first: what waits for it takes nobody else's place.
    pub(super) async fn take(&self) -> io::Result<Turn> {
        let of_sandbox = Arc::clone(&self.0).acquire_owned().await;
        let of_sandbox = of_sandbox.map_err(io::Error::other)?;
        let of_all = TURNS.acquire().await.map_err(io::Error::other)?;
        Ok(Turn {
            _of_sandbox: of_sandbox,
            _of_all: of_all,
        })
    }
}

pub(super) fn all() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (2 * processors).max(4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_sandbox_that_takes_all_it_can_leaves_turns_to_another() {
        let (greedy, other) = (Turns::default(), Turns::default());
        let mut taken = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::from_millis(50), greedy.take()).await {
            taken.push(turn.expect("never closed"));
        }
        let turn = tokio::time::timeout(Duration::from_secs(10), other.take());
        turn.await.expect("in time").expect("never closed");
        assert_eq!(taken.len(), all() / 2);
        taken.pop();
        greedy.take().await.expect("its turn came back");
    }
}
