//! Removing what nobody uses.

use std::sync::atomic::{AtomicBool, Ordering};

use super::archive::Archive;
use super::arena::Arena;
use super::layers::{config, saved};
use crate::image::{Digest, ImageError, ImageRef, Pruned, Pruning, Uses};

/// One image is used, or none; perhaps there are sandboxes that cannot be read.
pub(super) struct User {
    pub(super) image: Option<Digest>,
    pub(super) unknown: u32,
}

pub(super) const NOBODY: User = User {
    image: None,
    unknown: 0,
};

impl Uses for User {
    fn of(&self, image: &Digest) -> u32 {
        u32::from(self.image == Some(*image))
    }

    fn unknown(&self) -> u32 {
        self.unknown
    }
}

/// A layer with a file of so many bytes.
fn layer(bytes: usize) -> Vec<u8> {
    Archive::default().file("f", vec![b'x'; bytes]).finish()
}

fn image(layers: &[Vec<u8>]) -> Vec<u8> {
    saved(layers, &config(layers)).finish()
}

fn named(text: &str) -> ImageRef {
    ImageRef::parse(text).expect("a valid reference")
}

fn names(pruned: &Pruned) -> Vec<String> {
    let images = pruned.images.iter();
    images
        .map(|image| {
            let names: Vec<_> = image.names.iter().map(|name| name.as_str()).collect();
            names.join(",")
        })
        .collect()
}

#[test]
fn what_nobody_uses_goes_and_is_told_before() {
    let arena = Arena::new();
    let shared = layer(1000);
    arena
        .import_as("old", &image(&[shared.clone(), layer(70)]))
        .expect("imported");
    let used = arena
        .import_as("used", &image(std::slice::from_ref(&shared)))
        .expect("imported");
    arena.import_as("a", &layer(5)).expect("imported");
    arena.import_as("b", &layer(5)).expect("imported");
    let nameless = arena.import_as("moves", &layer(9)).expect("imported");
    let pinned = arena.import_as("moves", &layer(11)).expect("imported");
    let (_, pin) = arena.store.resolve_pinned(&named("moves")).expect("there");
    let user = User {
        image: Some(used.digest),
        unknown: 0,
    };

    let before = (arena.listing(), arena.store.list().expect("read"));
    let tried = arena.store.prune(Pruning::Tried, &user).expect("told");
    assert_eq!((arena.listing(), arena.store.list().expect("read")), before);
    assert_eq!(names(&tried), ["a,b", "old", ""]);
    assert_eq!(
        tried.images[2],
        arena
            .store
            .resolve(&ImageRef::Digest(nameless.digest))
            .expect("there")
    );
    assert_eq!(
        tried.freed_bytes,
        70 + 5 + 9,
        "what another image has stays"
    );

    let done = arena.store.prune(Pruning::Done, &user).expect("pruned");
    assert_eq!(done, tried);
    let left = arena.store.list().expect("read");
    assert_eq!(
        left.iter().map(|i| i.digest).collect::<Vec<_>>(),
        [pinned.digest, used.digest]
    );
    assert_eq!(arena.listing().len(), 2);
    assert!(used.layers[0].path.join("f").exists());

    drop(pin);
    let done = arena.store.prune(Pruning::Done, &NOBODY).expect("pruned");
    assert_eq!(
        (names(&done), done.freed_bytes),
        (vec!["moves".into(), "used".into()], 1011)
    );
    assert!(arena.listing().is_empty());
    let done = arena
        .store
        .prune(Pruning::Done, &NOBODY)
        .expect("nothing to do");
    assert_eq!((done.images.len(), done.freed_bytes), (0, 0));
}

/// A sandbox whose record cannot be read may be made from any image.
#[test]
fn nothing_goes_while_a_use_is_unknown() {
    let arena = Arena::new();
    arena.import_as("a", &layer(1)).expect("imported");
    let unknown = User {
        image: None,
        unknown: 1,
    };
    for pruning in [Pruning::Tried, Pruning::Done] {
        let refused = arena.store.prune(pruning, &unknown);
        assert!(
            matches!(refused, Err(ImageError::UsesUnknown { sandboxes: 1 })),
            "{refused:?}"
        );
    }
    let digest = arena.store.resolve(&named("a")).expect("it stays").digest;
    for reference in [named("a"), ImageRef::Digest(digest)] {
        let refused = arena.store.remove(&reference, &unknown);
        assert!(
            matches!(refused, Err(ImageError::UsesUnknown { sandboxes: 1 })),
            "{refused:?}"
        );
    }
    // A name is not what a sandbox needs.
    arena.import_as("b", &layer(1)).expect("imported");
    arena.store.remove(&named("b"), &unknown).expect("the name");
    arena.store.resolve(&named("a")).expect("it stays");
}

/// Whoever has an image for a new sandbox has it with its files, or is told that there is none.
#[test]
fn an_image_that_somebody_got_is_not_pruned_away() {
    let arena = Arena::new();
    let archive = layer(1);
    let over = AtomicBool::new(false);
    let (mut got, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                arena.store.prune(Pruning::Done, &NOBODY).expect("pruned");
            }
        });
        // Both outcomes must have been there, else nothing was at stake.
        while got < 50 || refused < 50 {
            match arena.store.resolve_pinned(&named("a")) {
                Ok((image, _pin)) => {
                    got += 1;
                    arena.store.prune(Pruning::Done, &NOBODY).expect("pruned");
                    assert!(image.layers[0].path.join("f").exists());
                }
                Err(ImageError::NotFound { .. }) => {
                    refused += 1;
                    arena.import_as("a", &archive).expect("imported");
                }
                Err(other) => panic!("{other}"),
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
