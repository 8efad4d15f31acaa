// A stand-in for the daemon: speaks its API over a unix socket and runs commands on the host with `sh`, without any
// isolation. It is for tests of the client alone; what the real daemon does is tested in the workspace's `tests/`.
// Scripts that start with `fake:` misbehave in ways that a sound daemon does not.
//
// Included by the crate's example as well, hence no inner attributes or doc comments.

use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lodge_proto::v1 as pb;
use pb::exec_service_server::{ExecService, ExecServiceServer};
use pb::image_service_server::{ImageService, ImageServiceServer};
use pb::node_service_server::{NodeService, NodeServiceServer};
use pb::run_event::Event;
use pb::run_spec::Command as Form;
use pb::sandbox_service_server::{SandboxService, SandboxServiceServer};
use pb::start_request::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The id of every sandbox and run of the fake.
pub(crate) const ID: &str = "00000000000000000000";
/// The id of the fake's second sandbox; it is gone after the first watch.
pub(crate) const SECOND_ID: &str = "00000000000000000001";
/// The id of a run whose stream is cut after `part`; it can be attached to.
pub(crate) const CUT_ONCE: &str = "00000000000000000001";
/// The same, but attaching to it sends what was sent already.
const DOUBLES: &str = "00000000000000000002";
/// Bytes that a message may have; the same as the real server's.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A running fake. Ends with the runtime.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Asked>>,
}

/// The last request of each kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Those of the runs, in their order.
    pub(crate) request_ids: Vec<String>,
    pub(crate) acquire: pb::AcquireRequest,
    pub(crate) list: pb::ListSandboxesRequest,
    pub(crate) update: pb::UpdateSandboxRequest,
    pub(crate) run: pb::RunSpec,
    /// In their order.
    pub(crate) watches: Vec<pb::WatchSandboxesRequest>,
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(dir.path().join("sock")).expect("a socket in it");
        let asked = Arc::new(Mutex::new(Asked::default()));
        let fake = Fake {
            kill: Arc::new(Notify::new()),
            asked: asked.clone(),
        };
        let exec =
            ExecServiceServer::new(fake.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let server = tonic::transport::Server::builder()
            .add_service(exec)
            .add_service(SandboxServiceServer::new(fake.clone()))
            .add_service(NodeServiceServer::new(fake.clone()))
            .add_service(ImageServiceServer::new(fake));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Self { dir, asked }
    }

    /// What it was asked.
    #[allow(dead_code, reason = "not every test that includes this asks")]
    pub(crate) fn asked(&self) -> Asked {
        self.asked.lock().expect("no panic").clone()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.dir.path().join("sock").display())
    }
}

#[derive(Clone)]
struct Fake {
    /// Ends the streaming runs that go on now.
    kill: Arc<Notify>,
    asked: Arc<Mutex<Asked>>,
}

impl Fake {
    fn note(&self, note: impl FnOnce(&mut Asked)) {
        note(&mut self.asked.lock().expect("no panic"));
    }

    /// Whether this request id was not seen before; without one every call is a first one.
    fn is_first(&self, request_id: &str) -> bool {
        let mut seen = false;
        self.note(|asked| {
            seen = !request_id.is_empty() && asked.request_ids.iter().any(|id| id == request_id);
            asked.request_ids.push(request_id.to_owned());
        });
        !seen
    }
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

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

#[tonic::async_trait]
impl SandboxService for Fake {
    async fn acquire(&self, request: Request<pb::AcquireRequest>) -> Answer<pb::AcquireResponse> {
        let request = request.into_inner();
        self.note(|asked| asked.acquire = request.clone());
        if request.name.starts_with('-') {
            return Err(refusal());
        }
        if request.name == "frozen" && request.resume() == pb::ResumeMode::Error {
            return Err(refused(
                tonic::Code::FailedPrecondition,
                "SANDBOX_IS_FROZEN",
            ));
        }
        let sandbox = pb::Sandbox {
            name: request.name,
            image: request.image,
            ..sandbox()
        };
        Ok(Response::new(pb::AcquireResponse {
            sandbox: Some(sandbox),
            created: true,
        }))
    }

    async fn get(&self, request: Request<pb::GetSandboxRequest>) -> Answer<pb::Sandbox> {
        match named(request.into_inner().sandbox).as_str() {
            SECOND_ID => Err(refused(tonic::Code::NotFound, "SANDBOX_NOT_FOUND")),
            _ => Ok(Response::new(sandbox())),
        }
    }

    async fn list(
        &self,
        request: Request<pb::ListSandboxesRequest>,
    ) -> Answer<pb::ListSandboxesResponse> {
        let request = request.into_inner();
        self.note(|asked| asked.list = request.clone());
        // Two pages, so that a client that forgets the second one is caught.
        let (name, next) = match request.page_token.as_str() {
            "" => ("first", "more"),
            _ => ("second", ""),
        };
        let sandboxes = vec![pb::Sandbox {
            name: name.into(),
            ..sandbox()
        }];
        Ok(Response::new(pb::ListSandboxesResponse {
            sandboxes,
            next_page_token: next.into(),
        }))
    }

    async fn start(&self, _: Request<pb::StartSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    async fn stop(&self, _: Request<pb::StopSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    /// Answers as if all that was asked for held at once.
    async fn update(&self, request: Request<pb::UpdateSandboxRequest>) -> Answer<pb::Sandbox> {
        let request = request.into_inner();
        self.note(|asked| asked.update = request.clone());
        Ok(Response::new(pb::Sandbox {
            labels: request.set_labels,
            idle: request.idle,
            ..sandbox()
        }))
    }

    async fn pause(
        &self,
        request: Request<pb::PauseSandboxRequest>,
    ) -> Answer<pb::PauseSandboxResponse> {
        if named(request.into_inner().sandbox) == "stopped" {
            return Err(refused(
                tonic::Code::FailedPrecondition,
                "SANDBOX_NOT_RUNNING",
            ));
        }
        let sandbox = pb::Sandbox {
            state: pb::SandboxState::Frozen.into(),
            ..sandbox()
        };
        Ok(Response::new(pb::PauseSandboxResponse {
            sandbox: Some(sandbox),
            reclaimed_bytes: Some(5 << 20),
        }))
    }

    async fn resume(&self, _: Request<pb::ResumeSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    type WatchStream = Events<pb::SandboxEvent>;

    /// Tells two sandboxes and breaks off; asked again, it tells one of them, and that this one goes.
    async fn watch(
        &self,
        request: Request<pb::WatchSandboxesRequest>,
    ) -> Answer<Self::WatchStream> {
        use pb::sandbox_event::Event;
        let request = request.into_inner();
        self.note(|asked| asked.watches.push(request.clone()));
        if request.labels.contains_key("fake:refuse") {
            return Err(refusal());
        }
        let sandbox = |id: &str, name: &str, state: pb::SandboxState| {
            let (id, name, labels) = (id.into(), name.into(), request.labels.clone());
            let state = state.into();
            Event::Sandbox(pb::Sandbox {
                id,
                name,
                state,
                labels,
                ..sandbox()
            })
        };
        let is_first = self.asked.lock().expect("no panic").watches.len() == 1;
        let (events, last) = match is_first {
            true => (
                vec![
                    sandbox(ID, "first", pb::SandboxState::Running),
                    sandbox(SECOND_ID, "second", pb::SandboxState::Stopped),
                    Event::Synced(pb::WatchSynced {}),
                    sandbox(ID, "first", pb::SandboxState::Frozen),
                ],
                Some(Err(refused(tonic::Code::Unavailable, "DAEMON_STOPPING"))),
            ),
            false => (
                vec![
                    sandbox(ID, "first", pb::SandboxState::Running),
                    Event::Synced(pb::WatchSynced {}),
                    Event::Deleted(ID.into()),
                ],
                None,
            ),
        };
        let events = events
            .into_iter()
            .map(|event| Ok(pb::SandboxEvent { event: Some(event) }));
        let told = tokio_stream::iter(events.chain(last).collect::<Vec<_>>());
        match is_first {
            true => Ok(Response::new(Box::pin(told))),
            false => Ok(Response::new(Box::pin(told.chain(tokio_stream::pending())))),
        }
    }

    async fn stats(&self, request: Request<pb::SandboxStatsRequest>) -> Answer<pb::SandboxStats> {
        let stats = match named(request.into_inner().sandbox).as_str() {
            "missing" => return Err(refused(tonic::Code::NotFound, "SANDBOX_NOT_FOUND")),
            "stopped" => pb::SandboxStats {
                state: pb::SandboxState::Stopped.into(),
                log_bytes: 2048,
                ..Default::default()
            },
            _ => pb::SandboxStats {
                state: pb::SandboxState::Running.into(),
                memory_bytes: Some(3 << 20),
                memory_limit_bytes: Some(2 << 30),
                cpu_time: prost_types::Duration::try_from(Duration::from_millis(61_500)).ok(),
                pids: Some(3),
                pids_limit: Some(2048),
                oom_kills: Some(1),
                kept_runs: 7,
                disk_bytes: Some(10 << 30),
                disk_limit_bytes: Some(10 << 30),
                inodes: Some(12),
                ..Default::default()
            },
        };
        Ok(Response::new(stats))
    }

    async fn delete(
        &self,
        _: Request<pb::DeleteSandboxRequest>,
    ) -> Answer<pb::DeleteSandboxResponse> {
        Ok(Response::new(pb::DeleteSandboxResponse {}))
    }
}

#[tonic::async_trait]
impl NodeService for Fake {
    async fn info(&self, _: Request<pb::InfoRequest>) -> Answer<pb::InfoResponse> {
        Err(Status::unimplemented("not in the fake"))
    }

    async fn doctor(&self, _: Request<pb::DoctorRequest>) -> Answer<pb::DoctorResponse> {
        Err(Status::unimplemented("not in the fake"))
    }

    /// Two pages, so that a client that forgets the second one is caught.
    async fn disk(&self, request: Request<pb::DiskRequest>) -> Answer<pb::DiskResponse> {
        let (sandbox, next) = match request.into_inner().page_token.as_str() {
            "" => (
                pb::SandboxDisk {
                    name: "first".into(),
                    state: pb::SandboxState::Running.into(),
                    used_bytes: Some(3 << 20),
                    limit_bytes: Some(10 << 30),
                    inodes: Some(5),
                    limit_inodes: Some(4096),
                    ..Default::default()
                },
                "more",
            ),
            _ => (
                pb::SandboxDisk {
                    name: "second".into(),
                    state: pb::SandboxState::Stopped.into(),
                    ..Default::default()
                },
                "",
            ),
        };
        let grow = pb::StorageAbility {
            name: "grow".into(),
            reason: "there is no pool".into(),
            ..Default::default()
        };
        Ok(Response::new(pb::DiskResponse {
            host: Some(host_disk(100 << 30)),
            images_bytes: 300 << 20,
            logs_bytes: 2048,
            abilities: vec![grow],
            sandboxes: vec![sandbox],
            next_page_token: next.into(),
        }))
    }

    async fn grow_pool(
        &self,
        request: Request<pb::GrowPoolRequest>,
    ) -> Answer<pb::GrowPoolResponse> {
        match request.into_inner().bytes {
            bytes if bytes < 100 << 30 => {
                Err(refused(tonic::Code::InvalidArgument, "POOL_TOO_SMALL"))
            }
            bytes => Ok(Response::new(pb::GrowPoolResponse {
                host: Some(host_disk(bytes)),
            })),
        }
    }
}

fn host_disk(size_bytes: u64) -> pb::HostDisk {
    pb::HostDisk {
        driver: "fake".into(),
        path: "/pool\u{1b}[2J".into(),
        size_bytes,
        used_bytes: 40 << 30,
        host_free_bytes: 60 << 30,
        reserve_bytes: 1 << 30,
        being_removed: 2,
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    type ImportStream = Events<pb::ImportEvent>;

    /// Answers with an image whose size is what came, and whose digest is the name that was asked for.
    async fn import(
        &self,
        request: Request<Streaming<pb::ImportRequest>>,
    ) -> Answer<Self::ImportStream> {
        let mut messages = request.into_inner();
        let mut image = pb::Image::default();
        while let Some(message) = messages.message().await? {
            match message.message.expect("no empty message") {
                pb::import_request::Message::Spec(spec) => image.names.push(spec.name),
                pb::import_request::Message::Chunk(chunk) => image.size_bytes += chunk.len() as u64,
            }
        }
        let progress = pb::ImportProgress {
            stage: "unpacking".into(),
            bytes: 1,
            entries: 1,
        };
        let events = [
            pb::import_event::Event::Progress(progress),
            pb::import_event::Event::Image(image),
        ];
        let events = events.map(|event| Ok(pb::ImportEvent { event: Some(event) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn list(&self, _: Request<pb::ListImagesRequest>) -> Answer<pb::ListImagesResponse> {
        Ok(Response::new(pb::ListImagesResponse::default()))
    }

    async fn remove(&self, _: Request<pb::RemoveImageRequest>) -> Answer<pb::RemoveImageResponse> {
        Ok(Response::new(pb::RemoveImageResponse { removed: true }))
    }

    /// Answers with one image that has two names, or with none if it was no dry run.
    async fn prune(
        &self,
        request: Request<pb::PruneImagesRequest>,
    ) -> Answer<pb::PruneImagesResponse> {
        if !request.into_inner().dry_run {
            return Ok(Response::new(pb::PruneImagesResponse::default()));
        }
        let image = pb::PrunedImage {
            digest: format!("sha256:{}", "0".repeat(64)),
            names: vec!["old".into(), "older".into()],
            size_bytes: 3 << 20,
        };
        Ok(Response::new(pb::PruneImagesResponse {
            images: vec![image],
            freed_bytes: 2 << 20,
        }))
    }
}

fn sandbox() -> pb::Sandbox {
    let state = pb::SandboxState::Running.into();
    pb::Sandbox {
        id: ID.into(),
        name: "fake".into(),
        state,
        ..pb::Sandbox::default()
    }
}

fn refusal() -> Status {
    let hint = [("hint".to_owned(), "ask for less".to_owned())];
    let details = ErrorDetails::with_error_info("TOO_MUCH", "lodge", hint);
    Status::with_error_details(tonic::Code::ResourceExhausted, "that is too much", details)
}

/// A refusal whose message is its reason.
fn refused(code: tonic::Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "lodge", []);
    Status::with_error_details(code, reason, details)
}

/// The name or id that a request says.
fn named(sandbox: Option<pb::SandboxRef>) -> String {
    use pb::sandbox_ref::Ref;
    match sandbox.and_then(|sandbox| sandbox.r#ref) {
        Some(Ref::Name(name)) => name,
        Some(Ref::Id(id)) => id,
        None => String::new(),
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
