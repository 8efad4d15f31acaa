//! Where the files of sandboxes are: which driver and why, what it can do and what not, what the host has for the others, and
//! how full it is. Makes and mounts nothing.

use std::path::Path;
use std::sync::Arc;

use super::report::Check;
use crate::config::Config;
use crate::error::Error;
use crate::sandbox::platform::Platform;
use crate::storage::choice::{self, KernelBtrfs, PoolKind};
use crate::storage::{Choice, Driver, HostDisk, Storage, overlay, program};

/// What there is to look at.
pub struct Files {
    choice: Result<Choice, Error>,
    /// Of a running daemon.
    storage: Option<Arc<dyn Storage>>,
}

impl Files {
    /// Of a running daemon.
    pub fn of(platform: &Platform) -> Self {
        Self {
            choice: Ok(platform.storage_choice.clone()),
            storage: Some(Arc::clone(&platform.storage)),
        }
    }

    /// Of the daemon that these settings would make. Blocks.
    pub fn with(config: &Config) -> Self {
        Self {
            choice: choice::choose(config).map_err(Error::from),
            storage: None,
        }
    }

    /// All checks. Blocks.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = vec![driver(&self.choice), kernel()];
        checks.push(mkfs_btrfs());
        checks.push(e2fsprogs(self.choice.as_ref().ok(), &overlay::PROGRAMS));
        if let Some(storage) = &self.storage {
            checks.push(abilities(storage.as_ref()));
            checks.push(room(storage.as_ref()));
        }
        checks
    }
}

fn driver(choice: &Result<Choice, Error>) -> Check {
    const NAME: &str = "storage-driver";
    match choice {
        Ok(choice) => {
            let pool = match choice.pool {
                Some(PoolKind::File) => ", in a pool file",
                Some(PoolKind::Directory) => ", in a directory of state_dir",
                None => "",
            };
            Check::ok(NAME, format!("{}{pool}: {}", choice.driver, choice.why))
        }
        Err(error) => Check::fail(NAME, error.chain().to_string(), error.hint_text()),
    }
}

fn kernel() -> Check {
    const NAME: &str = "btrfs-filesystem";
    match choice::kernel_btrfs() {
        KernelBtrfs::SimpleQuotas => Check::ok(NAME, "known to the kernel, with simple quotas"),
        KernelBtrfs::FullQuotas => Check::warn(
            NAME,
            "known to the kernel, without simple quotas",
            "the overlay driver does without; Linux 6.7 or newer can have both",
        ),
        KernelBtrfs::Absent => Check::warn(
            NAME,
            "not known to the kernel",
            "the overlay driver does without; a kernel with CONFIG_BTRFS_FS can have both",
        ),
    }
}

/// A pool that is there needs it no more.
fn mkfs_btrfs() -> Check {
    const NAME: &str = "mkfs-btrfs";
    match choice::mkfs() {
        Some(path) => Check::ok(NAME, path.display().to_string()),
        None => Check::warn(
            NAME,
            "there is no mkfs.btrfs",
            "install the package btrfs-progs",
        ),
    }
}

/// Without all of them the overlay driver does not start; the other one does without.
fn e2fsprogs(choice: Option<&Choice>, programs: &[&str]) -> Check {
    const NAME: &str = "e2fsprogs";
    let (found, missing): (Vec<&str>, Vec<&str>) = programs
        .iter()
        .partition(|name| program::find(name).is_some());
    if missing.is_empty() {
        return Check::ok(NAME, found.join(", "));
    }
    let (missing, hint) = (
        format!("missing: {}", missing.join(", ")),
        "install the package e2fsprogs",
    );
    match choice.map(|choice| choice.driver) {
        Some(Driver::Btrfs) => Check::warn(NAME, missing, hint),
        Some(Driver::Overlay) | None => Check::fail(NAME, missing, hint),
    }
}

/// What the driver cannot do is listed, as the API says it.
fn abilities(storage: &dyn Storage) -> Check {
    const NAME: &str = "storage-abilities";
    let abilities = storage.abilities();
    let all = [
        ("limit on bytes", abilities.limit_bytes),
        ("limit on files", abilities.limit_inodes),
        ("growing pool", abilities.grow),
    ];
    let able: Vec<_> = all.iter().filter(|(_, able)| able.is_ok()).collect();
    let able: Vec<_> = able.iter().map(|(what, _)| *what).collect();
    let unable: Vec<_> = all
        .iter()
        .filter_map(|(what, able)| able.err().map(|why| format!("{what} ({why})")))
        .collect();
    let mut detail = match able.as_slice() {
        [] => "nothing".to_owned(),
        able => able.join(", "),
    };
    if !unable.is_empty() {
        let driver = storage.name();
        detail += &format!(
            "; unsupported by the {driver} storage driver: {}",
            unable.join(", ")
        );
    }
    match abilities.limit_bytes {
        Ok(()) => Check::ok(NAME, detail),
        Err(_) => Check::warn(
            NAME,
            detail,
            "a sandbox can fill the host's disk: put state_dir on a file system of its own",
        ),
    }
}

fn room(storage: &dyn Storage) -> Check {
    const NAME: &str = "storage-room";
    match storage.host() {
        Ok(host) => told(NAME, &host),
        Err(error) => {
            let error = Error::from(error);
            Check::fail(NAME, error.chain().to_string(), error.hint_text())
        }
    }
}

fn told(name: &'static str, host: &HostDisk) -> Check {
    let mib = |bytes: u64| bytes >> 20;
    let detail = format!(
        "{}{} of {} MiB used; the host has {} MiB free, {} of them kept back",
        at(&host.path),
        mib(host.used_bytes),
        mib(host.size_bytes),
        mib(host.host_free_bytes),
        mib(host.reserve_bytes),
    );
    if host.host_free_bytes > host.reserve_bytes {
        Check::ok(name, detail)
    } else {
        Check::warn(
            name,
            detail,
            "creates and writes of sandboxes are refused: delete sandboxes or images, or make room on the host",
        )
    }
}

fn at(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return String::new();
    }
    format!("{}: ", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use crate::error::ErrorKind;
    use crate::storage::overlay::Directories;

    fn host(free: u64) -> HostDisk {
        HostDisk {
            driver: "btrfs",
            path: "/state/pool.img".into(),
            size_bytes: 8 << 30,
            used_bytes: 1 << 30,
            host_free_bytes: free,
            reserve_bytes: 1 << 30,
            being_removed: 0,
        }
    }

    #[test]
    fn a_host_at_its_reserve_is_told_so() {
        let fine = told("room", &host(2 << 30));
        assert_eq!(fine.outcome, Outcome::Ok);
        let wanted = "/state/pool.img: 1024 of 8192 MiB used; the host has 2048 MiB free, 1024 of them kept back";
        assert_eq!(fine.detail, wanted);
        assert_eq!(told("room", &host(1 << 30)).outcome, Outcome::Warn);
    }

    #[test]
    fn what_a_driver_cannot_do_is_listed_with_the_reason() {
        let check = abilities(&Directories);
        assert_eq!(check.outcome, Outcome::Warn);
        let words = "nothing; unsupported by the overlay storage driver: limit on bytes (its layer is a plain directory)";
        assert!(check.detail.starts_with(words), "{}", check.detail);
    }

    #[test]
    fn programs_are_missing_where_the_driver_needs_them() {
        let choice = |driver| Choice {
            driver,
            pool: None,
            images_dir: "/images".into(),
            why: String::new(),
        };
        let look = |driver, programs: &[&str]| e2fsprogs(Some(&choice(driver)), programs);
        assert_eq!(look(Driver::Overlay, &["sh"]).outcome, Outcome::Ok);
        let check = look(Driver::Overlay, &["sh", "mkfs.none"]);
        assert_eq!(
            (check.outcome, &*check.detail),
            (Outcome::Fail, "missing: mkfs.none")
        );
        assert_eq!(look(Driver::Btrfs, &["mkfs.none"]).outcome, Outcome::Warn);
    }

    #[test]
    fn a_driver_that_cannot_be_had_fails_the_check() {
        let error = Error::new(ErrorKind::FailedPrecondition, "STORAGE_UNFIT", "no").hint("yes");
        let check = driver(&Err(error));
        assert_eq!((check.outcome, check.hint.as_str()), (Outcome::Fail, "yes"));
    }
}
