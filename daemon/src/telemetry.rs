//! The log: to standard error, as text or JSON. Commands, environments and output never go into it.

use std::io::IsTerminal as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// Starts the log. Other crates' targets are held at warnings: at lower levels the HTTP/2 library logs headers and frames,
/// which carry commands and secrets.
pub fn start(level: LevelFilter, format: LogFormat) {
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("lodge", level);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => registry
            .with(layer.with_ansi(std::io::stderr().is_terminal()))
            .try_init(),
        LogFormat::Json => registry.with(layer.json()).try_init(),
    };
    // Only a second start in one process fails, in tests: the first one's settings stay.
    drop(started);
}
