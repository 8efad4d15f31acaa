//! A sandbox to run things in, by the raw API.

use std::fs;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, run_spec};
use tonic::Status;

use crate::api::{Api, by_id};
use crate::live::Live;
use crate::slot::UID_BLOCK;
use crate::wait::until;

/// Longest wait for the end of a run that is about to end.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

/// A sandbox.
#[derive(Debug, Clone)]
pub struct Room {
    api: Api,
    info: pb::Sandbox,
}

impl Room {
    /// Wraps what the API said of a sandbox.
    pub fn new(api: Api, info: pb::Sandbox) -> Self {
        Self { api, info }
    }

    /// What the API said of it when it was acquired.
    pub fn info(&self) -> &pb::Sandbox {
        &self.info
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.info.id
    }

    /// The connection.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// A shell command, run when awaited.
    pub fn run(&self, script: impl Into<String>) -> Command {
        Command::new(self, run_spec::Command::Shell(script.into()))
    }

    /// A program without a shell, run when awaited.
    pub fn argv(&self, args: &[&str]) -> Command {
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        Command::new(self, run_spec::Command::Argv(pb::Argv { args }))
    }

    /// A Python program, run when awaited.
    pub fn python(&self, program: &str) -> Command {
        self.argv(&["python3", "-c", program])
    }

    /// Live processes, as the API lists them.
    pub async fn processes(&self) -> Result<Vec<pb::Process>> {
        let request = pb::ListProcessesRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self
            .api
            .exec()
            .list_processes(request)
            .await?
            .into_inner()
            .processes)
    }

    /// Live processes of one run.
    pub async fn processes_of(&self, run_id: &str) -> Result<Vec<pb::Process>> {
        let all = self.processes().await?;
        Ok(all.into_iter().filter(|p| p.run_id == run_id).collect())
    }

    /// Ends a run; how many processes that ended.
    pub async fn kill(&self, run_id: &str) -> Result<u32> {
        let request = pb::KillRequest {
            sandbox: by_id(self.id()),
            run_id: run_id.into(),
        };
        Ok(self.api.exec().kill(request).await?.into_inner().killed)
    }

    /// A part of a run's log.
    pub async fn read_log(
        &self,
        run_id: &str,
        stream: pb::Stream,
        offset: u64,
        limit: u32,
    ) -> Result<pb::ReadLogResponse> {
        let request = pb::ReadLogRequest {
            sandbox: by_id(self.id()),
            run_id: run_id.into(),
            stream: stream.into(),
            offset,
            limit,
            ..Default::default()
        };
        Ok(self.api.exec().read_log(request).await?.into_inner())
    }

    /// A request for the beginning of a run's standard output.
    pub fn log_request(&self, run_id: &str) -> pb::ReadLogRequest {
        pb::ReadLogRequest {
            sandbox: by_id(self.id()),
            run_id: run_id.into(),
            stream: pb::Stream::Stdout.into(),
            ..Default::default()
        }
    }

    /// Searches a run's standard output; the error as the daemon gave it.
    pub async fn search(
        &self,
        run_id: &str,
        change: impl FnOnce(&mut pb::SearchLogRequest),
    ) -> Result<pb::SearchLogResponse, Status> {
        let mut request = pb::SearchLogRequest {
            sandbox: by_id(self.id()),
            run_id: run_id.into(),
            stream: pb::Stream::Stdout.into(),
            ..Default::default()
        };
        change(&mut request);
        Ok(self.api.exec().search_log(request).await?.into_inner())
    }

    /// The whole of a run's log, read range by range. Fails at a gap.
    pub async fn whole_log(&self, run_id: &str, stream: pb::Stream) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let offset = all.len() as u64;
            let part = self.read_log(run_id, stream, offset, 1 << 20).await?;
            ensure!(
                part.offset == offset,
                "the log has a gap at {offset}: it goes on at {}",
                part.offset
            );
            all.extend_from_slice(&part.data);
            if all.len() as u64 >= part.total_bytes {
                return Ok(all);
            }
            ensure!(
                !part.data.is_empty(),
                "an empty part at {offset} of {}",
                part.total_bytes
            );
        }
    }

    /// A run, as the API tells of it.
    pub async fn get_run(&self, run_id: &str) -> Result<pb::RunInfo, Status> {
        let request = pb::GetRunRequest {
            sandbox: by_id(self.id()),
            run_id: run_id.into(),
        };
        Ok(self.api.exec().get_run(request).await?.into_inner())
    }

    /// A run as soon as it has ended.
    pub async fn ended_run(&self, run_id: &str) -> Result<pb::RunInfo> {
        until("the run has ended", ENDED_WITHIN, || async {
            let run = self.get_run(run_id).await?;
            Ok(Some(run).filter(|run| run.result.is_some()))
        })
        .await
    }

    /// All runs, the newest first, page by page.
    pub async fn list_runs(&self, page_size: i32, live_only: bool) -> Result<Vec<pb::RunInfo>> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListRunsRequest {
                sandbox: by_id(self.id()),
                page_size,
                page_token,
                live_only,
            };
            let page = self.api.exec().list_runs(request).await?.into_inner();
            let most = usize::try_from(page_size)?;
            ensure!(
                most == 0 || page.runs.len() <= most,
                "a page of {}",
                page.runs.len()
            );
            all.extend(page.runs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// What the API says of it now.
    pub async fn get(&self) -> Result<pb::Sandbox, Status> {
        let request = pb::GetSandboxRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().get(request).await?.into_inner())
    }

    /// Freezes it; the error as the daemon gave it.
    pub async fn pause(&self) -> Result<pb::PauseSandboxResponse, Status> {
        let request = pb::PauseSandboxRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().pause(request).await?.into_inner())
    }

    /// Thaws it.
    pub async fn resume(&self) -> Result<pb::Sandbox, Status> {
        let request = pb::ResumeSandboxRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().resume(request).await?.into_inner())
    }

    /// Ends its processes.
    pub async fn stop(&self) -> Result<pb::Sandbox, Status> {
        let request = pb::StopSandboxRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().stop(request).await?.into_inner())
    }

    /// Starts it.
    pub async fn start(&self) -> Result<pb::Sandbox, Status> {
        let request = pb::StartSandboxRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().start(request).await?.into_inner())
    }

    /// Changes it; the reference is filled in.
    pub async fn update(&self, request: pb::UpdateSandboxRequest) -> Result<pb::Sandbox, Status> {
        let request = pb::UpdateSandboxRequest {
            sandbox: by_id(self.id()),
            ..request
        };
        Ok(self.api.sandboxes().update(request).await?.into_inner())
    }

    /// What it uses.
    pub async fn stats(&self) -> Result<pb::SandboxStats, Status> {
        let request = pb::SandboxStatsRequest {
            sandbox: by_id(self.id()),
        };
        Ok(self.api.sandboxes().stats(request).await?.into_inner())
    }

    /// What it is doing.
    pub async fn state(&self) -> Result<pb::SandboxState, Status> {
        Ok(self.get().await?.state())
    }

    /// Deletes it.
    pub async fn delete(&self) -> Result<(), Status> {
        self.api.delete(self.id()).await
    }

    /// First host user id of the sandbox, as a process of it in the parent group `cgroup` has it.
    pub fn uid_base(&self, cgroup: &str) -> Result<u32> {
        let pid = self.holder_pid(cgroup)?;
        let map = fs::read_to_string(format!("/proc/{pid}/uid_map"))
            .context("read the holder's uid map")?;
        let base = map
            .split_whitespace()
            .nth(1)
            .context("the map has a host id")?
            .parse::<u32>()?;
        let count: u32 = map
            .split_whitespace()
            .nth(2)
            .context("the map has a count")?
            .parse()?;
        ensure!(count == UID_BLOCK, "the sandbox has {count} ids");
        Ok(base)
    }

    /// Host pid of the sandbox's PID 1.
    pub fn holder_pid(&self, cgroup: &str) -> Result<i32> {
        let groups = crate::cgroup::containing(cgroup, self.id())?;
        let holder = groups.iter().filter(|g| g.ends_with("holder"));
        let pids = holder.filter_map(|g| fs::read_to_string(g.join("cgroup.procs")).ok());
        let first = pids
            .flat_map(|t| t.lines().map(str::to_owned).collect::<Vec<_>>())
            .next();
        Ok(first
            .context("the sandbox's holder group has a process")?
            .parse()?)
    }
}

/// What to run; awaiting it runs it and gives [`Ran`], [`Command::start`] streams it.
#[derive(Debug, Clone)]
pub struct Command {
    api: Api,
    spec: pb::RunSpec,
}

impl Command {
    fn new(room: &Room, command: run_spec::Command) -> Self {
        let spec = pb::RunSpec {
            sandbox: by_id(room.id()),
            command: Some(command),
            ..Default::default()
        };
        Self {
            api: room.api.clone(),
            spec,
        }
    }

    /// Sends it on another connection.
    #[must_use]
    pub fn on(mut self, api: &Api) -> Self {
        self.api = api.clone();
        self
    }

    /// Changes the request freely.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut pb::RunSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// Sets the timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = prost_types::Duration {
            seconds: timeout.as_secs().cast_signed(),
            nanos: timeout.subsec_nanos().cast_signed(),
        };
        self.with(|s| s.timeout = Some(timeout))
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let var = pb::EnvVar {
            name: name.into(),
            value: value.into(),
        };
        self.with(|s| s.env.push(var))
    }

    /// Adds a secret variable.
    #[must_use]
    pub fn secret(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let var = pb::EnvVar {
            name: name.into(),
            value: value.into(),
        };
        self.with(|s| s.secret_env.push(var))
    }

    /// Names the call.
    #[must_use]
    pub fn request_id(self, id: &str) -> Self {
        self.with(|s| s.request_id = id.into())
    }

    /// Runs as this user.
    #[must_use]
    pub fn user(self, user: &str) -> Self {
        self.with(|s| s.user = user.into())
    }

    /// Runs as root.
    #[must_use]
    pub fn root(self) -> Self {
        self.user("root")
    }

    /// Runs in this directory.
    #[must_use]
    pub fn cwd(self, cwd: &str) -> Self {
        self.with(|s| s.cwd = cwd.into())
    }

    /// Gives it these bytes to read.
    #[must_use]
    pub fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        self.with(|s| s.stdin = bytes.into())
    }

    /// The request as it would be sent.
    pub fn spec(&self) -> &pb::RunSpec {
        &self.spec
    }

    /// Runs it; the error as the daemon gave it.
    pub async fn send(self) -> Result<Ran, Status> {
        let start = Instant::now();
        let request = pb::RunRequest {
            spec: Some(self.spec),
        };
        let response = self.api.exec().run(request).await?.into_inner();
        Ran::from_response(response, start.elapsed())
    }

    /// Runs it as a stream without standard input.
    pub async fn start(self) -> Result<Live> {
        Live::start(
            &self.api,
            pb::StartSpec {
                run: Some(self.spec),
                open_stdin: false,
            },
        )
        .await
    }

    /// Runs it as a stream whose standard input the test writes.
    pub async fn start_with_stdin(self) -> Result<Live> {
        Live::start(
            &self.api,
            pb::StartSpec {
                run: Some(self.spec),
                open_stdin: true,
            },
        )
        .await
    }
}

impl IntoFuture for Command {
    type Output = Result<Ran>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Ran>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await.context("the run was refused") })
    }
}

/// How a run ended, and what it wrote.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The result as the daemon gave it.
    pub result: pb::RunResult,
    /// Standard output.
    pub out: pb::Output,
    /// Standard error.
    pub err: pb::Output,
    /// From the call to its answer.
    pub took: Duration,
    /// The run is that of an earlier call.
    pub attached: bool,
}

impl Ran {
    fn from_response(response: pb::RunResponse, took: Duration) -> Result<Self, Status> {
        let missing = || Status::data_loss("the answer lacks a part");
        Ok(Self {
            result: response.result.ok_or_else(missing)?,
            out: response.stdout.ok_or_else(missing)?,
            err: response.stderr.ok_or_else(missing)?,
            took,
            attached: response.attached,
        })
    }

    /// The exit code.
    pub fn code(&self) -> i32 {
        self.result.exit_code
    }

    /// How it ended.
    pub fn reason(&self) -> EndReason {
        self.result.end_reason()
    }

    /// Standard output where nothing was dropped.
    pub fn stdout(&self) -> &[u8] {
        &self.out.head
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out.head).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.err.head).into_owned()
    }

    /// Everything that came back, for a message.
    pub fn story(&self) -> String {
        format!(
            "{:?} {} in {:?} {:?}\nstdout: {}\nstderr: {}",
            self.reason(),
            self.code(),
            self.took,
            self.result.message,
            self.text(),
            self.errors()
        )
    }

    /// Fails unless it exited with this code.
    pub fn exited(&self, code: i32) -> Result<&Self> {
        ensure!(
            self.reason() == EndReason::Exited && self.code() == code,
            "expected an exit with {code}, got {}",
            self.story()
        );
        Ok(self)
    }

    /// Standard output, without blanks at its ends, of a run that succeeded.
    pub fn ok(&self) -> Result<String> {
        Ok(self.exited(0)?.text().trim().to_owned())
    }

    /// Fails unless it reached its timeout.
    pub fn timed_out(&self) -> Result<&Self> {
        ensure!(
            self.reason() == EndReason::TimedOut && self.code() == 124,
            "expected a timeout, got {}",
            self.story()
        );
        Ok(self)
    }

    /// Fails unless this signal ended it.
    pub fn signaled(&self, signal: i32) -> Result<&Self> {
        ensure!(
            self.reason() == EndReason::Signaled
                && self.result.signal == Some(signal)
                && self.code() == 128 + signal,
            "expected signal {signal}, got {}",
            self.story()
        );
        Ok(self)
    }
}
