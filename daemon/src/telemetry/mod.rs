//! The log: to standard error, as text or JSON. Commands, environments and output never go into it, and nothing ever waits for it.

/// Lines on their way to standard error.
mod writer;

use std::io::{self, IsTerminal as _};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::writer::Lines;
use crate::config::LogFormat;

/// How long the end of the process waits for the last lines.
const LAST_LINES: Duration = Duration::from_millis(500);

/// For the last lines: the process has one log.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Starts the log. Other crates' targets are held at warnings: at lower levels the HTTP/2 library logs headers and frames,
/// which carry commands and secrets.
///
/// # Errors
/// Where there can be no thread for it.
pub fn start(level: LevelFilter, format: LogFormat) -> io::Result<()> {
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("lodge", level);
    let lines = Lines::to(io::stderr())?;
    // Only a second start in one process fails, in tests: the first one's settings stay.
    let _ = LINES.set(lines.clone());
    let layer = tracing_subscriber::fmt::layer().with_writer(lines);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => registry
            .with(layer.with_ansi(io::stderr().is_terminal()))
            .try_init(),
        LogFormat::Json => registry.with(layer.json()).try_init(),
    };
    drop(started);
    // The default hook writes to standard error by itself, and waits for it.
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Gives the last lines a short time to be written.
pub fn finish() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_LINES);
    }
}

/// Says where a panic was. A message that was made from data is left out: the data may be a caller's.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let fixed = info.payload().downcast_ref::<&'static str>();
    tracing::error!(
        thread = thread.name().unwrap_or_default(),
        place,
        message = fixed.copied().unwrap_or("(made from data, not logged)"),
        "a panic; this is a fault of lodged"
    );
}
