//! What the kernel says is mounted, and in which group this process is: /proc/self/mountinfo and /proc/self/cgroup.
//!
//! Text in, values out; nothing here touches a hierarchy.

use std::path::{Path, PathBuf};

/// One mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupMount {
    /// Where it is mounted.
    pub(super) point: PathBuf,
    /// Which group of the hierarchy is visible there; `/` unless a container's cgroups were bound in.
    pub(super) root: PathBuf,
    /// v1: controllers and `name=`; `None`: v2.
    pub(super) v1_options: Option<Vec<String>>,
}

/// The cgroup hierarchies of a mountinfo table, in its order.
pub(super) fn parse_mountinfo(table: &str) -> Vec<CgroupMount> {
    table.lines().filter_map(parse_mount).collect()
}

/// `36 35 0:31 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids` (proc(5)).
fn parse_mount(line: &str) -> Option<CgroupMount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let mut fields = file_system.split(' ');
    let kind = fields.next()?;
    let options = fields.nth(1)?;
    let v1_options = match kind {
        "cgroup" => Some(options.split(',').map(String::from).collect()),
        "cgroup2" => None,
        _ => return None,
    };
    Some(CgroupMount {
        point,
        root,
        v1_options,
    })
}

/// Blanks in paths are written as octal escapes; only those four characters are (proc(5)).
fn unescape(field: &str) -> PathBuf {
    let plain = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let text = plain.iter().fold(field.to_owned(), |text, (code, char)| {
        text.replace(code, char)
    });
    PathBuf::from(text)
}

/// The group of this process in each hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// v1: the controllers of the hierarchy; empty for v2.
    controllers: Vec<String>,
    /// The group, from the hierarchy's (or the cgroup namespace's) root.
    path: PathBuf,
}

impl Membership {
    /// Whether the group is that of a service of systemd, or below it.
    pub(super) fn is_service(&self) -> bool {
        let mut names = self.path.iter().filter_map(|name| name.to_str());
        names.any(|name| name.ends_with(".service"))
    }
}

/// Parses /proc/self/cgroup: `4:memory:/system.slice/x.service`, and `0::/…` for v2.
pub(super) fn parse_membership(table: &str) -> Vec<Membership> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = PathBuf::from(fields.next()?);
        let controllers = controllers.split(',').filter(|name| !name.is_empty());
        Some(Membership {
            controllers: controllers.map(String::from).collect(),
            path,
        })
    };
    table.lines().filter_map(parse).collect()
}

/// The v2 group of this process.
pub(super) fn v2_group(memberships: &[Membership]) -> Option<&Path> {
    memberships
        .iter()
        .find(|one| one.controllers.is_empty())
        .map(|one| one.path.as_path())
}

/// The v1 group of this process in the hierarchy of `controller`.
pub(super) fn v1_group<'a>(memberships: &'a [Membership], controller: &str) -> Option<&'a Path> {
    let in_it = |one: &&Membership| one.controllers.iter().any(|name| name == controller);
    memberships.iter().find(in_it).map(|one| one.path.as_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_table_gives_each_hierarchy() {
        let table = "\
            22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            30 22 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
            31 22 0:27 /box /sys/fs/c\\040g rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n";
        let mounts = parse_mountinfo(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].v1_options, None);
        assert_eq!(mounts[1].point, Path::new("/sys/fs/c g"));
        assert_eq!(mounts[1].root, Path::new("/box"));
        assert!(
            mounts[1]
                .v1_options
                .as_ref()
                .is_some_and(|names| names.contains(&"cpu".into()))
        );
    }

    #[test]
    fn membership_is_found_by_version_and_controller() {
        let table = "9:name=systemd:/u\n3:cpu,cpuacct:/a:b\n0::/unit\n";
        let memberships = parse_membership(table);
        assert_eq!(v2_group(&memberships), Some(Path::new("/unit")));
        assert_eq!(v1_group(&memberships, "cpu"), Some(Path::new("/a:b")));
        assert_eq!(v1_group(&memberships, "memory"), None);
    }

    #[test]
    fn a_services_group_is_told_from_others() {
        let table = "3:cpu:/\n0::/system.slice/lodged.service/daemon\n1:name=systemd:/user.slice/session-1.scope\n";
        let service: Vec<bool> = parse_membership(table)
            .iter()
            .map(Membership::is_service)
            .collect();
        assert_eq!(service, [false, true, false]);
    }
}
