//! A sandbox that is booted, is asked to run a program that it does not have, and goes. That answer can only come from
//! a child that was forked inside, in its own cgroup, with its filters and its root file system in place. It needs
//! no image.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodge_kernel::cgroup::{self, SandboxGroup};
use rustix::io::Errno;

use super::report::Check;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{
    ExecSpec, Exited, Holder, KillOnExit, LaunchSpec, Launcher, NoNewPrivileges, RootAccess,
    RunEnd, Spawn,
};
use crate::sandbox::id::{RunId, SandboxId};
use crate::sandbox::limits::Limits;
use crate::sandbox::platform::Platform;
use crate::sandbox::steps::{Step, nothing, run_all, undo_all};
use crate::sandbox::uid_range::{UidLease, UidRanges};
use crate::storage::overlay::Directories;
use crate::storage::{Place, Storage as _};

/// The check's name.
const NAME: &str = "probe-sandbox";
/// What every root file system has.
const SKELETON: [&str; 9] = [
    "proc", "sys", "dev", "etc", "tmp", "run", "root", "home", "usr",
];
/// Not there, whatever the image.
const PROGRAM: &str = "/lodge-probe-no-such-program";
/// How long the probe's run may take: far more than a loaded host needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a probe needs of the host.
pub struct Bench {
    /// Forks its holder.
    pub launcher: Launcher,
    /// The cgroup above it.
    pub cgroup_parent: cgroup::Parent,
    /// Its uids.
    pub uids: UidRanges,
    /// Where its files are made.
    pub dir: PathBuf,
    /// Where its holder listens.
    pub holders_dir: PathBuf,
}

struct Probe {
    bench: Bench,
    id: SandboxId,
    lease: Option<UidLease>,
    group: Option<Arc<SandboxGroup>>,
    holder: Option<Holder>,
}

const STEPS: &[Step<Probe>] = &[
    Step {
        name: "lease uid range",
        run: lease_uids,
        undo: |probe| probe.lease = None,
    },
    Step {
        name: "make directory",
        run: make_directory,
        undo: remove_directory,
    },
    Step {
        name: "make cgroup",
        run: make_cgroup,
        undo: remove_cgroup,
    },
    Step {
        name: "launch holder",
        run: launch_holder,
        undo: end_holder,
    },
    Step {
        name: "run a command",
        run: run_command,
        undo: nothing,
    },
];

impl Bench {
    /// With what a running daemon has.
    pub fn of(platform: &Platform) -> Result<Self> {
        Ok(Self {
            launcher: platform.launcher.clone(),
            cgroup_parent: platform.cgroup_host.parent(&platform.cgroup_parent_name)?,
            uids: platform.uids.clone(),
            dir: platform.store.probe_dir(),
            holders_dir: platform.holders_dir.clone(),
        })
    }

    /// Boots a sandbox and takes it away again.
    pub(super) async fn probe(self) -> Check {
        let probed = tokio::task::spawn_blocking(move || {
            let id = SandboxId::random();
            let mut probe = Probe {
                bench: self,
                id,
                lease: None,
                group: None,
                holder: None,
            };
            let begun = Instant::now();
            run_all("probe", STEPS, &mut probe)?;
            let took = begun.elapsed();
            undo_all("probe", STEPS, &mut probe);
            Ok(took)
        });
        let probed = probed
            .await
            .unwrap_or_else(|error| Err(Error::internal("INTERNAL", "the probe failed", error)));
        match probed {
            Ok(took) => Check::ok(NAME, format!("booted and ran a command in {took:.1?}")),
            Err(error) => failed(&error),
        }
    }
}

/// The check of a probe that did not succeed.
pub(super) fn failed(error: &Error) -> Check {
    Check::fail(NAME, error.chain().to_string(), error.hint_text())
}

impl Probe {
    fn path(&self, part: &str) -> PathBuf {
        self.bench.dir.join(self.id.as_str()).join(part)
    }

    fn socket(&self) -> PathBuf {
        self.bench.holders_dir.join(format!("{}.sock", self.id))
    }
}

fn lease_uids(probe: &mut Probe) -> Result<()> {
    probe.lease = Some(probe.bench.uids.lease()?);
    Ok(())
}

fn make_directory(probe: &mut Probe) -> Result<()> {
    let failed = |error| Error::internal("PROBE_FAILED", "cannot make the probe's files", error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&probe.bench.dir)
        .map_err(failed)?;
    for dir in SKELETON {
        fs::create_dir_all(probe.path("image").join(dir)).map_err(failed)?;
    }
    let layer = probe.path("layer");
    fs::create_dir_all(&layer).map_err(failed)?;
    let image = [probe.path("image")];
    let place = Place {
        dir: &layer,
        image: &image,
    };
    Ok(Directories.prepare(place, Limits::default().disk())?)
}

fn remove_directory(probe: &mut Probe) {
    if let Err(error) = Directories.remove(&probe.bench.dir, probe.id.as_str()) {
        tracing::warn!(error = %Error::from(error).chain(), "the probe's files stay");
    }
}

fn make_cgroup(probe: &mut Probe) -> Result<()> {
    let base = probe
        .lease
        .as_ref()
        .expect("an earlier step leased it")
        .base();
    let limits = Limits::default();
    let limits = cgroup::Limits {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
    };
    let group = probe
        .bench
        .cgroup_parent
        .create(probe.id.as_str(), base, &limits)?;
    probe.group = Some(Arc::new(group));
    Ok(())
}

fn remove_cgroup(probe: &mut Probe) {
    let Some(group) = probe.group.take() else {
        return;
    };
    if let Err(error) = group.kill().and_then(|()| group.remove()) {
        tracing::warn!(error = %Error::from(error).chain(), "the probe's cgroup stays");
    }
}

fn launch_holder(probe: &mut Probe) -> Result<()> {
    const SET: &str = "an earlier step sets it";
    let limits = Limits::default();
    let place = Place {
        dir: &probe.path("layer"),
        image: &[probe.path("image")],
    };
    let root = Directories.open(place, limits.disk())?;
    let spec = LaunchSpec {
        id: probe.id.clone(),
        uid_base: probe.lease.as_ref().expect(SET).base(),
        hostname: "probe".to_owned(),
        shm_bytes: limits.shm_bytes,
        open_files: limits.open_files,
        etc_hosts: Vec::new(),
        etc_resolv_conf: Vec::new(),
        no_new_privileges: NoNewPrivileges::Off,
        root_access: RootAccess::Writable,
        root,
        cgroup: probe.group.as_ref().expect(SET).launch_fds()?,
        socket: probe.socket(),
    };
    let launch = Holder::launch(&probe.bench.launcher, spec);
    probe.holder = Some(tokio::runtime::Handle::current().block_on(launch)?);
    Ok(())
}

fn end_holder(probe: &mut Probe) {
    if let Some(holder) = probe.holder.take() {
        holder.mark_stopping();
        // The kill of the cgroup, which comes next, ends it as well.
        holder.kill_process().ok();
    }
    fs::remove_file(probe.socket()).ok();
}

fn run_command(probe: &mut Probe) -> Result<()> {
    const SET: &str = "an earlier step sets it";
    let run = RunId::random();
    let leaf = probe.group.as_ref().expect(SET).create_run(run.as_str())?;
    let spawn = Spawn {
        run,
        timeout: Some(PATIENCE),
        grace: Duration::ZERO,
        kill_on_exit: KillOnExit::Yes,
        leaf: leaf.spawn_fds()?,
        spec: ExecSpec {
            argv: vec![PROGRAM.into()],
            env: Vec::new(),
            cwd: b"/".to_vec(),
            user: "0:0".to_owned(),
            shell: false,
        },
        script: None,
        stdin: None,
        stdout: dev_null()?,
        stderr: dev_null()?,
        kept: Vec::new(),
    };
    let holder = probe.holder.as_ref().expect(SET);
    let end = tokio::runtime::Handle::current()
        .block_on(async { Ok::<_, Error>(holder.spawn(spawn).await?.end().await) })?;
    judge(&end)
}

/// The only right answer is that there is no such program.
fn judge(end: &RunEnd) -> Result<()> {
    if let RunEnd::Exited(Exited {
        exec_failure: Some(failure),
        ..
    }) = end
        && failure.errno == Errno::NOENT.raw_os_error()
    {
        return Ok(());
    }
    let text = format!("a command in the probe ended in an unexpected way: {end:?}");
    Err(Error::new(ErrorKind::Internal, "PROBE_FAILED", text))
}

fn dev_null() -> Result<OwnedFd> {
    let file: std::io::Result<File> = OpenOptions::new().write(true).open("/dev/null");
    file.map(OwnedFd::from)
        .map_err(|error| Error::internal("PROBE_FAILED", "cannot open /dev/null", error))
}
