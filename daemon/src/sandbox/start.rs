//! Starting: a cgroup, the layers, a holder, the limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lodge_kernel::cgroup::{self, Controller, EffectiveLimit, SandboxGroup};
use nix::errno::Errno;
use rustix::fs::StatVfsMountFlags;

use super::disk::Disk;
use super::failure::{files_read_only, host_disk_full, is_want_of_room};
use super::id::SandboxId;
use super::launched;
use super::limits::{self, EffectiveLimits, LimitStatus, Shortfall};
use super::live::{Live, OomEvents};
use super::platform::Platform;
use super::runtime::Started;
use super::steps::{Step, nothing, run_all};
use crate::error::{Error, ErrorKind, Result, chain};
use crate::fault;
use crate::holder::{Holder, HolderError, LaunchSpec, NoNewPrivileges, RootAccess};
use crate::image::{Digest, Image, ImageRef};
use crate::storage::{DiskUsage, Place, Root};
use crate::store::Record;

/// How long a launch may take. It takes milliseconds; this is for a host on its last legs, so that no start hangs for ever.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(30);
/// With fewer free blocks or inodes than these a file system is as good as full: an overlay makes a few directories.
const BLOCKS_TO_START: u64 = 16;
const INODES_TO_START: u64 = 16;
/// A btrfs takes a new file's space in units of this, or more.
const BYTES_TO_START: u64 = 64 << 10;

pub(super) struct Starting {
    platform: Arc<Platform>,
    record: Arc<Record>,
    image: Option<Image>,
    group: Option<Arc<SandboxGroup>>,
    root: Option<Root>,
    holder: Option<Holder>,
    oom: OomEvents,
    limits: Vec<LimitStatus>,
}

pub(super) const STEPS: &[Step<Starting>] = &[
    Step {
        name: "find image",
        run: find_image,
        undo: nothing,
    },
    Step {
        name: "make cgroup",
        run: make_cgroup,
        undo: remove_cgroup,
    },
    Step {
        name: "watch memory",
        run: watch_memory,
        undo: nothing,
    },
    Step {
        name: "open layers",
        run: open_layers,
        undo: nothing,
    },
    Step {
        name: "launch holder",
        run: launch_holder,
        undo: end_holder,
    },
    // Not before: cgroup v2 takes limits only when the launch has left the sandbox's own group.
    Step {
        name: "apply limits",
        run: apply_limits,
        undo: nothing,
    },
];

/// Starts a sandbox. Blocks; needs a runtime to be entered.
pub(super) fn start(platform: &Arc<Platform>, record: &Arc<Record>) -> Result<Started<Live>> {
    let mut starting = Starting {
        platform: Arc::clone(platform),
        record: Arc::clone(record),
        image: None,
        group: None,
        root: None,
        holder: None,
        oom: OomEvents::default(),
        limits: Vec::new(),
    };
    run_all("start", STEPS, &mut starting)?;
    Ok(started(starting))
}

fn started(starting: Starting) -> Started<Live> {
    const SET: &str = "an earlier step sets it";
    let (group, holder) = (starting.group.expect(SET), starting.holder.expect(SET));
    let image = starting.image.expect(SET);
    let live = live(
        &starting.platform,
        &starting.record,
        &image,
        holder,
        (group, starting.oom),
    );
    Started {
        live,
        limits: starting.limits,
    }
}

/// What runs need of a sandbox that has a holder.
pub(super) fn live(
    platform: &Platform,
    record: &Record,
    image: &Image,
    holder: Holder,
    (cgroup, oom): (Arc<SandboxGroup>, OomEvents),
) -> Live {
    let disk = Disk::of(platform, &record.id, Some(holder.pid()));
    Live {
        id: record.id.clone(),
        holder,
        uid_base: record.uid_base,
        cgroup,
        env: Arc::new(environment(image, record)),
        user: image.user.clone(),
        workdir: image.workdir.clone(),
        runs_dir: platform.store.runs_dir(&record.id),
        pids_limit: Arc::new(AtomicU64::new(record.spec.limits.pids)),
        oom,
        disk,
    }
}

/// The image's variables, then the sandbox's own; a later one of the same name takes the place of an earlier one.
fn environment(image: &Image, record: &Record) -> Vec<(String, String)> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let of_image = image.env.iter().map(|(name, value)| (name, value));
    for (name, value) in of_image.chain(&record.spec.env) {
        match merged.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => old.clone_from(value),
            None => merged.push((name.clone(), value.clone())),
        }
    }
    merged
}

/// The image that a record names. It cannot have been removed by a call, since images in use are kept.
pub(super) fn image_of(platform: &Platform, record: &Record) -> Result<Image> {
    let digest = Digest::parse(&record.spec.image_digest)?;
    platform
        .images
        .resolve(&ImageRef::Digest(digest))
        .map_err(|error| {
            Error::new(
                ErrorKind::FailedPrecondition,
                "IMAGE_MISSING",
                format!(
                    "its image {} ({}) is not there",
                    record.spec.image, record.spec.image_digest
                ),
            )
            .hint("import the image again")
            .caused_by(error)
        })
}

/// Why a sandbox could not be started, as far as that can be told from its files and its image's: what is missing is lost,
/// or on a file system that is not mounted. Changes nothing.
pub(super) fn what_is_missing(platform: &Platform, record: &Record) -> Option<Error> {
    let checked = image_of(platform, record).and_then(|image| {
        let place = Place {
            dir: &platform.store.layer_dir(&record.id),
            image: &image.roots(),
        };
        Ok(platform.storage.check(place)?)
    });
    checked.err()
}

fn find_image(starting: &mut Starting) -> Result<()> {
    starting.image = Some(image_of(&starting.platform, &starting.record)?);
    Ok(())
}

fn make_cgroup(starting: &mut Starting) -> Result<()> {
    let Starting {
        platform, record, ..
    } = starting;
    let limits = cgroup_limits(record);
    let group = platform
        .cgroup_parent
        .create(record.id.as_str(), record.uid_base, &limits)?;
    starting.group = Some(Arc::new(group));
    Ok(())
}

fn watch_memory(starting: &mut Starting) -> Result<()> {
    let group = starting.group.as_ref().expect("an earlier step sets it");
    starting.oom = OomEvents::of(group)?;
    Ok(())
}

fn remove_cgroup(starting: &mut Starting) {
    let Some(group) = starting.group.take() else {
        return;
    };
    if let Err(error) = group.kill().and_then(|()| group.remove()) {
        let error = Error::from(error);
        tracing::warn!(sandbox = %starting.record.id, error = %error.chain(), "cgroup left behind");
    }
}

fn open_layers(starting: &mut Starting) -> Result<()> {
    let Starting {
        platform,
        record,
        image,
        ..
    } = starting;
    let image = image.as_ref().expect("an earlier step sets it");
    let place = Place {
        dir: &platform.store.layer_dir(&record.id),
        image: &image.roots(),
    };
    let limit = record.spec.limits.disk();
    starting.root = Some(platform.storage.open(place, limit)?);
    Ok(())
}

fn launch_holder(starting: &mut Starting) -> Result<()> {
    const SET: &str = "an earlier step sets it";
    let Starting {
        platform, record, ..
    } = starting;
    let root = starting.root.take().expect(SET);
    let hostname = record.spec.name.hostname();
    let confinement = record.spec.confinement;
    let spec = LaunchSpec {
        id: record.id.clone(),
        uid_base: record.uid_base,
        etc_hosts: etc_hosts(&hostname),
        etc_resolv_conf: ETC_RESOLV_CONF.to_vec(),
        hostname,
        shm_bytes: record.spec.limits.shm_bytes,
        open_files: record.spec.limits.open_files,
        no_new_privileges: if confinement.no_new_privileges {
            NoNewPrivileges::On
        } else {
            NoNewPrivileges::Off
        },
        root_access: if confinement.read_only_root {
            RootAccess::ReadOnly
        } else {
            RootAccess::Writable
        },
        root,
        cgroup: starting.group.as_ref().expect(SET).launch_fds()?,
        socket: holder_socket(platform, &record.id),
    };
    launched::write(platform, record)?;
    let launch = Holder::launch(&platform.launcher, spec);
    // The timer is made inside: it needs the runtime's clock.
    let launched = tokio::runtime::Handle::current()
        .block_on(async { tokio::time::timeout(LAUNCH_PATIENCE, launch).await });
    let launched = launched.map_err(|_| launch_timed_out())?;
    starting.holder = Some(launched.map_err(|error| not_launched(platform, record, error))?);
    Ok(())
}

/// Where an overlay finds no space for its own directory, or no way to write at all, the kernel mounts it read-only or
/// refuses it; what fails then says little.
fn not_launched(platform: &Platform, record: &Record, error: HolderError) -> Error {
    let HolderError::Step(step) = &error else {
        return error.into();
    };
    let is_read_only = step.errno == Errno::EROFS as i32;
    if (is_read_only || is_want_of_room(step.errno))
        && let Some(full) = own_disk_full(&Disk::of(platform, &record.id, None).usage())
    {
        return full.caused_by(error);
    }
    let is_overlay = is_read_only || step.errno == Errno::EINVAL as i32;
    match rustix::fs::statvfs(platform.store.layer_dir(&record.id)) {
        Ok(disk) if is_overlay && disk.f_flag.contains(StatVfsMountFlags::RDONLY) => {
            files_read_only().caused_by(error)
        }
        Ok(disk)
            if is_read_only
                && (disk.f_bavail < BLOCKS_TO_START || disk.f_favail < INODES_TO_START) =>
        {
            host_disk_full().caused_by(error)
        }
        _ => error.into(),
    }
}

/// Why a start found no room, where it is the sandbox's own files that have all that they may have.
fn own_disk_full(usage: &DiskUsage) -> Option<Error> {
    if !usage.is_full(BYTES_TO_START) {
        return None;
    }
    let of = |used: Option<u64>, limit: Option<u64>, what: &str| {
        used.zip(limit)
            .map(|(used, limit)| format!("{used} of {limit} {what}"))
    };
    let figures = [
        of(usage.bytes, usage.limit_bytes, "bytes"),
        of(usage.inodes, usage.inodes_limit, "files"),
    ];
    let figures: Vec<_> = figures.into_iter().flatten().collect();
    let text = format!("its own disk is full: {}", figures.join(", "));
    let full = Error::new(ErrorKind::ResourceExhausted, "SANDBOX_DISK_FULL", text);
    Some(full.hint("raise its limit (`lodge update`), start it, and delete what is not needed"))
}

/// What came of it is ended by the undo of the cgroup.
fn launch_timed_out() -> Error {
    let seconds = LAUNCH_PATIENCE.as_secs();
    Error::new(
        ErrorKind::Unavailable,
        "LAUNCH_TIMED_OUT",
        format!("the sandbox did not start within {seconds} s"),
    )
    .hint("is the host overloaded?")
}

fn end_holder(starting: &mut Starting) {
    if let Some(holder) = starting.holder.take() {
        holder.mark_stopping();
        // Its cgroup is killed next, which ends it just as well.
        if let Err(error) = holder.kill_process() {
            tracing::debug!(sandbox = %starting.record.id, error = %chain(&error), "holder not killed by its pidfd");
        }
    }
    remove_socket(&starting.platform, &starting.record.id);
}

fn apply_limits(starting: &mut Starting) -> Result<()> {
    let Starting {
        platform,
        record,
        group,
        holder,
        ..
    } = starting;
    const SET: &str = "an earlier step sets it";
    let (group, holder) = (group.as_ref().expect(SET), holder.as_ref().expect(SET));
    let disk = Disk::of(platform, &record.id, Some(holder.pid()));
    starting.limits = hold_limits(platform, record, (group, &disk), record.spec.shortfall)?;
    Ok(())
}

/// Sets the limits and says what is in force. Those on files are held by then.
pub(super) fn hold_limits(
    platform: &Platform,
    record: &Record,
    (group, disk): (&SandboxGroup, &Disk),
    shortfall: Shortfall,
) -> Result<Vec<LimitStatus>> {
    let held = held(platform, record, (group, disk));
    limits::statuses(&record.spec.requested, &held, shortfall)
}

/// Sets the limits and says what each came to. Two of them hold from a start on: of these, those of the last start.
pub(super) fn held(
    platform: &Platform,
    record: &Record,
    (group, disk): (&SandboxGroup, &Disk),
) -> EffectiveLimits {
    let mut effective = platform.expected(&record.spec.limits);
    disk.correct(&mut effective);
    for applied in group.apply_limits(&cgroup_limits(record)) {
        note(&mut effective, applied);
    }
    if let Some(launched) = launched::read(platform, &record.id) {
        effective.open_files = Ok(launched.open_files);
        effective.shm_bytes = Ok(launched.shm_bytes);
    }
    effective
}

fn note(effective: &mut EffectiveLimits, applied: EffectiveLimit) {
    match applied.controller {
        Controller::Memory => effective.memory_bytes = applied.effective,
        Controller::Pids => effective.pids = applied.effective,
        Controller::Cpu => effective.cpu_millis = applied.effective,
        Controller::Devices => {}
    }
}

fn cgroup_limits(record: &Record) -> cgroup::Limits {
    let limits = &record.spec.limits;
    cgroup::Limits {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
    }
}

/// Where a sandbox's holder listens.
pub(super) fn holder_socket(platform: &Platform, id: &SandboxId) -> PathBuf {
    platform.holders_dir.join(format!("{id}.sock"))
}

/// Removes the socket of a holder that is dead, and what was noted of its launch.
pub(super) fn remove_socket(platform: &Platform, id: &SandboxId) {
    launched::remove(platform, id);
    let remove = || std::fs::remove_file(holder_socket(platform, id));
    match fault::around("stop.remove socket", remove) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(sandbox = %id, error = %chain(&error), "holder's socket not removed");
        }
        _ => {}
    }
}

/// A sandbox without a network has no name server: look-ups fail at once, not after a timeout.
const ETC_RESOLV_CONF: &[u8] = b"# no network\n";

fn etc_hosts(hostname: &str) -> Vec<u8> {
    format!(
        "127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n"
    )
    .into_bytes()
}
