//! Case J2 and attack D06: what is on the disk is damaged, missing or somebody else's. That sandbox is listed as damaged
//! with the reason, others do not notice, a delete works, and nothing is overwritten or made up.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::api::refused;
use lodge_tests::arena::leaves_nothing;
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::image;
use lodge_tests::room::Room;
use tonic::Code;

/// Somebody who is not root.
const NOBODY: u32 = 65_534;
/// Where a record has its bits flipped, as a part of its length: in the envelope, the checksum and the record itself.
const FLIPS: [usize; 4] = [1, 10, 30, 75];

/// Damages the directory of a sandbox; its record is there.
type Damage = fn(dir: &Path, record: &Path) -> Result<()>;

/// What is done, and a word of the reason that it must give.
const DAMAGES: &[(&str, &str, Damage)] = &[
    // First, and so gone first: whoever looks through the files of the others would read it.
    ("one-gib", "large", |_, record| {
        let file = File::options().write(true).open(record)?;
        Ok(file.set_len(1 << 30)?)
    }),
    ("truncated", "JSON", |_, record| {
        let file = File::options().write(true).open(record)?;
        Ok(file.set_len(file.metadata()?.len() / 2)?)
    }),
    ("emptied", "empty", |_, record| Ok(fs::write(record, "")?)),
    ("zeroed", "JSON", |_, record| {
        let len = usize::try_from(fs::metadata(record)?.len())?;
        Ok(fs::write(record, vec![0; len])?)
    }),
    ("null", "version", |_, record| {
        Ok(fs::write(record, "null")?)
    }),
    ("no-version", "version", |_, record| {
        Ok(fs::write(record, "{}")?)
    }),
    ("wrong-version", "version", |_, record| {
        version(record, "\"one\"")
    }),
    ("future-version", "version", |_, record| {
        version(record, "4000000000")
    }),
    ("field-more", "malformed", |_, record| {
        let text = fs::read_to_string(record)?;
        Ok(fs::write(record, text.replacen('{', "{\"extra\":1,", 1))?)
    }),
    ("text-after", "JSON", |_, record| {
        let text = fs::read_to_string(record)?;
        Ok(fs::write(record, format!("{text}{text}"))?)
    }),
    ("link", "record", |dir, record| {
        fs::rename(record, dir.join("elsewhere"))?;
        Ok(symlink("elsewhere", record)?)
    }),
    ("directory", "record", |_, record| {
        fs::remove_file(record)?;
        Ok(fs::create_dir(record)?)
    }),
    ("no-record", "record", |_, record| {
        Ok(fs::remove_file(record)?)
    }),
    ("owner", "others than root", |_, record| {
        Ok(chown(record, Some(NOBODY), Some(NOBODY))?)
    }),
    ("mode", "others than root", |_, record| {
        Ok(fs::set_permissions(
            record,
            fs::Permissions::from_mode(0o666),
        )?)
    }),
    ("owner-of-directory", "not root's alone", |dir, _| {
        Ok(chown(dir, Some(NOBODY), Some(NOBODY))?)
    }),
    // A layer that is gone, as of a file system that is not mounted.
    ("no-layer", "could not be started", |dir, _| {
        Ok(fs::rename(dir.join("layer"), dir.join("unmounted"))?)
    }),
    ("empty-layer", "could not be started", |dir, _| {
        fs::rename(dir.join("layer"), dir.join("unmounted"))?;
        Ok(fs::create_dir(dir.join("layer"))?)
    }),
];

fn version(record: &Path, version: &str) -> Result<()> {
    let text = fs::read_to_string(record)?;
    let (start, rest) = text.split_once("\"version\":").context("a version")?;
    let (_, rest) = rest.split_once(',').context("more than a version")?;
    Ok(fs::write(
        record,
        format!("{start}\"version\":{version},{rest}"),
    )?)
}

/// A stopped sandbox with a file, and its uid range.
async fn stopped(daemon: &Daemon, name: &str) -> Result<(Room, u32)> {
    let room = daemon.api().room(name).await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    let base = room.uid_base(&daemon.cgroup())?;
    room.stop().await?;
    Ok((room, base))
}

/// Everything that is in a sandbox's directory and is not its logs: names, kinds, sizes and short contents.
fn inventory(dir: &Path) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, meta) = (entry.path(), entry.metadata()?);
        if entry.file_name() == "runs" {
            continue;
        }
        all.push(format!(
            "{} {:?} {}",
            path.display(),
            meta.file_type(),
            meta.len()
        ));
        if meta.is_dir() {
            all.extend(inventory(&path)?);
        } else if meta.is_file() && meta.len() < 1 << 16 {
            all.push(hex::encode(fs::read(&path)?));
        }
    }
    all.sort();
    Ok(all)
}

/// Damaged, with the reason; refuses to run and to start; and nothing was written to what is left of it.
async fn is_damaged(daemon: &Daemon, room: &Room, why: &str, before: &[String]) -> Result<()> {
    let seen = room.get().await?;
    ensure!(
        seen.state() == SandboxState::Damaged && seen.state_reason.contains(why),
        "{:?}, {:?}, not for {why:?}",
        seen.state(),
        seen.state_reason
    );
    let run = room.run("true").send().await;
    refused(run, Code::FailedPrecondition, "a run in a damaged sandbox")?;
    ensure!(
        inventory(&daemon.sandbox_dir(room.id()))? == before,
        "what is left of it was changed"
    );
    Ok(())
}

/// Nobody gets a new, empty sandbox in the place of one whose files are there.
async fn keeps_its_name(daemon: &Daemon, name: &str) -> Result<()> {
    let before = daemon.api().list().await?.len();
    let request = pb::AcquireRequest {
        name: name.into(),
        ..Default::default()
    };
    let acquired = daemon.api().try_acquire(request).await;
    refused(
        acquired,
        Code::FailedPrecondition,
        &format!("the name {name}"),
    )?;
    ensure!(
        daemon.api().list().await?.len() == before,
        "one more sandbox"
    );
    Ok(())
}

/// Whatever happened to a record or to the files beside it.
#[tokio::test(flavor = "multi_thread")]
async fn case_j2_damaged_missing_and_foreign_state() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let fine = daemon.api().room("fine").await?;
    fine.run("echo kept > file").await?.exited(0)?;
    let mut rooms = Vec::new();
    for (name, why, damage) in DAMAGES {
        let (room, base) = stopped(&daemon, name).await?;
        rooms.push((room, base, *why, *damage));
    }
    daemon.terminate()?;
    let mut left = Vec::new();
    for (room, _, _, damage) in &rooms {
        let dir = daemon.sandbox_dir(room.id());
        damage(&dir, &dir.join("record.json"))?;
        left.push(inventory(&dir)?);
    }
    daemon.start_again()?;
    ensure!(daemon.api().list().await?.len() == rooms.len() + 1);
    ensure!(fine.run("cat file").await?.ok()? == "kept");
    for ((room, base, why, _), before) in rooms.iter().zip(&left) {
        let name = &room.info().name;
        is_damaged(&daemon, room, why, before)
            .await
            .with_context(|| name.clone())?;
        // What others may have written claims no name.
        if name != "owner-of-directory" {
            keeps_its_name(&daemon, name).await?;
        }
        room.delete()
            .await
            .with_context(|| format!("delete {name}"))?;
        leaves_nothing(&daemon, room.id(), *base).await?;
    }
    ensure!(fine.run("cat file").await?.ok()? == "kept");
    Ok(())
}

/// A bit that flipped anywhere in a record: the sandbox is damaged, never another one.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d06_flipped_bits() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let (room, base) = stopped(&daemon, "flipped").await?;
    let record = daemon.sandbox_dir(room.id()).join("record.json");
    let good = fs::read(&record)?;
    for part in FLIPS {
        for bit in [0, 5] {
            daemon.kill9()?;
            let mut bytes = good.clone();
            bytes[good.len() * part / 100] ^= 1 << bit;
            fs::write(&record, &bytes)?;
            daemon.start_again()?;
            let before = inventory(&daemon.sandbox_dir(room.id()))?;
            is_damaged(&daemon, &room, "", &before)
                .await
                .with_context(|| format!("{part} {bit}"))?;
        }
    }
    // Mended by hand, it is as it was.
    daemon.kill9()?;
    fs::write(&record, &good)?;
    daemon.start_again()?;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    room.delete().await?;
    leaves_nothing(&daemon, room.id(), base).await
}

/// Takes a sandbox's directory out of the daemon's sight. It stays among the others, under a name that is none of an id: what a
/// driver keeps elsewhere goes at a start when nothing there names it.
fn taken_away(daemon: &mut Daemon, room: &Room) -> Result<PathBuf> {
    let aside = daemon.sandbox_dir("taken.away");
    daemon.kill9()?;
    fs::rename(daemon.sandbox_dir(room.id()), &aside)?;
    daemon.start_again()?;
    Ok(aside)
}

/// Two sandboxes get one name where one was away for a while. The name means the older one at every start, its namesake is
/// reached by its id, and has the name once the other is gone: nothing is out of reach.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_one_name_are_both_reached() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let (before, base) = stopped(&daemon, "before").await?;
    let (old, _) = stopped(&daemon, "agent").await?;
    // So that there is a range for the next one other than that of the one that is away.
    before.delete().await?;
    leaves_nothing(&daemon, before.id(), base).await?;
    let aside = taken_away(&mut daemon, &old)?;
    let young = daemon.api().room("agent").await?;
    ensure!(young.id() != old.id());
    young.run("echo young > file").await?.exited(0)?;
    daemon.kill9()?;
    fs::rename(&aside, daemon.sandbox_dir(old.id()))?;
    for _ in 0..2 {
        daemon.start_again()?;
        ensure!(daemon.api().list().await?.len() == 2);
        ensure!(daemon.api().room("agent").await?.id() == old.id());
        ensure!(old.run("cat file").await?.ok()? == "kept");
        ensure!(young.run("cat file").await?.ok()? == "young");
        daemon.kill9()?;
    }
    daemon.start_again()?;
    old.delete().await?;
    ensure!(daemon.api().room("agent").await?.id() == young.id());
    ensure!(young.run("cat file").await?.ok()? == "young");
    Ok(())
}

/// One that was away while its uid range was given to another sandbox does not take it back from that one, which may have
/// processes with it. Once that one is gone, it is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_was_given_away_stays_there() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let (old, base) = stopped(&daemon, "old").await?;
    let aside = taken_away(&mut daemon, &old)?;
    let young = daemon.api().room("young").await?;
    ensure!(young.uid_base(&daemon.cgroup())? == base);
    young.run("echo young > file").await?.exited(0)?;
    daemon.kill9()?;
    fs::rename(&aside, daemon.sandbox_dir(old.id()))?;
    daemon.start_again()?;
    let left = inventory(&daemon.sandbox_dir(old.id()))?;
    is_damaged(&daemon, &old, young.id(), &left).await?;
    ensure!(young.run("cat file").await?.ok()? == "young");
    young.delete().await?;
    leaves_nothing(&daemon, young.id(), base).await?;
    daemon.terminate()?;
    daemon.start_again()?;
    ensure!(old.run("cat file").await?.ok()? == "kept");
    Ok(())
}

/// What is not there is not made anew: once the file system of the layer is mounted again, all is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn case_j2_unmounted_layer_comes_back() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let (room, _) = stopped(&daemon, "unmounted").await?;
    let layer = daemon.sandbox_dir(room.id()).join("layer");
    let aside = daemon.state_dir().join("aside");
    daemon.kill9()?;
    fs::rename(&layer, &aside)?;
    fs::create_dir(&layer)?;
    daemon.start_again()?;
    let before = inventory(&daemon.sandbox_dir(room.id()))?;
    is_damaged(&daemon, &room, "could not be started", &before).await?;
    daemon.kill9()?;
    fs::remove_dir(&layer)?;
    fs::rename(&aside, &layer)?;
    daemon.start_again()?;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    Ok(())
}

/// An image whose layer is gone: its stopped sandboxes are damaged with that reason and deletable; one of another image
/// goes on.
#[tokio::test(flavor = "multi_thread")]
async fn case_j2_missing_image_layer() -> Result<()> {
    let options = Options {
        images: Images::Own,
        ..Options::default()
    };
    let mut daemon = Daemon::start(options).await?;
    let mut other = image::tiny()?;
    other.file("etc/other", b"other")?;
    daemon
        .api()
        .import("lost", &image::tiny()?.finish())
        .await?;
    daemon.api().import("other", &other.finish()).await?;
    let mut rooms = Vec::new();
    for image in ["lost", "other"] {
        let request = pb::AcquireRequest {
            name: image.into(),
            image: image.into(),
            ..Default::default()
        };
        let room = daemon.api().acquire(request).await?;
        room.run("echo kept > file").root().await?.exited(0)?;
        let base = room.uid_base(&daemon.cgroup())?;
        room.stop().await?;
        rooms.push((room, base));
    }
    daemon.terminate()?;
    let layers = daemon.slot().state().join("images/layers");
    let gone = layer_without(&layers, "etc/other")?;
    fs::rename(&gone, daemon.slot().state().join("gone"))?;
    daemon.start_again()?;
    let (lost, base) = &rooms[0];
    let before = inventory(&daemon.sandbox_dir(lost.id()))?;
    is_damaged(&daemon, lost, "could not be started", &before).await?;
    ensure!(rooms[1].0.run("cat file").await?.ok()? == "kept");
    lost.delete().await?;
    leaves_nothing(&daemon, lost.id(), *base).await
}

/// The layer in `layers` that does not have `file`.
fn layer_without(layers: &Path, file: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(layers).with_context(|| layers.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && !path.join("root").join(file).exists() {
            return Ok(path);
        }
    }
    anyhow::bail!("every layer has {file}")
}
