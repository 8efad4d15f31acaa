//! What the API says and does about disks: limits that change, what is used, a full disk in a result, the node's disk, and
//! what is refused at the host's reserve. Each test holds with every storage driver; where one cannot hold a limit, the
//! refusal is looked at instead.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::{self as pb, DiskFullPlace, Enforcement, SandboxState};
use lodge_tests::api::Api;
use lodge_tests::cli::lodge;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::{Ran, Room};
use lodge_tests::wait::until;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const MIB: i64 = 1 << 20;
/// What is written down in the background is known within this time.
const SOON: Duration = Duration::from_secs(20);
/// The smallest disk that a sandbox may have.
const SMALL: i64 = 64 * MIB;
/// More than any host of tests has free.
const EXBIBYTE: u64 = 1 << 60;
/// Fills a disk of [`SMALL`], and says how that went; never more than 200 MiB, should nothing stop it.
const FILL: &str = "dd if=/dev/urandom of=/home/user/big bs=1M count=200 conv=fsync 2>&1";

fn reason(status: &Status) -> String {
    let details = status.get_details_error_info();
    details.map(|info| info.reason).unwrap_or_default()
}

fn with_disk(name: &str, bytes: i64) -> pb::AcquireRequest {
    pb::AcquireRequest {
        name: name.into(),
        limits: Some(pb::Limits {
            disk_bytes: Some(bytes),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The page of the node's disk after this token.
async fn disk(api: &Api, page_size: i32, page_token: &str) -> Result<pb::DiskResponse> {
    let request = pb::DiskRequest {
        page_size,
        page_token: page_token.into(),
    };
    Ok(api.node().disk(request).await?.into_inner())
}

async fn can(api: &Api, ability: &str) -> Result<bool> {
    let all = disk(api, 0, "").await?.abilities;
    let found = all.into_iter().find(|one| one.name == ability);
    let found = found.with_context(|| format!("no ability {ability}"))?;
    ensure!(found.supported == found.reason.is_empty(), "{found:?}");
    Ok(found.supported)
}

/// A sandbox with a small disk. Where the driver holds no limits, it is refused with that reason, and there is none.
async fn small_room(api: &Api, name: &str) -> Result<Option<Room>> {
    let made = api.try_acquire(with_disk(name, SMALL)).await;
    match (can(api, "limit_bytes").await?, made) {
        (true, made) => Ok(Some(Room::new(
            api.clone(),
            made?.sandbox.context("a sandbox")?,
        ))),
        (false, Err(status)) => {
            ensure!(
                status.code() == Code::Unimplemented && reason(&status) == "LIMIT_NOT_ENFORCEABLE",
                "{status:?}"
            );
            Ok(None)
        }
        (false, Ok(_)) => bail!("a limit that nobody holds was granted"),
    }
}

async fn set_disk(room: &Room, bytes: i64) -> Result<pb::Sandbox, Status> {
    let request = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            disk_bytes: Some(bytes),
            ..Default::default()
        }),
        ..Default::default()
    };
    room.update(request).await
}

/// Gives a started sandbox a larger limit: at once, or, where the driver cannot do that on this host, at its next start; until
/// then it is told what is held.
async fn enlarge(room: &Room, bytes: i64) -> Result<pb::LimitStatus> {
    let before = disk_limit(&room.get().await?)?.clone();
    match set_disk(room, bytes).await {
        Ok(updated) => return Ok(disk_limit(&updated)?.clone()),
        Err(status) => ensure!(
            status.code() == Code::Unimplemented && reason(&status) == "UNSUPPORTED_BY_STORAGE",
            "{status:?}"
        ),
    }
    ensure!(*disk_limit(&room.get().await?)? == before);
    let later = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            disk_bytes: Some(bytes),
            ..Default::default()
        }),
        allow_degraded: true,
        ..Default::default()
    };
    let updated = room.update(later).await?;
    let told = disk_limit(&updated)?;
    ensure!(
        told.requested == Some(bytes) && told.effective == before.effective,
        "{told:?}"
    );
    room.stop().await?;
    Ok(disk_limit(&room.start().await?)?.clone())
}

fn disk_limit(sandbox: &pb::Sandbox) -> Result<&pb::LimitStatus> {
    let found = sandbox.limits.iter().find(|one| one.name == "disk_bytes");
    found.context("a status of disk_bytes")
}

fn is_about(figure: Option<i64>, wanted: i64) -> bool {
    // What a driver's own books take may be less than was asked for, never more.
    figure.is_some_and(|figure| figure <= wanted && figure > wanted / 10 * 8)
}

fn places(ran: &Ran) -> Vec<DiskFullPlace> {
    ran.result.disk_full().collect()
}

/// The run that fills its sandbox says so, and so do its journal, the next daemon and the command line; another sandbox
/// does not; with room again nobody does.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_in_the_result_until_there_is_room_again() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let api = daemon.api().clone();
    let Some(room) = small_room(&api, "small").await? else {
        return Ok(());
    };
    let other = api.room("other").await?;
    let begun = room.run("echo begun").await?;
    ensure!(places(begun.exited(0)?).is_empty(), "{}", begun.story());
    let filled = room.run(FILL).await?;
    ensure!(
        filled.code() == 1 && places(&filled) == [DiskFullPlace::Root],
        "{:?}, {}",
        places(&filled),
        filled.story()
    );
    ensure!(
        filled.text().contains("No space left") || filled.text().contains("quota exceeded"),
        "{}",
        filled.story()
    );
    let used = room.stats().await?;
    let near = used.disk_bytes.zip(used.disk_limit_bytes);
    ensure!(
        near.is_some_and(|(used, limit)| used <= limit && limit - used < 8 << 20),
        "{used:?}"
    );
    let ran = other.run("echo x > file; sync; cat file").await?;
    ensure!(places(ran.exited(0)?).is_empty(), "{}", ran.story());
    let said = lodge(&daemon, &["run", "-s", "small", "true"]).await?;
    said.exited(0)?;
    let line = said.stderr.trim_end();
    ensure!(
        line.starts_with("lodge: the sandbox's disk is full (") && line.lines().count() == 1,
        "{line:?}"
    );

    daemon.kill9()?;
    daemon.start_again()?;
    let known = room.get_run(&filled.result.run_id).await?;
    let result = known.result.context("it has ended")?;
    ensure!(result == filled.result, "{result:?} is not {filled:?}");

    // Only what is on the disk is counted by every driver.
    let emptied = room.run("rm big; sync").await?;
    emptied.exited(0)?;
    let wrote = room.run("echo again > file; sync; cat file").await?;
    ensure!(
        wrote.ok()? == "again" && places(&wrote).is_empty(),
        "{:?}, {}",
        places(&wrote),
        wrote.story()
    );
    Ok(())
}

/// Where the driver counts files, their end is told apart from that of the bytes.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_files_are_named_in_the_result() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut request = with_disk("many", 256 * MIB);
    let limits = request.limits.as_mut().context("set above")?;
    (limits.disk_bytes, limits.inodes) = (None, Some(4096));
    if !can(daemon.api(), "limit_inodes").await? {
        let refused = daemon.api().try_acquire(request).await;
        let status = refused.err().context("a limit that nobody holds")?;
        ensure!(reason(&status) == "LIMIT_NOT_ENFORCEABLE", "{status:?}");
        return Ok(());
    }
    let room = daemon.api().acquire(request).await?;
    let ran = room.run("mkdir d; cd d; touch $(seq 6000)").await?;
    ensure!(
        ran.code() == 1 && places(&ran) == [DiskFullPlace::RootInodes],
        "{:?}, {}",
        places(&ran),
        ran.story()
    );
    let used = room.stats().await?;
    ensure!(
        used.inodes.is_some() && used.inodes == used.inodes_limit,
        "{used:?}"
    );
    let ran = room.run("rm -r d; touch again").await?;
    ensure!(places(ran.exited(0)?).is_empty(), "{}", ran.story());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_dev_shm_is_named_in_the_result() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().acquire(pb::AcquireRequest {
        name: "shm".into(),
        limits: Some(pb::Limits {
            shm_bytes: Some(MIB),
            ..Default::default()
        }),
        ..Default::default()
    });
    let room = room.await?;
    let ran = room.run("head -c 2M /dev/zero > /dev/shm/file").await?;
    ensure!(
        ran.code() == 1 && places(&ran) == [DiskFullPlace::Shm],
        "{:?}, {}",
        places(&ran),
        ran.story()
    );
    let said = lodge(&daemon, &["run", "-s", "shm", "--json", "true"]).await?;
    ensure!(said.json()?["disk_full"] == serde_json::json!(["SHM"]));
    let said = lodge(&daemon, &["run", "-s", "shm", "rm /dev/shm/file"]).await?;
    ensure!(said.exited(0)?.stderr.is_empty(), "{}", said.stderr);
    Ok(())
}

/// The figures of files are there in every state, and asking for them wakes nobody.
#[tokio::test(flavor = "multi_thread")]
async fn stats_tell_what_files_take_in_every_state() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("states").await?;
    let counts = can(daemon.api(), "limit_bytes").await?;
    let before = room.stats().await?;
    room.run("head -c 20M /dev/urandom > file; sync")
        .await?
        .exited(0)?;
    let running = room.stats().await?;
    ensure!(
        running.disk_bytes.is_some() == counts && running.disk_limit_bytes.is_some() == counts,
        "{running:?}"
    );
    if let (Some(before), Some(after)) = (before.disk_bytes, running.disk_bytes) {
        let grown = after.saturating_sub(before);
        ensure!((20 << 20..24 << 20).contains(&grown), "{grown} bytes");
    }
    let limit = disk_limit(&room.get().await?)?.clone();
    let held = running.disk_limit_bytes.map(i64::try_from).transpose()?;
    ensure!(limit.effective == held, "{limit:?}, {running:?}");
    ensure!(
        (limit.enforcement() == Enforcement::Enforced) == counts,
        "{limit:?}"
    );

    room.pause().await?;
    let frozen = room.stats().await?;
    room.stop().await?;
    let stopped = room.stats().await?;
    for (figures, state) in [
        (&frozen, SandboxState::Frozen),
        (&stopped, SandboxState::Stopped),
    ] {
        ensure!(figures.state() == state, "{figures:?}");
        let differs = figures
            .disk_bytes
            .zip(running.disk_bytes)
            .map(|(now, then)| now.abs_diff(then));
        ensure!(
            figures.disk_bytes.is_some() == counts && differs.unwrap_or(0) < 1 << 20,
            "{figures:?} differs from {running:?}"
        );
    }
    ensure!(
        room.state().await? == SandboxState::Stopped,
        "looking woke it"
    );
    Ok(())
}

/// A larger limit gives room at once, one below what is used is refused and changes nothing, and what was granted holds over
/// a stop, a start and the next daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_files_changes_while_it_runs_and_while_it_is_stopped() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let api = daemon.api().clone();
    let Some(room) = small_room(&api, "changing").await? else {
        return Ok(());
    };
    let first = disk_limit(room.info())?;
    ensure!(
        first.requested == Some(SMALL) && is_about(first.effective, SMALL),
        "{first:?}"
    );
    ensure!(places(&room.run(FILL).await?) == [DiskFullPlace::Root]);

    let larger = enlarge(&room, 4 * SMALL).await?;
    ensure!(
        larger.requested == Some(4 * SMALL) && is_about(larger.effective, 4 * SMALL),
        "{larger:?}"
    );
    let more = "head -c 100M /dev/urandom > more && sync && echo fits";
    let ran = room.run(more).await?;
    ensure!(
        ran.ok()? == "fits" && places(&ran).is_empty(),
        "{}",
        ran.story()
    );

    let refused = set_disk(&room, SMALL).await;
    let status = refused.err().context("less than is used was granted")?;
    ensure!(
        ["DISK_IN_USE", "UNSUPPORTED_BY_STORAGE"].contains(&reason(&status).as_str()),
        "{status:?}"
    );
    ensure!(*disk_limit(&room.get().await?)? == larger);
    room.run("echo still > file && sync").await?.exited(0)?;

    room.stop().await?;
    let refused = set_disk(&room, SMALL).await;
    let status = refused.err().context("less than is used was granted")?;
    ensure!(
        ["DISK_IN_USE", "UNSUPPORTED_BY_STORAGE"].contains(&reason(&status).as_str()),
        "{status:?}"
    );
    let updated = set_disk(&room, 8 * SMALL).await?;
    let largest = disk_limit(&updated)?.clone();
    ensure!(is_about(largest.effective, 8 * SMALL), "{largest:?}");
    ensure!(
        room.state().await? == SandboxState::Stopped,
        "a change woke it"
    );
    room.start().await?;
    ensure!(*disk_limit(&room.get().await?)? == largest);
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(*disk_limit(&room.get().await?)? == largest);
    let ran = room.run("cat file; wc -c < more").await?;
    ensure!(ran.ok()? == format!("still\n{}", 100 << 20));
    Ok(())
}

/// What `lodge df` is made of: the host's figures are plausible, and each sandbox is there once with what `Stats` says.
#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_disk_has_every_sandbox_with_what_it_uses() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let rooms = [
        api.room("a").await?,
        api.room("b").await?,
        api.room("c").await?,
    ];
    rooms[1].run("echo x > file; sync").await?.exited(0)?;
    rooms[2].stop().await?;
    let first = disk(api, 2, "").await?;
    let host = first.host.context("a host")?;
    let info = api.node().info(pb::InfoRequest {}).await?.into_inner();
    ensure!(host.driver == info.storage_driver, "{host:?}");
    ensure!(host.used_bytes <= host.size_bytes, "{host:?}");
    if can(api, "limit_bytes").await? {
        ensure!(
            host.used_bytes > 0 && host.host_free_bytes > 0 && !host.path.is_empty(),
            "{host:?}"
        );
    }
    ensure!(first.images_bytes > 0 && first.logs_bytes == 0);
    let second = disk(api, 2, &first.next_page_token).await?;
    ensure!(second.next_page_token.is_empty());
    let all: Vec<_> = first
        .sandboxes
        .into_iter()
        .chain(second.sandboxes)
        .collect();
    let told: Vec<_> = all
        .iter()
        .map(|one| (one.name.as_str(), one.state()))
        .collect();
    let (running, stopped) = (SandboxState::Running, SandboxState::Stopped);
    ensure!(
        told == [("a", running), ("b", running), ("c", stopped)],
        "{told:?}"
    );
    for (one, room) in all.iter().zip(&rooms) {
        let figures = room.stats().await?;
        ensure!(
            (one.id.as_str(), one.limit_bytes) == (room.id(), figures.disk_limit_bytes)
                && one.used_bytes.is_some() == figures.disk_bytes.is_some(),
            "{one:?}, {figures:?}"
        );
    }
    let said = lodge(&daemon, &["df", "--json"]).await?;
    let object = said.exited(0)?.json()?;
    ensure!(object["host"]["driver"] == host.driver.as_str(), "{object}");
    ensure!(object["sandboxes"][1]["name"] == "b", "{object}");
    let table = lodge(&daemon, &["df"]).await?.exited(0)?.text();
    ensure!(
        table.contains("host free") && table.contains("\nb "),
        "{table}"
    );
    rooms[0].run("echo logged").await?.exited(0)?;
    until("its log counts", SOON, || async {
        Ok((disk(api, 0, "").await?.logs_bytes > 0).then_some(()))
    })
    .await
}

/// A pool grows in use and is never made smaller; where there is none, that is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_grows_or_is_said_not_to_be_there() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let room = api.room("in-use").await?;
    let before = disk(api, 0, "").await?.host.context("a host")?;
    let grow = |bytes| async move {
        let grown = api.node().grow_pool(pb::GrowPoolRequest { bytes }).await;
        grown.map(|grown| grown.into_inner().host.unwrap_or_default())
    };
    if !can(api, "grow").await? {
        let status = grow(EXBIBYTE).await.err().context("there is no pool")?;
        ensure!(
            status.code() == Code::Unimplemented && reason(&status) == "UNSUPPORTED_BY_STORAGE",
            "{status:?}"
        );
        let said = lodge(&daemon, &["pool", "grow", "1TiB"]).await?;
        ensure!(said.exited(125)?.stderr.contains("unsupported by the"));
        return Ok(());
    }
    let larger = before.size_bytes + (1 << 30);
    let grown = grow(larger).await?;
    ensure!(
        grown.size_bytes > before.size_bytes && grown.size_bytes <= larger,
        "{grown:?} was {before:?}"
    );
    let status = grow(before.size_bytes / 2).await;
    let status = status.err().context("it was made smaller")?;
    ensure!(
        status.code() == Code::InvalidArgument && reason(&status) == "POOL_TOO_SMALL",
        "{status:?}"
    );
    let after = disk(api, 0, "").await?.host.context("a host")?;
    ensure!(after.size_bytes == grown.size_bytes, "{after:?}");
    ensure!(room.run("echo x > file; sync; cat file").await?.ok()? == "x");
    Ok(())
}

/// At the host's reserve a create is refused with the figures and leaves nothing; what is there is started and used.
#[tokio::test(flavor = "multi_thread")]
async fn at_the_reserve_creates_are_refused_and_starts_are_not() -> Result<()> {
    let options = Options {
        config: "[storage]\nreserve_bytes = 0\n".into(),
        ..Options::default()
    };
    let mut daemon = Daemon::start(options).await?;
    let api = daemon.api().clone();
    let room = api.room("old").await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    room.stop().await?;
    daemon.terminate()?;
    let config = fs::read_to_string(daemon.config_file())?;
    let reserve = format!("reserve_bytes = {EXBIBYTE}");
    let changed = config.replace("reserve_bytes = 0", &reserve);
    ensure!(changed != config);
    fs::write(daemon.config_file(), changed)?;
    daemon.start_again()?;
    if !can(&api, "limit_bytes").await? {
        // A driver that holds no limits keeps no reserve either, and does not say that it does.
        let host = disk(&api, 0, "").await?.host.context("a host")?;
        ensure!(host.reserve_bytes == 0, "{host:?}");
        return Ok(());
    }
    let host = disk(&api, 0, "").await?.host.context("a host")?;
    ensure!(host.reserve_bytes == EXBIBYTE, "{host:?}");
    let refused = api.try_acquire(with_disk("new", SMALL)).await;
    let status = refused.err().context("a create at the reserve")?;
    ensure!(
        status.code() == Code::ResourceExhausted
            && reason(&status) == "HOST_DISK_RESERVE"
            && status.message().contains(&EXBIBYTE.to_string()),
        "{status:?}"
    );
    ensure!(api.list().await?.len() == 1, "a refused create is listed");
    let left = daemon.sandboxes_on_disk()?;
    ensure!(left == 1, "{left} directories of sandboxes");
    room.start().await?;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    room.delete().await?;
    Ok(())
}

/// Also those whose turn has not come: only few are removed at once.
#[tokio::test(flavor = "multi_thread")]
async fn all_deleted_sandboxes_whose_files_are_there_are_counted() -> Result<()> {
    const SANDBOXES: usize = 4;
    let options = Options {
        env: vec![(
            "LODGE_FAULTS".to_owned(),
            "delete.remove files=delay:1500".to_owned(),
        )],
        ..Options::default()
    };
    let daemon = Daemon::start(options).await?;
    let api = daemon.api();
    let being_removed = || async {
        let host = disk(api, 0, "").await?.host;
        Ok::<_, anyhow::Error>(host.context("the host's disk")?.being_removed)
    };
    let mut rooms = Vec::new();
    for number in 0..SANDBOXES {
        rooms.push(api.room(&format!("room-{number}")).await?);
    }
    ensure!(being_removed().await? == 0);
    for room in rooms {
        room.delete().await?;
    }
    let counted = being_removed().await?;
    ensure!(counted >= SANDBOXES as u64 - 1, "{counted}");
    until("all are gone", SOON, || async {
        Ok((being_removed().await? == 0).then_some(()))
    })
    .await
}
