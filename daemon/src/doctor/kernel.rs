//! Kernel features, as far as they can be told by looking. What cannot be told so (id-mapped overlay layers, seccomp, the
//! mounts) the probe sandbox tells.

use std::fs;
use std::path::Path;

use lodge_kernel::capability::{SYS_RESOURCE, is_effective};
use lodge_kernel::cgroup::{Controller, Delegation, Host, Mode};
use rustix::process::{Resource, getrlimit};

use super::report::Check;
use crate::sandbox::limits::OPEN_FILES;

/// The oldest kernel with id-mapped layers of an overlay, as (major, minor). `cgroup.kill` came with 5.14,
/// `memory.peak` with 5.19 as well.
const KERNEL_MIN: (u32, u32) = (5, 19);
/// Namespaces of a sandbox, by their names in /proc/self/ns.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// Capabilities without which no sandbox can be made, by number and name: ids, mounts, namespaces, limits, and the end
/// of processes that have other ids.
const CAPABILITIES: [(u32, &str); 8] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (8, "CAP_SETPCAP"),
    (21, "CAP_SYS_ADMIN"),
];

/// All features, in the order in which they matter.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![
        root(),
        capabilities(),
        version(),
        namespaces(),
        user_namespaces(),
        seccomp(),
        overlay(),
    ];
    checks.extend(cgroups());
    checks.push(open_files());
    checks
}

fn root() -> Check {
    if rustix::process::geteuid().is_root() {
        Check::ok("root", "running as root")
    } else {
        Check::fail("root", "not running as root", "run lodged as root")
    }
}

/// Root alone is not enough: a container's root, or a unit's with a CapabilityBoundingSet=, has less.
fn capabilities() -> Check {
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(capability, _)| !is_effective(*capability))
        .map(|(_, name)| *name)
        .collect();
    let hint = "start lodged as the host's own root, without a bounding set";
    if !missing.is_empty() {
        let missing = format!("missing: {}", missing.join(" "));
        return Check::fail("capabilities", missing, hint);
    }
    // Sandboxes work within what was lowered.
    if !is_effective(SYS_RESOURCE) {
        let less = "CAP_SYS_RESOURCE is missing: limits that were lowered for lodged stay";
        return Check::warn("capabilities", less, hint);
    }
    Check::ok("capabilities", "all that are needed")
}

fn version() -> Check {
    let text = read("/proc/sys/kernel/osrelease");
    let (major, minor) = KERNEL_MIN;
    match parse_version(&text) {
        Some(version) if version >= KERNEL_MIN => Check::ok("kernel-version", text),
        _ => Check::fail(
            "kernel-version",
            text,
            format!("id-mapped layers of an overlay need Linux {major}.{minor} or later"),
        ),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn namespaces() -> Check {
    let missing: Vec<_> = NAMESPACES
        .into_iter()
        .filter(|name| !Path::new("/proc/self/ns").join(name).exists())
        .collect();
    if missing.is_empty() {
        Check::ok("namespaces", NAMESPACES.join(" "))
    } else {
        Check::fail(
            "namespaces",
            format!("missing: {}", missing.join(" ")),
            "use a kernel with all CONFIG_*_NS options",
        )
    }
}

fn user_namespaces() -> Check {
    let path = "/proc/sys/user/max_user_namespaces";
    match read(path).parse::<u64>() {
        Ok(0) => Check::fail(
            "user-namespaces",
            format!("{path} is 0"),
            "sysctl -w user.max_user_namespaces=65536",
        ),
        Ok(count) => Check::ok("user-namespaces", format!("{path} is {count}")),
        Err(_) => Check::fail("user-namespaces", format!("no {path}"), "is /proc mounted?"),
    }
}

fn seccomp() -> Check {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    if actions.split(' ').any(|action| action == "errno") {
        Check::ok("seccomp-filter", actions)
    } else {
        Check::fail(
            "seccomp-filter",
            "the kernel has no seccomp filters",
            "use a kernel with CONFIG_SECCOMP_FILTER",
        )
    }
}

fn overlay() -> Check {
    let known = read("/proc/filesystems")
        .lines()
        .any(|line| line.split_whitespace().next_back() == Some("overlay"));
    if known {
        Check::ok("overlay-filesystem", "known to the kernel")
    } else {
        Check::fail(
            "overlay-filesystem",
            "not known to the kernel",
            "modprobe overlay",
        )
    }
}

fn cgroups() -> Vec<Check> {
    let host = match Host::detect() {
        Ok(host) => host,
        Err(error) => {
            return vec![Check::fail(
                "cgroups",
                error.to_string(),
                "mount the cgroup hierarchies",
            )];
        }
    };
    let mode = match host.mode() {
        Mode::V2 => "version 2",
        Mode::Hybrid => "version 1, with version 2 beside it",
        Mode::V1 => "version 1; lodged mounts version 2 for itself",
    };
    let mut checks = vec![Check::ok("cgroups", mode), delegation(host.delegation())];
    checks.extend(
        [
            ("memory-controller", Controller::Memory),
            ("pids-controller", Controller::Pids),
            ("cpu-controller", Controller::Cpu),
        ]
        .map(|(name, controller)| self::controller(name, &host, controller)),
    );
    checks
}

/// Below a unit that is not delegated, systemd would take our groups for its own.
fn delegation(found: Delegation) -> Check {
    match found {
        Delegation::Delegated => Check::ok("delegation", "the unit's cgroup is delegated"),
        Delegation::NoUnit => Check::ok("delegation", "not started by a unit of systemd"),
        Delegation::Missing => Check::warn(
            "delegation",
            "the unit's cgroup is not delegated: sandboxes' groups are made below the root, \
             where limits of the unit and its slice do not reach",
            "set Delegate=yes in lodged's unit, as daemon/packaging/lodged.service does",
        ),
    }
}

fn controller(name: &'static str, host: &Host, controller: Controller) -> Check {
    if host.has(controller) {
        Check::ok(name, "there")
    } else {
        Check::warn(
            name,
            "missing",
            format!(
                "the limit on {controller} is not enforced; enable it on the kernel's command line"
            ),
        )
    }
}

fn open_files() -> Check {
    let limit = getrlimit(Resource::Nofile).maximum;
    let detail = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("{limit} at most"));
    if limit.is_none_or(|limit| limit >= OPEN_FILES.max) {
        Check::ok("open-files", detail)
    } else {
        Check::warn(
            "open-files",
            detail,
            format!(
                "set LimitNOFILE of lodged's unit to {} or more",
                OPEN_FILES.max
            ),
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(parse_version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_version("5.9.0"), Some((5, 9)));
        assert!((5, 9) < KERNEL_MIN && (6, 1) > KERNEL_MIN);
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn checks_have_names_of_their_own() {
        let checks = checks();
        let names: std::collections::BTreeSet<_> = checks.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), checks.len());
    }
}
