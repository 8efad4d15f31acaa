//! `lodge logs`: what a run wrote until now. Does not wait for more.

use std::io;

use anyhow::Result;
use lodge_client::StdStream;

use crate::cli::Daemon;
use crate::sandbox_arg::InSandbox;
use crate::terminal;

/// Bytes per call; the API's maximum.
const PART_BYTES: u32 = 1 << 20;

/// Print what a run wrote until now
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Bytes to leave out at the beginning
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// The run's id
    run: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let sandbox = daemon.connect().await?.at(args.sandbox.sandbox.reference());
    let stream = if args.stderr {
        StdStream::Stderr
    } else {
        StdStream::Stdout
    };
    let mut offset = args.offset;
    loop {
        let part = sandbox
            .read_log(&args.run, stream, offset, PART_BYTES)
            .await?;
        if part.offset > offset {
            let missing = part.offset - offset;
            terminal::note(&format!("{missing} bytes are no longer in the log"));
        }
        terminal::raw(&mut io::stdout().lock(), &part.data)?;
        offset = part.offset + part.data.len() as u64;
        if part.data.is_empty() || offset >= part.total_bytes {
            return Ok(());
        }
    }
}
