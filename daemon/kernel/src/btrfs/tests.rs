//! On a btrfs of their own, in a file.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::mkdirat;

use super::*;
use crate::block::tests::wait_until_gone;
use crate::block::{LoopDevice, mount};

const MIB: u64 = 1 << 20;
const GROUP: u64 = 1 << LEVEL_SHIFT | 77;
const ALL: u64 = 2 << LEVEL_SHIFT | 1;

/// A mounted btrfs that is gone with this.
struct Pool {
    top: Option<OwnedFd>,
    file: File,
    _temp: tempfile::TempDir,
}

impl Pool {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("pool");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = file.expect("new");
        file.set_len(512 * MIB).expect("sized");
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-m", "single"])
            .arg(&path)
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("mkfs.btrfs of btrfs-progs").success());
        let device = LoopDevice::of(&file).expect("made");
        let mounted = mount(c"btrfs", &device.path(), &[], 0).expect("mounted");
        Self {
            top: Some(dir(&mounted, ".")),
            file,
            _temp: temp,
        }
    }

    fn top(&self) -> &OwnedFd {
        self.top.as_ref().expect("mounted")
    }

    /// Its top, with an image in `image` and a group below another one.
    fn with_image_and_group() -> Self {
        let pool = Self::new();
        let top = pool.top();
        assert_eq!(enable_quotas(top).expect("enabled"), Quotas::Simple);
        create_subvolume(top, "image").expect("made");
        write(dir(top, "image"), "file", 8 * MIB).expect("written");
        for group in [ALL, GROUP] {
            create_group(top, group).expect("made");
        }
        assign(top, GROUP, ALL).expect("assigned");
        pool
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.top = None;
        if !std::thread::panicking() {
            wait_until_gone(&self.file);
        }
    }
}

fn dir(parent: impl AsFd, path: &str) -> OwnedFd {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(parent, path, flags, Mode::empty()).expect("a directory")
}

/// Writes so many bytes to a new file, and has them on disk.
fn write(parent: impl AsFd, name: &str, bytes: u64) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(parent, name, flags, Mode::S_IRWXU)?);
    let chunk = vec![b'x'; usize::try_from(MIB).expect("small")];
    for _ in 0..bytes / MIB {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: still not so");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_btrfs_is_known_and_what_is_not() {
    let pool = Pool::new();
    assert!(is_btrfs(pool.top()).expect("asked"));
    assert!(!is_btrfs(File::open("/proc").expect("open")).expect("asked"));
    let wrong = create_subvolume(File::open("/proc").expect("open"), "x");
    assert_eq!(wrong, Err(Errno::ENOTTY));
}

#[test]
fn a_snapshot_has_the_files_and_an_id_of_its_own() {
    let pool = Pool::new();
    let top = pool.top();
    create_subvolume(top, "image").expect("made");
    assert_eq!(create_subvolume(top, "image"), Err(Errno::EEXIST));
    write(dir(top, "image"), "file", MIB).expect("written");
    set_read_only(dir(top, "image")).expect("set");
    let refused = write(dir(top, "image"), "other", MIB).expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));

    snapshot(dir(top, "image"), top, "root", Access::ReadWrite, &[]).expect("made");
    snapshot(dir(top, "image"), top, "still", Access::ReadOnly, &[]).expect("made");
    write(dir(top, "root"), "file", 2 * MIB).expect("written");
    write(dir(top, "still"), "file", MIB).expect_err("read-only");
    let ids = ["image", "root", "still"].map(|name| id(dir(top, name)).expect("an id"));
    assert!(ids[0] < ids[1] && ids[1] < ids[2], "{ids:?}");
    assert_eq!(
        subvolumes(top, id(top).expect("an id")).expect("listed"),
        ids
    );
    assert_eq!(all_subvolumes(top).expect("listed"), ids);
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let pool = Pool::new();
    assert_eq!(create_subvolume(pool.top(), "a\0b"), Err(Errno::EINVAL));
    let long = "x".repeat(4088);
    assert_eq!(
        create_subvolume(pool.top(), &long),
        Err(Errno::ENAMETOOLONG)
    );
    assert!(destroy(pool.top(), "..").is_err());
}

#[test]
fn what_is_destroyed_is_out_of_sight_at_once_and_dropped_later() {
    let pool = Pool::new();
    let top = pool.top();
    create_subvolume(top, "outer").expect("made");
    mkdirat(dir(top, "outer"), "a", Mode::S_IRWXU).expect("made");
    create_subvolume(dir(top, "outer/a"), "inner").expect("made");
    write(dir(top, "outer/a/inner"), "file", 4 * MIB).expect("written");
    let [outer, inner] = ["outer", "outer/a/inner"].map(|path| id(dir(top, path)).expect("an id"));

    assert_eq!(destroy(top, "outer"), Err(Errno::ENOTEMPTY));
    assert_eq!(subvolumes(top, outer).expect("listed"), [inner]);
    destroy_by_id(top, inner).expect("destroyed");
    assert_eq!(destroy_by_id(top, inner), Err(Errno::ENOENT));
    assert!(subvolumes(top, outer).expect("listed").is_empty());
    destroy(top, "outer").expect("destroyed");
    assert_eq!(destroy(top, "outer"), Err(Errno::ENOENT));
    for id in [inner, outer] {
        until("dropped", || {
            sync(top).expect("synced");
            is_dropped(top, id).expect("asked")
        });
    }
    assert!(all_subvolumes(top).expect("listed").is_empty());
}

#[test]
fn a_list_longer_than_one_answer_is_whole() {
    const COUNT: usize = 150;
    let pool = Pool::new();
    enable_quotas(pool.top()).expect("enabled");
    for number in 0..COUNT {
        create_subvolume(pool.top(), &format!("s{number}")).expect("made");
    }
    let all = all_subvolumes(pool.top()).expect("listed");
    assert_eq!(all.len(), COUNT);
    assert_eq!(subvolumes(pool.top(), 5).expect("listed"), all);
    let groups = groups(pool.top()).expect("listed");
    assert!(all.iter().all(|id| groups.contains(id)));
}

#[test]
fn a_snapshot_is_held_to_the_limit_of_its_group_whatever_the_image_has() {
    let pool = Pool::with_image_and_group();
    let top = pool.top();
    assert_eq!(enable_quotas(top).expect("as it is"), Quotas::Simple);
    set_limit(top, GROUP, Some(16 * MIB)).expect("set");
    snapshot(dir(top, "image"), top, "root", Access::ReadWrite, &[GROUP]).expect("made");
    let root = dir(top, "root");

    write(&root, "a", 12 * MIB).expect("below the limit");
    let full = write(&root, "b", 8 * MIB).expect_err("above it");
    assert_eq!(full.raw_os_error(), Some(libc::EDQUOT));
    let used = usage(top, GROUP).expect("read").expect("there");
    assert_eq!(used.limit, Some(16 * MIB));
    let counted = used.exclusive + used.reserved;
    assert!((12 * MIB..=16 * MIB).contains(&counted), "{used:?}");

    // More is let through as soon as the limit says so.
    set_limit(top, GROUP, Some(32 * MIB)).expect("set");
    write(&root, "b", 8 * MIB).expect("below the new limit");
    // What is above bounds it, too.
    set_limit(top, GROUP, None).expect("taken away");
    assert_eq!(usage(top, GROUP).expect("read").expect("there").limit, None);
    set_limit(top, ALL, Some(24 * MIB)).expect("set");
    let full = write(&root, "c", 16 * MIB).expect_err("above it");
    assert_eq!(full.raw_os_error(), Some(libc::EDQUOT));
}

#[test]
fn a_group_goes_once_its_members_are_gone() {
    let pool = Pool::with_image_and_group();
    let top = pool.top();
    assert_eq!(create_group(top, GROUP), Err(Errno::EEXIST));
    snapshot(dir(top, "image"), top, "root", Access::ReadWrite, &[GROUP]).expect("made");
    write(dir(top, "root"), "file", 4 * MIB).expect("written");
    let root = id(dir(top, "root")).expect("an id");
    assert_eq!(remove_group(top, GROUP), Err(Errno::EBUSY));
    assert_eq!(members(top, ALL).expect("listed"), [GROUP]);
    assert_eq!(members(top, GROUP).expect("listed"), [root]);

    destroy(top, "root").expect("destroyed");
    until("group removed", || {
        start_commit(top).expect("begun");
        if !is_dropped(top, root).expect("asked") {
            return false;
        }
        // Kernels from 6.11 on remove the group of level 0 themselves.
        let _ = remove_group(top, root);
        remove_group(top, GROUP).is_ok()
    });
    assert_eq!(remove_group(top, GROUP), Err(Errno::ENOENT));
    assert_eq!(usage(top, GROUP).expect("read"), None);
    assert_eq!(usage(top, ALL).expect("read").expect("there").exclusive, 0);
}

#[test]
fn a_file_system_grows_with_its_device() {
    let pool = Pool::new();
    let size = || {
        let figures = nix::sys::statvfs::fstatvfs(pool.top()).expect("statvfs");
        figures.blocks() * figures.fragment_size()
    };
    assert_eq!(size(), 512 * MIB);
    assert!(
        resize(pool.top(), 768 * MIB).is_err(),
        "the device is too small"
    );
    pool.file.set_len(768 * MIB).expect("sized");
    let device = LoopDevice::find(&pool.file)
        .expect("looked")
        .expect("is there");
    device.resized().expect("taken over");
    resize(pool.top(), 768 * MIB).expect("grown");
    assert_eq!(size(), 768 * MIB);
}

#[test]
fn a_kernel_with_simple_quotas_is_known_by_what_it_does() {
    let pool = Pool::new();
    let quotas = enable_quotas(pool.top()).expect("enabled");
    assert_eq!(kernel_has_simple_quotas(), quotas == Quotas::Simple);
}

#[test]
fn where_the_kernel_does_not_say_its_release_does() {
    for release in ["6.7.0", "6.7-rc1", "6.12.9-amd64", "10.0.1"] {
        assert!(is_since_simple_quotas(release), "{release}");
    }
    for release in ["6.1.0-28-amd64", "5.15.0", "6", "", "x.y", "4.18.0-553.el8"] {
        assert!(!is_since_simple_quotas(release), "{release}");
    }
}
