//! `lodge logs`: what a run wrote: all of it, the last lines, the lines that match, and what is still to come.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use lodge_client::{Event, Sandbox, StdStream};

use crate::cli::Daemon;
use crate::follow::{self, Seen};
use crate::sandbox_arg::{InSandbox, SandboxArg};
use crate::{attach, grep, terminal};

/// Bytes per call; the API's maximum.
const PART_BYTES: u32 = 1 << 20;

/// Print what a run wrote until now
///
/// Standard output alone, also with --tail and --grep; what it wrote to standard error is shown with --stderr.
///
/// Of a large output the first 8 and the last 22 MiB are kept; what is missing is said. With --grep the search is done by
/// the daemon, and only what was found is sent: lodge logs --grep 'error|warning' -i -C 2 RUN. The exit code is 1 then if
/// no line matches.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Standard error instead of standard output, also for --tail and --grep
    #[arg(long)]
    stderr: bool,
    /// Bytes to leave out at the beginning
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Only the last lines, at most this many (and at most 1 MiB)
    #[arg(long, value_name = "LINES", conflicts_with = "offset", value_parser = clap::value_parser!(u32).range(1..))]
    tail: Option<u32>,
    /// Go on until the run has ended. Ctrl-C leaves the run as it is
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    grep: grep::Options,
    /// The run's id, as `lodge runs` shows it
    run: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let log = Log {
        sandbox: daemon.connect().await?.at(args.sandbox.sandbox.reference()),
        stream: match args.stderr {
            true => StdStream::Stderr,
            false => StdStream::Stdout,
        },
        run: args.run,
    };
    if let Some(pattern) = &args.grep.pattern {
        let search = log
            .sandbox
            .search_log(&log.run, log.stream, pattern)
            .offset(args.offset);
        return args.grep.print(search, log.stream).await;
    }
    let offset = match args.tail {
        Some(lines) => log.print_tail(lines).await?,
        None => log.print_from(args.offset).await?,
    };
    if args.follow {
        log.follow(offset, &args.sandbox.sandbox).await?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Log {
    sandbox: Sandbox,
    run: String,
    stream: StdStream,
}

impl Log {
    /// Prints what there is from an offset on, and says where it ends.
    async fn print_from(&self, mut offset: u64) -> Result<u64> {
        loop {
            let call = self
                .sandbox
                .read_log(&self.run, self.stream, offset, PART_BYTES);
            let part = call.await?;
            if let Some(gap) = &part.gap {
                follow::tell_gap(self.stream, gap.end - gap.start);
            }
            terminal::raw(&mut io::stdout().lock(), &part.data)?;
            offset = part.offset + part.data.len() as u64;
            if part.data.is_empty() || offset >= part.total_bytes {
                return Ok(offset);
            }
        }
    }

    async fn print_tail(&self, lines: u32) -> Result<u64> {
        let part = self.sandbox.tail(&self.run, self.stream, lines).await?;
        terminal::raw(&mut io::stdout().lock(), &part.data)?;
        Ok(part.offset + part.data.len() as u64)
    }

    /// Prints what comes from an offset on, until the run has ended.
    async fn follow(&self, offset: u64, name: &SandboxArg) -> Result<()> {
        let run = self.sandbox.get_run(&self.run).await?;
        let (stdout, stderr) = attach::end(&run);
        let attach = self.sandbox.attach(&self.run);
        let attach = match self.stream {
            // What survivors wrote later is printed already.
            StdStream::Stdout if !run.is_live() && offset >= stdout => return Ok(()),
            StdStream::Stderr if !run.is_live() && offset >= stderr => return Ok(()),
            StdStream::Stdout => attach.stdout_offset(offset).stderr_offset(stderr),
            StdStream::Stderr => attach.stdout_offset(stdout).stderr_offset(offset),
        };
        let mut events = attach.await?;
        if run.is_live() {
            let (sandbox, run) = (name, self.run.as_str());
            Seen { sandbox, run }.tell_frozen(&self.sandbox).await?;
        }
        while let Some(event) = events.next().await {
            match event? {
                Event::Output { stream, data, .. } if stream == self.stream => {
                    terminal::raw(&mut io::stdout().lock(), &data)?;
                }
                Event::Gap { stream, from, to } if stream == self.stream => {
                    follow::tell_gap(stream, to - from);
                }
                Event::Exited(_) => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }
}
