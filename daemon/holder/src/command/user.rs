//! Users and groups by the sandbox's own /etc/passwd and /etc/group. These are hostile files: read with a bound, never waited for, and
//! no library of the sandbox's is consulted.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::protocol::{Cause, errno_of, on};

/// Bytes read of /etc/passwd and of /etc/group, at most.
const MAX_FILE: u64 = 1 << 20;

/// Ids that a sandbox has: 0 to 65,534; the next one means "no id" to many programs.
const MAX_ID: u32 = 65_534;

/// Groups that a user is a member of, at most (the kernel takes 65,536).
const MAX_GROUPS: usize = 1024;

/// The user of an image that names none.
const DEFAULT_USER: &str = "user";

/// Who a command runs as.
#[derive(Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) name: String,
    pub(super) home: CString,
    pub(super) shell: String,
}

/// Finds `user`, `uid`, `user:group` or `uid:gid`; empty means `user` if there is one, else root.
pub(super) fn look_up(wanted: &str) -> Result<User, Cause> {
    let (passwd, group) = (read_bounded("/etc/passwd"), read_bounded("/etc/group"));
    if needs_no_file(wanted) {
        // Whoever mends broken files must get in.
        return resolve(
            wanted,
            &passwd.unwrap_or_default(),
            &group.unwrap_or_default(),
        );
    }
    resolve(wanted, &passwd?, &group?)
}

/// Whether the user is root or a number, with no group or a number for it.
fn needs_no_file(wanted: &str) -> bool {
    let (user, group) = wanted.split_once(':').unwrap_or((wanted, "0"));
    (user == "root" || parse_id(user).is_some()) && parse_id(group).is_some()
}

fn resolve(wanted: &str, passwd: &str, group: &str) -> Result<User, Cause> {
    if wanted.is_empty() {
        return match by_name(passwd, DEFAULT_USER) {
            Some(entry) => Ok(entry.user(group, None)),
            None => Ok(root(passwd).user(group, None)),
        };
    }
    let (name, group_name) = wanted
        .split_once(':')
        .map_or((wanted, None), |(u, g)| (u, Some(g)));
    let gid = group_name.map(|g| gid_of(group, g)).transpose()?;
    let entry = match by_name(passwd, name) {
        Some(entry) => entry,
        None if name == "root" => root(passwd),
        None => by_uid(
            passwd,
            parse_id(name)
                .ok_or(Errno::ENOENT)
                .map_err(on(format!("user {name}")))?,
        ),
    };
    Ok(entry.user(group, gid))
}

/// A line of /etc/passwd.
struct Entry {
    uid: u32,
    gid: u32,
    name: String,
    home: String,
    shell: String,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        let uid = parse_id(fields.nth(1)?)?;
        let gid = parse_id(fields.next()?)?;
        let home = fields.nth(1).unwrap_or_default().to_owned();
        let shell = fields
            .next()
            .filter(|shell| !shell.is_empty())
            .unwrap_or("/bin/sh")
            .to_owned();
        Some(Self {
            uid,
            gid,
            name,
            home,
            shell,
        })
    }

    fn user(self, group: &str, gid: Option<u32>) -> User {
        let home = if self.home.starts_with('/') {
            self.home
        } else {
            "/".to_owned()
        };
        User {
            uid: self.uid,
            gid: gid.unwrap_or(self.gid),
            groups: groups_of(group, &self.name),
            name: self.name,
            // A line of text that was read as a C string's neighbour may hold a NUL: such a home is no path.
            home: CString::new(home).unwrap_or_else(|_| c"/".into()),
            shell: self.shell,
        }
    }
}

fn by_name(passwd: &str, name: &str) -> Option<Entry> {
    passwd
        .lines()
        .filter_map(Entry::parse)
        .find(|entry| entry.name == name)
}

/// A uid needs no line: a container's often has none.
fn by_uid(passwd: &str, uid: u32) -> Entry {
    let entry = passwd
        .lines()
        .filter_map(Entry::parse)
        .find(|entry| entry.uid == uid);
    entry.unwrap_or_else(|| Entry {
        uid,
        gid: uid,
        name: uid.to_string(),
        home: "/".into(),
        shell: "/bin/sh".into(),
    })
}

/// Root exists without a file, too.
fn root(passwd: &str) -> Entry {
    by_name(passwd, "root")
        .filter(|entry| entry.uid == 0)
        .unwrap_or_else(|| Entry {
            uid: 0,
            gid: 0,
            name: "root".into(),
            home: "/root".into(),
            shell: "/bin/sh".into(),
        })
}

fn gid_of(group: &str, wanted: &str) -> Result<u32, Cause> {
    let line = group
        .lines()
        .find(|line| line.split(':').next() == Some(wanted));
    let by_name = line.and_then(|line| parse_id(line.split(':').nth(2)?));
    by_name
        .or_else(|| parse_id(wanted))
        .ok_or(Errno::ENOENT)
        .map_err(on(format!("group {wanted}")))
}

fn groups_of(group: &str, user: &str) -> Vec<u32> {
    let member = |line: &&str| {
        line.split(':')
            .nth(3)
            .is_some_and(|users| users.split(',').any(|u| u == user))
    };
    group
        .lines()
        .filter(member)
        .filter_map(|line| parse_id(line.split(':').nth(2)?))
        .take(MAX_GROUPS)
        .collect()
}

fn parse_id(text: &str) -> Option<u32> {
    // `parse` would take a sign.
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|id| *id <= MAX_ID)
}

/// Reads a regular file with a bound; one that does not exist is empty. O_NONBLOCK: a FIFO in its place is not waited for.
fn read_bounded(path: &'static str) -> Result<String, Cause> {
    let io = |e: &std::io::Error| on(path)(errno_of(e));
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if matches!(errno_of(&error), Errno::ENOENT | Errno::ENOTDIR) => {
            return Ok(String::new());
        }
        Err(error) => return Err(io(&error)),
    };
    read_regular(file).map_err(|e| io(&e))
}

fn read_regular(file: File) -> std::io::Result<String> {
    if !file.metadata()?.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\nbad:x:4294967295:1::/:\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:user,x\nuser:x:1000:\n";

    #[test]
    fn names_uids_and_groups_are_found() {
        let user = resolve("user", PASSWD, GROUP).expect("known");
        assert_eq!(
            (user.uid, user.gid, user.groups.as_slice()),
            (1000, 1000, &[27][..])
        );
        let user = resolve("1000:sudo", PASSWD, GROUP).expect("known");
        assert_eq!((user.uid, user.gid, user.name.as_str()), (1000, 27, "user"));
        let user = resolve("4242:17", PASSWD, GROUP).expect("numbers need no line");
        assert_eq!((user.uid, user.gid, user.name.as_str()), (4242, 17, "4242"));
    }

    #[test]
    fn root_and_numbers_need_no_file() {
        for wanted in ["root", "0", "1000", "0:0", "root:27"] {
            assert!(
                needs_no_file(wanted),
                "{wanted} would be locked out by a broken file"
            );
        }
        for wanted in ["", "user", "1000:sudo", "root:user"] {
            assert!(!needs_no_file(wanted), "{wanted} is looked up");
        }
    }

    #[test]
    fn empty_means_user_then_root() {
        assert_eq!(resolve("", PASSWD, GROUP).expect("user").uid, 1000);
        assert_eq!(resolve("", "", "").expect("root").uid, 0);
    }

    #[test]
    fn ids_outside_the_sandbox_and_unknown_names_are_refused() {
        for wanted in [
            "nobody-here",
            "bad",
            "65535",
            "-1",
            "+5",
            "4294967295",
            "user:nogroup",
        ] {
            assert!(
                resolve(wanted, PASSWD, GROUP).is_err(),
                "{wanted} was accepted"
            );
        }
    }
}
