//! `lodge attach`: back to a run that was started before.

use std::process::ExitCode;

use anyhow::Result;
use lodge_client::{Attach, RunInfo};

use crate::cli::Daemon;
use crate::failure::ReaderGone;
use crate::follow::{self, Seen};
use crate::sandbox_arg::InSandbox;

/// Get back to a run: its output as it comes, and its exit code
///
/// For a run that was started with `lodge run --detach`, or whose terminal is gone. It may have ended already. Shows
/// what it writes from now on, unless told otherwise. Ctrl-C leaves the run as it is; `lodge kill` ends it.
///
/// Exit code: as that of `lodge run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Show all that it wrote before, too
    #[arg(long)]
    from_start: bool,
    /// Show what it wrote to standard output from this byte on; bytes are counted from 0
    #[arg(long, value_name = "BYTE", conflicts_with = "from_start")]
    offset: Option<u64>,
    /// The same for standard error
    #[arg(long, value_name = "BYTE", conflicts_with = "from_start")]
    stderr_offset: Option<u64>,
    /// The run's id, as `lodge runs` shows it
    run: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let sandbox = daemon.connect().await?.at(args.sandbox.sandbox.reference());
    let seen = Seen {
        sandbox: &args.sandbox.sandbox,
        run: &args.run,
    };
    let run = sandbox.get_run(&args.run).await?;
    let mut attach = sandbox.attach(&args.run);
    if !args.from_start {
        attach = args.begin(attach, &run);
    }
    let mut events = attach.await?;
    if run.is_live() {
        seen.tell_frozen(&sandbox).await?;
    }
    let outcome = match follow::pass_through(&mut events).await {
        Err(error) if error.is::<ReaderGone>() => return Err(error),
        Err(error) => return Err(seen.lost(error, &follow::from_here(&events))),
        Ok(outcome) => outcome,
    };
    follow::tell_end(&outcome, &sandbox).await;
    Ok(follow::exit_code(&outcome))
}

impl Args {
    fn begin(&self, attach: Attach, run: &RunInfo) -> Attach {
        let (stdout, stderr) = end(run);
        attach
            .stdout_offset(self.offset.unwrap_or(stdout))
            .stderr_offset(self.stderr_offset.unwrap_or(stderr))
    }
}

/// Where both outputs end now. What survivors of an ended run write is not its output.
pub(crate) fn end(run: &RunInfo) -> (u64, u64) {
    match &run.outcome {
        Some(outcome) => (outcome.stdout_bytes, outcome.stderr_bytes),
        None => (run.stdout.total_bytes, run.stderr.total_bytes),
    }
}
