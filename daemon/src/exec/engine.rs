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
use super::plumbing::{Input, Outlet};
use super::preview::preview;
use super::requests::{Key, Request};
use super::retention::Retention;
use super::run::{GRACE, Group, Parts, Run};
use super::secrets_fd;
use super::spec::{Command, RawRunSpec, RunSpec};
use super::stdin::StdinPipe;
use super::supervise::{Ending, LivePlaces, PidsLimit, Places, Supervised};
use super::table::{Claim, Claimed, RunTable};
use super::timeout::TimeoutPolicy;
use crate::error::{Error, ErrorKind, Result, is_shortage};
use crate::fault;
use crate::holder::{ExecSpec, FdRole, HolderError, KillOnExit, SCRIPT_ARGUMENT_MAX, Spawn};
use crate::sandbox::id::RunId;
use crate::sandbox::{Admission, Handle, Live};

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
}

/// How runs are made and kept on this node.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// The server's timeouts.
    pub timeouts: TimeoutPolicy,
    /// For the logs of all runs together, in bytes.
    pub logs_max_bytes: u64,
}

/// Bodies of calls above this are hashed on a blocking thread, in bytes.
const HASHED_HERE_MAX_BYTES: usize = 64 << 10;

/// What a call comes to.
pub enum Launch {
    /// An earlier call with its name has a run already.
    Earlier(Box<Started>),
    /// A run is to be started.
    New(Box<Ticket>),
}

/// The right to start the run of one call.
pub struct Ticket {
    spec: RunSpec,
    claim: Option<Claim>,
}

impl Ticket {
    /// Lets go of it: whoever waits for its run gets the error, too.
    pub fn refused(self, error: Error) -> Error {
        self.claim
            .into_iter()
            .for_each(|claim| claim.refused(&error));
        error
    }
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
    fn new(run: Run, stdin: Option<StdinPipe>, origin: Origin) -> Self {
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
    pub fn new(settings: EngineSettings, key_file: &Path) -> Self {
        Self::with_key(settings, Key::open(key_file))
    }

    fn with_key(settings: EngineSettings, key: Key) -> Self {
        Self(Arc::new(Inner {
            timeouts: settings.timeouts,
            retention: Arc::new(Retention::new(settings.logs_max_bytes, key)),
            places: Arc::new(Semaphore::new(LIVE_MAX)),
            secret_bytes: Arc::new(Semaphore::new(SECRETS_LIVE_MAX_BYTES)),
        }))
    }

    /// Looks after ended runs, for as long as the daemon lives.
    pub fn keep_house(&self) {
        tokio::spawn(Arc::clone(&self.0.retention).keep());
    }

    /// Checks a call, without looking at any sandbox.
    pub fn check(&self, raw: RawRunSpec) -> Result<RunSpec> {
        RunSpec::new(raw, &self.0.timeouts)
    }

    /// Reads what is known of the runs in `runs_dir`. Blocks.
    pub fn recall(&self, runs_dir: &Path, runs: &RunTable) {
        runs.recall(runs_dir, &self.0.retention);
    }

    /// Looks whether a call is to start a run, or has one already by its name. Wakes no sandbox.
    pub async fn admit(&self, runs: &RunTable, spec: RunSpec) -> Result<Launch> {
        let Some(id) = spec.request_id.clone() else {
            return Ok(Launch::New(Box::new(Ticket { spec, claim: None })));
        };
        let key = &self.0.retention.key;
        let number = key.number(&id);
        let (request, spec) = self.request(id, spec).await?;
        Ok(match runs.claim(request, number).await? {
            Claimed::Earlier(run) => {
                let started = Started::new(run, None, Origin::EarlierCall);
                Launch::Earlier(Box::new(started))
            }
            Claimed::New(claim) => Launch::New(Box::new(Ticket {
                spec,
                claim: Some(claim),
            })),
        })
    }

    async fn request(&self, id: String, spec: RunSpec) -> Result<(Request, RunSpec)> {
        let key = self.0.retention.key.clone();
        if spec.body_bytes() <= HASHED_HERE_MAX_BYTES {
            return Ok((key.request(&id, &spec), spec));
        }
        let hashed = tokio::task::spawn_blocking(move || (key.request(&id, &spec), spec)).await;
        hashed.map_err(|e| Error::internal("INTERNAL", "the call's body cannot be hashed", e))
    }

    /// Starts a run in a sandbox that it was admitted to. The run keeps the sandbox in use until its command has ended.
    pub async fn start(
        &self,
        handle: &Handle,
        admission: &Admission,
        ticket: Ticket,
    ) -> Result<Started> {
        let Ticket { spec, mut claim } = ticket;
        let (runs, claimed) = (handle.runs(), claim.as_mut());
        let started = self.start_claimed(runs, admission, spec, claimed).await;
        match (claim, &started) {
            (Some(claim), Ok(started)) => claim.started(&started.run),
            (Some(claim), Err(error)) => claim.refused(error),
            (None, _) => {}
        }
        started
    }

    async fn start_claimed(
        &self,
        runs: &RunTable,
        admission: &Admission,
        spec: RunSpec,
        claim: Option<&mut Claim>,
    ) -> Result<Started> {
        let live = admission.live();
        runs.settle_in(&live.runs_dir, &self.0.retention);
        let places = Places {
            _live: Some(self.reserve(runs)?),
            _in_use: Some(admission.use_on()),
            _secrets: self.reserve_secrets(spec.env.secrets())?,
        };
        let (exec, script) = exec_spec(live, &spec)?;
        let patterns = patterns(&spec.env).await?;
        let pids = PidsLimit::of(live);
        let id = RunId::random();
        let started_at = SystemTime::now();
        let begun = Begun {
            run: id.clone(),
            request: claim.as_ref().map(|claim| claim.request().clone()),
            command: preview(&spec.command, patterns.as_ref()),
            started_ms: wall_ms(started_at),
            output_bytes: spec.output_bytes,
        };
        // Meanwhile the rest is made.
        let noted = claim.map(|claim| claim.begin(begun.clone()));
        let leaf = NewLeaf::create(live, &id)?;
        let dir = live.runs_dir.join(id.as_str());

        let input = Input::open(spec.stdin).map_err(no_pipes)?;
        let mut stdout = Outlet::open(&dir, Stream::Stdout, patterns.as_ref()).map_err(no_pipes)?;
        let stderr = Outlet::open(&dir, Stream::Stderr, patterns.as_ref()).map_err(no_pipes)?;
        let mut kept = std::mem::take(&mut stdout.kept);
        kept.extend(stderr.kept);
        let secrets = secrets(&spec.env, &mut kept)?;

        let started = Instant::now();
        let spawn = Spawn {
            run: id,
            timeout: spec.timeout,
            grace: GRACE,
            kill_on_exit: kill_on_exit(secrets.as_ref()),
            leaf: leaf.0.spawn_fds().map_err(no_leaf)?,
            spec: exec.take(),
            script,
            stdin: input.theirs,
            stdout: stdout.theirs,
            stderr: stderr.theirs,
            kept,
        };
        if let Some(noted) = noted {
            noted.await;
        }
        fault::point("run.ask holder")?;
        let watch = live.holder.spawn(spawn).await.map_err(not_asked)?;
        // It runs: from here on nothing fails any more, but the daemon may die.
        let _ = fault::point("run.ask holder.done");
        let group = Group {
            holder: live.holder.clone(),
            leaf: leaf.keep(),
        };
        let run = Run::new(Parts {
            begun,
            stdout: stdout.log,
            stderr: stderr.log,
            group: Some(group.clone()),
        });
        runs.insert(run.clone());
        // Pinned before its task is there, which may see it to its end at once.
        let begun = Started::new(run.clone(), input.ours, Origin::ThisCall);
        let pumps = [stdout.pump, stderr.pump];
        let runs = runs.clone();
        let task = Supervised {
            run,
            runs,
            group,
            ending: Ending::ToCome(watch),
            pumps,
            secrets,
            patterns,
            pids,
            started,
            places,
        };
        tokio::spawn(task.supervise());
        Ok(begun)
    }

    pub(super) fn reserve(&self, runs: &RunTable) -> Result<LivePlaces> {
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
    if matches!(error, HolderError::Silent) {
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
        let engine = Engine::with_key(settings, Key::random());
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
