//! Attributes that steer the kernel.

use std::path::Path;

use rustix::fs::{lgetxattr, llistxattr};

use super::archive::{Archive, Item};
use super::arena::{Arena, mode};

fn attributes(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 4096];
    let length = llistxattr(path, &mut buffer[..]).expect("listed");
    let names = buffer[..length]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// F09: setuid, setgid and sticky bits, file capabilities with a root id of their own, attributes of the trusted and
/// system kind, ACLs. The bits stay (they mean something only inside); of attributes only `user.*`, and the others are
/// listed as left out.
#[test]
fn attack_f09_bits_and_attributes() {
    let arena = Arena::new();
    // Version 3 with root id 1000: CAP_SYS_ADMIN for whoever runs it in that user's namespace.
    let capability = b"\x01\0\0\x03\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\xe8\x03\0\0";
    let hostile = [
        ("SCHILY.xattr.security.capability", capability.as_slice()),
        ("SCHILY.xattr.security.selinux", b"label"),
        ("SCHILY.xattr.trusted.secret", b"1"),
        ("SCHILY.xattr.system.posix_acl_access", b"\x02\0\0\0"),
        ("SCHILY.acl.access", b"user:1234:rwx"),
        ("SCHILY.xattr.user.kept", b"line\nend"),
    ];
    let archive = Archive::default()
        .pax(&hostile)
        .item(&Item {
            mode: 0o6755,
            ..Item::new(b'0', "f")
        })
        .pax(&hostile)
        .item(&Item {
            mode: 0o1777,
            ..Item::new(b'5', "d")
        })
        .pax(&hostile)
        .symlink("l", "f")
        .finish();
    let image = arena.import(&archive).expect("imported");
    let root = &image.layers[0].path;
    assert_eq!(
        (mode(&root.join("f")), mode(&root.join("d"))),
        (0o6755, 0o1777)
    );
    for name in ["f", "d"] {
        assert_eq!(attributes(&root.join(name)), ["user.kept"], "{name}");
    }
    assert_eq!(attributes(&root.join("l")), [""; 0]);
    let mut value = [0; 64];
    let length = lgetxattr(root.join("f"), "user.kept", &mut value[..]).expect("there");
    assert_eq!(&value[..length], b"line\nend");
    assert_eq!(image.left_out.len(), 5 + 5 + 6, "{:?}", image.left_out);
    assert!(
        image
            .left_out
            .contains(&"f: attribute security.capability".to_owned())
    );
}

/// F23: attributes by which an overlay is told to look elsewhere, to hide or to borrow data, in the form for host root
/// and in the form for user namespaces, which ours honours. None is kept, on the root neither.
#[test]
fn attack_f23_overlay_attributes() {
    let arena = Arena::new();
    let hostile = [
        ("SCHILY.xattr.user.overlay.opaque", b"y".as_slice()),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.user.overlay.metacopy", b""),
        ("SCHILY.xattr.user.overlay.whiteout", b"y"),
        ("SCHILY.xattr.user.overlay.origin", b"x"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.trusted.overlay.metacopy", b""),
        ("LIBARCHIVE.xattr.user.overlay.opaque", b"eQ=="),
    ];
    let archive = Archive::default()
        .pax(&hostile)
        .dir("./")
        .pax(&hostile)
        .dir("d");
    let image = arena
        .import(&archive.pax(&hostile).file("d/f", "").finish())
        .expect("imported");
    let root = &image.layers[0].path;
    for path in [root.clone(), root.join("d"), root.join("d/f")] {
        assert_eq!(attributes(&path), [""; 0], "{}", path.display());
    }
    assert!(
        image
            .left_out
            .contains(&"d: attribute user.overlay.redirect".to_owned())
    );
}

/// F09: more attributes than an entry may have, and one that is larger than the kernel takes.
#[test]
fn attack_f09_too_many_attributes() {
    let arena = Arena::new();
    let keys: Vec<_> = (0..65).map(|n| format!("SCHILY.xattr.user.a{n}")).collect();
    let records: Vec<_> = keys
        .iter()
        .map(|key| (key.as_str(), b"1".as_slice()))
        .collect();
    arena.refused(&Archive::default().pax(&records).file("f", "").finish());
    let large = vec![b'x'; 65 * 1024];
    let archive = Archive::default()
        .pax(&[("SCHILY.xattr.user.large", &large)])
        .file("f", "");
    let image = arena.import(&archive.finish()).expect("imported");
    assert_eq!(image.left_out, ["f: attribute user.large"]);
}
