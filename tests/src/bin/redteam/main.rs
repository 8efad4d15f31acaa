//! Every row of the catalogue of attacks against this build, and a table of what came of it: the tests and probes of each row; whether
//! they fail, as they must, without the protections that answer the attack; and what the same probes do in bubblewrap and in a container
//! of runc, where those are installed. With ids or letters of groups as arguments only those rows.
#![expect(clippy::print_stdout, reason = "a command that prints a table")]

mod args; // which rows, and which columns
mod controls; // without a protection
mod peers; // other runtimes
mod probe; // a probe in a sandbox
mod report; // the table
mod suite; // tests by name

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use lodge_tests::redteam::{self, Row};
use lodge_tests::rootfs::Rootfs;

use args::Args;
use peers::Peers;
use report::{Outcome, Report};
use suite::Suite;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse(std::env::args().skip(1))?;
    let rows: Vec<&Row> = redteam::all().filter(|row| args.wants(row)).collect();
    ensure!(!rows.is_empty(), "no row is named so");
    let taint = taint()?;
    let suite = Suite::list()?;
    let mut report = Report::default();
    if args.tests {
        report.tests = suite.run(&rows)?;
    }
    let peers = if args.peers {
        Peers::find(&Rootfs::unpack()?)?
    } else {
        Peers::default()
    };
    for row in rows {
        let line = report.line(row);
        line.tests = suite.of(row).into_iter().map(ToOwned::to_owned).collect();
        if let Some(probe) = &row.probe {
            line.probe = Some(Outcome::of(probe::run(probe).await));
            if probe.is_harmless {
                line.peers = peers.try_all(probe);
            }
        }
        if args.controls {
            line.controls = controls::of_row(row, &suite).await?;
        }
    }
    ensure!(
        taint == self::taint()?,
        "the kernel is tainted now and was not: see its log"
    );
    report.print();
    Ok(if report.is_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the kernel holds against itself (tainted-kernels.rst): an attack that made it warn or oops shows here.
fn taint() -> Result<String> {
    fs::read_to_string("/proc/sys/kernel/tainted").context("whether the kernel is tainted")
}
