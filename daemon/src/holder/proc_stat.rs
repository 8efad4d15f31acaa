//! What the kernel says of a process in /proc/<pid>/stat: see proc_pid_stat(5).

use std::io;
use std::time::Duration;

/// Ticks per second in what the kernel tells of processes: 100 on every Linux, whatever its own clock does.
const TICKS_PER_SECOND: u64 = 100;
/// Number of the first field after the name.
const STATE: usize = 3;
const FLAGS: usize = 9;
const START_TIME: usize = 22;
/// Of the flags: it ends (linux/sched.h).
const PF_EXITING: u64 = 0x4;

/// The line of one process.
pub struct ProcStat(String);

impl ProcStat {
    /// That of a process.
    ///
    /// # Errors
    /// ENOENT or ESRCH where there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map(Self)
    }

    /// A field from the third on. The second one is the name, in brackets, which may have blanks and brackets itself.
    fn field(&self, number: usize) -> Option<&str> {
        let (_, after_name) = self.0.rsplit_once(") ")?;
        after_name.split(' ').nth(number - STATE)
    }

    fn number(&self, field: usize) -> Option<u64> {
        self.field(field)?.parse().ok()
    }

    /// Whether it is stopped or being traced.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.field(STATE), Some("T" | "t"))
    }

    /// Whether it ends or has ended.
    pub(super) fn is_exiting(&self) -> bool {
        matches!(self.field(STATE), Some("Z" | "X") | None)
            || self
                .number(FLAGS)
                .is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// When it was started, from the host's start on.
    pub fn started_after(&self) -> Option<Duration> {
        let ticks = self.number(START_TIME)?;
        Some(Duration::from_millis(ticks * (1000 / TICKS_PER_SECOND)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_exits_is_told_from_one_that_lives() {
        for (rest, exiting) in [
            ("S 1 1 1 0 -1 4194560 0", false),
            ("R 1 1 1 0 -1 4194564 0", true),
            ("Z 1 1 1 0 -1 4227084 0", true),
            ("X 1 1 1 0 -1 0 0", true),
        ] {
            for name in ["(lodged)", "(a b) Z (c)", "()"] {
                let stat = ProcStat(format!("7 {name} {rest}"));
                assert_eq!(stat.is_exiting(), exiting, "{name} {rest}");
            }
        }
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(!ProcStat::of(own).expect("our own").is_exiting());
    }

    #[test]
    fn the_start_of_a_process_is_found_behind_any_name() {
        let rest = "S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        for name in ["(lodged)", "(a b) (c)", "()", "() 1 2 3)"] {
            let stat = ProcStat(format!("77 {name} {rest}"));
            assert_eq!(stat.started_after(), Some(Duration::from_millis(123_450)));
        }
        assert_eq!(ProcStat("77 (x".to_owned()).started_after(), None);
    }
}
