//! Layers as subvolumes: an image must be what an overlay of the same layers shows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lodge_kernel::btrfs;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{lgetxattr, llistxattr};
use tempfile::TempDir;

use super::archive::{Archive, Item};
use super::arena::{Arena, opened};
use super::layers::{config, saved};
use super::pool::{Pool, own_namespace};
use super::prune::NOBODY;
use crate::image::{Form, Image, ImageError, ImageName, ImageRef, Removed};

/// Directories that the uppermost layer which has them does not list: nobody says what time they have.
const TIMELESS: &[&str] = &["", "implied", "link", "late", "late/sub", "through"];

fn dir(name: &str, mode: u32, owner: (u64, u64), mtime: u64) -> Item {
    Item {
        mode,
        owner,
        mtime,
        ..Item::new(b'5', name)
    }
}

fn xattrs(archive: Archive, attributes: &[(&str, &str)]) -> Archive {
    let keys: Vec<_> = attributes
        .iter()
        .map(|(name, value)| (format!("SCHILY.xattr.user.{name}"), value.as_bytes()))
        .collect();
    let records: Vec<_> = keys
        .iter()
        .map(|(key, value)| (key.as_str(), *value))
        .collect();
    archive.pax(&records)
}

/// Three layers that do to each other all that layers can do.
fn layers() -> [Vec<u8>; 3] {
    [lowest().finish(), middle().finish(), uppermost().finish()]
}

fn lowest() -> Archive {
    let archive = xattrs(Archive::default(), &[("root", "1")]).item(&dir("./", 0o711, (1, 1), 5));
    let archive = xattrs(archive, &[("below", "1"), ("both", "1")]);
    let archive = archive.item(&dir("d", 0o2775, (10, 20), 100));
    let lowest = xattrs(archive, &[("of", "file")])
        .file("d/kept", "1")
        .file("d/gone", "1")
        .file("d/replaced", "1")
        .item(&dir("d/sub", 0o700, (1, 2), 101))
        .file("d/sub/f", "1")
        .symlink("link", "d")
        .symlink("through", "/etc")
        .file("todir", "1")
        .dir("tofile")
        .file("tofile/f", "1")
        .item(&dir("opaque", 0o755, (3, 3), 102))
        .file("opaque/below", "1")
        .dir("opaque/deep")
        .file("opaque/deep/below", "1")
        .dir("opaque/untouched")
        .file("opaque/untouched/below", "1")
        .dir("late")
        .file("late/below", "1")
        .dir("late/sub")
        .file("late/sub/below", "1")
        .dir("early")
        .file("early/below", "1")
        .item(&dir("hard", 0o755, (0, 0), 105))
        .file("hard/one", "1")
        .hard_link("hard/two", "hard/one");
    xattrs(lowest, &[("implied", "1")])
        .item(&dir("implied", 0o700, (5, 5), 103))
        .file("implied/below", "1")
        .item(&dir("locked", 0o555, (0, 0), 104))
        .file("locked/f", "1")
}

fn middle() -> Archive {
    xattrs(Archive::default(), &[("both", "2")])
        .item(&dir("d", 0o750, (11, 21), 200))
        .file("d/.wh.gone", "")
        .item(&Item {
            content: b"22".to_vec(),
            mode: 0o4711,
            owner: (7, 8),
            mtime: 201,
            ..Item::new(b'0', "d/replaced")
        })
        .file("link/in", "2")
        .dir("todir")
        .file("todir/f", "2")
        .file("tofile", "2")
        // Marker last: what this layer has in the directory stays.
        .item(&dir("opaque", 0o711, (4, 4), 202))
        .file("opaque/own", "2")
        .dir("opaque/deep")
        .file("opaque/deep/own", "2")
        .file("opaque/.wh..wh..opq", "")
        .file("late/own", "2")
        .file("late/sub/own", "2")
        .file(".wh.late", "")
        // Marker first.
        .file(".wh.early", "")
        .dir("early")
        .file("early/own", "2")
        .item(&dir("hard", 0o755, (0, 0), 203))
        .file("hard/one", "2")
        .hard_link("hard/three", "hard/one")
        .file("implied/own", "2")
        .file(".wh.never-there", "")
        .item(&dir("locked", 0o555, (0, 0), 204))
        .file("locked/own", "2")
}

fn uppermost() -> Archive {
    Archive::default()
        .item(&dir("d", 0o700, (12, 22), 300))
        .file("d/gone", "3")
        .symlink("d/sub", "/etc")
        .item(&dir("opaque", 0o755, (0, 0), 301))
        .file("opaque/below", "3")
        .file("through/passwd", "3")
        .file(".wh.early", "")
        .file(".wh.tofile", "")
}

/// What can be seen of a file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    /// `None` if nobody said.
    mtime: Option<i64>,
    content: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(name) = left.pop() {
        let path = root.join(&name);
        let meta = fs::symlink_metadata(&path).expect("there");
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("listed");
            left.extend(entries.map(|entry| name.join(entry.expect("listed").file_name())));
        }
        let timeless = TIMELESS.iter().any(|timeless| name == Path::new(timeless));
        let content = if meta.is_symlink() {
            let target = fs::read_link(&path).expect("read").into_os_string();
            OsString::into_encoded_bytes(target)
        } else if meta.is_dir() {
            Vec::new()
        } else {
            fs::read(&path).expect("read")
        };
        let seen = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: (!timeless).then(|| meta.mtime()),
            content,
            xattrs: attributes(&path),
        };
        all.insert(name, seen);
    }
    all
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 4096];
    let length = llistxattr(path, &mut list[..]).expect("listed");
    let names = list[..length].split(|b| *b == 0).filter(|n| !n.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let length = lgetxattr(path, name, &mut value[..]).expect("there");
            value.truncate(length);
            (String::from_utf8_lossy(name).into_owned(), value)
        })
        .collect()
}

/// What an overlay of the image's layers shows, mounted with the options that sandboxes mount it with.
fn seen_in_overlay(image: &Image) -> BTreeMap<PathBuf, Seen> {
    let (mountpoint, empty) = (TempDir::new(), TempDir::new());
    let (mountpoint, empty) = (
        mountpoint.expect("a directory"),
        empty.expect("a directory"),
    );
    let roots = image.roots();
    // An overlay of one layer alone is refused.
    let lowers: Vec<_> = roots
        .iter()
        .rev()
        .map(PathBuf::as_path)
        .chain([empty.path()])
        .map(|root| root.to_str().expect("text"))
        .collect();
    let options = format!("userxattr,lowerdir={}", lowers.join(":"));
    own_namespace();
    let source = Some("overlay");
    mount(
        source,
        mountpoint.path(),
        source,
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .expect("mounted");
    let seen = seen(mountpoint.path());
    nix::mount::umount(mountpoint.path()).expect("unmounted");
    seen
}

fn saved_layers(layers: &[Vec<u8>]) -> Vec<u8> {
    saved(layers, &config(layers)).finish()
}

fn only_root(image: &Image) -> PathBuf {
    let roots = image.roots();
    assert_eq!(roots.len(), 1, "the uppermost subvolume alone");
    roots.into_iter().next().expect("one")
}

fn named(text: &str) -> ImageRef {
    ImageRef::parse(text).expect("a valid reference")
}

/// The ids of all subvolumes of the arena's pool that are in sight.
fn subvolumes(pool: &Pool) -> Vec<u64> {
    const TOP: u64 = 5;
    btrfs::subvolumes(fs::File::open(pool.path()).expect("opened"), TOP).expect("listed")
}

#[test]
fn a_subvolume_is_what_an_overlay_shows() {
    let (overlay, pool) = (Arena::new(), Pool::new());
    let arena = Arena::on(&pool);
    // Of one layer, of two, of all: each layer does to those below what it must.
    for count in 1..=layers().len() {
        let archive = saved_layers(&layers()[..count]);
        let expected = overlay.import(&archive).expect("imported");
        let image = arena.import(&archive).expect("imported");
        assert_eq!(image.digest, expected.digest, "it is the same image");
        assert_eq!(image.left_out, expected.left_out);
        assert_eq!(image.size_bytes, expected.size_bytes);
        let (there, expected) = (seen(&only_root(&image)), seen_in_overlay(&expected));
        assert_eq!(
            there.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>()
        );
        for (name, expected) in &expected {
            assert_eq!(&there[name], expected, "{}, of {count}", name.display());
        }
        arena.check_outside();
    }
}

/// The comparison above would not see it if both forms left out the same.
#[test]
fn of_three_layers_each_does_its_part() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let image = arena.import(&saved_layers(&layers())).expect("imported");
    let root = only_root(&image);
    let names: Vec<_> = seen(&root)
        .into_keys()
        .map(|name| name.to_str().expect("text").to_owned())
        .collect();
    let expected = "|d|d/gone|d/kept|d/replaced|d/sub|hard|hard/one|hard/three|hard/two|implied|implied/below|\
                    implied/own|late|late/own|late/sub|late/sub/own|link|link/in|locked|locked/f|locked/own|opaque|\
                    opaque/below|opaque/deep|opaque/deep/own|opaque/own|through|through/passwd|todir|todir/f";
    assert_eq!(names.join("|"), expected);
    let facts = |name: &str| {
        let meta = fs::symlink_metadata(root.join(name)).expect(name);
        (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.mtime())
    };
    assert_eq!(facts("d"), (0o700, 12, 22, 300));
    assert_eq!(facts("d/replaced"), (0o4711, 7, 8, 201));
    assert_eq!(facts("locked"), (0o555, 0, 0, 204));
    assert_eq!(attributes(&root.join("d")), BTreeMap::new());
    assert_eq!(attributes(&root.join("implied")), BTreeMap::new());
    assert_eq!(attributes(&root.join("d/kept"))["user.of"], b"file");
    assert_eq!(fs::read(root.join("hard/two")).expect("there"), b"1");
    let inode = |name: &str| fs::metadata(root.join(name)).expect(name).ino();
    assert_eq!(inode("hard/one"), inode("hard/three"));
    let written = fs::write(root.join("new"), "");
    let error = written.expect_err("an image is read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// What a hard link names must be in its own layer, as where layers lie apart.
#[test]
fn a_hard_link_to_a_layer_below_is_refused() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let lower = Archive::default().file("f", "1").finish();
    let upper = Archive::default().hard_link("g", "f").finish();
    let message = arena.refused(&saved_layers(&[lower, upper]));
    assert!(message.contains("is not in this layer"), "{message}");
    assert_eq!(subvolumes(&pool), [0; 0]);
}

/// A symbolic link that the layer itself made is no directory, as ever.
#[test]
fn a_way_through_a_link_of_the_same_layer_is_refused() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let lower = Archive::default().dir("l").finish();
    let outside = arena.outside();
    let target = outside.to_str().expect("text");
    let upper = Archive::default().symlink("l", target).file("l/f", "x");
    let message = arena.refused(&saved_layers(&[lower, upper.finish()]));
    assert!(message.contains("leads through"), "{message}");
}

#[test]
fn a_shared_chain_is_stored_once_and_stays_while_an_image_has_it() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let [a, b, c] = layers();
    let import = |name: &str, layers: &[Vec<u8>]| {
        arena
            .import_as(name, &saved_layers(layers))
            .expect("imported")
    };
    let one = import("one", &[a.clone(), b.clone()]);
    let two = import("two", &[a.clone(), b.clone(), c.clone()]);
    // The same layer above another one is another chain.
    let three = import("three", &[a.clone(), c]);
    assert_eq!(one.layers, two.layers[..2]);
    assert_eq!(one.layers[0], three.layers[0]);
    assert_eq!(two.layers[2].diff_id, three.layers[1].diff_id);
    assert_ne!(two.layers[2].path, three.layers[1].path);
    assert_eq!((subvolumes(&pool).len(), arena.listing().len()), (4, 4));

    let before = seen(&only_root(&two));
    assert_eq!(
        arena.store.remove(&named("one"), &NOBODY).expect("removed"),
        Removed::Image
    );
    assert_eq!(subvolumes(&pool).len(), 4, "both are below another image");
    assert_eq!(arena.store.resolve(&named("two")).expect("whole"), two);
    arena.store.remove(&named("three"), &NOBODY).expect("gone");
    assert_eq!(subvolumes(&pool).len(), 3);
    assert_eq!(seen(&only_root(&two)), before);
    arena.store.remove(&named("two"), &NOBODY).expect("gone");
    assert_eq!(subvolumes(&pool), [0; 0]);
    assert!(arena.listing().is_empty());
}

/// A subvolume that somebody made in a layer by hand keeps it from being destroyed; ours takes both.
#[test]
fn a_subvolume_in_a_layer_goes_with_it() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let left = arena.images().join("staging/dead/0");
    fs::create_dir_all(&left).expect("made");
    let at = |path: &Path| fs::File::open(path).expect("opened");
    btrfs::create_subvolume(at(&left), "root").expect("made");
    btrfs::create_subvolume(at(&left.join("root")), "inner").expect("made");
    btrfs::create_subvolume(at(&left.join("root/inner")), "innermost").expect("made");
    fs::write(left.join("root/inner/innermost/f"), "x").expect("written");
    opened(&arena.images(), Form::Subvolumes).expect("opened");
    assert!(arena.listing().is_empty());
    assert_eq!(subvolumes(&pool), [0; 0]);
}

#[test]
fn subvolumes_need_btrfs() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory of a tmpfs");
    let refused = opened(directory.path(), Form::Subvolumes);
    assert!(matches!(refused, Err(ImageError::NotBtrfs)), "{refused:?}");
}

/// A store opened in another form would take all its layers for unused.
#[test]
fn a_store_keeps_its_form() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let archive = saved_layers(&layers());
    let image = arena.import(&archive).expect("imported");
    let other = opened(&arena.images(), Form::Directories);
    assert!(
        matches!(other, Err(ImageError::OtherForm { .. })),
        "{other:?}"
    );
    let again = opened(&arena.images(), Form::Subvolumes).expect("opened");
    assert_eq!(again.resolve(&named("test")).expect("whole"), image);

    let directories = pool.path().join("directories");
    let store = opened(&directories, Form::Directories).expect("opened");
    let name = ImageName::parse("test").expect("valid");
    let archive = arena.received(&archive);
    let image = store
        .import(&name, &archive, &mut |_| ControlFlow::Continue(()))
        .expect("imported");
    let other = opened(&directories, Form::Subvolumes);
    assert!(
        matches!(other, Err(ImageError::OtherForm { .. })),
        "{other:?}"
    );
    assert_eq!(store.resolve(&named("test")).expect("whole"), image);
}

#[test]
fn a_missing_subvolume_is_named_and_mended() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let archive = saved_layers(&layers());
    let image = arena.import(&archive).expect("imported");
    let before = seen(&only_root(&image));
    // In the place of a layer in the middle there is a directory of the same name.
    let layer = image.layers[1].path.parent().expect("it has one");
    btrfs::destroy(fs::File::open(layer).expect("opened"), "root").expect("destroyed");
    fs::create_dir(layer.join("root")).expect("made");
    let damaged = arena.store.resolve(&named("test"));
    assert!(
        matches!(damaged, Err(ImageError::LayerMissing { .. })),
        "{damaged:?}"
    );
    fs::remove_dir_all(layer).expect("removed");
    symlink("nowhere", arena.images().join("staging/link")).expect("made");
    arena.import(&archive).expect("importing again mends it");
    assert_eq!(arena.store.resolve(&named("test")).expect("whole"), image);
    assert_eq!(seen(&only_root(&image)), before);
}

/// Killed once the layers had their places, before the index had the image; or once the index had it no more.
#[test]
fn a_subvolume_that_no_image_has_goes_at_the_next_start() {
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let image = arena.import(&saved_layers(&layers())).expect("imported");
    let listing = arena.listing();
    for unused in ["layers", "staging"].map(|part| arena.images().join(part).join("0".repeat(64))) {
        fs::create_dir(&unused).expect("made");
        let (dir, below) = (fs::File::open(&unused), fs::File::open(only_root(&image)));
        let (dir, below) = (dir.expect("opened"), below.expect("opened"));
        btrfs::snapshot(below, dir, "root", btrfs::Access::ReadOnly, &[]).expect("made");
    }
    assert_eq!(subvolumes(&pool).len(), 5);
    let store = opened(&arena.images(), Form::Subvolumes).expect("opened");
    assert_eq!((arena.listing(), subvolumes(&pool).len()), (listing, 3));
    assert_eq!(store.resolve(&named("test")).expect("whole"), image);
}

/// Says to a process of this test where it is to import, and at which step it is to die.
const CHILD: &str = "LODGE_TEST_IMPORT_INTO";

/// Whatever it has made when it is killed: after the next start nothing of it is there.
#[test]
fn an_import_that_is_killed_at_any_step_leaves_nothing() {
    if let Ok(text) = std::env::var(CHILD) {
        return import_and_die(&text);
    }
    let pool = Pool::new();
    let arena = Arena::on(&pool);
    let base = arena
        .import_as("kept", &saved_layers(&layers()[..1]))
        .expect("imported");
    let (kept, listing) = (subvolumes(&pool), arena.listing());
    let mut step = 1;
    while died(&arena.images(), step) {
        let store = opened(&arena.images(), Form::Subvolumes).expect("opened");
        assert_eq!(subvolumes(&pool), kept, "killed at step {step}");
        assert_eq!(arena.listing(), listing, "killed at step {step}");
        assert_eq!(store.list().expect("read"), std::slice::from_ref(&base));
        step += 1;
    }
    // Each of three layers is at least once made and once written.
    assert!(step > 20, "it was killed at {step} steps alone");
    let all = arena.store.list().expect("read");
    assert_eq!((all.len(), subvolumes(&pool).len()), (2, 3));
}

/// Has a process of its own import, to be killed at a step. False if there are not so many.
fn died(images: &Path, step: u32) -> bool {
    let test = "image::tests::subvolumes::an_import_that_is_killed_at_any_step_leaves_nothing";
    let status = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{step} {}", images.display()))
        .stdout(std::process::Stdio::null())
        .status()
        .expect("started");
    use std::os::unix::process::ExitStatusExt as _;
    match status.signal() {
        Some(signal) => {
            assert_eq!(signal, Signal::SIGKILL as i32);
            true
        }
        None => {
            assert!(status.success(), "{status}");
            false
        }
    }
}

fn import_and_die(text: &str) {
    let (step, images) = text.split_once(' ').expect("both");
    let mut left: u32 = step.parse().expect("a number");
    let store = opened(Path::new(images), Form::Subvolumes).expect("opened");
    let archive = super::arena::received(&store, &saved_layers(&layers()));
    let name = ImageName::parse("new").expect("valid");
    let imported = store.import(&name, &archive, &mut |_| {
        left = left.saturating_sub(1);
        if left == 0 {
            kill(Pid::this(), Signal::SIGKILL).expect("dead");
        }
        ControlFlow::Continue(())
    });
    imported.expect("it was not killed");
}
