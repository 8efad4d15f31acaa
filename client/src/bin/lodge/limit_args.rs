//! What a sandbox may use, as `lodge create` and `lodge update` take it.

use lodge_client::Limits;

use crate::units;

// On each option: a heading for the whole group would go on over the options after it.
const HEADING: &str = "Limits";

/// The options of it.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Memory of all runs together, e.g. 2GiB
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = HEADING)]
    memory: Option<i64>,
    /// CPUs, e.g. 1.5
    #[arg(long, value_name = "N", value_parser = units::parse_cpus, help_heading = HEADING)]
    cpus: Option<i64>,
    /// Processes and threads of all runs together
    #[arg(long, value_name = "N", help_heading = HEADING)]
    pids: Option<i64>,
    /// Disk space of its files, e.g. 20GiB
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = HEADING)]
    disk: Option<i64>,
    /// Open files per process
    #[arg(long, value_name = "N", help_heading = HEADING)]
    open_files: Option<i64>,
    /// Size of /dev/shm
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = HEADING)]
    shm: Option<i64>,
    /// Number of its files, where the storage driver counts them
    #[arg(long, value_name = "N", help_heading = HEADING)]
    inodes: Option<i64>,
    /// Take a limit that the host cannot enforce as degraded, instead of failing
    #[arg(long, help_heading = HEADING)]
    pub(crate) allow_degraded: bool,
}

impl LimitArgs {
    /// As the client takes them.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory,
            pids: self.pids,
            cpu_millis: self.cpus,
            disk_bytes: self.disk,
            open_files: self.open_files,
            shm_bytes: self.shm,
            inodes: self.inodes,
        }
    }
}
