//! `Prune`: images that no sandbox uses go, and no other; whoever is about to use one is safe.

use std::fs;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::{Api, refused};
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::hostile::Archive;
use lodge_tests::image;
use lodge_tests::room::Room;
use tonic::{Code, Status};

/// Sandboxes that are made while images are pruned.
const ROUNDS: usize = 20;
/// A file that makes one image differ from the others.
const MARK: &str = "etc/mark";

async fn daemon() -> Result<Daemon> {
    let options = Options {
        images: Images::Own,
        ..Options::default()
    };
    Daemon::start(options).await
}

/// A small image with `bytes` of its own.
fn archive(tiny: &Archive, bytes: usize) -> Result<Vec<u8>> {
    let mut archive = tiny.clone();
    archive.file(MARK, &vec![b'x'; bytes])?;
    Ok(archive.finish())
}

async fn prune(api: &Api, dry_run: bool) -> Result<pb::PruneImagesResponse, Status> {
    let request = pb::PruneImagesRequest { dry_run };
    Ok(api.images().prune(request).await?.into_inner())
}

async fn made_from(api: &Api, image: &str, name: &str) -> Result<Room, Status> {
    let request = pb::AcquireRequest {
        name: name.into(),
        image: image.into(),
        ..Default::default()
    };
    let info = api.try_acquire(request).await?.sandbox;
    let info = info.ok_or_else(|| Status::internal("the answer has no sandbox"))?;
    Ok(Room::new(api.clone(), info))
}

fn digests(images: &[pb::PrunedImage]) -> Vec<&str> {
    images.iter().map(|image| image.digest.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_sandbox_uses_goes() -> Result<()> {
    let daemon = daemon().await?;
    let (api, tiny) = (daemon.api(), image::tiny()?);
    let used = api.import("used", &archive(&tiny, 1)?).await?;
    let old = api.import("moved", &archive(&tiny, 2)?).await?;
    let new = api.import("moved", &archive(&tiny, 3)?).await?;
    api.import("again", &archive(&tiny, 3)?).await?;
    let room = made_from(api, "used", "room").await?;
    room.stop().await?;

    let told = prune(api, true).await?;
    ensure!(
        api.list_images().await?.len() == 3,
        "a dry run removed something"
    );
    ensure!(
        digests(&told.images) == [&new.digest, &old.digest],
        "{told:?}"
    );
    ensure!(told.images[0].names == ["again", "moved"] && told.images[1].names.is_empty());
    ensure!(
        told.freed_bytes == old.size_bytes + new.size_bytes,
        "{told:?}"
    );
    ensure!(prune(api, false).await? == told, "it did what it had told");

    let left = api.list_images().await?;
    ensure!(left.len() == 1 && left[0].digest == used.digest, "{left:?}");
    room.run("cat /etc/mark").await?.exited(0)?;
    room.delete().await?;
    let rest = prune(api, false).await?;
    ensure!(digests(&rest.images) == [&used.digest] && rest.freed_bytes == used.size_bytes);
    ensure!(prune(api, false).await? == pb::PruneImagesResponse::default());
    Ok(())
}

/// An acquire either finds its image, and then the sandbox works, or it is told that there is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_being_made_keeps_its_image() -> Result<()> {
    let daemon = daemon().await?;
    let (api, tiny) = (daemon.api(), image::tiny()?);
    let archive = archive(&tiny, 1)?;
    for round in 0..ROUNDS {
        api.import("a", &archive).await?;
        let pruning = tokio::spawn({
            let api = api.clone();
            async move { prune(&api, false).await }
        });
        let made = made_from(api, "a", &format!("room-{round}")).await;
        let pruned = pruning.await??;
        match made {
            Ok(room) => {
                ensure!(pruned.images.is_empty(), "the image of a sandbox went");
                room.run("cat /etc/mark").await?.exited(0)?;
                room.delete().await?;
            }
            outcome => {
                refused(outcome.map(drop), Code::NotFound, "an image that went")?;
                ensure!(pruned.images.len() == 1, "{pruned:?}");
            }
        }
    }
    Ok(())
}

/// A sandbox whose record cannot be read may be made from any image: all stay until it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_while_a_record_cannot_be_read() -> Result<()> {
    let mut daemon = daemon().await?;
    let tiny = image::tiny()?;
    daemon.api().import("a", &archive(&tiny, 1)?).await?;
    let room = made_from(daemon.api(), "a", "room").await?;
    room.stop().await?;
    daemon.terminate()?;
    let record = daemon.sandbox_dir(room.id());
    fs::write(record.join("record.json"), "").context("damage the record")?;
    daemon.start_again()?;
    for dry_run in [true, false] {
        let pruned = prune(daemon.api(), dry_run).await;
        refused(pruned, Code::FailedPrecondition, "a prune")?;
    }
    let removed = daemon.api().remove_image("a").await;
    refused(removed.map(drop), Code::FailedPrecondition, "a removal")?;
    ensure!(daemon.api().list_images().await?.len() == 1);
    room.delete().await?;
    ensure!(prune(daemon.api(), false).await?.images.len() == 1);
    Ok(())
}
