//! An import, told as it goes: on a terminal a line that changes, in a pipe nothing until the end.

use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;
use lodge_client::{Images, Progress};
use tokio::io::AsyncRead;

use crate::{terminal, units};

/// How often the line moves when nothing happens, so that one can see that it is not stuck.
const TICK: Duration = Duration::from_millis(200);

/// Imports `archive` and prints the image's digest.
pub(super) async fn import(
    images: &Images,
    name: &str,
    archive: impl AsyncRead + Send + 'static,
) -> Result<()> {
    // indicatif draws on standard error, and not at all if that is no terminal.
    let line = ProgressBar::new_spinner();
    line.enable_steady_tick(TICK);
    let shown = line.clone();
    let import = images.import(name, archive);
    let result = import
        .on_progress(move |progress| shown.set_message(describe(&progress)))
        .await;
    line.finish_and_clear();
    let image = result?;
    for entry in &image.left_out {
        terminal::note(&format!("left out {entry}"));
    }
    terminal::data(&image.digest)
}

fn describe(progress: &Progress) -> String {
    let stage = terminal::escape(&progress.stage);
    let bytes = units::size(progress.bytes);
    match progress.entries {
        0 => format!("{stage}: {bytes}"),
        entries => format!("{stage}: {bytes}, {entries} entries"),
    }
}
