//! `lodge doctor`: asks the daemon to look at its host; where none answers, has `lodged doctor` look at this one.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use lodge_client::{Check, CheckStatus, DoctorReport, Error};

use crate::cli::Daemon;
use crate::failure::LODGE_FAILED;
use crate::{json, terminal};

/// Where no sandbox can be run.
const UNFIT: u8 = 1;
/// The daemon's executable.
const DAEMON: &str = "lodged";

/// Check whether the daemon's host can run sandboxes
///
/// Where no daemon answers, this host is checked with `lodged doctor`. Exit code: 0 if sandboxes can be run, 1 if not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let client = match daemon.connect().await {
        Ok(client) => client,
        Err(error @ Error::Connect { .. }) => return without_daemon(&args, error).await,
        Err(error) => return Err(error.into()),
    };
    let report = client.doctor().await?;
    match args.json {
        true => terminal::data(&json::doctor(&report).to_string())?,
        false => print(&report)?,
    }
    Ok(ExitCode::from(if report.ok { 0 } else { UNFIT }))
}

async fn without_daemon(args: &Args, error: Error) -> Result<ExitCode> {
    let Some(program) = find_daemon() else {
        return Err(error.into());
    };
    terminal::note(&format!(
        "{error}; checking this host with {}",
        program.display()
    ));
    let mut command = tokio::process::Command::new(&program);
    command.arg("doctor");
    if args.json {
        command.arg("--json");
    }
    let status = command.status().await;
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(LODGE_FAILED)))
}

/// Beside this executable, else in PATH.
fn find_daemon() -> Option<PathBuf> {
    let beside = env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = beside.into_iter().chain(env::split_paths(&path));
    dirs.map(|dir| dir.join(DAEMON))
        .find(|candidate| candidate.is_file())
}

/// As `lodged doctor` prints it: who reads the one reads the other.
fn print(report: &DoctorReport) -> Result<()> {
    for check in &report.checks {
        let Check {
            status,
            name,
            detail,
            ..
        } = check;
        terminal::data(&line(*status, name, detail))?;
        if !check.hint.is_empty() {
            terminal::data(&format!("      hint: {}", terminal::escape(&check.hint)))?;
        }
    }
    terminal::data(match report.ok {
        true => "sandboxes can be run on this host",
        false => "sandboxes cannot be run on this host",
    })
}

fn line(status: CheckStatus, name: &str, detail: &str) -> String {
    let status = match status {
        CheckStatus::Ok => "ok",
        CheckStatus::Warn => "warn",
        CheckStatus::Fail => "FAIL",
        _ => "?",
    };
    let (name, detail) = (terminal::escape(name), terminal::escape(detail));
    format!("{status:<4}  {name:<26} {detail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon's `lodged doctor` has the same test with the same line.
    #[test]
    fn a_line_is_the_one_of_lodged_doctor() {
        assert_eq!(
            line(CheckStatus::Fail, "kernel", "too old"),
            "FAIL  kernel                     too old"
        );
    }
}
