use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::io::{Errno as RawErrno, ReadWriteFlags, preadv2};

use super::*;

#[test]
fn roots_are_made_ahead_of_the_image_that_is_used() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let images = ["1", "2"].map(|name| host.image(name, MIB));
        host.create("a", &images[0], PLENTY);
        host.until_spares_are_ready(&images[0]);
        let before = host.roots();
        assert_eq!(before.len(), 3);
        let sandbox = host.create("b", &images[0], limit(16 * MIB));
        let volume = Volume::read(&sandbox.dir).expect("read").expect("named");
        assert!(before.contains(&volume.to_string()));
        // One that was made ahead is held to the limit of who gets it.
        assert!(sandbox.fill() <= 16 * MIB);
        assert_eq!(host.driver.ready_of(&images[1][0]), 0);
        host.create("c", &images[1], PLENTY);
        host.until_spares_are_ready(&images[1]);

        // They do not outlive their image.
        let dir = File::open(state.path().join("pool/images")).expect("open");
        btrfs::destroy(dir, "1").expect("destroyed");
        host.driver.keep_reserve().expect("kept");
        assert_eq!(host.driver.ready_of(&images[0][0]), 0);
        host.until_all_is_removed();
        assert_eq!(host.roots().len(), 3 + 2);
    });
}

/// A shell as Debian has it, and a pipe where there would be another file to read.
fn add_shell(image: &Path) {
    let bin = image.join("usr/bin");
    fs::create_dir_all(&bin).expect("made");
    fs::create_dir(image.join("etc")).expect("made");
    write(&bin.join("bash"), MIB).expect("written");
    symlink("/usr/bin", image.join("bin")).expect("linked");
    mkfifo(&image.join("etc/passwd"), Mode::S_IRWXU).expect("made");
}

/// Snapshots share no pages: whoever gets one would wait for the disk with the first command.
#[test]
fn the_shell_of_what_is_made_ahead_is_in_memory() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image_with("1", MIB, add_shell);
        host.create("a", &image, PLENTY);
        host.until_spares_are_ready(&image);
        let sandbox = host.create("b", &image, PLENTY);
        until("read", || is_in_memory(&sandbox.root.join("usr/bin/bash")));
        assert!(!is_in_memory(&sandbox.root.join("of-image")));
    });
}

/// Whether the first page of a file can be had without the disk.
fn is_in_memory(path: &Path) -> bool {
    let file = File::open(path).expect("open");
    let mut page = [0; 4096];
    let mut into = [io::IoSliceMut::new(&mut page)];
    match preadv2(&file, &mut into, 0, ReadWriteFlags::NOWAIT) {
        Ok(read) => read > 0,
        Err(RawErrno::AGAIN) => false,
        Err(errno) => panic!("{}: {errno}", path.display()),
    }
}
