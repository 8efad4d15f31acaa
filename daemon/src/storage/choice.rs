//! Which driver a state directory has, and why. It is chosen at the first start that works and remembered in the state directory: the
//! files of one driver are nothing to another one, so that a change would be the loss of every sandbox. Chooses only; opens
//! no driver.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lodge_kernel::btrfs::{self, Quotas};
use nix::errno::Errno;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};
use serde::{Deserialize, Serialize};

use super::{StorageError, program};
use crate::config::Config;
use crate::fault;
use crate::store::Replacement;

/// What is remembered, in the state directory.
const FILE: &str = "storage.json";
/// Version of that file.
const VERSION: u32 = 1;
/// Name of the pool's directory and, with an ending, of its file, in the state directory.
const POOL: &str = "pool";
/// A driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// A pool with snapshots and quotas.
    Btrfs,
    /// A layer for each sandbox, over the image's.
    Overlay,
}

impl Driver {
    /// Its name, as in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Overlay => "overlay",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// What this host can do best.
    Auto,
    /// This one and no other.
    One(Driver),
}

/// Where a pool is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolKind {
    /// A file of the state directory, mounted by loop.
    File,
    /// A directory of the state directory, which lies on btrfs.
    Directory,
}

/// A driver that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The driver.
    pub driver: Driver,
    /// Where its pool is, for btrfs.
    pub pool: Option<PoolKind>,
    /// Where images are.
    pub images_dir: PathBuf,
    /// Why it is this one, for people.
    pub why: String,
}

impl Choice {
    /// Whether a file system is to be mounted for it.
    pub fn needs_mount(&self) -> bool {
        self.pool == Some(PoolKind::File)
    }
}

/// What the kernel's btrfs is good for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KernelBtrfs {
    /// There is none.
    #[default]
    Absent,
    /// It counts with full quotas alone, as before Linux 6.7: too slow and too easily wrong for limits.
    FullQuotas,
    /// It has simple quotas.
    SimpleQuotas,
}

/// What there is to choose by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    /// What the first start chose.
    remembered: Option<Driver>,
    /// Sandboxes or images without a remembered choice.
    older: bool,
    kernel: KernelBtrfs,
    state_on_btrfs: bool,
    /// It lies on btrfs that somebody has count with full quotas, which are the whole file system's.
    state_has_full_quotas: bool,
    has_mkfs: bool,
    /// `images_dir` of the configuration, if it is on another file system than the pool would be.
    foreign_images: Option<PathBuf>,
}

/// The driver that this state directory has or, if it has none yet, gets. Changes nothing.
///
/// # Errors
/// A driver that the configuration asks for and that cannot be had.
pub fn choose(config: &Config) -> Result<Choice, StorageError> {
    let facts = Facts::gather(config)?;
    let (driver, why) = decide(config.storage.driver, &facts)?;
    let pool = (driver == Driver::Btrfs).then(|| {
        // What was made stays, should the state directory have been moved to btrfs since.
        if facts.state_on_btrfs && !pool_file(&config.state_dir).exists() {
            PoolKind::Directory
        } else {
            PoolKind::File
        }
    });
    let images_dir = match (&config.images_dir, driver) {
        (Some(dir), _) => dir.clone(),
        (None, Driver::Btrfs) => images_in_pool(&config.state_dir),
        (None, Driver::Overlay) => images_outside(&config.state_dir),
    };
    Ok(Choice {
        driver,
        pool,
        images_dir,
        why,
    })
}

/// Has the state directory remember its driver: once that is open, and before it has anything of a sandbox. A first start that
/// fails binds nobody to a driver that was never of use. The caller holds the lock on the state directory.
///
/// # Errors
/// Where it cannot be written down.
pub fn remember(state_dir: &Path, driver: Driver) -> Result<(), StorageError> {
    if read(state_dir)? == Some(driver) {
        return Ok(());
    }
    write(state_dir, driver)
}

/// The pool's file.
pub fn pool_file(state_dir: &Path) -> PathBuf {
    state_dir.join(POOL).with_extension("img")
}

/// The pool's directory: where its file is mounted, or that of a state directory on btrfs.
pub fn pool_dir(state_dir: &Path) -> PathBuf {
    state_dir.join(POOL)
}

fn images_in_pool(state_dir: &Path) -> PathBuf {
    pool_dir(state_dir).join("images")
}

fn images_outside(state_dir: &Path) -> PathBuf {
    state_dir.join("images")
}

/// The program that makes pools, if this host has it.
pub fn mkfs() -> Option<PathBuf> {
    program::find("mkfs.btrfs")
}

/// What btrfs the kernel has, its module loaded if there is one.
pub fn kernel_btrfs() -> KernelBtrfs {
    // Asking for a context loads the module; a list of file systems has only what is loaded already.
    if lodge_kernel::mount::FsContext::open(c"btrfs").is_err() {
        KernelBtrfs::Absent
    } else if btrfs::kernel_has_simple_quotas() {
        KernelBtrfs::SimpleQuotas
    } else {
        KernelBtrfs::FullQuotas
    }
}

impl Facts {
    fn gather(config: &Config) -> Result<Self, StorageError> {
        let state_dir = &config.state_dir;
        let remembered = read(state_dir)?;
        Ok(Self {
            remembered,
            older: remembered.is_none() && has_older(state_dir, config.images_dir.as_deref()),
            kernel: kernel_btrfs(),
            state_on_btrfs: is_on_btrfs(state_dir),
            state_has_full_quotas: has_full_quotas(state_dir),
            has_mkfs: mkfs().is_some(),
            foreign_images: config
                .images_dir
                .clone()
                .filter(|dir| !is_in_pool(dir, state_dir)),
        })
    }
}

/// Which driver, and why.
fn decide(wish: Wish, facts: &Facts) -> Result<(Driver, String), StorageError> {
    let held = match (facts.remembered, facts.older) {
        (Some(driver), _) => Some((driver, "this state directory was begun with it")),
        (None, true) => Some((
            Driver::Overlay,
            "this state directory is older than the choice of drivers",
        )),
        (None, false) => None,
    };
    match (wish, held) {
        (Wish::One(asked), Some((driver, why))) if asked != driver => Err(StorageError::Unfit {
            what: format!(
                "storage.driver is {asked}, and the sandboxes here are {driver}'s: {why}"
            ),
            hint: "set storage.driver to what it was, or take another state_dir",
        }),
        (_, Some((Driver::Btrfs, why))) => match in_the_way_of_a_pool(facts) {
            None => Ok((Driver::Btrfs, why.to_owned())),
            Some((what, hint)) => Err(StorageError::Unfit {
                what: format!("the sandboxes here are btrfs's, and {what}"),
                hint,
            }),
        },
        (_, Some((driver, why))) => Ok((driver, why.to_owned())),
        (Wish::One(Driver::Overlay), None) => Ok((Driver::Overlay, "configured".to_owned())),
        (Wish::One(Driver::Btrfs), None) => match in_the_way_of_btrfs(facts) {
            None => Ok((Driver::Btrfs, "configured".to_owned())),
            Some((what, hint)) => Err(StorageError::Unfit {
                what: format!("storage.driver is btrfs, and {what}"),
                hint,
            }),
        },
        (Wish::Auto, None) => Ok(match in_the_way_of_btrfs(facts) {
            None if facts.state_on_btrfs => (Driver::Btrfs, "state_dir lies on btrfs".to_owned()),
            None => (
                Driver::Btrfs,
                "the kernel has btrfs with simple quotas".to_owned(),
            ),
            Some((what, _)) => (Driver::Overlay, what),
        }),
    }
}

/// Why no pool can be begun, and how that is mended.
fn in_the_way_of_btrfs(facts: &Facts) -> Option<(String, &'static str)> {
    if !facts.state_on_btrfs && !facts.has_mkfs {
        return Some((
            "there is no mkfs.btrfs to make a pool with".to_owned(),
            "install btrfs-progs, or set storage.driver to \"overlay\"",
        ));
    }
    in_the_way_of_a_pool(facts)
}

/// Why a pool could not be used, were it there, and how that is mended.
fn in_the_way_of_a_pool(facts: &Facts) -> Option<(String, &'static str)> {
    let kernel = match facts.kernel {
        KernelBtrfs::Absent => Some((
            "the kernel has no btrfs",
            "use a kernel with CONFIG_BTRFS_FS; for a new state_dir there is storage.driver = \"overlay\"",
        )),
        KernelBtrfs::FullQuotas => Some((
            "the kernel's btrfs has no simple quotas, by which limits are held",
            "use Linux 6.7 or newer; for a new state_dir there is storage.driver = \"overlay\"",
        )),
        KernelBtrfs::SimpleQuotas if facts.state_on_btrfs && facts.state_has_full_quotas => Some((
            "the file system of state_dir counts with full quotas, and limits need simple ones",
            "use `btrfs quota disable` and then `enable --simple` there; or, for a new state_dir, storage.driver = \"overlay\"",
        )),
        KernelBtrfs::SimpleQuotas => None,
    };
    if let Some((what, hint)) = kernel {
        return Some((what.to_owned(), hint));
    }
    facts.foreign_images.as_ref().map(|dir| {
        let dir = dir.display();
        (
            format!("images_dir is {dir}, on another file system than the pool"),
            "leave images_dir out; for a new state_dir there is storage.driver = \"overlay\"",
        )
    })
}

/// Whether sandboxes or images are there of a time when there was no choice. Images alone would not be lost by another
/// driver, but gone from every listing.
fn has_older(state_dir: &Path, images_dir: Option<&Path>) -> bool {
    let has_entries = |dir: &Path| fs::read_dir(dir).is_ok_and(|mut all| all.next().is_some());
    has_entries(&state_dir.join("sandboxes"))
        || (images_dir.is_none() && images_outside(state_dir).join("index.json").exists())
}

fn is_on_btrfs(dir: &Path) -> bool {
    nearest(dir, |path| {
        statfs(path).map(|found| found.filesystem_type() == BTRFS_SUPER_MAGIC)
    })
    .unwrap_or(false)
}

/// Whether quotas are counted in the full way where a directory is, or will be. Not so where it cannot be told: the driver's own
/// start looks again.
fn has_full_quotas(dir: &Path) -> bool {
    let quotas = |path: &Path| {
        let dir = File::open(path).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
        if !btrfs::is_btrfs(&dir)? {
            return Ok(false);
        }
        let quotas = btrfs::quotas(&dir).map_err(|_| Errno::EIO)?;
        Ok(quotas == Some(Quotas::Full))
    };
    nearest(dir, quotas).unwrap_or(false)
}

/// Whether a directory is of the same file system as the pool is, or will be when it is mounted.
fn is_in_pool(dir: &Path, state_dir: &Path) -> bool {
    if dir.starts_with(pool_dir(state_dir)) {
        return true;
    }
    // Subvolumes have ids of their own: images in another one than the state directory's pass for foreign, which is safe.
    let id = |path: &Path| nix::sys::statvfs::statvfs(path).map(|found| found.filesystem_id());
    is_on_btrfs(state_dir)
        && is_on_btrfs(dir)
        && nearest(dir, id)
            .zip(nearest(state_dir, id))
            .is_some_and(|(one, other)| one == other)
}

/// What is found out of a path, or of the nearest directory above it that is there.
fn nearest<T>(path: &Path, look: impl Fn(&Path) -> nix::Result<T>) -> Option<T> {
    path.ancestors().find_map(|path| match look(path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        other => Some(other.ok()),
    })?
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    version: u32,
    driver: Driver,
}

/// What was chosen before. A file that cannot be understood is an error: a guess could be the wrong driver.
fn read(state_dir: &Path) -> Result<Option<Driver>, StorageError> {
    let path = state_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| StorageError::io("read", &path, e))?,
    };
    match serde_json::from_slice::<Remembered>(&bytes) {
        Ok(found) if found.version == VERSION => Ok(Some(found.driver)),
        Ok(found) => Err(StorageError::Unfit {
            what: format!(
                "{} has version {}, and this lodged knows {VERSION}",
                path.display(),
                found.version
            ),
            hint: "start the lodged that wrote it, or a newer one",
        }),
        Err(error) => Err(StorageError::Unfit {
            what: format!("{} cannot be read: {error}", path.display()),
            hint: "it says {\"version\":1,\"driver\":…}: write it anew with the driver that the sandboxes have",
        }),
    }
}

fn write(state_dir: &Path, driver: Driver) -> Result<(), StorageError> {
    let path = state_dir.join(FILE);
    let remembered = Remembered {
        version: VERSION,
        driver,
    };
    let bytes = serde_json::to_vec(&remembered).expect("plain values are JSON");
    let new = fault::around("storage.write temp", || Replacement::write(&path, &bytes))
        .map_err(|e| StorageError::io("write beside", &path, e))?;
    fault::around("storage.rename", || new.place())
        .map_err(|e| StorageError::io("put into place", &path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Raw;

    const ABLE: Facts = Facts {
        remembered: None,
        older: false,
        kernel: KernelBtrfs::SimpleQuotas,
        state_on_btrfs: false,
        state_has_full_quotas: false,
        has_mkfs: true,
        foreign_images: None,
    };

    fn driver(wish: Wish, facts: &Facts) -> Result<Driver, String> {
        decide(wish, facts)
            .map(|(driver, _)| driver)
            .map_err(|error| error.to_string())
    }

    fn config(state_dir: &Path, driver: &str) -> Config {
        let text = format!("state_dir = {state_dir:?}\n[storage]\ndriver = {driver:?}\n");
        Config::resolve(Raw::default().file(Path::new("test.toml"), &text)).expect("valid")
    }

    #[test]
    fn auto_takes_btrfs_only_where_nothing_is_in_its_way() {
        let (btrfs, overlay) = (Ok(Driver::Btrfs), Ok(Driver::Overlay));
        assert_eq!(driver(Wish::Auto, &ABLE), btrfs);
        let without_mkfs = Facts {
            has_mkfs: false,
            ..ABLE
        };
        assert_eq!(driver(Wish::Auto, &without_mkfs), overlay);
        let on_btrfs = Facts {
            state_on_btrfs: true,
            ..without_mkfs
        };
        assert_eq!(driver(Wish::Auto, &on_btrfs), btrfs);
        for facts in [
            Facts {
                kernel: KernelBtrfs::Absent,
                ..ABLE
            },
            Facts {
                kernel: KernelBtrfs::FullQuotas,
                ..ABLE
            },
            Facts {
                kernel: KernelBtrfs::FullQuotas,
                ..on_btrfs.clone()
            },
            Facts {
                state_has_full_quotas: true,
                ..on_btrfs
            },
            Facts {
                foreign_images: Some("/images".into()),
                ..ABLE
            },
            Facts {
                older: true,
                ..ABLE
            },
        ] {
            assert_eq!(driver(Wish::Auto, &facts), overlay, "{facts:?}");
            let refused = driver(Wish::One(Driver::Btrfs), &facts).expect_err("in the way");
            assert!(refused.contains("storage.driver is btrfs"), "{refused}");
        }
    }

    #[test]
    fn what_was_chosen_stays_and_another_one_is_refused() {
        for (has, other) in [
            (Driver::Btrfs, Driver::Overlay),
            (Driver::Overlay, Driver::Btrfs),
        ] {
            let facts = Facts {
                remembered: Some(has),
                ..ABLE
            };
            assert_eq!(driver(Wish::Auto, &facts), Ok(has));
            assert_eq!(driver(Wish::One(has), &facts), Ok(has));
            assert!(driver(Wish::One(other), &facts).is_err());
        }
    }

    #[test]
    fn a_pool_that_cannot_be_used_any_more_is_told_and_not_given_up() {
        let has = Facts {
            remembered: Some(Driver::Btrfs),
            ..ABLE
        };
        let without_mkfs = Facts {
            has_mkfs: false,
            ..has.clone()
        };
        assert_eq!(driver(Wish::Auto, &without_mkfs), Ok(Driver::Btrfs));
        for facts in [
            Facts {
                kernel: KernelBtrfs::Absent,
                ..has.clone()
            },
            Facts {
                kernel: KernelBtrfs::FullQuotas,
                ..has.clone()
            },
            Facts {
                foreign_images: Some("/images".into()),
                ..has
            },
        ] {
            let refused = driver(Wish::Auto, &facts).expect_err("of no use");
            assert!(
                refused.contains("the sandboxes here are btrfs's"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_choice_is_remembered_by_the_state_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let chosen = choose(&config(dir.path(), "overlay")).expect("overlay is always there");
        assert_eq!((chosen.driver, chosen.pool), (Driver::Overlay, None));
        assert_eq!(chosen.images_dir, dir.path().join("images"));
        remember(dir.path(), chosen.driver).expect("written");
        let text = fs::read_to_string(dir.path().join(FILE)).expect("written");
        assert_eq!(text, r#"{"version":1,"driver":"overlay"}"#);
        let refused = choose(&config(dir.path(), "btrfs")).expect_err("another driver");
        assert!(matches!(refused, StorageError::Unfit { .. }), "{refused}");
        let still = choose(&config(dir.path(), "auto")).expect("what it was");
        assert_eq!(still.driver, Driver::Overlay);
    }

    #[test]
    fn choosing_alone_writes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        choose(&config(dir.path(), "overlay")).expect("chosen");
        assert!(!dir.path().join(FILE).exists());
    }

    #[test]
    fn sandboxes_or_images_of_older_versions_stay_with_overlay() {
        for path in ["sandboxes/x", "images/index.json"] {
            let dir = tempfile::tempdir().expect("a directory");
            fs::create_dir_all(dir.path().join(path)).expect("made");
            let choice = choose(&config(dir.path(), "auto")).expect("chosen");
            assert_eq!(choice.driver, Driver::Overlay, "{path}");
            assert!(choose(&config(dir.path(), "btrfs")).is_err(), "{path}");
        }
    }

    #[test]
    fn a_choice_that_cannot_be_read_is_no_choice_of_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in [
            "",
            "{}",
            r#"{"version":2,"driver":"btrfs"}"#,
            r#"{"version":1,"driver":"zfs"}"#,
        ] {
            fs::write(dir.path().join(FILE), text).expect("written");
            let refused = choose(&config(dir.path(), "auto")).expect_err(text);
            assert!(refused.to_string().contains(FILE), "{refused}");
        }
    }

    #[test]
    fn images_elsewhere_are_in_the_way_of_a_pool_and_those_in_it_are_not() {
        let state = Path::new("/proc/lodge");
        assert!(is_in_pool(Path::new("/proc/lodge/pool/images"), state));
        assert!(!is_in_pool(Path::new("/sys/images"), state));
        assert!(!is_in_pool(Path::new("/proc/lodge/images"), state));
    }
}
