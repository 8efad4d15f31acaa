//! The `lodge` command: runs commands in persistent sandboxes of a Lodge daemon, and looks after sandboxes and images.
//!
//! One file per subcommand, named after it. Data goes to standard output, messages to standard error. Nothing here knows
//! the wire: all goes through the `lodge-client` crate.

mod attach; // `lodge attach`
mod completion; // `lodge completion`
mod create; // `lodge create`
mod df; // `lodge df`
mod doctor; // `lodge doctor`
mod image; // `lodge image …`
mod inspect; // `lodge inspect`
mod kill; // `lodge kill`
mod logs; // `lodge logs`
mod ls; // `lodge ls`
mod pause; // `lodge pause`
mod pool; // `lodge pool …`
mod ps; // `lodge ps`
mod resume; // `lodge resume`
mod rm; // `lodge rm`
mod run; // `lodge run`
mod runs; // `lodge runs`
mod start; // `lodge start`
mod stats; // `lodge stats`
mod stop; // `lodge stop`
mod update; // `lodge update`
mod version; // `lodge version`
mod watch; // `lodge watch`

mod cli; // the command line as a whole
mod disk_full; // a sandbox without room, at the end of a run
mod each; // a call for each of several sandboxes
mod environment; // `-e`, `--secret`, `--env-file`
mod follow; // a run's output and end
mod grep; // `--grep` and its kin
mod failure; // errors, as people and exit codes tell them
mod idle_args; // `--freeze-after`, `--stop-after`, `--delete-after`
mod interrupt; // what Ctrl-C does to a run
mod json; // the objects that `--json` prints
mod limit_args; // `--memory`, `--cpus`, `--pids` …
mod pair; // `NAME=VALUE`
mod sandbox_arg; // how a sandbox is named on the command line
mod table; // columns for people
mod terminal; // writing, and not being written to by a sandbox
mod units; // durations and sizes as people write them

use std::process::ExitCode;

use clap::Parser as _;

/// Besides the thread that writes to a terminal or pipe, which may block: one that keeps the connection alive and
/// listens for Ctrl-C.
const WORKER_THREADS: usize = 1;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return failure::usage(&usage),
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&error.into()),
    };
    let result = runtime.block_on(cli.execute());
    // A thread may wait in a read of our standard input, which never has to end (case C2): leave it behind.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| failure::report(&error))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
}
