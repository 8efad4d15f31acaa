//! Attacks P12, P13 and F40: files that say who a user is and directories in which a command should start, made by an enemy. A run is
//! refused or goes on with what can be told, and never hangs.

use std::time::Duration;

use anyhow::{Result, ensure};
use lodge_tests::arena::Arena;
use lodge_tests::room::Ran;

/// A run comes to its end within this, whatever it finds.
const WITHIN: Duration = Duration::from_secs(10);

async fn as_user(arena: &Arena, user: &str) -> Result<Ran> {
    let run = arena.attacker.run("id -u").user(user).cwd("/");
    let ran = arena.unseen(run.timeout(WITHIN).await?)?;
    ensure!(ran.took < WITHIN, "{user}: {:?}", ran.took);
    Ok(ran)
}

/// /etc/passwd of a GiB, without lines, with ids that are none, empty, a pipe, a link to the kernel's log, a second root: a number still
/// means that number, and a name is told or is not known.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p12_hostile_passwd() -> Result<()> {
    let arena = Arena::new().await?;
    arena
        .attack("cp /etc/passwd /root/passwd")
        .await?
        .exited(0)?;
    for (make, of_name) in [
        ("truncate -s 1G /etc/passwd", None),
        ("head -c 3000000 /dev/zero | tr '\\0' x >/etc/passwd", None),
        (
            "echo 'evil:x:4294967295:4294967295::/:/bin/sh' >/etc/passwd",
            None,
        ),
        ("echo 'evil:x:-1:-1::/:/bin/sh' >/etc/passwd", None),
        ("echo 'evil:x:70000:70000::/:/bin/sh' >/etc/passwd", None),
        (": >/etc/passwd", None),
        ("rm /etc/passwd; mkfifo /etc/passwd", None),
        ("rm /etc/passwd; ln -s /proc/kmsg /etc/passwd", None),
        ("rm /etc/passwd; ln -s /dev/zero /etc/passwd", None),
        ("rm /etc/passwd; mkdir /etc/passwd", None),
        (
            "rmdir /etc/passwd; printf 'evil:x:1234:1234::/:/x;id\\nevil:x:0:0::/:/bin/sh\\n' >/etc/passwd",
            Some("1234\n"),
        ),
    ] {
        let made = arena.attacker.run(make).user("0:0").cwd("/").await?;
        made.exited(0)?;
        let ran = as_user(&arena, "1000:1000").await?;
        ensure!(ran.text() == "1000\n", "{make}: {}", ran.story());
        let ran = as_user(&arena, "evil").await?;
        let as_expected = match of_name {
            Some(text) => ran.text() == text,
            None => ran.code() == 126 && ran.text().is_empty(),
        };
        ensure!(as_expected, "{make}: {}", ran.story());
    }
    let mended = "rm -rf /etc/passwd; cp /root/passwd /etc/passwd";
    let ran = arena.attacker.run(mended).user("0:0").cwd("/").await?;
    ensure!(arena.check_after(&ran).await.is_ok());
    Ok(())
}

/// /etc/group of a GiB, a pipe, or with a user in a hundred thousand groups: a user by name is told or refused, in bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f40_hostile_group() -> Result<()> {
    let arena = Arena::new().await?;
    for make in [
        "truncate -s 1G /etc/group",
        "seq 100000 | sed 's/.*/g&:x:&:user/' >/etc/group",
        "rm /etc/group; mkfifo /etc/group",
        "rm /etc/group; ln -s /proc/kmsg /etc/group",
        "rm /etc/group; ln -s /dev/zero /etc/group",
    ] {
        let made = arena.attacker.run(make).user("0:0").await?;
        made.exited(0)?;
        let ran = as_user(&arena, "user").await?;
        ensure!(
            ran.code() == 126 || ran.text() == "1000\n",
            "{make}: {}",
            ran.story()
        );
        ensure!(as_user(&arena, "1000:1000").await?.text() == "1000\n");
    }
    arena.check().await
}

/// A working directory that was deleted, moved, made unreadable, or became a pipe, a file or a link out: the run says so, twice alike.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p13_working_directories_that_are_none() -> Result<()> {
    let arena = Arena::new().await?;
    for make in [
        "rm -rf /srv/d",
        "rm -rf /srv/d /srv/e; mkdir /srv/e; mv /srv/e /srv/f",
        "rm -rf /srv/d; mkfifo /srv/d",
        "rm -rf /srv/d; : >/srv/d",
        "rm -rf /srv/d; ln -s d /srv/d",
        "rm -rf /srv/d; mkdir -m 0 /srv/d",
    ] {
        arena.attack(make).await?.exited(0)?;
        for _ in 0..2 {
            let run = arena.attacker.run("pwd").user("1000:1000").cwd("/srv/d");
            let ran = run.timeout(WITHIN).await?;
            ensure!(
                ran.code() == 126 && ran.text().is_empty() && ran.took < WITHIN,
                "{make}: {}",
                ran.story()
            );
            ensure!(
                ran.result.message.contains("/srv/d"),
                "{make}: {}",
                ran.story()
            );
        }
    }
    // A link out ends inside.
    arena
        .attack("rm -rf /srv/d; ln -s ../../../../.. /srv/d")
        .await?
        .exited(0)?;
    let ran = arena.attacker.run("pwd -P").root().cwd("/srv/d").await?;
    ensure!(ran.text() == "/\n", "{}", ran.story());
    arena.check().await
}
