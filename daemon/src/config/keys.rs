//! Every key that there is, with the text for `--help`. The file has them as written, the environment as
//! `LODGE_<KEY>`, the command line as `--<key>`; `limits.x` is table `[limits]` in the file.

/// What sort of value a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text, paths included.
    Text,
    /// A whole number, not negative.
    Number,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// One line for `--help`, with unit and default.
    pub help: &'static str,
}

impl Key {
    /// Its name in the environment.
    pub fn variable(&self) -> String {
        format!("LODGE_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// Its name on the command line.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }
}

const fn text(name: &'static str, help: &'static str) -> Key {
    Key {
        name,
        kind: Kind::Text,
        help,
    }
}

const fn number(name: &'static str, help: &'static str) -> Key {
    Key {
        name,
        kind: Kind::Number,
        help,
    }
}

/// Every key, in the order of `--help`.
pub const KEYS: &[Key] = &[
    text(
        "state_dir",
        "Where sandboxes and their records live [default: /var/lib/lodge]",
    ),
    text(
        "runtime_dir",
        "Where sockets live, gone after a reboot [default: /run/lodge]",
    ),
    text(
        "images_dir",
        "Where unpacked images live [default: images in state_dir, or in the pool]",
    ),
    text(
        "listen",
        "Socket for clients [default: unix:///run/lodge/lodged.sock]",
    ),
    text(
        "socket_group",
        "Group that may use the socket [default: lodge]",
    ),
    text(
        "cgroup_parent",
        "Name of the cgroup above all sandboxes [default: lodge]",
    ),
    text(
        "default_image",
        "Image of a sandbox that names none [default: base]",
    ),
    number(
        "default_timeout_seconds",
        "Timeout of a run that names none; 0 = none [default: 120]",
    ),
    number(
        "max_timeout_seconds",
        "Longest timeout that a run may ask for; 0 = any [default: 0]",
    ),
    number(
        "uid_range_start",
        "First host uid for sandboxes [default: 1879048192]",
    ),
    number(
        "uid_range_count",
        "Ranges of 65,536 uids: one per sandbox [default: 4094]",
    ),
    number(
        "limits.memory_bytes",
        "Default memory of a sandbox, in bytes [default: 2 GiB]",
    ),
    number(
        "limits.pids",
        "Default processes and threads of a sandbox [default: 2048]",
    ),
    number(
        "limits.cpu_millis",
        "Default CPU, in thousandths of one [default: 2000]",
    ),
    number(
        "limits.open_files",
        "Default open files of a process [default: 4096]",
    ),
    number(
        "limits.shm_bytes",
        "Default size of /dev/shm, in bytes [default: 256 MiB]",
    ),
    number(
        "limits.disk_bytes",
        "Default bytes of a sandbox's files [default: 10 GiB]",
    ),
    number(
        "limits.inodes",
        "Default number of a sandbox's files, with the overlay driver [default: 1048576]",
    ),
    number(
        "idle.freeze_after_seconds",
        "A sandbox is frozen after this long without use; 0 = never [default: 600]",
    ),
    number(
        "idle.stop_after_seconds",
        "It is stopped, and keeps its files; 0 = never [default: 259200]",
    ),
    number(
        "idle.delete_after_seconds",
        "It is deleted, with its files; 0 = never [default: 0]",
    ),
    number(
        "tenant.max_sandboxes",
        "Sandboxes of a tenant; 0 = any number [default: 0]",
    ),
    number(
        "tenant.max_running",
        "Sandboxes of a tenant that run or are frozen; 0 = any number [default: 0]",
    ),
    number(
        "tenant.max_memory_bytes",
        "Sum of the memory limits of those, in bytes; 0 = any [default: 0]",
    ),
    number(
        "tenant.max_disk_bytes",
        "Sum of the disk limits of a tenant's sandboxes, in bytes; 0 = any [default: 0]",
    ),
    number(
        "tenant.max_live_runs",
        "Live runs of a tenant; 0 = any number [default: 0]",
    ),
    number(
        "run_logs.max_bytes",
        "Logs of all runs together, in bytes; oldest go first [default: 8 GiB]",
    ),
    text(
        "storage.driver",
        "auto, btrfs or overlay; what it is once, it stays [default: auto]",
    ),
    number(
        "storage.pool_bytes",
        "Size of the pool file, in bytes; 0 = three quarters of what is free [default: 0]",
    ),
    number(
        "storage.reserve_bytes",
        "Bytes of the host that sandboxes never get [default: 1 GiB]",
    ),
    text(
        "log_level",
        "error, warn, info, debug or trace [default: info]",
    ),
    text("log_format", "text or json [default: text]"),
];

/// The key of this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}
