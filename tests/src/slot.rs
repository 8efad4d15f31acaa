//! A place of one's own on the host: directories, a cgroup name and a range of user ids that no other test has.
//!
//! Slots are numbered; a lock on the slot's file says that it is taken, and the kernel drops it with the process, so
//! whoever gets a slot may sweep what an earlier, crashed owner left in it. Only things that carry the slot's own
//! number are touched.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};

use crate::storage::{self, Driver};
use crate::{binary, cgroup, host};

/// Home of all slots: short, since socket paths are at most 107 bytes.
const HOME: &str = "/run/lodge-tests";
/// More than tests ever run at once.
const SLOTS: u32 = 64;
/// First user id of slot 0: all slots end below the product's own default range, so that a test never meets a real
/// sandbox, and lie above what distributions give to users in /etc/subuid.
const UID_START: u32 = 0x4000_0000;
/// Sandboxes that a slot has ids for.
const UID_BLOCKS: u32 = 128;
/// Slots for measurements with hundreds of sandboxes; their numbers follow those of the others.
const WIDE_SLOTS: u32 = 4;
/// First user id of the first wide slot: they lie between the others and the product's own default range.
const WIDE_UID_START: u32 = 0x6000_0000;
/// Sandboxes that a wide slot has ids for.
const WIDE_UID_BLOCKS: u32 = 1024;
/// Ids of one sandbox.
pub const UID_BLOCK: u32 = 65_536;

/// How many sandboxes a slot has user ids for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Width {
    /// 128: any test.
    #[default]
    Usual,
    /// 1,024: measurements over many sandboxes.
    Wide,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    home: PathBuf,
    state: PathBuf,
    beside: PathBuf,
    _lock: Flock<File>,
}

impl Slot {
    /// Takes a free slot and sweeps it. Needs root.
    pub fn take(width: Width) -> Result<Self> {
        require_root()?;
        let numbers = match width {
            Width::Usual => 0..SLOTS,
            Width::Wide => SLOTS..SLOTS + WIDE_SLOTS,
        };
        for number in numbers {
            if let Some(slot) = Self::try_take(number)? {
                slot.sweep()
                    .with_context(|| format!("sweep test slot {number}"))?;
                slot.prepare()?;
                return Ok(slot);
            }
        }
        bail!("all test slots ({width:?}) under {HOME} are taken")
    }

    fn try_take(number: u32) -> Result<Option<Self>> {
        let locks = Path::new(HOME).join("locks");
        fs::create_dir_all(&locks).with_context(|| format!("create {}", locks.display()))?;
        let path = locks.join(number.to_string());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        let home = Path::new(HOME).join(number.to_string());
        let below = |dir: PathBuf| dir.join("test-state").join(number.to_string());
        Ok(Some(Self {
            number,
            home,
            state: below(Driver::of_tests()?.home()?),
            beside: below(binary::target_dir()?),
            _lock: lock,
        }))
    }

    fn prepare(&self) -> Result<()> {
        for dir in [&self.home, &self.state, &self.beside] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(dir)
                .with_context(|| format!("create {}", dir.display()))?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        }
        // The next owner may be of another checkout, or of another driver: it finds the directories here.
        let dirs = [&self.state, &self.beside].map(|dir| dir.to_string_lossy().into_owned());
        fs::write(self.home.join("state-dirs"), dirs.join("\n"))?;
        Ok(())
    }

    /// Removes everything that carries this slot's number: processes, cgroups, mounts, loop devices, directories.
    fn sweep(&self) -> Result<()> {
        host::kill_by_argument(&self.config_file())?;
        self.end_sandboxes()?;
        let mut dirs = BTreeSet::from([&self.home, &self.state, &self.beside].map(PathBuf::from));
        if let Ok(earlier) = fs::read_to_string(self.home.join("state-dirs")) {
            dirs.extend(earlier.lines().map(PathBuf::from));
        }
        for dir in dirs {
            for mount in host::mounts_below(&dir)?.iter().rev() {
                umount2(mount, MntFlags::MNT_DETACH)
                    .with_context(|| format!("unmount {}", mount.display()))?;
            }
            // Those of sandboxes go with the last process that has them mounted.
            storage::no_loop_devices(&dir)?;
            if dir.exists() {
                storage::remove_tree(&dir)?;
            }
        }
        Ok(())
    }

    /// Ends every process of the slot's sandboxes. The daemon is dead already, and so nobody hears of it.
    pub fn end_sandboxes(&self) -> Result<()> {
        cgroup::remove(&self.cgroup())?;
        host::kill_uids(self.uid_start(), self.uid_count())
    }

    /// Directory for sockets and small files of the test.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The daemon's configuration. Its path is on the daemon's command line, and so tells whose it is.
    pub fn config_file(&self) -> PathBuf {
        self.home.join("lodged.toml")
    }

    /// Directory for what is large: state and images. Where the storage driver under test has its files.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// As [`state`](Self::state), on the file system of the target directory whatever the driver.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// Name of the parent cgroup.
    pub fn cgroup(&self) -> String {
        format!("lodge-test-{}", self.number)
    }

    /// First of the slot's user ids.
    pub fn uid_start(&self) -> u32 {
        match self.number.checked_sub(SLOTS) {
            None => UID_START + self.number * self.uid_count(),
            Some(wide) => WIDE_UID_START + wide * self.uid_count(),
        }
    }

    /// How many user ids it has.
    pub fn uid_count(&self) -> u32 {
        self.uid_blocks() * UID_BLOCK
    }

    /// Sandboxes that it has user ids for.
    pub fn uid_blocks(&self) -> u32 {
        if self.number < SLOTS {
            UID_BLOCKS
        } else {
            WIDE_UID_BLOCKS
        }
    }
}

/// Fails with a clear text if the test does not run as root.
pub fn require_root() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "Lodge's end-to-end tests need root: run them as root (sudo make test)"
    );
    Ok(())
}

impl Drop for Slot {
    #[expect(
        clippy::print_stderr,
        reason = "the runner shows it for tests that fail"
    )]
    fn drop(&mut self) {
        if let Err(error) = self.sweep() {
            // A panic here would hide the test's own; the next owner of the slot sweeps again.
            eprintln!(
                "lodge-tests: could not clean slot {}: {error:#}",
                self.number
            );
        }
    }
}
