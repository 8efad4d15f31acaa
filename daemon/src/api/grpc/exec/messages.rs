//! Messages of `ExecService` from and to the domain's words.

use bytes::Bytes;
use lodge_proto::v1 as wire;
use prost_types::{Duration as WireDuration, Timestamp};
use zeroize::Zeroizing;

use super::super::sandbox::{resume_from, sandbox_ref};
use super::session::OnDisconnect;
use crate::error::{Error, Result};
use crate::exec::end::Verdict;
use crate::exec::ps::Process;
use crate::exec::run::Output;
use crate::exec::stream::Event;
use crate::exec::view::View;
use crate::exec::{
    DiskFullPlace, EndReason, Origin, RawCommand, RawDuration, RawRunSpec, RunResult, Secret,
    Stdin, Stream,
};
use crate::sandbox::id::RunId;
use crate::sandbox::{Resume, SandboxRef};

/// A call that runs a command.
pub(super) struct Call {
    pub(super) sandbox: SandboxRef,
    pub(super) raw: RawRunSpec,
    pub(super) on_disconnect: OnDisconnect,
    pub(super) resume: Resume,
}

/// The call of a `Run`.
pub(super) fn call_from(spec: Option<wire::RunSpec>) -> Result<Call> {
    let spec = spec.ok_or_else(|| Error::invalid("MISSING_SPEC", "the request has no spec"))?;
    let on_disconnect = if spec.cancel_on_disconnect {
        OnDisconnect::Cancel
    } else {
        OnDisconnect::GoOn
    };
    let command = spec.command.map(|command| match command {
        wire::run_spec::Command::Shell(script) => RawCommand::Shell(script),
        wire::run_spec::Command::Argv(argv) => RawCommand::Argv(argv.args),
    });
    let raw = RawRunSpec {
        command,
        env: spec.env.into_iter().map(|v| (v.name, v.value)).collect(),
        secret_env: spec.secret_env.into_iter().map(secret_from).collect(),
        cwd: spec.cwd,
        user: spec.user,
        stdin: if spec.stdin.is_empty() {
            Stdin::Null
        } else {
            Stdin::Bytes(spec.stdin)
        },
        timeout: spec.timeout.map(|t| RawDuration {
            seconds: t.seconds,
            nanos: t.nanos,
        }),
        max_output_bytes: spec.max_output_bytes,
        request_id: spec.request_id,
    };
    Ok(Call {
        sandbox: sandbox_ref(spec.sandbox)?,
        raw,
        on_disconnect,
        resume: resume_from(spec.resume)?,
    })
}

/// The call in the first message of a `Start`.
pub(super) fn start_from(first: Option<wire::StartRequest>) -> Result<Call> {
    let Some(wire::start_request::Message::Spec(start)) = first.and_then(|first| first.message)
    else {
        return Err(Error::invalid(
            "MISSING_SPEC",
            "the first message of the stream is not `spec`",
        ));
    };
    let mut call = call_from(start.run)?;
    if start.open_stdin {
        if matches!(call.raw.stdin, Stdin::Bytes(_)) {
            return Err(Error::invalid(
                "INVALID_STDIN",
                "`open_stdin` and `stdin` are both set",
            ));
        }
        call.raw.stdin = Stdin::Open;
    }
    Ok(call)
}

/// A stream that a request names.
pub(super) fn stream_from(stream: i32) -> Result<Stream> {
    match wire::Stream::try_from(stream) {
        Ok(wire::Stream::Stdout) => Ok(Stream::Stdout),
        Ok(wire::Stream::Stderr) => Ok(Stream::Stderr),
        Ok(wire::Stream::Unspecified) | Err(_) => Err(Error::invalid(
            "INVALID_STREAM",
            "the request names neither stdout nor stderr",
        )),
    }
}

fn secret_from(variable: wire::EnvVar) -> Secret {
    Secret {
        name: variable.name,
        value: Zeroizing::new(variable.value),
    }
}

/// The answer to a `Run`.
pub(super) fn response(result: &RunResult, output: Output, origin: Origin) -> wire::RunResponse {
    wire::RunResponse {
        result: Some(result_to_wire(result)),
        stdout: Some(view_to_wire(output.stdout)),
        stderr: Some(view_to_wire(output.stderr)),
        attached: origin == Origin::EarlierCall,
    }
}

/// The first event of a `Start`.
pub(super) fn started(run: &RunId, origin: Origin) -> wire::RunEvent {
    let started = wire::Started {
        run_id: run.to_string(),
        attached: origin == Origin::EarlierCall,
    };
    wire::RunEvent {
        event: Some(wire::run_event::Event::Started(started)),
    }
}

/// The first event of an `Attach`.
pub(super) fn attached(run: &RunId) -> wire::RunEvent {
    let started = wire::Started {
        run_id: run.to_string(),
        attached: true,
    };
    wire::RunEvent {
        event: Some(wire::run_event::Event::Started(started)),
    }
}

/// The event of a `Start` that all of its input has come to the command.
pub(super) fn stdin_taken() -> wire::RunEvent {
    wire::RunEvent {
        event: Some(wire::run_event::Event::StdinTaken(wire::StdinTaken {})),
    }
}

/// An event of a `Start`.
pub(super) fn event(event: Event) -> wire::RunEvent {
    let event = match event {
        Event::Output {
            stream,
            offset,
            data,
        } => wire::run_event::Event::Output(wire::OutputChunk {
            stream: stream_to_wire(stream),
            offset,
            data,
        }),
        Event::Gap { stream, from, to } => wire::run_event::Event::Gap(wire::Gap {
            stream: stream_to_wire(stream),
            from,
            to,
        }),
        Event::Exited(result) => wire::run_event::Event::Exited(result_to_wire(&result)),
    };
    wire::RunEvent { event: Some(event) }
}

/// One line of `ListProcesses`.
pub(super) fn process(process: Process) -> wire::Process {
    wire::Process {
        run_id: process.run.into(),
        pid: process.pid,
        uid: process.uid,
        state: process.state,
        command: process.command,
        rss_bytes: process.rss_bytes,
        run_started_at: Some(Timestamp::from(process.run_started_at)),
        run_live: process.run_live,
    }
}

pub(super) fn stream_to_wire(stream: Stream) -> i32 {
    match stream {
        Stream::Stdout => wire::Stream::Stdout.into(),
        Stream::Stderr => wire::Stream::Stderr.into(),
    }
}

fn view_to_wire(view: View) -> wire::Output {
    let View {
        head,
        tail,
        total,
        dropped,
    } = view;
    wire::Output {
        head,
        tail,
        total_bytes: total,
        dropped_bytes: dropped,
    }
}

/// The end of a run.
pub(super) fn result_to_wire(result: &RunResult) -> wire::RunResult {
    let Verdict {
        reason,
        exit_code,
        signal,
        wait_status,
    } = result.verdict;
    wire::RunResult {
        run_id: result.run.to_string(),
        end_reason: reason_to_wire(reason).into(),
        exit_code,
        signal,
        wait_status,
        left_running: result.left_running,
        duration: WireDuration::try_from(result.duration).ok(),
        cpu_time: result
            .cpu_time
            .and_then(|time| WireDuration::try_from(time).ok()),
        peak_memory_bytes: result.peak_memory,
        oom_kills: result.oom_kills,
        message: result.message.clone(),
        stdout_bytes: result.stdout_bytes,
        stderr_bytes: result.stderr_bytes,
        disk_full: result.disk_full.iter().map(place_to_wire).collect(),
    }
}

fn place_to_wire(place: &DiskFullPlace) -> i32 {
    match place {
        DiskFullPlace::Root => wire::DiskFullPlace::Root,
        DiskFullPlace::RootInodes => wire::DiskFullPlace::RootInodes,
        DiskFullPlace::Shm => wire::DiskFullPlace::Shm,
    }
    .into()
}

fn reason_to_wire(reason: EndReason) -> wire::EndReason {
    match reason {
        EndReason::Exited => wire::EndReason::Exited,
        EndReason::Signaled => wire::EndReason::Signaled,
        EndReason::TimedOut => wire::EndReason::TimedOut,
        EndReason::OomKilled => wire::EndReason::OomKilled,
        EndReason::Cancelled => wire::EndReason::Cancelled,
        EndReason::SandboxStopped => wire::EndReason::SandboxStopped,
        EndReason::Lost => wire::EndReason::Lost,
    }
}

/// What a message after the first one of a `Start` says.
pub(super) enum Input {
    /// Bytes for standard input.
    Bytes(Bytes),
    /// Its end.
    Eof,
}

/// Input in a later message of a `Start`.
pub(super) fn input_from(request: wire::StartRequest) -> Result<Input> {
    match request.message {
        Some(wire::start_request::Message::Stdin(bytes)) => Ok(Input::Bytes(bytes)),
        Some(wire::start_request::Message::StdinEof(_)) => Ok(Input::Eof),
        Some(wire::start_request::Message::Spec(_)) => Err(Error::invalid(
            "MISPLACED_MESSAGE",
            "`spec` is only in the first message of the stream",
        )),
        None => Err(Error::invalid(
            "UNKNOWN_MESSAGE",
            "a message of the stream says nothing known",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(open_stdin: bool, stdin: &'static [u8]) -> Option<wire::StartRequest> {
        let run = wire::RunSpec {
            sandbox: Some(wire::SandboxRef {
                r#ref: Some(wire::sandbox_ref::Ref::Name("a".to_owned())),
            }),
            stdin: Bytes::from_static(stdin),
            ..Default::default()
        };
        let spec = wire::StartSpec {
            run: Some(run),
            open_stdin,
        };
        Some(wire::StartRequest {
            message: Some(wire::start_request::Message::Spec(spec)),
        })
    }

    #[test]
    fn a_stream_begins_with_its_spec() {
        let stdin = wire::start_request::Message::Stdin(Bytes::from_static(b"x"));
        assert!(start_from(None).is_err());
        assert!(start_from(Some(wire::StartRequest { message: None })).is_err());
        assert!(
            start_from(Some(wire::StartRequest {
                message: Some(stdin)
            }))
            .is_err()
        );
        assert!(start_from(start(true, b"x")).is_err());
        let call = start_from(start(true, b"")).expect("valid");
        assert!(matches!(call.raw.stdin, Stdin::Open));
    }

    #[test]
    fn later_messages_are_input_alone() {
        let again = start(false, b"").expect("made above");
        assert!(input_from(again).is_err());
        assert!(input_from(wire::StartRequest { message: None }).is_err());
    }

    #[test]
    fn unknown_streams_are_refused() {
        for stream in [0, 3, -1, i32::MAX] {
            assert!(stream_from(stream).is_err());
        }
        assert_eq!(stream_from(2).expect("valid"), Stream::Stderr);
    }
}
