//! A `lodged` of the test's own, in a network namespace without any route outward.
//!
//! Dropping it ends everything that it started and removes everything that it made, also when the test panics.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::api::Api;
use crate::binary;
use crate::image::{self, Shared};
use crate::notify::Notify;
use crate::redteam::WEAKEN;
use crate::slot::{Slot, Width, require_root};
use crate::storage::{self, Driver};
use crate::wait::{SOON, until_blocking};

/// A daemon has drained and gone within this time of SIGTERM.
const STOPPED_WITHIN: Duration = Duration::from_secs(15);
/// Lines of the daemon's log that a failure shows.
const LOG_TAIL_LINES: usize = 40;

/// Where the images are.
#[derive(Debug, Clone, Default)]
pub enum Images {
    /// The shared directory with the base image.
    #[default]
    Base,
    /// The shared directory where the default image is the one with a compiler and pip.
    Work,
    /// The test's own, empty directory.
    Own,
    /// Where the daemon has them if nobody says anything: the test's own too.
    Unset,
    /// This directory.
    At(PathBuf),
}

/// Where the state directory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateAt {
    /// Where the driver under test has its files.
    #[default]
    Driver,
    /// On the file system of the target directory.
    Beside,
}

/// A file system of a state directory's own.
#[derive(Debug, Clone, Copy)]
pub enum StateFs {
    /// In memory, with these options of `mount`.
    Memory(&'static str),
    /// A btrfs of this many bytes, on a loop device.
    Btrfs(u64),
}

/// Where a daemon's standard error leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogTo {
    /// The test's file.
    #[default]
    File,
    /// A disk that is full.
    FullDisk,
    /// A pipe that is full, and that nobody reads.
    BlockedPipe,
    /// A pipe that nobody can read any more.
    BrokenPipe,
    /// Nowhere: it is closed.
    Closed,
}

/// How the daemon is configured.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where the images are.
    pub images: Images,
    /// The storage driver; the one under test if not given. Of another one the state directory is
    /// [`beside`](StateAt::Beside).
    pub driver: Option<Driver>,
    /// Where the state directory is.
    pub state_at: StateAt,
    /// The configuration file beyond the test's own places.
    pub config: String,
    /// Variables of the daemon's environment.
    pub env: Vec<(String, String)>,
    /// Another program than the one that was built beside the tests: a copy of it, as an upgrade brings one.
    pub program: Option<PathBuf>,
    /// Where the daemon's log goes.
    pub log: LogTo,
    /// How many sandboxes its slot has user ids for.
    pub width: Width,
    /// How many of these the daemon may use; all if not given.
    pub uid_blocks: Option<u32>,
    /// The state directory is a file system of its own.
    pub state_fs: Option<StateFs>,
}

impl Options {
    /// With protections switched off ([`redteam`](crate::redteam)).
    pub fn weakened(protections: &str) -> Self {
        Self {
            env: vec![(WEAKEN.into(), protections.into())],
            ..Self::default()
        }
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    api: Api,
    options: Options,
    config_file: PathBuf,
    state_dir: PathBuf,
    /// The other end of a log that is not read.
    unread: Option<std::io::PipeReader>,
    slot: Slot,
}

impl Daemon {
    /// Starts one with the base image and default settings.
    pub async fn new() -> Result<Self> {
        Self::start(Options::default()).await
    }

    /// Starts one with these lines of configuration.
    pub async fn with_config(config: &str) -> Result<Self> {
        Self::start(Options {
            config: config.into(),
            ..Options::default()
        })
        .await
    }

    /// Starts one.
    pub async fn start(options: Options) -> Result<Self> {
        let mut daemon = Self::prepare(options).await?;
        daemon.spawn()?;
        Ok(daemon)
    }

    /// Makes its place and its configuration. [`start_again`](Self::start_again) starts it.
    pub async fn prepare(options: Options) -> Result<Self> {
        require_root()?;
        let under_test = Driver::of_tests()?;
        let driver = options.driver.unwrap_or(under_test);
        // Before the slot is taken: it may take another one.
        let shared = match &options.images {
            Images::Base => Some(Box::pin(image::shared_dir(Shared::Base, driver)).await?),
            Images::Work => Some(Box::pin(image::shared_dir(Shared::Work, driver)).await?),
            _ => None,
        };
        let slot = Slot::take(options.width)?;
        let home = if options.state_at == StateAt::Driver && driver == under_test {
            slot.state()
        } else {
            slot.beside()
        };
        let state_dir = home.join("lodge");
        let images_dir = match &options.images {
            Images::Base | Images::Work => shared,
            Images::Own => Some(home.join("images")),
            Images::At(dir) => Some(dir.clone()),
            Images::Unset => None,
        };
        let config_file = slot.config_file();
        let mut config = config(&slot, &options)?;
        config.insert("state_dir".into(), text(&state_dir).into());
        if let Some(images_dir) = images_dir {
            config.insert("images_dir".into(), text(&images_dir).into());
        }
        let storage = config
            .entry("storage")
            .or_insert_with(|| toml::Table::new().into());
        let storage = storage.as_table_mut().context("[storage] is a table")?;
        storage.insert("driver".into(), driver.name().into());
        fs::write(&config_file, toml::to_string(&config)?)?;
        match options.state_fs {
            Some(StateFs::Memory(options)) => mount_in_memory(&state_dir, options)?,
            Some(StateFs::Btrfs(bytes)) => {
                storage::mount_btrfs(&slot.beside().join("state.img"), bytes, &state_dir)?;
            }
            None => {}
        }
        let api = Api::new(&slot.home().join("lodged.sock"))?;
        Ok(Self {
            child: None,
            api,
            options,
            config_file,
            state_dir,
            unread: None,
            slot,
        })
    }

    fn spawn(&mut self) -> Result<()> {
        let notify = Notify::bind(self.slot.home())?;
        let program = match &self.options.program {
            Some(program) => program.clone(),
            None => binary::path("lodged")?,
        };
        let mut command = command_without_route(&program);
        command.arg("--config").arg(&self.config_file);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
            .env("NOTIFY_SOCKET", notify.path())
            .envs(std::env::var_os(WEAKEN).map(|asked| (WEAKEN, asked)))
            .envs(self.options.env.iter().cloned());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .current_dir("/");
        self.log_of(&mut command)?;
        let mut child = command.spawn().context("start unshare and lodged")?;
        let ready = notify.wait_ready(&mut child);
        self.child = Some(child);
        ready.with_context(|| format!("log of the daemon:\n{}", self.log_tail()))
    }

    /// Leads the log where the test wants it.
    fn log_of(&mut self, command: &mut Command) -> Result<()> {
        match self.options.log {
            LogTo::File => {
                let mut options = File::options();
                options.create(true).append(true);
                command.stderr(options.open(self.log_file())?);
            }
            LogTo::FullDisk => {
                command.stderr(File::options().write(true).open("/dev/full")?);
            }
            LogTo::BlockedPipe => {
                let (reader, writer) = std::io::pipe()?;
                fill(&writer)?;
                command.stderr(writer);
                self.unread = Some(reader);
            }
            LogTo::BrokenPipe => {
                command.stderr(std::io::pipe()?.1);
            }
            LogTo::Closed => {
                let program = command.get_program().to_owned();
                let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
                let env: Vec<_> = command
                    .get_envs()
                    .filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned())))
                    .collect();
                let mut closing = Command::new("sh");
                closing.args(["-c", "exec \"$@\" 2>&-", "sh"]);
                closing.arg(program).args(args).env_clear().envs(env);
                closing.stdin(Stdio::null()).stdout(Stdio::null());
                *command = closing;
            }
        }
        Ok(())
    }

    /// From the next start on, this program with these variables.
    pub fn upgrade_to(&mut self, program: PathBuf, env: Vec<(String, String)>) {
        (self.options.program, self.options.env) = (Some(program), env);
    }

    /// The connection.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The place of the test on the host.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Name of the parent cgroup.
    pub fn cgroup(&self) -> String {
        self.slot.cgroup()
    }

    /// The daemon's pid.
    pub fn pid(&self) -> Result<i32> {
        Ok(self
            .child
            .as_ref()
            .context("the daemon runs")?
            .id()
            .cast_signed())
    }

    /// The daemon's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir.clone()
    }

    /// Where the daemon keeps its sandboxes.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.state_dir().join("sandboxes")
    }

    /// Where the daemon keeps the sandbox of this id.
    pub fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.sandboxes_dir().join(id)
    }

    /// How many sandboxes have a directory.
    pub fn sandboxes_on_disk(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.sandboxes_dir())?.count())
    }

    /// The configuration file.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// The endpoint, for clients and the command line.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.slot.home().join("lodged.sock").display())
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.slot.home().join("lodged.sock")
    }

    /// The file that the daemon's log goes to.
    pub fn log_file(&self) -> PathBuf {
        self.slot.home().join("lodged.log")
    }

    /// The last lines of the daemon's log.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.log_file()).map(|b| String::from_utf8_lossy(&b).into_owned());
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Ends it as an administrator would, and waits for that. Sandboxes go on.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end_with(Signal::SIGTERM)
    }

    /// Kills it at once. Sandboxes go on.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.end_with(Signal::SIGKILL)
    }

    /// Ends it and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.terminate()?;
        self.spawn()
    }

    /// Starts it again after it was ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.spawn()
    }

    /// What it will find in its environment from its next start on.
    pub fn set_env(&mut self, env: &[(&str, &str)]) {
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.options.env = env.collect();
    }

    /// Whether it is still there, without waiting.
    pub fn lives(&mut self) -> Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => Ok(false),
        }
    }

    /// Waits until it has ended by itself, be it of what it does in the background: journals are put on disk every 5 s.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("the daemon runs")?;
        let status = until_blocking("the daemon has ended", SOON, || Ok(child.try_wait()?))?;
        self.child = None;
        Ok(status)
    }

    /// Ends it and removes everything.
    pub fn stop(mut self) -> Result<()> {
        self.terminate().map(drop)
    }

    /// Ends it and removes everything; how it ended.
    pub fn stop_status(mut self) -> Result<ExitStatus> {
        self.terminate()
    }

    /// Whether it has ended by itself; then it can be started again.
    pub fn has_ended(&mut self) -> Result<bool> {
        let child = self.child.as_mut().context("the daemon was started")?;
        let ended = child.try_wait()?.is_some();
        if ended {
            self.child = None;
        }
        Ok(ended)
    }

    /// Lets go of one that did not get to serve.
    pub fn forget_ended(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Ends it with this signal, and waits for that.
    pub fn end_with(&mut self, signal: Signal) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the daemon runs")?;
        kill(Pid::from_raw(child.id().cast_signed()), signal).context("signal the daemon")?;
        let ended = until_blocking("the daemon has ended", STOPPED_WITHIN, || {
            Ok(child.try_wait()?)
        });
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended
    }
}

impl Drop for Daemon {
    #[expect(
        clippy::print_stderr,
        reason = "the runner shows it for tests that fail"
    )]
    fn drop(&mut self) {
        eprintln!("log of the daemon:\n{}", self.log_tail());
        if self.child.is_some() {
            let _ = self.terminate();
        }
        // The slot, dropped after this, sweeps processes, cgroups, mounts and directories.
    }
}

/// Writes to a pipe until it takes no more.
fn fill(pipe: &std::io::PipeWriter) -> Result<()> {
    let size = nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_GETPIPE_SZ)?;
    (&mut &*pipe).write_all(&vec![b'x'; usize::try_from(size)?])?;
    Ok(())
}

/// The command for `program` in a network namespace of its own. `unshare` executes it in its own place, so that the
/// child's pid is the program's.
pub fn command_without_route(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net").arg("--").arg(program);
    command
}

/// What the test says, and what is of its slot whatever the storage.
fn config(slot: &Slot, options: &Options) -> Result<toml::Table> {
    let mut config: toml::Table = options.config.parse().context("the test's configuration")?;
    let uid_blocks = options.uid_blocks.unwrap_or_else(|| slot.uid_blocks());
    let socket = slot.home().join("lodged.sock");
    let texts = [
        ("runtime_dir", text(&slot.home().join("run"))),
        ("listen", format!("unix://{}", socket.display())),
        ("socket_group", "root".to_owned()),
        ("cgroup_parent", slot.cgroup()),
    ];
    let numbers = [
        ("uid_range_start", slot.uid_start()),
        ("uid_range_count", uid_blocks),
    ];
    config.extend(texts.map(|(key, value)| (key.to_owned(), value.into())));
    config.extend(numbers.map(|(key, value)| (key.to_owned(), i64::from(value).into())));
    Ok(config)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The slot unmounts it.
fn mount_in_memory(dir: &Path, options: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    let kind = Some("tmpfs");
    let options = format!("mode=0700,{options}");
    mount(kind, dir, kind, MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("mount {}", dir.display()))
}

/// Makes a directory that only root may enter.
pub fn private_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o700),
    )?)
}
