//! Settings as meant: defaults filled in, every value checked, or the list of all mistakes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::raw::{Raw, Setting, Source, Value};
use crate::image::ImageRef;
use crate::sandbox::idle::{After, IdlePolicy};
use crate::sandbox::limits::{self, Bounds, Limits};
use crate::sandbox::quota::Caps;
use crate::sandbox::uid_range::Block;
use crate::storage::pool::SIZE_MIN as POOL_MIN_BYTES;
use crate::storage::{Driver, Wish};

/// Longest path of a unix socket, in bytes: `sun_path` with its final NUL.
const SOCKET_PATH_MAX: usize = 107;
/// What is appended to the runtime directory for a holder's socket: `/holders/<20 characters>.sock`.
const HOLDER_SOCKET_LEN: usize = 34;

/// For the logs of all runs together: those of 128 runs that fill theirs, and of many thousand that do not.
const RUN_LOGS_DEFAULT_BYTES: u64 = 8 << 30;
/// Less would not let one caller read what a run has just written.
const RUN_LOGS_MIN_BYTES: u64 = 1 << 20;

/// Kept back from sandboxes: enough for the records, the logs and the host's own programs to go on while it is told.
const RESERVE_DEFAULT_BYTES: u64 = 1 << 30;

/// Where the files of sandboxes are, and what they may take of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageSettings {
    /// The driver.
    pub driver: Wish,
    /// Size of the pool file when it is made; `None` means three quarters of what is free then.
    pub pool_bytes: Option<u64>,
    /// What sandboxes never get of the host, in bytes.
    pub reserve_bytes: u64,
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket at this path.
    Unix(PathBuf),
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The daemon's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where sandboxes and their records live.
    pub state_dir: PathBuf,
    /// Where sockets live.
    pub runtime_dir: PathBuf,
    /// Where unpacked images live; `None` leaves it to the storage driver.
    pub images_dir: Option<PathBuf>,
    /// Where clients connect.
    pub listen: Listen,
    /// Group that may use the socket.
    pub socket_group: String,
    /// Name of the cgroup above all sandboxes.
    pub cgroup_parent: String,
    /// Image of a sandbox that names none.
    pub default_image: String,
    /// Timeout of a run that names none; `None` means no limit.
    pub default_timeout: Option<Duration>,
    /// Longest timeout that a run may ask for; `None` means any, also none.
    pub max_timeout: Option<Duration>,
    /// Host uids for sandboxes.
    pub uid_block: Block,
    /// Limits of a sandbox that names none.
    pub limits: Limits,
    /// Idle policy of a sandbox that names none.
    pub idle: IdlePolicy,
    /// What each tenant may have at once.
    pub caps: Caps,
    /// For the logs of all runs together, in bytes.
    pub run_logs_max_bytes: u64,
    /// Where the files of sandboxes are.
    pub storage: StorageSettings,
    /// The log's level.
    pub log_level: tracing::level_filters::LevelFilter,
    /// The log's form.
    pub log_format: LogFormat,
}

/// One thing that is wrong, and where it was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    source: Option<Source>,
    message: String,
}

impl Mistake {
    pub(super) fn new(source: Source, message: impl Into<String>) -> Self {
        Self {
            source: Some(source),
            message: message.into(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{source}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Config {
    /// The settings, or every mistake in them.
    pub fn resolve(raw: Raw) -> Result<Self, Vec<Mistake>> {
        let (settings, mistakes) = raw.into_parts();
        let mut resolver = Resolver { settings, mistakes };
        let config = resolver.config();
        if resolver.mistakes.is_empty() {
            Ok(config)
        } else {
            Err(resolver.mistakes)
        }
    }
}

struct Resolver {
    settings: BTreeMap<&'static str, Setting>,
    mistakes: Vec<Mistake>,
}

impl Resolver {
    fn config(&mut self) -> Config {
        let state_dir = self.directory("state_dir", "/var/lib/lodge");
        let named = self.settings.contains_key("images_dir");
        let images_dir = named.then(|| self.directory("images_dir", ""));
        let (default_timeout, max_timeout) = self.timeouts();
        Config {
            runtime_dir: self.runtime_dir(),
            listen: self.listen(),
            socket_group: self.socket_group(),
            cgroup_parent: self.cgroup_parent(),
            default_image: self.default_image(),
            uid_block: self.uid_block(),
            limits: self.limits(),
            idle: self.idle(),
            caps: self.caps(),
            run_logs_max_bytes: self.run_logs_max_bytes(),
            storage: self.storage(),
            log_level: self.log_level(),
            log_format: self.log_format(),
            state_dir,
            images_dir,
            default_timeout,
            max_timeout,
        }
    }

    fn text(&self, name: &str, default: &str) -> String {
        match self.settings.get(name).map(|s| &s.value) {
            Some(Value::Text(text)) => text.clone(),
            _ => default.to_owned(),
        }
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        match self.settings.get(name).map(|s| &s.value) {
            Some(Value::Number(number)) => *number,
            _ => default,
        }
    }

    fn mistake(&mut self, name: &str, message: impl Into<String>) {
        let source = self.settings.get(name).map(|s| s.source.clone());
        self.mistakes.push(Mistake {
            source,
            message: message.into(),
        });
    }

    fn directory(&mut self, name: &str, default: &str) -> PathBuf {
        let path = PathBuf::from(self.text(name, default));
        if !path.is_absolute() {
            self.mistake(
                name,
                format!("{name} must be an absolute path, not {}", path.display()),
            );
        }
        path
    }

    fn runtime_dir(&mut self) -> PathBuf {
        let path = self.directory("runtime_dir", "/run/lodge");
        if path.as_os_str().len() + HOLDER_SOCKET_LEN > SOCKET_PATH_MAX {
            let max = SOCKET_PATH_MAX - HOLDER_SOCKET_LEN;
            self.mistake(
                "runtime_dir",
                format!("runtime_dir is longer than {max} bytes"),
            );
        }
        path
    }

    fn listen(&mut self) -> Listen {
        let text = self.text("listen", "unix:///run/lodge/lodged.sock");
        let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or_default());
        if !path.is_absolute() {
            self.mistake(
                "listen",
                format!("listen must be unix:///path, not {text}: this version has no TCP yet"),
            );
        } else if path.as_os_str().len() > SOCKET_PATH_MAX {
            self.mistake(
                "listen",
                format!("listen's path is longer than {SOCKET_PATH_MAX} bytes"),
            );
        }
        Listen::Unix(path)
    }

    fn cgroup_parent(&mut self) -> String {
        let name = self.text("cgroup_parent", "lodge");
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            self.mistake(
                "cgroup_parent",
                format!("cgroup_parent must be one name of [A-Za-z0-9._-], not {name:?}"),
            );
        }
        name
    }

    /// A name of /etc/group; that there is such a group is not asked, since it may be made later.
    fn socket_group(&mut self) -> String {
        let name = self.text("socket_group", "lodge");
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.is_empty() || name.starts_with('-') || !name.bytes().all(plain) {
            self.mistake(
                "socket_group",
                format!("socket_group must be the name of a group, not {name:?}"),
            );
        }
        name
    }

    fn default_image(&mut self) -> String {
        let name = self.text("default_image", "base");
        if let Err(error) = ImageRef::parse(&name) {
            self.mistake("default_image", format!("default_image: {error}"));
        }
        name
    }

    fn timeouts(&mut self) -> (Option<Duration>, Option<Duration>) {
        let max = seconds(self.number("max_timeout_seconds", 0));
        // Without a default of its own, a server with a short maximum uses that.
        let usual = max.map_or(120, |max| max.as_secs().min(120));
        let default = seconds(self.number("default_timeout_seconds", usual));
        if let Some(max) = max
            && default.is_none_or(|default| default > max)
        {
            self.mistake(
                "default_timeout_seconds",
                format!(
                    "default_timeout_seconds must be 1 to max_timeout_seconds ({})",
                    max.as_secs()
                ),
            );
        }
        (default, max)
    }

    fn uid_block(&mut self) -> Block {
        let start = self.number("uid_range_start", u64::from(Block::DEFAULT.start()));
        let count = self.number("uid_range_count", u64::from(Block::DEFAULT.count()));
        match Block::new(start, count) {
            Ok(block) => block,
            Err(message) => {
                let name = if self.settings.contains_key("uid_range_start") {
                    "uid_range_start"
                } else {
                    "uid_range_count"
                };
                self.mistake(name, message);
                Block::DEFAULT
            }
        }
    }

    fn limits(&mut self) -> Limits {
        let default = Limits::default();
        Limits {
            memory_bytes: self.limit(&limits::MEMORY_BYTES, default.memory_bytes),
            pids: self.limit(&limits::PIDS, default.pids),
            cpu_millis: self.limit(&limits::CPU_MILLIS, default.cpu_millis),
            open_files: self.limit(&limits::OPEN_FILES, default.open_files),
            shm_bytes: self.limit(&limits::SHM_BYTES, default.shm_bytes),
            disk_bytes: self.limit(&limits::DISK_BYTES, default.disk_bytes),
            inodes: self.limit(&limits::INODES, default.inodes),
        }
    }

    fn limit(&mut self, bounds: &Bounds, default: u64) -> u64 {
        let name = format!("limits.{}", bounds.name);
        let value = self.number(&name, default);
        if let Err(error) = bounds.check(i64::try_from(value).unwrap_or(i64::MAX)) {
            self.mistake(&name, error.to_string());
        }
        value
    }

    fn idle(&mut self) -> IdlePolicy {
        let default = IdlePolicy::default();
        IdlePolicy {
            freeze: self.after("idle.freeze_after_seconds", default.freeze),
            stop: self.after("idle.stop_after_seconds", default.stop),
            delete: self.after("idle.delete_after_seconds", default.delete),
        }
    }

    fn caps(&self) -> Caps {
        Caps {
            sandboxes: self.number("tenant.max_sandboxes", 0),
            running: self.number("tenant.max_running", 0),
            memory_bytes: self.number("tenant.max_memory_bytes", 0),
            disk_bytes: self.number("tenant.max_disk_bytes", 0),
            runs: self.number("tenant.max_live_runs", 0),
        }
    }

    fn after(&mut self, name: &str, default: After) -> After {
        let seconds = self.number(name, default.time().as_secs());
        match After::parse(i64::try_from(seconds).unwrap_or(i64::MAX), 0) {
            Ok(after) => after,
            Err(error) => {
                self.mistake(name, error.to_string());
                default
            }
        }
    }

    fn run_logs_max_bytes(&mut self) -> u64 {
        let bytes = self.number("run_logs.max_bytes", RUN_LOGS_DEFAULT_BYTES);
        if bytes < RUN_LOGS_MIN_BYTES {
            self.mistake(
                "run_logs.max_bytes",
                format!("run_logs.max_bytes must be at least {RUN_LOGS_MIN_BYTES}, not {bytes}"),
            );
        }
        bytes
    }

    fn storage(&mut self) -> StorageSettings {
        let text = self.text("storage.driver", "auto");
        let driver = match text.as_str() {
            "auto" => Wish::Auto,
            "btrfs" => Wish::One(Driver::Btrfs),
            "overlay" => Wish::One(Driver::Overlay),
            _ => {
                let message =
                    format!("storage.driver must be auto, btrfs or overlay, not {text:?}");
                self.mistake("storage.driver", message);
                Wish::Auto
            }
        };
        let pool_bytes = Some(self.number("storage.pool_bytes", 0)).filter(|bytes| *bytes > 0);
        if let Some(bytes) = pool_bytes.filter(|bytes| *bytes < POOL_MIN_BYTES) {
            let message =
                format!("storage.pool_bytes must be 0 or at least {POOL_MIN_BYTES}, not {bytes}");
            self.mistake("storage.pool_bytes", message);
        }
        StorageSettings {
            driver,
            pool_bytes,
            reserve_bytes: self.number("storage.reserve_bytes", RESERVE_DEFAULT_BYTES),
        }
    }

    fn log_level(&mut self) -> tracing::level_filters::LevelFilter {
        let text = self.text("log_level", "info");
        match text.as_str() {
            "error" | "warn" | "info" | "debug" | "trace" => {}
            _ => self.mistake(
                "log_level",
                format!("log_level must be error, warn, info, debug or trace, not {text:?}"),
            ),
        }
        text.parse()
            .unwrap_or(tracing::level_filters::LevelFilter::INFO)
    }

    fn log_format(&mut self) -> LogFormat {
        let text = self.text("log_format", "text");
        match text.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => {
                self.mistake(
                    "log_format",
                    format!("log_format must be text or json, not {text:?}"),
                );
                LogFormat::Text
            }
        }
    }
}

/// Zero means no limit.
fn seconds(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

impl Config {
    /// The directory of the holders' sockets.
    pub fn holders_dir(&self) -> PathBuf {
        self.runtime_dir.join("holders")
    }

    /// The file that is read if no other one is named.
    pub fn default_file() -> &'static Path {
        Path::new("/etc/lodge/lodged.toml")
    }
}
