//! Attacks A01 to A05: calls that no honest client makes.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::{by_id, by_name, refused};
use lodge_tests::arena::Arena;
use tonic::Code;

const MIB: usize = 1 << 20;

/// Every call that takes a name, an id or a run's id refuses this one.
async fn refused_everywhere(arena: &Arena, name: &str) -> Result<()> {
    let api = arena.daemon.api();
    let what = format!("the name {name:?}");
    let request = pb::AcquireRequest {
        name: name.into(),
        ..Default::default()
    };
    refused(api.try_acquire(request).await, Code::InvalidArgument, &what)?;
    for sandbox in [by_name(name), by_id(name)] {
        let get = pb::GetSandboxRequest {
            sandbox: sandbox.clone(),
        };
        refused(api.sandboxes().get(get).await, Code::InvalidArgument, &what)?;
        let delete = pb::DeleteSandboxRequest {
            sandbox: sandbox.clone(),
        };
        refused(
            api.sandboxes().delete(delete).await,
            Code::InvalidArgument,
            &what,
        )?;
        let run = arena
            .attacker
            .run("true")
            .with(|s| s.sandbox = sandbox)
            .send()
            .await;
        refused(run, Code::InvalidArgument, &what)?;
    }
    let log = pb::ReadLogRequest {
        sandbox: by_id(arena.attacker.id()),
        run_id: name.into(),
        stream: pb::Stream::Stdout.into(),
        ..Default::default()
    };
    refused(api.exec().read_log(log).await, Code::InvalidArgument, &what)?;
    match api.remove_image(name).await {
        Ok(_) => bail!("an image {name:?} was removed"),
        Err(e) => ensure!(
            matches!(e.code(), Code::InvalidArgument | Code::NotFound),
            "{what}: {e:?}"
        ),
    }
    Ok(())
}

/// Names and ids that climb, hide, inject or are too long: refused in every call, and nothing is made on disk.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a01_hostile_names_and_ids() -> Result<()> {
    let arena = Arena::new().await?;
    let before = arena.daemon.sandboxes_on_disk()?;
    let long = "a".repeat(129);
    for name in [
        "../x",
        "a/b",
        "",
        ".",
        "..",
        &long,
        "a\0b",
        "a\n",
        "ünïcode",
        "-rf",
        ";id",
        "%2e%2e",
        " a",
        "a b",
    ] {
        refused_everywhere(&arena, name).await?;
    }
    refused(
        arena
            .attacker
            .run("true")
            .with(|s| s.sandbox = None)
            .send()
            .await,
        Code::InvalidArgument,
        "no sandbox",
    )?;
    ensure!(
        arena.daemon.sandboxes_on_disk()? == before,
        "something was made on disk"
    );
    arena.check().await
}

/// Environment variables with impossible names, NUL, 1 MiB, ten thousand of them, and duplicates: refused; a newline
/// in a value is fine.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a02_hostile_environment() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    let mebibyte = "x".repeat(MIB);
    for (name, value) in [
        ("A=B", "x"),
        ("", "x"),
        ("A\0", "x"),
        ("A", "x\0y"),
        ("A", mebibyte.as_str()),
    ] {
        let what = format!("{name:?} with {} bytes", value.len());
        refused(
            room.run("true").env(name, value).send().await,
            Code::InvalidArgument,
            &what,
        )?;
        let env = [(name.to_owned(), value.to_owned())].into();
        let request = pb::AcquireRequest {
            name: "a02".into(),
            env,
            ..Default::default()
        };
        refused(
            arena.daemon.api().try_acquire(request).await,
            Code::InvalidArgument,
            &what,
        )?;
    }
    let twice = room.run("true").env("A", "1").env("A", "2");
    refused(twice.send().await, Code::InvalidArgument, "a duplicate")?;
    let both = room.run("true").env("A", "12345").secret("A", "12345");
    refused(
        both.send().await,
        Code::InvalidArgument,
        "a name as variable and secret",
    )?;
    let mut many = room.run("true");
    for n in 0..10_000 {
        many = many.env(format!("V{n}"), "x");
    }
    refused(
        many.send().await,
        Code::InvalidArgument,
        "ten thousand variables",
    )?;
    ensure!(
        room.run("printf '%s' \"$A\"")
            .env("A", "x\ny")
            .await?
            .exited(0)?
            .text()
            == "x\ny"
    );
    arena.check().await
}

/// Commands that are empty, blank, huge, with NUL, with carriage returns or a leading dash: each has one exact meaning.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a03_hostile_commands() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    refused(
        room.run("").send().await,
        Code::InvalidArgument,
        "an empty script",
    )?;
    refused(
        room.run("echo a\0b").send().await,
        Code::InvalidArgument,
        "a script with NUL",
    )?;
    refused(
        room.argv(&[]).send().await,
        Code::InvalidArgument,
        "no program",
    )?;
    refused(
        room.argv(&["echo", "a\0b"]).send().await,
        Code::InvalidArgument,
        "an argument with NUL",
    )?;
    refused(
        room.run("x").with(|s| s.command = None).send().await,
        Code::InvalidArgument,
        "no command",
    )?;
    room.run("   ").await?.exited(0)?;
    match room.argv(&[""]).send().await {
        Ok(ran) => drop(ran.exited(127)?),
        Err(e) => ensure!(e.code() == Code::InvalidArgument, "no name: {e:?}"),
    }
    let mebibyte = format!("X={}; echo ${{#X}}", "x".repeat(MIB));
    ensure!(room.run(mebibyte).await?.ok()? == MIB.to_string());
    for mebibytes in [9, 64] {
        match room.run("#".repeat(mebibytes * MIB)).send().await {
            Ok(_) => bail!("{mebibytes} MiB were accepted"),
            Err(e) => ensure!(
                matches!(
                    e.code(),
                    Code::InvalidArgument | Code::ResourceExhausted | Code::OutOfRange
                ),
                "{mebibytes} MiB: {e:?}"
            ),
        }
    }
    let carriage = room.run("printf a\r\nprintf b\r\n").await?;
    ensure!(carriage.stdout() == b"a\rb\r", "{}", carriage.story());
    let dash = room.run("-c 'echo injected'").await?;
    ensure!(
        dash.code() == 127 && dash.text().is_empty(),
        "{}",
        dash.story()
    );
    let option = room.run("--version").await?;
    ensure!(
        option.code() == 127 && option.text().is_empty(),
        "{}",
        option.story()
    );
    arena.check().await
}

/// Timeouts at every edge: none is endless by overflow.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a04_hostile_timeouts() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    for (seconds, nanos) in [
        (-1, 0),
        (0, -1),
        (i64::MAX, 0),
        (i64::MAX, 999_999_999),
        (i64::MIN, -999_999_999),
        (1, -1),
        (-1, 1),
        (0, 1_000_000_000),
        (0, i32::MAX),
        (9_223_372_036, 854_775_807),
    ] {
        let timeout = Some(prost_types::Duration { seconds, nanos });
        let what = format!("{seconds} s {nanos} ns");
        refused(
            room.run("sleep 60")
                .with(|s| s.timeout = timeout)
                .send()
                .await,
            Code::InvalidArgument,
            &what,
        )?;
    }
    let nanosecond = room
        .run("sleep 60")
        .timeout(Duration::from_nanos(1))
        .await?;
    nanosecond.timed_out()?;
    ensure!(
        nanosecond.took < Duration::from_secs(4),
        "{:?}",
        nanosecond.took
    );
    room.run("true")
        .with(|s| s.timeout = None)
        .await?
        .exited(0)?;
    arena.check().await
}

/// Limits of zero, below zero, of one byte and beyond everything: refused, and the minimum or maximum is named.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a05_hostile_limits() -> Result<()> {
    let arena = Arena::new().await?;
    type Set = fn(&mut pb::Limits, i64);
    let fields: [(&str, Set, i64); 5] = [
        ("memory_bytes", |l, v| l.memory_bytes = Some(v), 16 << 20),
        ("pids", |l, v| l.pids = Some(v), 16),
        ("cpu_millis", |l, v| l.cpu_millis = Some(v), 10),
        ("open_files", |l, v| l.open_files = Some(v), 64),
        ("shm_bytes", |l, v| l.shm_bytes = Some(v), 1 << 20),
    ];
    let before = arena.daemon.sandboxes_on_disk()?;
    for (name, set, minimum) in fields {
        for value in [0, -1, 1, minimum - 1, i64::MAX, i64::MIN] {
            let mut limits = pb::Limits::default();
            set(&mut limits, value);
            let request = pb::AcquireRequest {
                name: "a05".into(),
                limits: Some(limits),
                ..Default::default()
            };
            let outcome = arena.daemon.api().try_acquire(request).await;
            let message = refused(outcome, Code::InvalidArgument, &format!("{name} = {value}"))?;
            ensure!(message.contains(name), "the field is not named: {message}");
            if value < minimum {
                ensure!(
                    message.contains(&minimum.to_string()),
                    "the minimum is not named: {message}"
                );
            }
        }
    }
    ensure!(
        arena.daemon.sandboxes_on_disk()? == before,
        "something was made on disk"
    );
    arena.check().await
}
