//! Negative controls: what passes although the protection is switched off that it is about, proves nothing.

use anyhow::{Context, Result, ensure};
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::redteam::Row;

use crate::probe;
use crate::report::{Control, Outcome};
use crate::suite::Suite;

/// All controls of a row.
pub(crate) async fn of_row(row: &Row, suite: &Suite) -> Result<Vec<Control>> {
    let mut controls = Vec::new();
    for protections in row.probe_falls_without {
        let probe = row.probe.as_ref().context("a probe that can fail")?;
        let outcome = fell(protections, probe::holds_without(protections, probe).await).await;
        controls.push(Control {
            protections: (*protections).into(),
            outcome,
        });
    }
    for (protections, test) in row.test_falls_without {
        let outcome = fell(protections, suite.passes_without(protections, test)).await;
        controls.push(Control {
            protections: (*protections).into(),
            outcome,
        });
    }
    Ok(controls)
}

/// It must have failed, and for no other reason: a sandbox without these protections works.
async fn fell(protections: &str, held: Result<bool>) -> Outcome {
    let fell = async {
        ensure!(!held?, "it passes without {protections}: it proves nothing");
        works_without(protections)
            .await
            .context("a sandbox without them does not work at all")
    };
    Outcome::of(fell.await)
}

async fn works_without(protections: &str) -> Result<()> {
    let daemon = Daemon::start(Options::weakened(protections)).await?;
    let room = daemon.api().room("weak").await?;
    room.run("echo works").root().await?.exited(0)?;
    Ok(())
}
