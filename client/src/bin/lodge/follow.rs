//! Following a run to its end: its output as it comes, what is to be said about its end, and the exit code that is ours
//! then.

use std::io;
use std::process::ExitCode;

use anyhow::{Error, Result};
use lodge_client::{EndReason, Event, Outcome, RunStream, Sandbox, SandboxState, StdStream};

use crate::failure::{self, Advice, LODGE_FAILED};
use crate::sandbox_arg::SandboxArg;
use crate::{disk_full, terminal};

/// Passes output through until the run has ended.
pub(crate) async fn pass_through(events: &mut RunStream) -> Result<Outcome> {
    while let Some(event) = events.next().await {
        match event? {
            Event::Started { .. } => {}
            Event::Output {
                stream: StdStream::Stdout,
                data,
                ..
            } => {
                terminal::raw(&mut io::stdout().lock(), &data)?;
            }
            Event::Output {
                stream: StdStream::Stderr,
                data,
                ..
            } => {
                terminal::raw(&mut io::stderr().lock(), &data)?;
            }
            Event::Gap { stream, from, to } => tell_gap(stream, to.saturating_sub(from)),
            Event::Exited(outcome) => return Ok(outcome),
        }
    }
    Err(lodge_client::Error::StreamCut {
        missing: "the run's end",
    }
    .into())
}

/// Says that output is missing.
pub(crate) fn tell_gap(stream: StdStream, bytes: u64) {
    let name = match stream {
        StdStream::Stdout => "standard output",
        StdStream::Stderr => "standard error",
    };
    terminal::note(&format!("{bytes} bytes of {name} are missing here"));
}

/// A run of which we may lose sight.
pub(crate) struct Seen<'a> {
    pub(crate) sandbox: &'a SandboxArg,
    pub(crate) run: &'a str,
}

impl Seen<'_> {
    /// What can be said where its stream failed: the way back to it, unless the failure says what else is to be done.
    pub(crate) fn lost(&self, error: Error, back: &str) -> Error {
        let (sandbox, run) = (self.sandbox.as_str(), self.run);
        let message = format!("lost sight of run {run}, which may go on");
        match failure::hint(&error) {
            Some(_) => error.context(message),
            None => error.context(Advice::new(
                message,
                format!("get back to it: `lodge attach -s {sandbox} {back} {run}`"),
            )),
        }
    }

    /// Says why nothing comes of a live run, if its sandbox is frozen now.
    pub(crate) async fn tell_frozen(&self, sandbox: &Sandbox) -> Result<()> {
        if sandbox.info().await?.state == SandboxState::Frozen {
            let name = self.sandbox.as_str();
            terminal::note(&format!(
                "sandbox {name} is paused (frozen): nothing new comes until it is resumed, as by `lodge resume {name}`"
            ));
        }
        Ok(())
    }
}

/// The options of `lodge attach` that go on where this stream is.
pub(crate) fn from_here(events: &RunStream) -> String {
    let stdout = events.offset(StdStream::Stdout);
    let stderr = events.offset(StdStream::Stderr);
    format!("--offset {stdout} --stderr-offset {stderr}")
}

/// Says what the exit code alone does not.
pub(crate) async fn tell_end(outcome: &Outcome, sandbox: &Sandbox) {
    let message = match outcome.end_reason {
        _ if !outcome.message.is_empty() => &outcome.message,
        EndReason::TimedOut => "the command reached its timeout and was ended",
        EndReason::OomKilled => "the kernel ended the command for want of memory",
        EndReason::Cancelled => "the command was ended by a caller",
        EndReason::SandboxStopped => "the sandbox was stopped",
        EndReason::Lost => {
            "the sandbox's first process died; what became of the command is not known"
        }
        _ => "",
    };
    if !message.is_empty() {
        terminal::note(message);
    }
    disk_full::tell(outcome, sandbox).await;
    // Only for a person: it is not a failure, and programs have --json.
    if outcome.left_running > 0 && terminal::is_watched() {
        let (count, run) = (outcome.left_running, &outcome.run_id);
        terminal::note(&format!(
            "{count} of its processes live on; `lodge kill {run}` ends them"
        ));
    }
}

/// The command's exit code as ours.
pub(crate) fn exit_code(outcome: &Outcome) -> ExitCode {
    match outcome.end_reason {
        // Nothing is known of the command, so the code must not look like its own.
        EndReason::Lost => ExitCode::from(LODGE_FAILED),
        _ => ExitCode::from(u8::try_from(outcome.exit_code).unwrap_or(LODGE_FAILED)),
    }
}
