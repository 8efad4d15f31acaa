//! Settings of the host that make it safer. None is needed to run sandboxes: all are warnings. A table, with a reason per
//! row.

use std::fs;

use super::report::Check;

/// One setting.
struct Setting {
    name: &'static str,
    path: &'static str,
    /// Whether the value is as it should be.
    good: fn(&str) -> bool,
    /// Why it matters, and what to set.
    hint: &'static str,
    /// What a missing file means.
    missing: Missing,
}

/// What it means if the kernel has no such setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// The feature is not built in: nothing to mend.
    Fine,
    /// The protection is not built in.
    Worse,
}

fn at_least(text: &str, least: i64) -> bool {
    text.parse::<i64>().is_ok_and(|value| value >= least)
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "kptr-restrict",
        path: "/proc/sys/kernel/kptr_restrict",
        good: |v| at_least(v, 1),
        hint: "kernel addresses help an attacker: sysctl -w kernel.kptr_restrict=1",
        missing: Missing::Fine,
    },
    Setting {
        name: "dmesg-restrict",
        path: "/proc/sys/kernel/dmesg_restrict",
        good: |v| at_least(v, 1),
        hint: "the kernel's log has addresses: sysctl -w kernel.dmesg_restrict=1",
        missing: Missing::Fine,
    },
    Setting {
        name: "perf-event-paranoid",
        path: "/proc/sys/kernel/perf_event_paranoid",
        good: |v| at_least(v, 2),
        hint: "sysctl -w kernel.perf_event_paranoid=2",
        missing: Missing::Fine,
    },
    Setting {
        name: "unprivileged-bpf-disabled",
        path: "/proc/sys/kernel/unprivileged_bpf_disabled",
        good: |v| at_least(v, 1),
        hint: "sysctl -w kernel.unprivileged_bpf_disabled=1",
        missing: Missing::Fine,
    },
    Setting {
        name: "bpf-jit-harden",
        path: "/proc/sys/net/core/bpf_jit_harden",
        good: |v| at_least(v, 1),
        hint: "sysctl -w net.core.bpf_jit_harden=1",
        missing: Missing::Fine,
    },
    Setting {
        name: "protected-symlinks",
        path: "/proc/sys/fs/protected_symlinks",
        good: |v| at_least(v, 1),
        hint: "sysctl -w fs.protected_symlinks=1",
        missing: Missing::Worse,
    },
    Setting {
        name: "protected-hardlinks",
        path: "/proc/sys/fs/protected_hardlinks",
        good: |v| at_least(v, 1),
        hint: "sysctl -w fs.protected_hardlinks=1",
        missing: Missing::Worse,
    },
    Setting {
        name: "protected-fifos",
        path: "/proc/sys/fs/protected_fifos",
        good: |v| at_least(v, 2),
        hint: "sysctl -w fs.protected_fifos=2",
        missing: Missing::Worse,
    },
    Setting {
        name: "protected-regular",
        path: "/proc/sys/fs/protected_regular",
        good: |v| at_least(v, 2),
        hint: "sysctl -w fs.protected_regular=2",
        missing: Missing::Worse,
    },
    Setting {
        name: "yama-ptrace-scope",
        path: "/proc/sys/kernel/yama/ptrace_scope",
        good: |v| at_least(v, 1),
        hint: "processes of one user may trace each other; kernels with Yama can restrict that",
        missing: Missing::Worse,
    },
    Setting {
        name: "core-pattern",
        path: "/proc/sys/kernel/core_pattern",
        good: |v| !v.starts_with('|'),
        hint: "a crash in a sandbox must not run a program of the host: \
               sysctl -w kernel.core_pattern=core",
        missing: Missing::Fine,
    },
    Setting {
        name: "legacy-tiocsti",
        path: "/proc/sys/dev/tty/legacy_tiocsti",
        good: |v| v == "0",
        hint: "sysctl -w dev.tty.legacy_tiocsti=0",
        missing: Missing::Fine,
    },
    Setting {
        name: "io-uring-disabled",
        path: "/proc/sys/kernel/io_uring_disabled",
        good: |v| at_least(v, 2),
        hint: "sandboxes cannot use it in any case; if nothing on the host needs it: \
               sysctl -w kernel.io_uring_disabled=2",
        missing: Missing::Fine,
    },
    Setting {
        name: "same-page-merging",
        path: "/sys/kernel/mm/ksm/run",
        good: |v| v == "0",
        hint: "merged pages tell one sandbox what another has: echo 0 > /sys/kernel/mm/ksm/run",
        missing: Missing::Fine,
    },
];

/// All settings, each as a check.
pub(super) fn checks() -> Vec<Check> {
    let mut checks: Vec<Check> = SETTINGS.iter().map(check).collect();
    checks.push(swap());
    checks
}

fn check(setting: &Setting) -> Check {
    let Ok(text) = fs::read_to_string(setting.path) else {
        return match setting.missing {
            Missing::Fine => Check::ok(setting.name, "not in this kernel"),
            Missing::Worse => Check::warn(setting.name, "not in this kernel", setting.hint),
        };
    };
    let value = text.trim();
    let detail = format!("{} is {value}", setting.path);
    if (setting.good)(value) {
        Check::ok(setting.name, detail)
    } else {
        Check::warn(setting.name, detail, setting.hint)
    }
}

fn swap() -> Check {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    match swaps.lines().count().saturating_sub(1) {
        0 => Check::ok("swap", "off"),
        count => Check::warn(
            "swap",
            format!("{count} area(s)"),
            "secrets in memory may reach the disk: encrypt the swap, or turn it off",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_checked_under_its_own_name_and_none_fails() {
        let checks = checks();
        let names: std::collections::BTreeSet<_> = checks.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), checks.len());
        assert!(
            checks
                .iter()
                .all(|c| c.outcome != super::super::report::Outcome::Fail)
        );
    }

    #[test]
    fn values_are_judged() {
        let by_name = |name| {
            SETTINGS
                .iter()
                .find(|s| s.name == name)
                .expect("in the table")
        };
        assert!(!(by_name("core-pattern").good)(
            "|/usr/lib/systemd/systemd-coredump %P"
        ));
        assert!((by_name("core-pattern").good)("core"));
        assert!(!(by_name("perf-event-paranoid").good)("-1"));
        assert!((by_name("perf-event-paranoid").good)("2"));
        assert!(!(by_name("legacy-tiocsti").good)("1"));
    }
}
