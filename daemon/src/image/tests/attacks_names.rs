//! Names that leave the root, directly or by links.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::archive::{Archive, Item};
use super::arena::{Arena, mode};

/// F01: an entry's name climbs out with `..`, also in the middle or with backslashes, or begins at the host's root.
/// Climbing refuses the archive and names the entry; a leading slash is dropped, so the file lands inside.
#[test]
fn attack_f01_names_that_climb() {
    let arena = Arena::new();
    for name in [
        "../../outside/x",
        "../outside/canary",
        "..",
        "a/../../outside/x",
        "a/..",
        "./../x",
        "/../x",
        r"..\..\outside\x",
        r"a\..\x",
    ] {
        let message = arena.refused(&Archive::default().dir("a").file(name, "x").finish());
        assert!(message.contains("`..`"), "{name}: {message}");
        arena.refused(
            &Archive::default()
                .long_name(name)
                .file("short", "x")
                .finish(),
        );
        arena.refused(
            &Archive::default()
                .pax(&[("path", name.as_bytes())])
                .file("s", "x")
                .finish(),
        );
        arena.refused(&Archive::default().dir(name).finish());
    }
    let absolute = arena.outside().join("canary");
    let name = absolute.as_os_str().as_bytes();
    let root = arena.root_of(
        &Archive::default()
            .long_name(name)
            .file("cut", "inside")
            .finish(),
    );
    assert_eq!(
        fs::read(root.join(&absolute.to_str().expect("text")[1..])).expect("in"),
        b"inside"
    );
    arena.check_outside();
}

/// F02: a symbolic link to a directory outside, and then a file through it; the same by a chain of forty links, by a
/// link to the root's parent, by more links and directories below it. Each refuses the archive.
#[test]
fn attack_f02_writing_through_links() {
    let arena = Arena::new();
    let outside = arena.outside();
    let target = outside.as_os_str().as_bytes();
    let message = arena.refused(
        &Archive::default()
            .symlink("l", target)
            .file("l/x", "x")
            .finish(),
    );
    assert!(message.contains("not a directory"), "{message}");
    arena.refused(
        &Archive::default()
            .symlink("l", target)
            .file("l/canary", "x")
            .finish(),
    );
    arena.refused(
        &Archive::default()
            .symlink("l", target)
            .symlink("l/x", "y")
            .finish(),
    );
    arena.refused(&Archive::default().symlink("l", target).dir("l/d").finish());
    arena.refused(
        &Archive::default()
            .symlink("l", target)
            .file("l/d/e/f", "x")
            .finish(),
    );
    arena.refused(
        &Archive::default()
            .dir("d")
            .symlink("l", "d")
            .file("l/x", "x")
            .finish(),
    );
    arena.refused(&chain_of_links().file("l/l/l/outside/x", "x").finish());
    arena.refused(
        &chain_of_links()
            .file("d39/up/d38/up/up/up/outside/x", "x")
            .finish(),
    );
}

/// Forty directories, each with a link to its parent and to the one before, and a link to the root's parent.
fn chain_of_links() -> Archive {
    let mut chain = Archive::default().symlink("l", "..");
    for step in 0..40 {
        let name = format!("d{step}");
        let before = if step == 0 {
            "..".to_owned()
        } else {
            format!("../d{}", step - 1)
        };
        chain = chain
            .dir(&name)
            .symlink(format!("{name}/up"), "..")
            .symlink(format!("{name}/l"), before);
    }
    chain
}

/// F02: the link's own name comes again, as a file, as a hard link's and as a directory. The link is gone then, and what
/// it led to has the content, the mode and the owner that it had.
#[test]
fn attack_f02_replacing_links() {
    let arena = Arena::new();
    let outside = arena.outside();
    let canary = outside.join("canary");
    let archive = Archive::default()
        .symlink("l", canary.as_os_str().as_bytes())
        .hard_link("h", "l")
        .file("l", "through")
        .file("h", "through")
        .symlink("d", outside.as_os_str().as_bytes())
        .item(&Item {
            mode: 0o777,
            owner: (9, 9),
            ..Item::new(b'5', "d")
        })
        .file("d/x", "inside")
        .finish();
    let root = arena.root_of(&archive);
    assert!(
        fs::symlink_metadata(root.join("d"))
            .expect("there")
            .is_dir()
    );
    assert_eq!(fs::read(root.join("h")).expect("there"), b"through");
    arena.check_outside();
    assert_eq!(fs::metadata(&outside).expect("there").uid(), 0);
}

/// F02, F13: a directory that was looked up before is replaced by a link to outside; the next file of that directory
/// must not be written by way of what was remembered.
#[test]
fn attack_f02_a_directory_becomes_a_link() {
    let arena = Arena::new();
    let archive = Archive::default()
        .dir("d")
        .file("d/a", "a")
        .symlink("d", arena.outside().as_os_str().as_bytes())
        .file("d/b", "b")
        .finish();
    arena.refused(&archive);
    let again = Archive::default()
        .file("d/e/a", "a")
        .file("d", "")
        .dir("d")
        .file("d/e/b", "b");
    let root = arena.root_of(&again.finish());
    assert!(root.join("d/e/b").exists() && !root.join("d/e/a").exists());
}

/// F04: hard links that would give the archive a file of the host (absolute, climbing, through a link), that lead to a
/// device, to a directory, or to themselves. A link to a symbolic link is one more name of the link, not of its target.
#[test]
fn attack_f04_hard_links_that_lead_out() {
    let arena = Arena::new();
    let outside = arena.outside();
    let target = outside.as_os_str().as_bytes();
    for to in [
        "/etc/shadow",
        "../../outside/canary",
        "..",
        "",
        "h",
        "./h",
        "missing",
        "d",
        "/",
    ] {
        arena.refused(&Archive::default().dir("d").hard_link("h", to).finish());
    }
    let through = Archive::default()
        .symlink("l", target)
        .hard_link("h", "l/canary");
    arena.refused(&through.finish());
    let device = Archive::default()
        .item(&Item::new(b'3', "dev"))
        .hard_link("h", "dev");
    arena.refused(&device.finish());
    arena.refused(
        &Archive::default()
            .file(".wh.gone", "")
            .hard_link("h", "gone")
            .finish(),
    );
    arena.refused(
        &Archive::default()
            .hard_link("a", "b")
            .hard_link("b", "a")
            .finish(),
    );
    // The target goes when the entry takes its directory's place.
    arena.refused(
        &Archive::default()
            .file("d/f", "")
            .hard_link("d", "d/f")
            .finish(),
    );

    let link = Archive::default().symlink("l", outside.join("canary").as_os_str().as_bytes());
    let root = arena.root_of(&link.hard_link("h", "l").finish());
    assert!(
        fs::symlink_metadata(root.join("h"))
            .expect("there")
            .is_symlink()
    );
    assert_eq!(
        fs::metadata(outside.join("canary")).expect("there").nlink(),
        1
    );
    arena.check_outside();
}

/// F20: an archive with the names of other stores' layouts and of ours, twice, and with links to the host's root among
/// them. They are files of the image and nothing else; a root that is itself a link refuses the archive.
#[test]
fn attack_f20_the_layout_is_not_the_archives() {
    let arena = Arena::new();
    let archive = Archive::default()
        .file("metadata.yaml", "architecture: any")
        .dir("rootfs")
        .file("rootfs/etc/passwd", "")
        .symlink("rootfs", "/")
        .symlink("rootfs", "/")
        .symlink("templates", arena.outside().as_os_str().as_bytes())
        .symlink("root", "/")
        .symlink("layers", "/")
        .file("layer.json", "{}")
        .file("staging/x", "")
        .file("lock", "")
        .finish();
    let image = arena.import(&archive).expect("imported");
    let layer = image.layers[0]
        .path
        .parent()
        .expect("it has one")
        .to_owned();
    assert_eq!(
        fs::read_link(layer.join("root/rootfs"))
            .expect("a link")
            .as_os_str(),
        "/"
    );
    assert!(
        fs::symlink_metadata(layer.join("root"))
            .expect("there")
            .is_dir()
    );
    assert_eq!(
        (mode(&layer), mode(&arena.images().join("layers"))),
        (0o700, 0o700)
    );
    assert_eq!(arena.store.list().expect("readable").len(), 1);
    for root in ["./", ".", "/"] {
        let message = arena.refused(&Archive::default().symlink(root, "/").finish());
        assert!(message.contains("root"), "{message}");
        arena.refused(
            &Archive::default()
                .symlink("l", "/")
                .hard_link(root, "l")
                .finish(),
        );
    }
    arena.check_outside();
}
