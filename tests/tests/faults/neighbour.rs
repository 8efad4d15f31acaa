//! A sandbox that must not notice what happens to another one.

use std::fs;

use anyhow::{Result, ensure};
use lodge_tests::daemon::Daemon;
use lodge_tests::storage;
use lodge_tests::wait::{SOON, until};

/// `neighbour` has its file, and of others there is nothing.
pub(crate) async fn neighbour_is_alone(daemon: &Daemon) -> Result<()> {
    let neighbour = daemon.api().room("neighbour").await?;
    ensure!(neighbour.run("cat file").await?.ok()? == "kept");
    storage::nothing_but(daemon, 1).await?;
    until("one sandbox alone is there", SOON, || async {
        let of = |name| fs::read_dir(daemon.state_dir().join(name)).map(Iterator::count);
        let (sandboxes, trash) = (of("sandboxes")?, of("trash")?);
        Ok((sandboxes == 1 && trash == 0).then_some(()))
    })
    .await
}
