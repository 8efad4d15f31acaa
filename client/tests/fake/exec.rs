// Runs: commands on the host, and scripts that misbehave.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lodge_proto::v1 as pb;
use pb::exec_service_server::ExecService;
use pb::run_event::Event;
use pb::run_spec::Command as Form;
use pb::start_request::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answer, CUT_ONCE, Events, Fake, ID, refusal};

/// The id of a run as [`CUT_ONCE`], but attaching to it sends what was sent already.
const DOUBLES: &str = "00000000000000000002";

#[tonic::async_trait]
impl ExecService for Fake {
    type StartStream = Events<pb::RunEvent>;

    async fn run(&self, request: Request<pb::RunRequest>) -> Answer<pb::RunResponse> {
        let spec = request.into_inner().spec.expect("a spec");
        self.note(|asked| asked.run = spec.clone());
        match script(&spec) {
            "fake:refuse" => return Err(refusal()),
            "fake:hang" => std::future::pending().await,
            "fake:unknown-end" => return Ok(Response::new(ended(pb::EndReason::Unspecified, 0))),
            "fake:timed-out" => return Ok(Response::new(ended(pb::EndReason::TimedOut, 124))),
            "fake:lost" => return Ok(Response::new(ended(pb::EndReason::Lost, -1))),
            "fake:unavailable" => return Err(Status::unavailable("not now")),
            "fake:unavailable-once" if self.is_first(&spec.request_id) => {
                return Err(Status::unavailable("not now"));
            }
            "fake:unavailable-once" => return Ok(Response::new(ended(pb::EndReason::Exited, 0))),
            _ => {}
        }
        let mut child = spawn(&spec);
        let mut stdin = child.stdin.take().expect("it is piped");
        // A command that does not read all of it is none of our business.
        let _ = stdin.write_all(&spec.stdin).await;
        drop(stdin);
        let output = child
            .wait_with_output()
            .await
            .expect("it can be waited for");
        let (stdout, stderr) = (output.stdout, output.stderr);
        Ok(Response::new(pb::RunResponse {
            result: Some(result(output.status, stdout.len(), stderr.len())),
            stdout: Some(whole(stdout)),
            stderr: Some(whole(stderr)),
            ..Default::default()
        }))
    }

    async fn start(
        &self,
        request: Request<Streaming<pb::StartRequest>>,
    ) -> Answer<Self::StartStream> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.expect("a first message");
        let Some(Message::Spec(start)) = first.message else {
            panic!("no spec comes first")
        };
        let spec = start.run.expect("a spec");
        self.note(|asked| asked.run = spec.clone());
        let output = |data: &str| {
            Event::Output(pb::OutputChunk {
                stream: pb::Stream::Stdout.into(),
                offset: 0,
                data: data.to_owned().into(),
            })
        };
        let scripted = match script(&spec) {
            "fake:refuse" => return Err(refusal()),
            "fake:cut" => vec![Ok(started()), Ok(event(output("part")))],
            "fake:cut-once" => vec![Ok(started_as(CUT_ONCE)), Ok(event(output("part")))],
            "fake:doubles" => vec![Ok(started_as(DOUBLES)), Ok(event(output("part")))],
            // Cut once all of the input is there.
            "fake:input" => {
                while messages.message().await?.is_some() {}
                vec![
                    Ok(started_as(CUT_ONCE)),
                    Ok(event(output("part"))),
                    Ok(event(Event::StdinTaken(pb::StdinTaken {}))),
                ]
            }
            "fake:broken" => vec![Ok(started()), Err(refusal())],
            "fake:hang" => {
                let hanging = tokio_stream::once(Ok(started())).chain(tokio_stream::pending());
                return Ok(Response::new(Box::pin(hanging)));
            }
            "fake:disk-full" => vec![Ok(started()), Ok(event(Event::Exited(without_room())))],
            "fake:gap" => {
                let stream = pb::Stream::Stdout.into();
                let exited = ended(pb::EndReason::Exited, 0).result.expect("it has one");
                let exited = pb::RunResult {
                    stdout_bytes: 10,
                    ..exited
                };
                vec![
                    Ok(started()),
                    Ok(event(output("part"))),
                    Ok(event(Event::Gap(pb::Gap {
                        stream,
                        from: 4,
                        to: 10,
                    }))),
                    Ok(event(Event::Exited(exited))),
                ]
            }
            _ => {
                return Ok(Response::new(stream(
                    spawn(&spec),
                    spec,
                    messages,
                    self.kill.clone(),
                )));
            }
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(scripted))))
    }

    async fn read_log(&self, _: Request<pb::ReadLogRequest>) -> Answer<pb::ReadLogResponse> {
        Err(Status::unimplemented("not in the fake"))
    }

    async fn list_processes(
        &self,
        _: Request<pb::ListProcessesRequest>,
    ) -> Answer<pb::ListProcessesResponse> {
        let process = pb::Process {
            run_id: ID.into(),
            pid: 7,
            state: "S".into(),
            command: "evil \u{1b}[2J\nname".into(),
            ..pb::Process::default()
        };
        Ok(Response::new(pb::ListProcessesResponse {
            processes: vec![process],
        }))
    }

    async fn kill(&self, _: Request<pb::KillRequest>) -> Answer<pb::KillResponse> {
        self.kill.notify_waiters();
        Ok(Response::new(pb::KillResponse { killed: 1 }))
    }

    type AttachStream = Events<pb::RunEvent>;

    /// The rest of a run of which the caller has `part`.
    async fn attach(&self, request: Request<pb::AttachRequest>) -> Answer<Self::AttachStream> {
        let request = request.into_inner();
        let offset = match request.run_id.as_str() {
            CUT_ONCE => request.stdout_offset,
            DOUBLES => 0,
            _ => return Err(Status::not_found("no such run")),
        };
        let rest = pb::OutputChunk {
            stream: pb::Stream::Stdout.into(),
            offset,
            data: "rest\n".into(),
        };
        let result = ended(pb::EndReason::Exited, 3).result.expect("it has one");
        let events = vec![
            Ok(started_as(&request.run_id)),
            Ok(event(Event::Output(rest))),
            Ok(event(Event::Exited(pb::RunResult {
                stdout_bytes: offset + 5,
                ..result
            }))),
        ];
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn get_run(&self, _: Request<pb::GetRunRequest>) -> Answer<pb::RunInfo> {
        Err(Status::unimplemented("the fake keeps no runs"))
    }

    async fn list_runs(&self, _: Request<pb::ListRunsRequest>) -> Answer<pb::ListRunsResponse> {
        Err(Status::unimplemented("the fake keeps no runs"))
    }

    async fn search_log(&self, _: Request<pb::SearchLogRequest>) -> Answer<pb::SearchLogResponse> {
        Err(Status::unimplemented("the fake has no logs"))
    }
}

fn script(spec: &pb::RunSpec) -> &str {
    match &spec.command {
        Some(Form::Shell(script)) => script,
        _ => "",
    }
}

fn spawn(spec: &pb::RunSpec) -> Child {
    let mut command = match spec.command.as_ref().expect("a command") {
        Form::Shell(script) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        }
        Form::Argv(argv) => {
            let mut program = Command::new(&argv.args[0]);
            program.args(&argv.args[1..]);
            program
        }
    };
    if !spec.cwd.is_empty() {
        command.current_dir(&spec.cwd);
    }
    let variables = spec.env.iter().chain(&spec.secret_env);
    command
        .envs(variables.map(|v| (&v.name, &v.value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the command can be started")
}

fn result(status: std::process::ExitStatus, stdout: usize, stderr: usize) -> pb::RunResult {
    use std::os::unix::process::ExitStatusExt as _;
    let (end_reason, exit_code) = match (status.code(), status.signal()) {
        (Some(code), _) => (pb::EndReason::Exited, code),
        (None, signal) => (
            pb::EndReason::Signaled,
            128 + signal.expect("one of the two"),
        ),
    };
    pb::RunResult {
        run_id: ID.into(),
        end_reason: end_reason.into(),
        exit_code,
        signal: status.signal(),
        wait_status: Some(status.into_raw()),
        duration: prost_types::Duration::try_from(Duration::from_millis(5)).ok(),
        stdout_bytes: stdout as u64,
        stderr_bytes: stderr as u64,
        ..pb::RunResult::default()
    }
}

fn whole(bytes: Vec<u8>) -> pb::Output {
    let total_bytes = bytes.len() as u64;
    pb::Output {
        head: bytes.into(),
        total_bytes,
        ..pb::Output::default()
    }
}

fn ended(reason: pb::EndReason, exit_code: i32) -> pb::RunResponse {
    let end_reason = reason.into();
    let result = pb::RunResult {
        run_id: ID.into(),
        end_reason,
        exit_code,
        ..Default::default()
    };
    pb::RunResponse {
        result: Some(result),
        ..pb::RunResponse::default()
    }
}

/// With a place that a later daemon may know.
fn without_room() -> pb::RunResult {
    let places = [pb::DiskFullPlace::Root, pb::DiskFullPlace::Shm].map(i32::from);
    let result = ended(pb::EndReason::Exited, 1).result;
    pb::RunResult {
        disk_full: places.into_iter().chain([99]).collect(),
        ..result.expect("it has one")
    }
}

fn event(event: Event) -> pb::RunEvent {
    pb::RunEvent { event: Some(event) }
}

fn started() -> pb::RunEvent {
    started_as(ID)
}

fn started_as(run_id: &str) -> pb::RunEvent {
    event(Event::Started(pb::Started {
        run_id: run_id.into(),
        ..Default::default()
    }))
}

/// Runs the child and sends what it writes; the stream ends with its end.
fn stream(
    mut child: Child,
    spec: pb::RunSpec,
    mut messages: Streaming<pb::StartRequest>,
    kill: Arc<Notify>,
) -> Events<pb::RunEvent> {
    let (events, receiver) = mpsc::channel(16);
    let mut stdin = child.stdin.take().expect("it is piped");
    let feeder = tokio::spawn(async move {
        let _ = stdin.write_all(&spec.stdin).await;
        while let Ok(Some(message)) = messages.message().await {
            if let Some(Message::Stdin(bytes)) = message.message
                && stdin.write_all(&bytes).await.is_err()
            {
                break;
            }
        }
    });
    tokio::spawn(async move {
        let _ = events.send(Ok(started())).await;
        let out = child.stdout.take().expect("it is piped");
        let err = child.stderr.take().expect("it is piped");
        let waited = async {
            tokio::select! {
                status = child.wait() => status,
                () = kill.notified() => {
                    child.start_kill().expect("it lives");
                    child.wait().await
                }
            }
        };
        let (stdout, stderr, status) = tokio::join!(
            forward(out, pb::Stream::Stdout, events.clone()),
            forward(err, pb::Stream::Stderr, events.clone()),
            waited,
        );
        let status = status.expect("it can be waited for");
        feeder.abort();
        let _ = events
            .send(Ok(event(Event::Exited(result(status, stdout, stderr)))))
            .await;
    });
    Box::pin(ReceiverStream::new(receiver))
}

async fn forward(
    mut pipe: impl tokio::io::AsyncRead + Unpin,
    stream: pb::Stream,
    events: mpsc::Sender<Result<pb::RunEvent, Status>>,
) -> usize {
    let mut offset = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = pipe.read(&mut buffer).await.expect("the pipe can be read");
        if count == 0 {
            return offset;
        }
        let data = buffer[..count].to_vec().into();
        let chunk = pb::OutputChunk {
            stream: stream.into(),
            offset: offset as u64,
            data,
        };
        offset += count;
        // Nobody listens any more: go on reading, so that the child is not held up.
        let _ = events.send(Ok(event(Event::Output(chunk)))).await;
    }
}
