//! Names, sharing, removal, interruption.

use std::fs;
use std::ops::ControlFlow;

use super::archive::{Archive, sha256};
use super::arena::Arena;
use super::prune::{NOBODY, User};
use crate::image::{ImageError, ImageName, ImageRef, ImageStore, Removed, Stage};

fn named(text: &str) -> ImageRef {
    ImageRef::parse(text).expect("a valid reference")
}

fn archive(content: &str) -> Vec<u8> {
    Archive::default().file("f", content).finish()
}

#[test]
fn the_same_content_is_one_image() {
    let arena = Arena::new();
    let first = arena.import_as("a", &archive("1")).expect("imported");
    let second = arena.import_as("b", &archive("1")).expect("imported");
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.imported_at, second.imported_at);
    let all = arena.store.list().expect("readable");
    assert_eq!(all.len(), 1);
    assert_eq!(
        all[0].names,
        [ImageName::parse("a"), ImageName::parse("b")].map(Result::unwrap)
    );
    assert_eq!(arena.listing().len(), 1);
}

#[test]
fn a_name_moves_to_the_new_image() {
    let arena = Arena::new();
    let old = arena.import_as("a", &archive("1")).expect("imported");
    let new = arena.import_as("a", &archive("2")).expect("imported");
    assert_ne!(old.digest, new.digest);
    assert_eq!(
        arena.store.resolve(&named("a")).expect("there").digest,
        new.digest
    );
    let old = arena
        .store
        .resolve(&ImageRef::Digest(old.digest))
        .expect("a sandbox may use it");
    assert!(old.names.is_empty());
    assert_eq!(
        arena.store.list().expect("readable").last(),
        Some(&old),
        "nameless ones come last"
    );
}

#[test]
fn the_last_name_takes_the_image_with_it() {
    let arena = Arena::new();
    arena.import_as("a", &archive("1")).expect("imported");
    arena.import_as("b", &archive("1")).expect("imported");
    assert_eq!(
        arena.store.remove(&named("a"), &NOBODY).expect("removed"),
        Removed::Name
    );
    assert_eq!(
        arena.store.remove(&named("b"), &NOBODY).expect("removed"),
        Removed::Image
    );
    assert!(arena.listing().is_empty());
    assert!(arena.store.list().expect("readable").is_empty());
    let again = arena.store.remove(&named("b"), &NOBODY);
    assert!(
        matches!(again, Err(ImageError::NotFound { .. })),
        "{again:?}"
    );
}

#[test]
fn an_image_in_use_stays() {
    let arena = Arena::new();
    let image = arena.import_as("a", &archive("1")).expect("imported");
    let user = User {
        image: Some(image.digest),
        unknown: 0,
    };
    for reference in [named("a"), ImageRef::Digest(image.digest)] {
        let refused = arena.store.remove(&reference, &user);
        assert!(
            matches!(refused, Err(ImageError::InUse { sandboxes: 1, .. })),
            "{refused:?}"
        );
    }
    let (_, pin) = arena.store.resolve_pinned(&named("a")).expect("there");
    let refused = arena.store.remove(&named("a"), &NOBODY);
    assert!(
        matches!(refused, Err(ImageError::InUse { .. })),
        "a sandbox is being made of it"
    );
    assert!(image.layers[0].path.join("f").exists());
    drop(pin);
    assert_eq!(
        arena.store.remove(&named("a"), &NOBODY).expect("removed"),
        Removed::Image
    );
}

#[test]
fn a_layer_stays_while_another_image_has_it() {
    let arena = Arena::new();
    let (shared, own) = (archive("shared"), archive("own"));
    let config = |layers: &[&Vec<u8>]| {
        let ids: Vec<_> = layers
            .iter()
            .map(|l| format!("sha256:{}", sha256(l)))
            .collect();
        serde_json::json!({"rootfs": {"diff_ids": ids}}).to_string()
    };
    let saved = |layers: &[&Vec<u8>]| {
        let names: Vec<_> = (0..layers.len())
            .map(|n| format!("{n:064x}/layer.tar"))
            .collect();
        let manifest = serde_json::json!([{"Config": format!("{}.json", sha256(config(layers).as_bytes())), "Layers": names}]);
        let mut archive = Archive::default()
            .file(
                format!("{}.json", sha256(config(layers).as_bytes())),
                config(layers),
            )
            .file("manifest.json", manifest.to_string());
        for (name, layer) in names.iter().zip(layers) {
            archive = archive.file(name, layer);
        }
        archive.finish()
    };
    arena
        .import_as("one", &saved(&[&shared]))
        .expect("imported");
    let two = arena
        .import_as("two", &saved(&[&shared, &own]))
        .expect("imported");
    assert_eq!(arena.listing().len(), 2);
    arena.store.remove(&named("one"), &NOBODY).expect("removed");
    assert_eq!(arena.store.resolve(&named("two")).expect("whole"), two);
    arena.store.remove(&named("two"), &NOBODY).expect("removed");
    assert!(arena.listing().is_empty());
}

#[test]
fn what_an_interrupted_import_left_goes_at_the_next_start() {
    let arena = Arena::new();
    let image = arena.import_as("a", &archive("1")).expect("imported");
    let staging = arena.images().join("staging");
    fs::create_dir_all(staging.join("dead/0/root/d")).expect("made");
    fs::write(staging.join("upload"), "x").expect("written");
    // Killed between the layer's rename and the index.
    fs::create_dir_all(
        arena
            .images()
            .join("layers")
            .join("0".repeat(64))
            .join("root"),
    )
    .expect("made");
    fs::write(arena.images().join("index.json.new"), "{").expect("written");
    let store = ImageStore::open(&arena.images()).expect("opened");
    assert_eq!(
        arena.listing(),
        [image.layers[0].path.parent().expect("it has one")]
    );
    assert_eq!(store.list().expect("readable"), [image]);
}

#[test]
fn staging_of_a_running_import_is_left_alone() {
    let arena = Arena::new();
    let archive = arena.received(&archive("1"));
    let name = ImageName::parse("a").expect("valid");
    let mut opened = false;
    let image = arena.store.import(&name, &archive, &mut |progress| {
        if progress.stage == Stage::Syncing {
            // Another daemon starts on the same directory.
            ImageStore::open(&arena.images()).expect("opened");
            opened = true;
        }
        ControlFlow::Continue(())
    });
    assert!(opened);
    assert!(image.expect("imported").layers[0].path.join("f").exists());
}

#[test]
fn a_cancelled_import_leaves_nothing() {
    let arena = Arena::new();
    let archive = arena.received(&Archive::default().file("a", "1").file("b", "2").finish());
    let name = ImageName::parse("a").expect("valid");
    let cancelled = arena.store.import(&name, &archive, &mut |progress| {
        if progress.entries == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(
        matches!(cancelled, Err(ImageError::Cancelled)),
        "{cancelled:?}"
    );
    assert!(arena.listing().is_empty());
    assert!(arena.store.list().expect("readable").is_empty());
}

/// Nothing is known of a large archive of layers until all of it was passed over: who gives up then is heard.
#[test]
fn an_import_is_cancelled_while_its_members_are_looked_for() {
    let arena = Arena::new();
    let archive = Archive::default()
        .file(format!("{:064x}/layer.tar", 0), vec![0; 4 << 20])
        .file("manifest.json", "[]")
        .finish();
    let archive = arena.received(&archive);
    let name = ImageName::parse("a").expect("valid");
    let mut heard = Vec::new();
    let cancelled = arena.store.import(&name, &archive, &mut |progress| {
        heard.push((progress.stage, progress.bytes));
        if progress.bytes > 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(
        matches!(cancelled, Err(ImageError::Cancelled)),
        "{cancelled:?}"
    );
    let (stage, bytes) = *heard.last().expect("it was told");
    assert_eq!(stage, Stage::Checking);
    assert!(bytes < 2 << 20, "{bytes} bytes were read first");
}

#[test]
fn a_damaged_index_is_an_error_and_stays_as_it_is() {
    let arena = Arena::new();
    let image = arena.import_as("a", &archive("1")).expect("imported");
    let index = arena.images().join("index.json");
    for text in ["{", r#"{"version": 2, "names": {}, "images": {}}"#] {
        fs::write(&index, text).expect("written");
        let store = ImageStore::open(&arena.images()).expect("the daemon starts all the same");
        assert!(store.list().is_err());
        assert!(arena.import_as("b", &archive("2")).is_err());
        assert_eq!(fs::read_to_string(&index).expect("there"), text);
        assert!(
            image.layers[0].path.join("f").exists(),
            "no layer is taken for unused"
        );
    }
}

#[test]
fn layers_without_an_index_are_not_taken_for_unused() {
    let arena = Arena::new();
    let image = arena.import_as("a", &archive("1")).expect("imported");
    let index = arena.images().join("index.json");
    let copy = fs::read(&index).expect("there");
    fs::remove_file(&index).expect("removed");
    let store = ImageStore::open(&arena.images()).expect("the daemon starts all the same");
    let told = [
        store.list().map(drop),
        arena.import_as("b", &archive("2")).map(drop),
    ];
    for answer in told {
        assert!(matches!(answer, Err(ImageError::IndexLost)), "{answer:?}");
    }
    fs::write(&index, copy).expect("written");
    ImageStore::open(&arena.images()).expect("opened");
    assert!(image.layers[0].path.join("f").exists());
    arena.store.resolve(&named("a")).expect("whole");
}

#[test]
fn a_missing_layer_is_named() {
    let arena = Arena::new();
    let image = arena.import_as("a", &archive("1")).expect("imported");
    fs::remove_dir_all(image.layers[0].path.parent().expect("it has one")).expect("removed");
    let damaged = arena.store.resolve(&named("a"));
    assert!(
        matches!(damaged, Err(ImageError::LayerMissing { .. })),
        "{damaged:?}"
    );
    arena
        .import_as("a", &archive("1"))
        .expect("importing again mends it");
    arena.store.resolve(&named("a")).expect("whole");
}
