//! Starts runs, within bounds: a place, a leaf, pipes, then the holder is asked to fork.
//!
//! Nothing here waits for a run (see `supervise`). A start that fails leaves nothing behind.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use lodge_kernel::cgroup::RunLeaf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeroize::Zeroize;

use super::age::wall_ms;
use super::entry::Begun;
use super::environment::{CallEnv, Secret};
use super::log::{Pin, Stream};
use super::mask::Patterns;
use super::oom;
use super::plumbing::{Input, Outlet};
use super::preview::preview;
use super::requests::{Key, Request};
use super::retention::Retention;
use super::run::Run;
use super::secrets_fd;
use super::spec::{Command, RawRunSpec, RunSpec, Stdin};
use super::stdin::StdinPipe;
use super::supervise::{LivePlaces, PidsLimit, Places};
use super::table::{Claim, RunTable};
use super::ticket::Ticket;
use super::timeout::TimeoutPolicy;
use super::turns::Turns;
use crate::error::{Error, ErrorKind, Result, is_shortage};
use crate::fault;
use crate::holder::{ExecSpec, FdRole, HolderError, KillOnExit, SCRIPT_ARGUMENT_MAX};
use crate::sandbox::id::RunId;
use crate::sandbox::quota::{Amount, Quotas, Share};
use crate::sandbox::{Admission, Handle, Live};

/// From the pipes to the task that looks after the run.
mod forked;

use forked::{Forked, ask, split};

/// Live runs of all sandboxes. Each holds about ten descriptors.
const LIVE_MAX: usize = 1_000;
/// Bytes of all secret values of all live runs: with their tables for masking about 200 MiB.
const SECRETS_LIVE_MAX_BYTES: usize = 4 << 20;

/// Starts runs. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    timeouts: TimeoutPolicy,
    retention: Arc<Retention>,
    places: Arc<Semaphore>,
    secret_bytes: Arc<Semaphore>,
    quotas: Quotas,
}

/// How runs are made and kept on this node.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// The server's timeouts.
    pub timeouts: TimeoutPolicy,
    /// For the logs of all runs together, in bytes.
    pub logs_max_bytes: u64,
}

/// Whose call started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The one that gets this.
    ThisCall,
    /// An earlier one with the same name.
    EarlierCall,
}

/// A run that was started.
pub struct Started {
    /// The run.
    pub run: Run,
    /// Its standard input, where the caller writes it.
    pub stdin: Option<StdinPipe>,
    /// Keeps its output readable for the caller to whom it is owed, also if the sandbox is deleted meanwhile.
    pub pins: [Pin; 2],
    /// Who started it.
    pub origin: Origin,
}

impl Started {
    pub(super) fn new(run: Run, stdin: Option<StdinPipe>, origin: Origin) -> Self {
        let pins = [Stream::Stdout, Stream::Stderr].map(|stream| run.log(stream).pin());
        Self {
            run,
            stdin,
            pins,
            origin,
        }
    }
}

impl Engine {
    /// An engine that keeps its key at `key_file`. Blocks.
    pub fn new(settings: EngineSettings, quotas: Quotas, key_file: &Path) -> Self {
        Self::with_key(settings, quotas, Key::open(key_file))
    }

    fn with_key(settings: EngineSettings, quotas: Quotas, key: Key) -> Self {
        Self(Arc::new(Inner {
            timeouts: settings.timeouts,
            retention: Arc::new(Retention::new(settings.logs_max_bytes, key)),
            places: Arc::new(Semaphore::new(LIVE_MAX)),
            secret_bytes: Arc::new(Semaphore::new(SECRETS_LIVE_MAX_BYTES)),
            quotas,
        }))
    }

    /// Looks after ended runs, for as long as the daemon lives.
    pub fn keep_house(&self) {
        super::movers::start();
        tokio::spawn(Arc::clone(&self.0.retention).keep());
    }

    /// What is kept of ended runs.
    pub(super) fn retention(&self) -> &Arc<Retention> {
        &self.0.retention
    }

    /// Checks a call, without looking at any sandbox.
    pub fn check(&self, raw: RawRunSpec) -> Result<RunSpec> {
        RunSpec::new(raw, &self.0.timeouts)
    }

    /// Reads what is known of the runs in `runs_dir`. Blocks.
    pub fn recall(&self, runs_dir: &Path, runs: &RunTable) {
        runs.recall(runs_dir, &self.0.retention);
    }

    /// Starts a run in a sandbox that it was admitted to. The run keeps the sandbox in use until its command has ended.
    pub async fn start(
        &self,
        handle: &Handle,
        admission: &Admission,
        ticket: Ticket,
    ) -> Result<Started> {
        let Ticket { spec, mut claim } = ticket;
        let claimed = claim.as_mut();
        let started = self.start_claimed(handle, admission, spec, claimed).await;
        match (claim, &started) {
            (Some(claim), Ok(started)) => claim.started(&started.run),
            (Some(claim), Err(error)) => claim.refused(error),
            (None, _) => {}
        }
        started
    }

    async fn start_claimed(
        &self,
        handle: &Handle,
        admission: &Admission,
        spec: RunSpec,
        claim: Option<&mut Claim>,
    ) -> Result<Started> {
        let runs = handle.runs();
        let live = admission.live();
        runs.settle_in(&live.runs_dir, &self.0.retention);
        runs.begun_anew();
        oom::watch(live, runs);
        let places = self.places(handle, admission, &spec)?;
        let executed = exec_spec(live, &spec)?;
        let patterns = patterns(&spec.env).await?;
        let pids = PidsLimit::of(live);
        let id = RunId::random();
        let request = claim.as_ref().map(|claim| claim.request().clone());
        let begun = begun(&id, request, &spec, patterns.as_ref());
        // Meanwhile the rest is made.
        let noted = claim.map(|claim| claim.begin(begun.clone()));
        let leaf = NewLeaf::create(live, &id)?;
        let dir = live.runs_dir.join(id.as_str());
        let logs = (dir.as_path(), runs.turns());
        let pipes = Pipes::open(logs, spec.stdin, &spec.env, patterns.as_ref())?;
        let started = Instant::now();
        let (spawn, ours) = split(&begun, spec.timeout, &leaf, executed, pipes)?;
        if let Some(noted) = noted {
            noted.await;
        }
        let watch = ask(live, spawn).await?;
        let forked = Forked {
            begun,
            leaf,
            holder: live.holder.clone(),
            watch,
            ours,
            patterns,
            pids,
            disk: live.disk.clone(),
            started,
            places,
        };
        Ok(forked.supervise(runs))
    }

    fn places(&self, handle: &Handle, admission: &Admission, spec: &RunSpec) -> Result<Places> {
        let of_tenant = self
            .0
            .quotas
            .take(&handle.identity().tenant, Amount::of_run())?;
        Ok(Places {
            _live: Some(self.reserve(handle.runs(), of_tenant)?),
            _in_use: Some(admission.use_on()),
            _secrets: self.reserve_secrets(spec.env.secrets())?,
        })
    }

    /// Places for a run that an earlier daemon started, whatever its tenant may have now.
    pub(super) fn reserve_for_adopted(&self, handle: &Handle) -> Result<LivePlaces> {
        let tenant = &handle.identity().tenant;
        let of_tenant = self.0.quotas.take_anyway(tenant, Amount::of_run());
        self.reserve(handle.runs(), of_tenant)
    }

    fn reserve(&self, runs: &RunTable, of_tenant: Share) -> Result<LivePlaces> {
        let in_sandbox = runs.reserve()?;
        let in_all = Arc::clone(&self.0.places)
            .try_acquire_owned()
            .map_err(|_| {
                Error::new(
                    ErrorKind::ResourceExhausted,
                    "TOO_MANY_RUNS",
                    format!("{LIVE_MAX} runs live on this host"),
                )
                .hint("wait for some to end")
            })?;
        Ok(LivePlaces {
            _in_sandbox: in_sandbox,
            _in_all: in_all,
            _of_tenant: of_tenant,
        })
    }

    /// Room for the tables by which these secrets are masked.
    pub(super) fn reserve_secrets(
        &self,
        secrets: &[Secret],
    ) -> Result<Option<OwnedSemaphorePermit>> {
        let bytes: usize = secrets.iter().map(|secret| secret.value.len()).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let room = Arc::clone(&self.0.secret_bytes);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        room.try_acquire_many_owned(permits).map(Some).map_err(|_| {
            Error::new(
                ErrorKind::ResourceExhausted,
                "TOO_MANY_SECRETS",
                format!("the secrets of live runs have {SECRETS_LIVE_MAX_BYTES} bytes together on this host"),
            )
            .hint("wait for runs with large secrets to end")
        })
    }
}

/// What is known of a run from its start on.
fn begun(
    id: &RunId,
    request: Option<Request>,
    spec: &RunSpec,
    patterns: Option<&Arc<Patterns>>,
) -> Begun {
    Begun {
        run: id.clone(),
        request,
        command: preview(&spec.command, patterns),
        started_ms: wall_ms(SystemTime::now()),
        output_bytes: spec.output_bytes,
    }
}

/// The pipes of a run that is about to start.
struct Pipes {
    input: Input,
    stdout: Outlet,
    stderr: Outlet,
    /// What the holder keeps for the next daemon.
    kept: Vec<(FdRole, std::os::fd::OwnedFd)>,
    secrets: Option<std::os::fd::OwnedFd>,
}

impl Pipes {
    fn open(
        (dir, turns): (&Path, &Turns),
        stdin: Stdin,
        env: &CallEnv,
        patterns: Option<&Arc<Patterns>>,
    ) -> Result<Self> {
        let input = Input::open(stdin).map_err(no_pipes)?;
        let outlet = |stream| Outlet::open(dir, stream, patterns, turns).map_err(no_pipes);
        let (mut stdout, mut stderr) = (outlet(Stream::Stdout)?, outlet(Stream::Stderr)?);
        let mut kept = std::mem::take(&mut stdout.kept);
        kept.append(&mut stderr.kept);
        let secrets = secrets(env, &mut kept)?;
        Ok(Self {
            input,
            stdout,
            stderr,
            kept,
            secrets,
        })
    }
}

/// What a child executes: wiped when dropped, on whatever way a start fails.
struct Wiped(ExecSpec);

impl Wiped {
    /// Gives it to who wipes it next.
    fn take(mut self) -> ExecSpec {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.argv.zeroize();
        self.0.env.zeroize();
    }
}

/// A leaf that goes again unless it is kept.
struct NewLeaf(Arc<RunLeaf>, Kept);

#[derive(PartialEq, Eq)]
enum Kept {
    No,
    Yes,
}

impl NewLeaf {
    fn create(live: &Live, id: &RunId) -> Result<Self> {
        let leaf = fault::around("run.make leaf", || {
            live.cgroup.create_run(id.as_str()).map_err(no_leaf)
        })?;
        Ok(Self(Arc::new(leaf), Kept::No))
    }

    fn keep(mut self) -> Arc<RunLeaf> {
        self.1 = Kept::Yes;
        Arc::clone(&self.0)
    }
}

impl Drop for NewLeaf {
    fn drop(&mut self) {
        if self.1 == Kept::No
            && let Err(error) = self.0.remove()
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "leaf of an unstarted run stays"
            );
        }
    }
}

/// What the child executes, and the script where it is too long for an argument.
fn exec_spec(live: &Live, spec: &RunSpec) -> Result<(Wiped, Option<Vec<u8>>)> {
    let env = spec
        .env
        .layered(&live.env, spec.argument_bytes(SCRIPT_ARGUMENT_MAX))?;
    let (argv, script, shell) = match &spec.command {
        Command::Argv(args) => (
            args.iter().map(|a| a.clone().into_bytes()).collect(),
            None,
            false,
        ),
        Command::Shell(text) if text.len() <= SCRIPT_ARGUMENT_MAX => {
            (vec![text.clone().into_bytes()], None, true)
        }
        Command::Shell(text) => (Vec::new(), Some(text.clone().into_bytes()), true),
    };
    let cwd = if spec.cwd.is_empty() {
        &live.workdir
    } else {
        &spec.cwd
    };
    let user = if spec.user.is_empty() {
        &live.user
    } else {
        &spec.user
    };
    let exec = ExecSpec {
        argv,
        env,
        cwd: cwd.clone().into_bytes(),
        user: user.clone(),
        shell,
    };
    Ok((Wiped(exec), script))
}

/// The tables for masking; built on a blocking thread, since large secrets take milliseconds.
async fn patterns(env: &CallEnv) -> Result<Option<Arc<Patterns>>> {
    if env.secrets().is_empty() {
        return Ok(None);
    }
    let secrets = env.secrets().to_vec();
    let built = tokio::task::spawn_blocking(move || Patterns::new(&secrets)).await;
    let failed = "the secrets cannot be masked";
    let patterns = built.map_err(|e| Error::internal("MASK_NOT_BUILT", failed, e))?;
    let patterns = patterns.map_err(|e| Error::internal("MASK_NOT_BUILT", failed, e))?;
    Ok(Some(Arc::new(patterns)))
}

/// Puts the call's secrets, if it has any, where the holder keeps them.
fn secrets(
    env: &CallEnv,
    kept: &mut Vec<(FdRole, std::os::fd::OwnedFd)>,
) -> Result<Option<std::os::fd::OwnedFd>> {
    if env.secrets().is_empty() {
        return Ok(None);
    }
    let ours = secrets_fd::write(env.secrets()).map_err(no_pipes)?;
    kept.push((FdRole::Secrets, ours.try_clone().map_err(no_pipes)?));
    Ok(Some(ours))
}

/// Secrets are only hidden from later runs if nothing that was told of them lives on.
fn kill_on_exit(secrets: Option<&std::os::fd::OwnedFd>) -> KillOnExit {
    match secrets {
        Some(_) => KillOnExit::Yes,
        None => KillOnExit::No,
    }
}

fn no_pipes(error: std::io::Error) -> Error {
    if error.raw_os_error().is_some_and(is_shortage) {
        return Error::from_shortage("the run's pipes could not be made", error);
    }
    Error::internal(
        "RUN_NOT_STARTED",
        "the run's pipes could not be made",
        error,
    )
}

fn no_leaf(error: lodge_kernel::cgroup::Error) -> Error {
    if error.errno().is_some_and(|errno| is_shortage(errno as i32)) {
        return Error::from_shortage("the run's cgroup could not be made", error);
    }
    Error::internal(
        "RUN_NOT_STARTED",
        "the run's cgroup could not be made",
        error,
    )
}

fn not_asked(error: HolderError) -> Error {
    if matches!(error, HolderError::Silent | HolderError::Gone) {
        return error.into();
    }
    Error::new(
        ErrorKind::Unavailable,
        "HOLDER_UNREACHABLE",
        "PID 1 of the sandbox does not answer",
    )
    .hint("try again: the sandbox is started anew")
    .caused_by(error)
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    #[test]
    fn secrets_of_all_live_runs_are_bounded_and_make_room_at_their_end() {
        let timeouts = TimeoutPolicy {
            default: None,
            maximum: None,
        };
        let settings = EngineSettings {
            timeouts,
            logs_max_bytes: 0,
        };
        let engine = Engine::with_key(settings, Quotas::default(), Key::random());
        let secret = |bytes| {
            [Secret {
                name: "A".to_owned(),
                value: Zeroizing::new("x".repeat(bytes)),
            }]
        };
        assert!(matches!(engine.reserve_secrets(&[]), Ok(None)));
        let most = engine.reserve_secrets(&secret(SECRETS_LIVE_MAX_BYTES - 4));
        let most = most.expect("there is room");
        let refused = engine.reserve_secrets(&secret(5));
        assert_eq!(refused.expect_err("full").reason(), "TOO_MANY_SECRETS");
        assert!(engine.reserve_secrets(&secret(4)).is_ok());
        drop(most);
        assert!(engine.reserve_secrets(&secret(5)).is_ok());
    }
}
