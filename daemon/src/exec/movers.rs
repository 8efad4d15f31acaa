//! Threads that move output. Apart from those for other work, and after everything else of the daemon where processors are scarce: a
//! flood of one sandbox's output does not hold up the calls of others.

use std::sync::LazyLock;
use std::time::Duration;

use lodge_kernel::sys::priority;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::turns;

/// Their nice value: about a tenth of the processor where another thread wants it, all of it where none does.
const NICE: i32 = 10;
/// They stay, since one that is wanted when the host has no room for another thread would be missed.
const KEPT: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A runtime for its threads alone: nothing of it is ever polled.
static MOVERS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    Builder::new_current_thread()
        .thread_name("lodged-output")
        .max_blocking_threads(turns::all())
        .thread_keep_alive(KEPT)
        // One that may not is as fast as the others.
        .on_thread_start(|| {
            priority::set_nice(NICE).ok();
        })
        .build()
        .inspect_err(
            |error| tracing::warn!(%error, "output is moved by the threads for other work"),
        )
        .ok()
});

/// Has all of them started while the host has room for them: where it has none, output waits for these, and not for ever.
pub(super) fn start() {
    for _ in 0..turns::all() {
        // Long enough for each to need a thread of its own.
        spawn(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

/// Does work that moves output.
pub(super) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match &*MOVERS {
        Some(runtime) => runtime.spawn_blocking(work),
        None => tokio::task::spawn_blocking(work),
    }
}
