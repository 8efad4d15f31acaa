//! Imports and removals of images, interrupted at every named place of them: an image is there afterwards and whole, or not at
//! all, and nothing else is left. On either form of layers.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until_blocking};
use lodge_tests::{fault, image};
use nix::sys::signal::Signal;

/// Where an image says which it is.
const MARK: &str = "etc/mark";

/// A daemon with an image and a sandbox of it, that nothing must happen to.
struct Ground {
    daemon: Daemon,
    kept: Room,
}

/// What was answered.
#[derive(Default)]
struct Told {
    imported: bool,
    removal_asked: bool,
    /// A removal failed after the image was gone: its layers go at the next start.
    removal_failed: bool,
    removed: bool,
}

#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_at_every_point_of_an_import() -> Result<()> {
    sweep("kill").await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_at_every_point_of_an_import() -> Result<()> {
    sweep("error").await
}

/// Tries `action` at each point, and tells all that went wrong.
async fn sweep(action: &str) -> Result<()> {
    let mut points = fault::points_of(&["image."])?;
    // What form a store has is written at its first start: `pool.rs`.
    points.retain(|name| !name.starts_with("image.remember form"));
    let mut ground = Ground::new().await?;
    let mut wrong = Vec::new();
    for point in &points {
        for hit in 1..=hits(point) {
            let fault = format!("{point}={action}@{hit}");
            if let Err(error) = ground.survives(point, &fault).await {
                wrong.push(format!("{fault}: {error:#}"));
                ground = Ground::new().await?;
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} went wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

/// How often a daemon gets there that starts, imports an image and removes it.
fn hits(point: &str) -> u32 {
    match point.trim_end_matches(".done") {
        "image.empty staging" => 3,
        "image.write index" | "image.place index" => 2,
        _ => 1,
    }
}

fn archive(mark: &str) -> Result<Vec<u8>> {
    let mut archive = image::tiny()?;
    archive.file(MARK, mark.as_bytes())?;
    Ok(archive.finish())
}

impl Ground {
    async fn new() -> Result<Self> {
        let options = Options {
            images: Images::Own,
            ..Options::default()
        };
        let daemon = Daemon::start(options).await?;
        daemon.api().import("kept", &archive("kept")?).await?;
        let kept = made_from(&daemon, "kept").await?;
        Ok(Self { daemon, kept })
    }

    async fn survives(&mut self, point: &str, fault: &str) -> Result<()> {
        self.daemon.kill9()?;
        let log_before = fs::metadata(self.daemon.log_file())?.len();
        self.daemon.set_env(&[("LODGE_FAULTS", fault)]);
        let mut told = Told::default();
        // It may end of the fault while it starts.
        if self.daemon.start_again().is_ok() {
            self.import_and_remove(&mut told).await?;
        }
        if fault.contains("=kill") {
            let ended = self.daemon.ended()?;
            ensure!(ended.signal() == Some(Signal::SIGKILL as i32), "{ended}");
        } else {
            // Its log is written behind its back.
            until_blocking("the fault is reached", SOON, || {
                let log = fs::read(self.daemon.log_file())?;
                let new = String::from_utf8_lossy(&log[usize::try_from(log_before)?..]);
                let is_told = new.contains(&format!("point=\"{point}\""));
                Ok(is_told.then_some(()))
            })?;
        }
        self.daemon.set_env(&[]);
        let lives = self.daemon.lives()?;
        // What could not be removed is at the next start.
        let is_left = point.starts_with("image.empty staging") || told.removal_failed;
        if lives && is_left {
            self.daemon.kill9()?;
        }
        if !lives || is_left {
            self.daemon.start_again()?;
        }
        self.check(&told).await
    }

    /// A call that fails is made once more: the fault is past then.
    async fn import_and_remove(&self, told: &mut Told) -> Result<()> {
        let (api, archive) = (self.daemon.api(), archive("new")?);
        for is_last in [false, true] {
            match api.import("new", &archive).await {
                Ok(_) => break,
                Err(status) if reason(&status).is_empty() => return Ok(()),
                Err(status) => {
                    ensure!(!is_last, "the import failed twice: {status}");
                    self.nothing_is_left().await.context("after a failure")?;
                }
            }
        }
        told.imported = true;
        told.removal_asked = true;
        for is_last in [false, true] {
            match api.remove_image("new").await {
                Ok(_) => break,
                Err(status) if reason(&status).is_empty() => return Ok(()),
                // The first one removed it, though it failed then.
                Err(status) if is_last && status.code() == tonic::Code::NotFound => {
                    told.removal_failed = true;
                    break;
                }
                Err(status) => ensure!(!is_last, "the removal failed twice: {status}"),
            }
        }
        told.removed = true;
        Ok(())
    }

    async fn check(&self, told: &Told) -> Result<()> {
        ensure!(self.kept.run(format!("cat /{MARK}")).await?.ok()? == "kept");
        if self.is_listed().await? {
            ensure!(!told.removed, "a removed image is listed");
            let room = made_from(&self.daemon, "new").await?;
            ensure!(room.run(format!("cat /{MARK}")).await?.ok()? == "new");
            room.delete().await?;
            self.daemon.api().remove_image("new").await?;
        } else {
            ensure!(
                !told.imported || told.removal_asked,
                "an imported image is lost"
            );
        }
        self.nothing_is_left().await
    }

    async fn is_listed(&self) -> Result<bool> {
        let images = self.daemon.api().list_images().await?;
        Ok(images.iter().any(|image| image.names == ["new"]))
    }

    /// Layers of images that are there, and nothing being made.
    async fn nothing_is_left(&self) -> Result<()> {
        let images = self.daemon.api().list_images().await?.len();
        let dir: PathBuf = self.daemon.slot().state().join("images");
        let count = |name| fs::read_dir(dir.join(name)).map(Iterator::count);
        let (layers, staging) = (count("layers")?, count("staging")?);
        ensure!(
            layers == images && staging == 0,
            "{images} images, {layers} layers, {staging} in staging"
        );
        Ok(())
    }
}

async fn made_from(daemon: &Daemon, image: &str) -> Result<Room> {
    let request = pb::AcquireRequest {
        name: format!("of-{image}"),
        image: image.into(),
        ..Default::default()
    };
    daemon.api().acquire(request).await
}
