//! Attacks E31, E33 and F12: images in which the places where a sandbox's file systems are mounted are something else, and a neighbour
//! that shares the image and never stands still. Where the file systems land is seen from inside, what of the host was touched from
//! outside.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::hostile::{Archive, docker_save};
use lodge_tests::image;
use lodge_tests::room::Room;
use serde_json::json;

/// Where the links lead: to descriptors of whoever mounts, and out of the root.
const TARGETS: [&str; 3] = ["/proc/self/fd", "/../../etc", "../../../root"];

/// Says where file systems are mounted, with nothing but bash.
const LOOK: &str = "
read comm </proc/1/comm; echo \"pid 1: $comm\"
while read -r _ _ _ _ place _ rest; do echo \"$place ${rest##*- }\"; done </proc/self/mountinfo
for place in /proc /sys /dev /dev/shm /dev/pts; do [ -L $place ] && echo \"$place is a link\"; done
[ -c /dev/null ] && [ -s /etc/hosts ] && [ -f /etc/resolv.conf ] && [ ! -L /etc/resolv.conf ] && echo whole";

/// A sandbox of the tiny image with one more layer on it.
async fn built(
    arena: &Arena,
    name: &str,
    add: impl Fn(&mut Archive) -> Result<()>,
) -> Result<Room> {
    let mut more = Archive::new();
    add(&mut more)?;
    let layers = [image::tiny()?.finish(), more.finish()];
    let archive = docker_save(&layers, &json!({}))?;
    let api = arena.daemon.api();
    api.import(name, &archive).await?;
    let request = pb::AcquireRequest {
        name: name.into(),
        image: name.into(),
        ..Default::default()
    };
    api.acquire(request).await
}

/// Every file system is where it belongs, and a real one.
async fn is_whole(room: &Room) -> Result<()> {
    for run in [room.run(LOOK).root(), room.run(LOOK)] {
        let ran = run.cwd("/").await?;
        let text = ran.ok().context("look")?;
        let lines: Vec<&str> = text.lines().collect();
        ensure!(lines.first() == Some(&"pid 1: lodge-holder"), "{text}");
        for mounted in [
            "/proc proc",
            "/sys sysfs",
            "/dev tmpfs",
            "/dev/shm tmpfs",
            "/dev/pts devpts",
        ] {
            let count = lines
                .iter()
                .filter(|line| line.starts_with(&format!("{mounted} ")))
                .count();
            ensure!(count == 1, "{mounted}: {count} times\n{text}");
        }
        ensure!(
            !text.contains("is a link") && lines.last() == Some(&"whole"),
            "{text}"
        );
    }
    Ok(())
}

/// Names in the directories of the host that the links lead to.
fn of_host() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for dir in ["/", "/etc", "/root", "/dev", "/dev/pts"] {
        for entry in fs::read_dir(dir)?.flatten() {
            names.push(entry.path().display().to_string());
        }
    }
    names.retain(|name| {
        Path::new(name).parent() != Some(Path::new("/dev/pts")) || name.ends_with("ptmx")
    });
    // Devices of the tests beside this one come and go.
    names.retain(|name| !name.starts_with("/dev/loop") && !name.starts_with("/root/."));
    names.sort();
    Ok(names)
}

/// The mount points are links out of the root, or to the descriptors of whoever mounts.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e31_mount_points_are_links() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let before = of_host()?;
    for (n, target) in TARGETS.iter().enumerate() {
        let room = built(&arena, &format!("links-{n}"), |archive| {
            for place in [
                "proc",
                "sys",
                "dev",
                "tmp",
                "etc/resolv.conf",
                "etc/hosts",
                "etc/hostname",
            ] {
                archive.symlink(place, target)?;
            }
            Ok(())
        })
        .await?;
        is_whole(&room)
            .await
            .with_context(|| format!("links to {target}"))?;
        room.stop().await?;
        room.start().await?;
        is_whole(&room)
            .await
            .with_context(|| format!("links to {target}, again"))?;
        room.delete().await?;
        let room = built(&arena, &format!("inner-links-{n}"), |archive| {
            archive.dir("dev")?;
            archive.symlink("dev/shm", target)?;
            archive.symlink("dev/pts", target)?;
            Ok(())
        })
        .await?;
        is_whole(&room)
            .await
            .with_context(|| format!("/dev/shm to {target}"))?;
        room.delete().await?;
    }
    let after = of_host()?;
    ensure!(after == before, "{before:?}\n{after:?}");
    arena.check().await
}

/// Two sandboxes of one image: one of them makes and removes directories where file systems are mounted, as fast as it can; the other
/// one starts, every time.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e31_the_image_of_a_restless_neighbour() -> Result<()> {
    const STARTS: usize = 10;
    let arena = Arena::new().await?;
    let body = "
import os
n = 0
while True:
    n += 1
    for place in ('/mnt', '/srv', '/opt'):
        try: os.rename(place, place + '.old')
        except OSError: pass
        try: os.mkdir(place)
        except OSError: pass
        try: os.rmdir(place + '.old')
        except OSError: pass
    for link in ('/etc/resolv.conf2', '/proc2', '/dev2'):
        try: os.symlink('/proc/self/fd', link); os.unlink(link)
        except OSError: pass
    if n == 100: print('begun', flush=True)
";
    let mut restless = arena.attacker.python(body).root().start().await?;
    restless.wait_for("begun").await?;
    let starter = arena.daemon.api().room("starter").await?;
    for n in 0..STARTS {
        starter.stop().await?;
        starter
            .start()
            .await
            .with_context(|| format!("start {n}"))?;
        starter
            .run("[ -c /dev/null ] && [ -s /etc/hosts ]")
            .await?
            .exited(0)?;
    }
    starter.delete().await?;
    arena.attacker.kill(&restless.run_id).await?;
    arena.check().await
}

/// Mount points and what they lie in change their names, and links take their places, while the sandbox is paused, resumed, stopped and
/// started: it comes up whole each time, and nothing is made on the host.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f12_mount_points_that_move() -> Result<()> {
    const ROUNDS: usize = 4;
    let arena = Arena::new().await?;
    let before = of_host()?;
    let mover = arena.daemon.api().room("mover").await?;
    let body = "
import os
n = 0
while True:
    n += 1
    for place in ('/tmp', '/dev/shm', '/dev/pts', '/dev', '/proc', '/sys', '/etc', '/etc/hosts'):
        for attempt in (lambda: os.rename(place, place + '.moved'), lambda: os.symlink('/proc/self/fd', place),
                        lambda: os.unlink(place), lambda: os.rename(place + '.moved', place)):
            try: attempt()
            except OSError: pass
    if n == 100: print('begun', flush=True)
";
    for round in 0..ROUNDS {
        let mut moving = mover.python(body).root().start().await?;
        moving.wait_for("begun").await?;
        for _ in 0..3 {
            mover.pause().await?;
            mover.resume().await?;
        }
        mover.stop().await?;
        mover
            .start()
            .await
            .with_context(|| format!("round {round}"))?;
        let whole =
            "[ -c /dev/null ] && [ -s /etc/hosts ] && [ -e /proc/1/comm ] && [ ! -L /dev/shm ]";
        mover.run(whole).root().cwd("/").await?.exited(0)?;
    }
    mover.delete().await?;
    let after = of_host()?;
    ensure!(after == before, "{before:?}\n{after:?}");
    arena.check().await
}

/// `/dev` is a file, or has been planted with a console and a terminal: what is used is a fresh file system, and nothing is made where
/// those lead to.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e33_planted_devices() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let room = built(&arena, "file", |archive| {
        archive.file("dev", b"no directory").map(drop)
    })
    .await?;
    is_whole(&room).await.context("/dev is a file")?;
    let planted = ["console", "null", "ptmx", "tty", "fd", "stdin", "pts/0"];
    let room = built(&arena, "planted", |archive| {
        archive.dir("dev")?.dir("dev/pts")?;
        for name in planted {
            archive.symlink(&format!("dev/{name}"), "/etc/planted")?;
        }
        Ok(())
    })
    .await?;
    is_whole(&room).await.context("/dev is planted")?;
    let ran = room
        .run("[ -e /etc/planted ] && echo planted; echo looked")
        .root()
        .cwd("/")
        .await?;
    ensure!(ran.ok()? == "looked", "{}", ran.story());
    if fs::symlink_metadata("/etc/planted").is_ok() {
        bail!("/etc/planted is on the host");
    }
    arena.check().await
}

/// An image has directories and files where the kernel's own are, such as /proc/self/attr and /proc/sys: what is written while a sandbox
/// is made and a command enters it goes to the kernel, and not to these.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e34_directories_where_the_kernels_are() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let room = built(&arena, "kernel-like", |archive| {
        for file in [
            "proc/self/attr/exec",
            "proc/self/uid_map",
            "proc/self/oom_score_adj",
            "proc/1/uid_map",
            "proc/sys/user/max_user_namespaces",
            "proc/sys/kernel/hostname",
            "sys/fs/cgroup/cgroup.procs",
            "dev/null",
        ] {
            archive.file(file, b"of the image")?;
        }
        Ok(())
    })
    .await?;
    is_whole(&room).await?;
    let look = "read q </proc/sys/user/max_user_namespaces; echo $q; read a b c </proc/self/uid_map; echo $a $c
        [ -e /sys/fs/cgroup/cgroup.procs ] || echo none; [ -c /dev/null ] && echo device";
    let ran = room.run(look).root().cwd("/").await?;
    ensure!(
        ran.text() == "0\n0 65536\nnone\ndevice\n",
        "{}",
        ran.story()
    );
    arena.check().await
}
