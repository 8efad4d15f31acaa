//! A daemon with a neighbour, on which one fault after another is tried, and what must hold after each.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::arena::{NEIGHBOUR_WITHIN, no_timeout};
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::Room;
use lodge_tests::slot::UID_BLOCK;
use lodge_tests::strace::Strace;
use lodge_tests::wait::until;
use lodge_tests::{cgroup, host, pool, storage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::points::{Before, Fault};
use crate::tour::{Flood, LABEL, Told, tour};

/// For how long what is delayed is, in milliseconds.
pub(crate) const DELAY_MS: u64 = 400;
/// A call that is answered within this time did not wait for what is delayed. Health has a tighter bound elsewhere; here a
/// whole suite runs beside it.
const NOT_HELD_UP: Duration = Duration::from_millis(DELAY_MS - 50);

/// A fault that is due has been reached within this time of the last call, also in the background.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// What a fault left in the background is done within this time.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);
/// Ids for the neighbour and for one more: a range that is not given back is missed at once.
const RANGES: u32 = 2;
/// Lines of a journal with which it is written anew at the next end of a run.
const USELESS_LINES: usize = 200;
/// A directory that is there without a record.
const UNFINISHED: &str = "un0f1n1shedun0f1n1sh";

/// What happens once the fault has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The same daemon goes on, if it lives.
    GoOn,
    /// It is killed, and the next one comes.
    Restart,
}

/// The daemon and the neighbour.
pub(crate) struct Ground {
    daemon: Daemon,
    neighbour: Room,
    neighbour_base: u32,
    /// The neighbour's lasting run.
    sleeper: String,
    tried: u32,
}

impl Ground {
    pub(crate) async fn new() -> Result<Self> {
        let options = Options {
            uid_blocks: Some(RANGES),
            ..Options::default()
        };
        let daemon = Daemon::start(options).await?;
        let neighbour = daemon.api().room("neighbour").await?;
        neighbour.run("echo kept > file").await?.exited(0)?;
        let sleeper = neighbour.run("exec sleep 3000").with(no_timeout);
        let sleeper = sleeper.start().await?.run_id;
        Ok(Self {
            neighbour_base: neighbour.uid_base(&daemon.cgroup())?,
            neighbour,
            sleeper,
            daemon,
            tried: 0,
        })
    }

    /// Tries a fault, and fails if anything does not hold afterwards.
    pub(crate) async fn survives(&mut self, fault: &Fault, then: Then) -> Result<()> {
        // What could not be taken up is left as it was, and is well for the next daemon.
        let then = if fault.point.starts_with("recover.") {
            Then::Restart
        } else {
            then
        };
        self.tried += 1;
        let name = format!("victim-{}", self.tried);
        self.prepare(fault.before, &name).await?;
        let log_before = fs::metadata(self.daemon.log_file())?.len();
        self.daemon.set_env(&[("LODGE_FAULTS", &fault.text)]);
        let told = match self.daemon.start_again() {
            Ok(()) => self
                .tour(fault, &name)
                .await
                .context("while it was tried")?,
            // It may end of the fault while it starts.
            Err(_) => Told {
                end: Some(self.daemon.ended()?),
                ..Told::default()
            },
        };
        if fault.point.starts_with("journal.sync") && self.daemon.lives()? {
            // The victim is gone; this is to be put on disk. It may die of it.
            let _ = self.neighbour.run("true").send().await;
        }
        let end = self.reached(fault, log_before, told.end).await?;
        self.daemon.set_env(&[]);
        if end.is_some() {
            self.daemon.start_again()?;
        } else if then == Then::Restart {
            self.daemon.kill9()?;
            self.daemon.start_again()?;
        }
        self.check(&name, &told, then).await
    }

    /// Kills the daemon in the n-th call of one kind that a thread of it makes. Whether it came to that.
    pub(crate) async fn survives_call(&mut self, call: &str, n: u32) -> Result<bool> {
        self.tried += 1;
        let name = format!("victim-{}", self.tried);
        let inject = format!("{call}:signal=KILL:when={n}");
        let log = self.daemon.slot().home().join("strace");
        let strace = Strace::attach_to_itself(self.daemon.pid()?, call, &inject, log)?;
        let told = tour(&mut self.daemon, &name, Flood::No).await?;
        strace.detach()?;
        let killed = told.end.is_some() || !self.daemon.lives()?;
        if killed {
            if told.end.is_none() {
                self.daemon.ended()?;
            }
            self.daemon.start_again()?;
        }
        self.check(&name, &told, Then::Restart).await?;
        Ok(killed)
    }

    /// Puts what the next daemon is to find, and ends this one.
    async fn prepare(&mut self, before: Before, name: &str) -> Result<()> {
        match before {
            Before::Nothing => {
                self.daemon.kill9()?;
            }
            Before::DeadHolder => {
                let room = self.daemon.api().room(name).await?;
                let holder = room.holder_pid(&self.daemon.cgroup())?;
                self.daemon.kill9()?;
                kill(Pid::from_raw(holder), Signal::SIGKILL)?;
            }
            Before::LongJournal => {
                let room = self.daemon.api().room(name).await?;
                self.daemon.kill9()?;
                let journal = self.daemon.sandbox_dir(room.id()).join("runs/journal");
                let mut journal = fs::File::options()
                    .create(true)
                    .append(true)
                    .open(journal)?;
                journal.write_all(&[b'\n'; USELESS_LINES])?;
            }
            Before::NoTemplates => {
                self.daemon.kill9()?;
                for template in fs::read_dir(self.daemon.state_dir().join("templates"))? {
                    fs::remove_file(template?.path())?;
                }
            }
            Before::NestedSubvolume => {
                let room = self.daemon.api().room(name).await?;
                let nested = pool::root_of(&self.daemon, &room)?.join("nested");
                storage::make_subvolume(&nested)?;
                self.daemon.kill9()?;
            }
            Before::Unfinished => {
                self.daemon.kill9()?;
                for part in ["layer", "runs"] {
                    fs::create_dir_all(self.daemon.sandboxes_dir().join(UNFINISHED).join(part))?;
                }
            }
        }
        Ok(())
    }

    /// Does the tour, and sees meanwhile that the others are served.
    async fn tour(&mut self, fault: &Fault, name: &str) -> Result<Told> {
        let flood = fault.flood();
        if !fault.text.contains("=delay") {
            return tour(&mut self.daemon, name, flood).await;
        }
        let (api, neighbour) = (self.daemon.api().clone(), self.neighbour.clone());
        let others = async {
            loop {
                let (health, ran) = (api.health().await?, neighbour.run("true").await?);
                ensure!(
                    health < NOT_HELD_UP && ran.took < NEIGHBOUR_WITHIN,
                    "health took {health:?}, a run {:?}",
                    ran.took
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            told = tour(&mut self.daemon, name, flood) => told,
            wrong = others => wrong,
        }
    }

    /// Fails if the point was not reached; how the daemon ended, if it did.
    async fn reached(
        &mut self,
        fault: &Fault,
        log_before: u64,
        end: Option<ExitStatus>,
    ) -> Result<Option<ExitStatus>> {
        if !fault.kills() {
            let line = format!("point=\"{}\"", fault.point);
            let log_file = self.daemon.log_file();
            until("the fault has happened", REACHED_WITHIN, || async {
                let log = fs::read(&log_file)?;
                let new =
                    String::from_utf8_lossy(&log[usize::try_from(log_before)?..]).into_owned();
                Ok(new.contains(&line).then_some(()))
            })
            .await?;
            return match end {
                // It may refuse to start, as for any error.
                Some(status) if status.code() == Some(1) => Ok(end),
                Some(status) => bail!("the daemon ended of it: {status}"),
                None => Ok(None),
            };
        }
        // Nobody else kills it; its log may have ended before it could tell.
        let status = match end {
            Some(status) => status,
            None => self.daemon.ended()?,
        };
        ensure!(
            status.signal() == Some(Signal::SIGKILL as i32),
            "it was to be killed, and ended with {status}"
        );
        Ok(Some(status))
    }

    async fn check(&self, name: &str, told: &Told, then: Then) -> Result<()> {
        self.neighbour_is_fine().await?;
        self.told_is_true(name, told, then).await?;
        self.name_can_be_used(name).await?;
        self.nothing_is_left().await
    }

    /// Its files and its run are there.
    async fn neighbour_is_fine(&self) -> Result<()> {
        let read = self
            .neighbour
            .run("cat file")
            .await
            .context("the neighbour")?;
        ensure!(read.ok()? == "kept", "the neighbour's file is gone");
        let lives = self.neighbour.processes_of(&self.sleeper).await?;
        ensure!(lives.len() == 1, "the neighbour's run: {lives:?}");
        Ok(())
    }

    /// What was answered is so; where nothing was, the sandbox is there fully or not at all.
    async fn told_is_true(&self, name: &str, told: &Told, then: Then) -> Result<()> {
        let listed = self.daemon.api().list().await?;
        let seen = listed.iter().find(|one| one.name == name);
        if let (Some(room), None) = (&told.room, seen) {
            ensure!(told.delete_asked, "sandbox {} is lost", room.id());
        }
        let Some(seen) = seen else {
            return Ok(());
        };
        ensure!(!told.deleted, "a deleted sandbox is listed: {seen:?}");
        let room = Room::new(self.daemon.api().clone(), seen.clone());
        if told.damaged && then == Then::GoOn {
            ensure!(!seen.state_reason.is_empty(), "{seen:?}");
            return room.delete().await.context("delete what is damaged");
        }
        let good = [
            SandboxState::Running,
            SandboxState::Stopped,
            SandboxState::Frozen,
        ];
        ensure!(good.contains(&seen.state()), "{seen:?}");
        let label = seen.labels.get(LABEL);
        ensure!(
            if told.updated {
                label == Some(&seen.name)
            } else {
                label.is_none_or(|l| *l == seen.name)
            },
            "{seen:?}"
        );
        if let Some(before) = &told.room {
            ensure!(before.id() == room.id(), "it is another one now");
        }
        let ran = room
            .run("cat file || true")
            .await
            .context("in what is listed")?;
        ensure!(
            !told.written || ran.ok()? == "kept",
            "its file is gone: {}",
            ran.story()
        );
        room.delete().await.context("delete")?;
        Ok(())
    }

    /// The name is free, and so is the one range of ids that is not the neighbour's.
    async fn name_can_be_used(&self, name: &str) -> Result<()> {
        let room = until("a range of ids is free again", CLEAN_WITHIN, || async {
            match self.daemon.api().room(name).await {
                Ok(room) => Ok(Some(room)),
                Err(error) if format!("{error:#}").contains("uid") => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await?;
        room.run("test ! -e file").await?.exited(0)?;
        Ok(room.delete().await?)
    }

    /// On the host there is the neighbour and nobody else.
    async fn nothing_is_left(&self) -> Result<()> {
        until("nothing is left of it", CLEAN_WITHIN, || async {
            Ok(self.leftovers()?.is_empty().then_some(()))
        })
        .await
        .with_context(|| format!("{:?}", self.leftovers()))
    }

    fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let neighbour = self.neighbour.id();
        let dirs = [
            self.daemon.sandboxes_dir(),
            self.daemon.state_dir().join("trash"),
            self.daemon.slot().home().join("run/holders"),
        ];
        for dir in dirs {
            let entries = fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !name.starts_with(neighbour) {
                    left.push(entry.path().display().to_string());
                }
            }
        }
        for tree in cgroup::trees(&self.daemon.cgroup())? {
            for entry in fs::read_dir(&tree)?.flatten() {
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                // The daemon's own groups have no sandbox's id for a name.
                if is_dir
                    && entry.file_name().len() == neighbour.len()
                    && entry.file_name() != neighbour
                {
                    left.push(entry.path().display().to_string());
                }
            }
        }
        left.extend(storage::leftovers(&self.daemon, 1)?);
        let mounts = host::mounts_below(self.daemon.slot().state())?;
        left.extend(mounts.iter().map(|mount| mount.display().to_string()));
        let (start, own) = (self.daemon.slot().uid_start(), self.neighbour_base);
        for (base, count) in [
            (start, own - start),
            (
                own + UID_BLOCK,
                start + self.daemon.slot().uid_blocks() * UID_BLOCK - own - UID_BLOCK,
            ),
        ] {
            let lives = host::processes_of_uids(base, count)?;
            let lives = lives.iter().filter(|(_, state)| *state != 'Z');
            left.extend(lives.map(|(pid, _)| format!("process {pid}")));
        }
        Ok(left)
    }

    /// Ends everything, and fails if a file system that a sandbox has for itself is not sound. The one that all share is checked
    /// when all tests have ended.
    pub(crate) fn file_systems_are_sound(&mut self) -> Result<()> {
        self.daemon.terminate()?;
        self.daemon.slot().end_sandboxes()?;
        storage::no_loop_devices(&self.daemon.state_dir())?;
        for sandbox in fs::read_dir(self.daemon.sandboxes_dir())? {
            let layer = sandbox?.path().join("layer/layer.img");
            if layer.exists() {
                storage::check_ext4(&layer)?;
            }
        }
        Ok(())
    }
}
