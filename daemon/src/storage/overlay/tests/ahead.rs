use super::super::spares::DIR;
use super::*;

impl Bench {
    /// One whose driver has layers ready with this limit.
    fn with_spares() -> Self {
        let bench = Self::prepared(Room::Exact);
        bench.wait_for_spares();
        bench
    }

    fn wait_for_spares(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.driver.spares().ready(&LIMIT) < 2 {
            assert!(Instant::now() < end, "no spares are made");
            std::thread::yield_now();
        }
    }

    /// A second sandbox, whose layer is a spare.
    fn place_spare(&self) -> PathBuf {
        let dir = self.temp.path().join("other").join(OWN_DIR);
        fs::create_dir_all(&dir).expect("new");
        let place = Place {
            dir: &dir,
            image: &[],
        };
        self.driver.prepare(place, LIMIT).expect("prepared");
        dir
    }

    fn spares(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp.path().join(DIR)).expect("listed");
        entries.map(|e| e.expect("listed").path()).collect()
    }
}

fn image_in(dir: &Path) -> File {
    File::open(dir.join(IMAGE)).expect("an image")
}

fn device_of(image: &File) -> Option<LoopDevice> {
    LoopDevice::find(image).expect("looked")
}

fn wait_until_let_go(image: &File) {
    let end = Instant::now() + Duration::from_secs(10);
    while device_of(image).is_some() {
        assert!(Instant::now() < end, "still mounted");
        std::thread::yield_now();
    }
}

fn open(bench: &Bench, dir: &Path, limit: DiskLimit) -> Started {
    let place = Place { dir, image: &[] };
    match bench.driver.open(place, limit).expect("opened") {
        Root::Overlay {
            writable: Writable::Mount(root),
            ..
        } => Started { root },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_spare_becomes_a_layer_that_is_mounted_already_with_its_limit() {
    let bench = Bench::with_spares();
    let spares = bench.spares();
    let dir = bench.place_spare();
    let before = device_of(&image_in(&dir)).expect("mounted").name();
    let left = bench.spares();
    assert!(spares.iter().filter(|spare| !left.contains(spare)).count() == 1);
    assert_eq!(Layer::of(&dir).limit(), Some(LIMIT));

    let started = open(&bench, &dir, LIMIT);
    assert!(near(started.fill("big"), LIMIT.bytes));
    assert_eq!(device_of(&image_in(&dir)).expect("mounted").name(), before);
    // Nobody but the sandbox has it from then on.
    drop(started);
    wait_until_let_go(&image_in(&dir));
    e2fsprogs::check(&dir.join(IMAGE)).expect("a sound file system");
    bench.wait_for_spares();
}

/// Its record says more than the driver was told when it was made.
#[test]
fn a_spare_is_started_with_the_limit_of_then() {
    let bench = Bench::with_spares();
    let dir = bench.place_spare();
    let started = open(&bench, &dir, limit(128));
    assert!(near(started.fill("big"), 128 * MIB));
    drop(started);
    wait_until_let_go(&image_in(&dir));
}

#[test]
fn what_a_killed_process_left_of_spares_goes_at_the_next_start() {
    let mut bench = Bench::with_spares();
    // As they are on the disk after a kill.
    let left: Vec<_> = bench.spares().iter().map(|spare| image_in(spare)).collect();
    fs::create_dir(bench.temp.path().join(DIR).join("half")).expect("new");
    fs::write(bench.temp.path().join(DIR).join("half/layer.new"), "x").expect("written");
    bench.driver = Bench::driver(bench.temp.path(), Room::Exact);
    assert!(bench.spares().is_empty(), "{:?}", bench.spares());
    left.iter().for_each(wait_until_let_go);
    bench.start(LIMIT);
}

#[test]
fn spares_go_with_the_driver() {
    let bench = Bench::with_spares();
    let images: Vec<_> = bench.spares().iter().map(|spare| image_in(spare)).collect();
    assert_eq!(images.len(), 2);
    let Bench { driver, temp } = bench;
    drop(driver);
    images.iter().for_each(wait_until_let_go);
    assert!(
        images
            .iter()
            .all(|i| i.metadata().expect("stat").nlink() == 0)
    );
    drop(temp);
}

#[test]
fn a_host_near_its_reserve_gets_no_spares() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let host = rustix::fs::statvfs(temp.path()).expect("figures");
    let settings = Settings {
        state_dir: temp.path().to_owned(),
        // Enough is left for one, if others write or remove some beside it, too.
        reserve_bytes: host.f_bavail * host.f_frsize - (128 << 20),
    };
    let bench = Bench {
        driver: Overlay::with_room(settings, Room::Exact).expect("opened"),
        temp,
    };
    assert!(bench.driver.spares().take(LIMIT).is_none());
    let end = Instant::now() + Duration::from_secs(10);
    while !bench.driver.spares().has_given_up(&LIMIT) {
        assert!(Instant::now() < end, "it goes on");
        std::thread::yield_now();
    }
    assert_eq!(bench.driver.spares().ready(&LIMIT), 0);
    assert!(bench.spares().is_empty(), "{:?}", bench.spares());
}

#[test]
fn a_removal_lets_go_of_a_layer_that_nobody_started() {
    let bench = Bench::with_spares();
    let image = image_in(&bench.place_spare());
    assert!(device_of(&image).is_some());
    bench
        .driver
        .remove(bench.temp.path(), "other")
        .expect("removed");
    wait_until_let_go(&image);
}

/// The directory of a sandbox, with the driver's own in it.
#[test]
fn the_root_of_a_deleted_sandbox_is_unmounted_by_its_removal() {
    let bench = Bench::new();
    let dir = bench.temp.path().join("box").join(OWN_DIR);
    fs::create_dir_all(&dir).expect("new");
    let place = Place {
        dir: &dir,
        image: &[],
    };
    bench.driver.prepare(place, LIMIT).expect("prepared");
    let image = image_in(&dir);
    let started = open(&bench, &dir, LIMIT);
    started.write("big", 10 * MIB).expect("written");

    bench.driver.keep_until_removed(&dir, &started.path());
    drop(started);
    assert!(device_of(&image).is_some(), "its last process unmounted it");
    // Out of sight, as a delete puts it.
    fs::rename(
        bench.temp.path().join("box"),
        bench.temp.path().join("gone"),
    )
    .expect("renamed");
    bench
        .driver
        .remove(bench.temp.path(), "gone")
        .expect("removed");
    wait_until_let_go(&image);
    assert_eq!(image.metadata().expect("stat").nlink(), 0);
}
