//! Options that take from a sandbox what others have: no new privileges, and a root file system that cannot be changed.

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::cli::lodge;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use tonic::Code;
use tonic_types::StatusExt as _;

fn confined(
    name: &str,
    no_new_privileges: Option<bool>,
    read_only_root: Option<bool>,
) -> pb::AcquireRequest {
    pb::AcquireRequest {
        name: name.into(),
        no_new_privileges,
        read_only_root,
        ..Default::default()
    }
}

/// A set-user-id program makes its user root, by default, and gains nothing where that is not wanted; a run as root is root either way.
/// It is so after a stop and a restart of the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn no_new_privileges_keeps_set_user_id_programs_down() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    for (name, option, inside) in [("open", None, "0\n0\n"), ("tight", Some(true), "1000\n1\n")] {
        let room = daemon.api().acquire(confined(name, option, None)).await?;
        ensure!(room.info().no_new_privileges == option.unwrap_or_default());
        room.run("cp /usr/bin/id /usr/bin/id2 && chmod 4755 /usr/bin/id2")
            .root()
            .await?
            .exited(0)?;
        let look = "id2 -u; grep NoNewPrivs /proc/self/status | cut -f2";
        for round in 0..3 {
            let ran = room.run(look).await?;
            ensure!(ran.text() == inside, "{name} {round}: {}", ran.story());
            ensure!(room.run("id -u").root().await?.text() == "0\n");
            match round {
                0 => {
                    room.stop().await?;
                }
                _ => daemon.restart()?,
            }
        }
    }
    Ok(())
}

/// Nothing of the files can be changed, by root either, nor made writable again; /tmp and /dev/shm are there to write to, of their size,
/// and are empty after a stop. Names and hosts are told as ever.
#[tokio::test(flavor = "multi_thread")]
async fn read_only_root_cannot_be_changed() -> Result<()> {
    let daemon = Daemon::new().await?;
    let request = pb::AcquireRequest {
        limits: Some(pb::Limits {
            shm_bytes: Some(4 << 20),
            ..Default::default()
        }),
        ..confined("a", None, Some(true))
    };
    let room = daemon.api().acquire(request).await?;
    ensure!(room.info().read_only_root);
    for _ in 0..2 {
        for path in [
            "/x",
            "/etc/x",
            "/home/user/x",
            "/root/x",
            "/var/x",
            "/usr/bin/x",
        ] {
            let ran = room.run(format!("echo x >{path}")).root().cwd("/").await?;
            ensure!(
                ran.code() != 0 && ran.errors().contains("Read-only file system"),
                "{path}: {}",
                ran.story()
            );
        }
        let ran = room.run("mount -o remount,rw / || chmod 755 /usr || rm -rf /usr/bin/id; ls /usr/bin/id; ls -A /tmp | wc -l; echo x >/tmp/x && cat /tmp/x")
            .root().cwd("/").await?;
        ensure!(ran.text() == "/usr/bin/id\n0\nx\n", "{}", ran.story());
        let fill = "head -c 16M /dev/zero >/tmp/big; stat -c %s /tmp/big; rm /tmp/big; getent hosts localhost >/dev/null && hostname";
        let ran = room.run(fill).cwd("/").await?;
        let (size, host) = ran
            .text()
            .trim()
            .split_once('\n')
            .map(|(s, h)| (s.to_owned(), h.to_owned()))
            .context("two lines")?;
        ensure!(
            size.parse::<u64>()? <= 4 << 20 && host == "a",
            "{}",
            ran.story()
        );
        room.stop().await?;
    }
    Ok(())
}

/// What an existing sandbox is made with is not changed by another call: who asks for what it has gets it, who asks for something else is
/// told so, and who does not say gets it as it is. The command has both options, and shows them.
#[tokio::test(flavor = "multi_thread")]
async fn options_of_an_existing_sandbox_are_not_ignored() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let made = lodge(
        &daemon,
        &["create", "tight", "--no-new-privileges", "--read-only-root"],
    )
    .await?;
    ensure!(made.status.success(), "{made:?}");
    let told = lodge(&daemon, &["inspect", "tight"]).await?;
    let text = String::from_utf8_lossy(&told.stdout);
    ensure!(text.contains("no new privileges, read-only root"), "{text}");
    let plain: Room = api.room("plain").await?;
    ensure!(!plain.info().no_new_privileges && !plain.info().read_only_root);
    for (request, fine) in [
        (confined("tight", None, None), true),
        (confined("tight", Some(true), Some(true)), true),
        (confined("tight", Some(false), None), false),
        (confined("tight", None, Some(false)), false),
        (confined("plain", Some(false), Some(false)), true),
        (confined("plain", Some(true), None), false),
        (confined("plain", None, Some(true)), false),
    ] {
        match api.try_acquire(request.clone()).await {
            Ok(_) => ensure!(fine, "{request:?} was granted"),
            Err(status) => {
                let details = status.get_error_details();
                let reason = &details.error_info().context("an ErrorInfo")?.reason;
                ensure!(
                    !fine
                        && status.code() == Code::FailedPrecondition
                        && reason == "SANDBOX_DIFFERS",
                    "{request:?}: {status:?}"
                );
            }
        }
    }
    Ok(())
}
