use super::*;

/// Blocks that fallocate(2) gave are taken of the host when they are written, with no further question.
#[test]
fn what_is_allocated_and_not_written_is_no_room_of_the_host() {
    let state = state();
    daemon(|| {
        let host = Host::start(state.path());
        let image = host.image("image", MIB);
        let sandbox = host.create("a", &image, PLENTY);
        let promised = || {
            host.used();
            let beneath = host.driver.beneath().expect("asked").expect("a file");
            let host_free = host.driver.host().expect("asked").host_free_bytes;
            host_free.saturating_sub(beneath.free_bytes)
        };
        let before = promised();
        let file = File::create(sandbox.root.join("file")).expect("new");
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, 256 * MIB).expect("room");
        let after = promised();
        assert!(after > before + 200 * MIB, "{before} {after}");
    });
}

#[test]
fn at_the_reserve_nothing_is_created_and_nothing_written() {
    let state = state();
    daemon(|| {
        let (host_free, image) = {
            let host = Host::start(state.path());
            let image = host.image("image", MIB);
            host.driver.admit().expect("room");
            host.create("a", &image, PLENTY)
                .write("file", 8 * MIB)
                .expect("room");
            (host.driver.host().expect("asked").host_free_bytes, image)
        };
        assert!(host_free > 0);
        drop_pool(state.path());
        let host = Host::start_with_reserve(state.path(), u64::MAX);
        let refused = host.driver.admit().expect_err("no room");
        assert!(matches!(
            refused,
            StorageError::Reserve {
                reserve_bytes: u64::MAX,
                ..
            }
        ));
        let sandbox = host.open("a", &image, PLENTY);
        let error = sandbox.write("more", 4 * MIB).expect_err("no room");
        assert_eq!(error.raw_os_error(), Some(Errno::EDQUOT as i32));
        assert!(host.is_full(&sandbox), "for whatever reason");
        fs::remove_file(sandbox.root.join("file")).expect("removed");
        drop(sandbox);
        host.remove("a");
        host.until_all_is_removed();
    });
}

/// The daemon is a new one in the same thread: what the former one mounted is in the way.
fn drop_pool(state: &Path) {
    nix::mount::umount(&state.join("pool")).expect("unmounted");
}
