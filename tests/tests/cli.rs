//! The `lodge` command: exit codes, streams, variables, JSON, pipes, and errors that say what to do.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_tests::cli::{command, lodge, run, with_stdin};
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::image;
use lodge_tests::live::contains;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// The exit code is the command's own, or that of a shell for signals, timeouts and what cannot be executed; 125 is
/// Lodge's own failure.
#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_those_of_the_command() -> Result<()> {
    let daemon = Daemon::new().await?;
    for (args, code) in [
        (&["run", "-s", "c", "true"][..], 0),
        (&["run", "-s", "c", "exit 3"], 3),
        (&["run", "-s", "c", "kill -9 $$"], 137),
        (&["run", "-s", "c", "-t", "1s", "sleep 60"], 124),
        (&["run", "-s", "c", "--", "/home", "x"], 126),
        (&["run", "-s", "c", "--", "no-such-command", "x"], 127),
        (&["run", "-s", "c", "exit 125"], 125),
        (&["run", "-s", "../climb", "true"], 125),
        (&["run", "-s", "id:aaaaaaaaaaaaaaaaaaaa", "true"], 125),
        (&["run", "-s", "c", "-t", "nonsense", "true"], 125),
        (&["rm", "no-such-sandbox"], 125),
    ] {
        lodge(&daemon, args)
            .await?
            .exited(code)
            .with_context(|| format!("{args:?}"))?;
    }
    Ok(())
}

/// Without a daemon the command says so, with a hint, and exits with 125.
#[tokio::test(flavor = "multi_thread")]
async fn no_daemon_is_told_with_a_hint() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    daemon.terminate()?;
    let said = lodge(&daemon, &["ls"]).await?;
    said.exited(125)?;
    ensure!(
        said.stderr.lines().any(|l| l.starts_with("hint: ")) && said.stdout.is_empty(),
        "{}",
        said.stderr
    );
    Ok(())
}

/// Flags that do not exist are errors, in every subcommand.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_flags_are_errors() -> Result<()> {
    let daemon = Daemon::new().await?;
    for subcommand in [
        "run", "create", "ls", "inspect", "update", "pause", "resume", "start", "stop", "rm",
        "stats", "watch", "ps", "kill", "image", "doctor", "version",
    ] {
        let said = lodge(&daemon, &[subcommand, "--no-such-flag", "x"]).await?;
        said.exited(125).with_context(|| subcommand.to_owned())?;
        ensure!(
            said.stderr.contains("--no-such-flag"),
            "{subcommand}: {}",
            said.stderr
        );
    }
    lodge(&daemon, &["no-such-subcommand"]).await?.exited(125)?;
    Ok(())
}

/// Output comes as the command writes it, each stream on its own, and not only at the end.
#[tokio::test(flavor = "multi_thread")]
async fn output_comes_as_it_is_written() -> Result<()> {
    let daemon = Daemon::new().await?;
    let script =
        "echo out; echo err >&2; until [ -e go ]; do sleep 0.05; done; printf '\\xff\\0end'";
    let mut child = command(&daemon, &["run", "-s", "c", script])?.spawn()?;
    let mut stdout = child.stdout.take().context("piped")?;
    let mut first = [0u8; 4];
    timeout(Duration::from_secs(20), stdout.read_exact(&mut first))
        .await
        .context("nothing comes")??;
    ensure!(&first == b"out\n");
    lodge(&daemon, &["run", "-s", "c", "touch go"])
        .await?
        .exited(0)?;
    let mut rest = Vec::new();
    timeout(Duration::from_secs(20), stdout.read_to_end(&mut rest)).await??;
    ensure!(rest == b"\xff\0end", "{rest:?}");
    let output = child.wait_with_output().await?;
    ensure!(
        output.status.success() && output.stderr == b"err\n",
        "{:?}",
        output.stderr
    );
    Ok(())
}

/// `-e NAME=VALUE`, `-e NAME` from the caller's environment, `--secret NAME` masked, and a file of variables; only
/// what was named is passed on.
#[tokio::test(flavor = "multi_thread")]
async fn variables_are_passed_as_named() -> Result<()> {
    let daemon = Daemon::new().await?;
    let file = daemon.slot().home().join("variables");
    fs::write(
        &file,
        "# a comment\n\nFROM_FILE=it's \"as is\" $X\nGIVEN=file\n",
    )?;
    let file = file.to_string_lossy().into_owned();
    let script = "echo \"$GIVEN|$CALLER|$TOKEN|$FROM_FILE|${UNNAMED-none}\"";
    let args = [
        "run",
        "-s",
        "c",
        "--env-file",
        &file,
        "-e",
        "GIVEN=a=b",
        "-e",
        "CALLER",
        "--secret",
        "TOKEN",
        script,
    ];
    let mut command = command(&daemon, &args)?;
    command
        .env("CALLER", "from caller")
        .env("TOKEN", "s3cr3t-value")
        .env("UNNAMED", "leak");
    let said = run(command).await?;
    ensure!(
        said.exited(0)?.text() == "a=b|from caller|«TOKEN»|it's \"as is\" $X|none\n",
        "{}",
        said.text()
    );
    for bad in [
        &["-e", "NOT_SET_ANYWHERE"][..],
        &["--secret", "A=value"],
        &["--env-file", "/no/such/file"],
    ] {
        let args: Vec<&str> = ["run", "-s", "c"]
            .iter()
            .chain(bad)
            .copied()
            .chain(["true"])
            .collect();
        lodge(&daemon, &args)
            .await?
            .exited(125)
            .with_context(|| format!("{bad:?}"))?;
    }
    Ok(())
}

/// Working directory, user and standard input are as given.
#[tokio::test(flavor = "multi_thread")]
async fn place_user_and_input_are_as_given() -> Result<()> {
    let daemon = Daemon::new().await?;
    let said = lodge(
        &daemon,
        &["run", "-s", "c", "-w", "/tmp", "-u", "root", "pwd; id -un"],
    )
    .await?;
    ensure!(said.exited(0)?.text() == "/tmp\nroot\n", "{}", said.text());
    let said = with_stdin(&daemon, &["run", "-s", "c", "-i", "cat"], b"given\0bytes").await?;
    ensure!(said.exited(0)?.stdout == b"given\0bytes");
    let said = with_stdin(&daemon, &["run", "-s", "c", "cat"], b"not asked for").await?;
    ensure!(said.exited(0)?.stdout.is_empty(), "{}", said.text());
    let said = with_stdin(
        &daemon,
        &["run", "-s", "c", "-i", "head -c 1"],
        &vec![b'x'; 4 << 20],
    )
    .await?;
    ensure!(said.exited(0)?.stdout == b"x");
    Ok(())
}

/// A reader that leaves early (as `head` does) ends the command line quietly, like any other tool.
#[tokio::test(flavor = "multi_thread")]
async fn reader_that_leaves_ends_it() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut child = command(&daemon, &["run", "-s", "c", "yes"])?.spawn()?;
    let mut stdout = child.stdout.take().context("piped")?;
    let mut first = [0u8; 2];
    timeout(Duration::from_secs(20), stdout.read_exact(&mut first))
        .await
        .context("nothing comes")??;
    drop(stdout);
    let output = timeout(Duration::from_secs(20), child.wait_with_output())
        .await
        .context("it runs on")??;
    ensure!(
        !output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    Ok(())
}

/// A program's arguments are passed as they are, without a shell; one argument is a script.
#[tokio::test(flavor = "multi_thread")]
async fn several_arguments_are_a_program() -> Result<()> {
    let daemon = Daemon::new().await?;
    let said = lodge(
        &daemon,
        &[
            "run", "-s", "c", "printf", "<%s>", "a b", "$HOME", "*", "-x",
        ],
    )
    .await?;
    ensure!(
        said.exited(0)?.text() == "<a b><$HOME><*><-x>",
        "{}",
        said.text()
    );
    let said = lodge(
        &daemon,
        &["run", "-s", "c", "echo a | tr a b; echo $((6*7))"],
    )
    .await?;
    ensure!(said.exited(0)?.text() == "b\n42\n");
    Ok(())
}

/// `--json` prints one object, of a run, of lists, and of errors.
#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_object() -> Result<()> {
    let daemon = Daemon::new().await?;
    let said = lodge(
        &daemon,
        &["run", "-s", "c", "--json", "echo out; echo err >&2; exit 3"],
    )
    .await?;
    let result = said.exited(3)?.json()?;
    ensure!(
        result["exit_code"] == 3 && result["end_reason"] == "EXITED",
        "{result}"
    );
    ensure!(
        result["stdout"] == "out\n" && result["stderr"] == "err\n",
        "{result}"
    );
    let timed_out = lodge(
        &daemon,
        &[
            "run",
            "-s",
            "c",
            "--json",
            "-t",
            "1s",
            "echo part; sleep 60",
        ],
    )
    .await?;
    let result = timed_out.exited(124)?.json()?;
    ensure!(
        result["end_reason"] == "TIMED_OUT" && result["stdout"] == "part\n",
        "{result}"
    );
    let error = lodge(&daemon, &["run", "-s", "../x", "--json", "true"]).await?;
    ensure!(
        error.exited(125)?.json()?["error"]["reason"] == "INVALID_SANDBOX_NAME",
        "{}",
        error.text()
    );
    let list = lodge(&daemon, &["ls", "--json"]).await?;
    ensure!(
        list.exited(0)?.text().contains("\"name\":\"c\"")
            || list.text().contains("\"name\": \"c\""),
        "{}",
        list.text()
    );
    ensure!(
        lodge(&daemon, &["inspect", "c", "--json"])
            .await?
            .exited(0)?
            .json()?["name"]
            == "c"
    );
    Ok(())
}

/// The verbs on sandboxes: create, list, inspect, list processes, end a run, remove.
#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_managed() -> Result<()> {
    let daemon = Daemon::new().await?;
    lodge(&daemon, &["create", "room"]).await?.exited(0)?;
    ensure!(
        lodge(&daemon, &["ls"])
            .await?
            .exited(0)?
            .text()
            .contains("room")
    );
    let room = daemon.api().room("room").await?;
    let mut live = room.run("echo up; exec sleep 3000").start().await?;
    live.wait_for("up").await?;
    let ps = lodge(&daemon, &["ps", "-s", "room"]).await?;
    ensure!(ps.exited(0)?.text().contains(&live.run_id), "{}", ps.text());
    let start = Instant::now();
    lodge(&daemon, &["kill", "-s", "room", &live.run_id])
        .await?
        .exited(0)?;
    ensure!(start.elapsed() < Duration::from_secs(4));
    lodge(&daemon, &["rm", "room"]).await?.exited(0)?;
    ensure!(
        !lodge(&daemon, &["ls"])
            .await?
            .exited(0)?
            .text()
            .contains("room")
    );
    Ok(())
}

/// Images are imported from a file, listed, removed by name, and removed for want of use.
#[tokio::test(flavor = "multi_thread")]
async fn images_are_managed() -> Result<()> {
    let daemon = Daemon::start(Options {
        images: Images::Own,
        ..Options::default()
    })
    .await?;
    let path = daemon.slot().home().join("tiny.tar");
    fs::write(&path, image::tiny()?.finish())?;
    let path = path.to_string_lossy().into_owned();
    lodge(&daemon, &["image", "import", "--name", "small", &path])
        .await?
        .exited(0)?;
    ensure!(
        lodge(&daemon, &["image", "ls"])
            .await?
            .exited(0)?
            .text()
            .contains("small")
    );
    lodge(&daemon, &["run", "-s", "c", "--image", "small", "true"])
        .await?
        .exited(0)?;
    lodge(&daemon, &["image", "rm", "small"])
        .await?
        .exited(125)?;
    let prune = lodge(&daemon, &["image", "prune"]).await?;
    ensure!(prune.exited(0)?.text().is_empty(), "{}", prune.text());
    ensure!(prune.stderr.contains("in use"), "{}", prune.stderr);
    lodge(&daemon, &["rm", "c"]).await?.exited(0)?;
    let told = lodge(&daemon, &["image", "prune", "--dry-run", "--json"]).await?;
    let told = told.exited(0)?.json()?;
    ensure!(
        told["images"][0]["names"] == serde_json::json!(["small"]),
        "{told}"
    );
    ensure!(
        told["freed_bytes"] == told["images"][0]["size_bytes"],
        "{told}"
    );
    lodge(&daemon, &["image", "rm", "small"]).await?.exited(0)?;
    lodge(&daemon, &["image", "import", "--name", "small", &path])
        .await?
        .exited(0)?;
    let prune = lodge(&daemon, &["image", "prune"]).await?;
    ensure!(
        prune.exited(0)?.text().contains("small"),
        "{}",
        prune.text()
    );
    ensure!(prune.stderr.contains("removed 1 image"), "{}", prune.stderr);
    lodge(&daemon, &["image", "rm", "small"])
        .await?
        .exited(125)?;
    Ok(())
}

/// `doctor` finds a host on which these tests run to be fine, as text and as JSON; `version` tells both versions;
/// `completion` prints a script.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_version_and_completion() -> Result<()> {
    let daemon = Daemon::new().await?;
    let doctor = lodge(&daemon, &["doctor", "--json"]).await?;
    let report = doctor.exited(0)?.json()?;
    ensure!(
        report["ok"] == true && report["checks"].as_array().is_some_and(|c| c.len() > 5),
        "{report}"
    );
    lodge(&daemon, &["doctor"]).await?.exited(0)?;
    let version = lodge(&daemon, &["version"]).await?;
    ensure!(
        version
            .exited(0)?
            .text()
            .matches(env!("CARGO_PKG_VERSION"))
            .count()
            >= 2,
        "{}",
        version.text()
    );
    ensure!(contains(
        &lodge(&daemon, &["completion", "bash"])
            .await?
            .exited(0)?
            .stdout,
        b"lodge"
    ));
    Ok(())
}

/// Ctrl-C ends the command with everything that it started.
#[tokio::test(flavor = "multi_thread")]
async fn interrupt_ends_the_command() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut command = command(
        &daemon,
        &[
            "run",
            "-s",
            "c",
            "echo begun; setsid sleep 3000 & sleep 3000",
        ],
    )?;
    let mut child = command.stderr(Stdio::null()).spawn()?;
    let mut stdout = child.stdout.take().context("piped")?;
    let mut first = [0u8; 6];
    timeout(Duration::from_secs(20), stdout.read_exact(&mut first))
        .await
        .context("nothing comes")??;
    let pid = nix::unistd::Pid::from_raw(child.id().context("it runs")?.cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
    let status = timeout(Duration::from_secs(20), child.wait())
        .await
        .context("it runs on")??;
    ensure!(!status.success(), "{status}");
    ensure!(daemon.api().room("c").await?.processes().await?.is_empty());
    Ok(())
}

/// The verbs of the lifecycle, as somebody types them: each says what it did, and `ls` and `inspect` show it.
#[tokio::test(flavor = "multi_thread")]
async fn lifecycle_verbs_do_what_they_say() -> Result<()> {
    let daemon = Daemon::new().await?;
    let create = "create l --label team=red --freeze-after 1h --delete-after never --memory 256MiB";
    let create: Vec<_> = create.split(' ').collect();
    lodge(&daemon, &create).await?.exited(0)?;
    lodge(&daemon, &["create", "other"]).await?.exited(0)?;
    let said = lodge(&daemon, &["pause", "l"]).await?;
    ensure!(said.exited(0)?.text() == "l\n", "{}", said.text());
    let refused = lodge(&daemon, &["run", "-s", "l", "--resume", "error", "true"]).await?;
    refused.exited(125)?;
    let frozen = lodge(
        &daemon,
        &["ls", "--state", "frozen", "--label", "team=red", "--json"],
    )
    .await?;
    let frozen = frozen.exited(0)?.json()?;
    ensure!(
        frozen.as_array().is_some_and(|all| all.len() == 1) && frozen[0]["name"] == "l",
        "{frozen}"
    );
    lodge(&daemon, &["resume", "l"]).await?.exited(0)?;

    let update =
        "update l --memory 512MiB --stop-after 2h --label tier=a --remove-label team --json";
    let update: Vec<_> = update.split(' ').collect();
    let updated = lodge(&daemon, &update).await?.exited(0)?.json()?;
    ensure!(
        updated["labels"] == serde_json::json!({ "tier": "a" }),
        "{updated}"
    );
    let idle = serde_json::json!({
        "freeze_after_seconds": 3600, "stop_after_seconds": 7200, "delete_after_seconds": 0,
    });
    ensure!(updated["idle"] == idle, "{updated}");
    let stats = lodge(&daemon, &["stats", "l", "--json"])
        .await?
        .exited(0)?
        .json()?;
    ensure!(stats[0]["memory_limit_bytes"] == 512 << 20, "{stats}");

    for (verb, state) in [("stop", "stopped"), ("start", "running")] {
        lodge(&daemon, &[verb, "l"]).await?.exited(0)?;
        let now = lodge(&daemon, &["inspect", "l", "--json"])
            .await?
            .exited(0)?
            .json()?;
        ensure!(now["state"] == state, "{now}");
    }
    let said = lodge(&daemon, &["update", "l"]).await?;
    said.exited(125)?;
    ensure!(said.stderr.contains("\nhint: "), "{}", said.stderr);
    Ok(())
}

/// `lodge watch NAME` prints a line for each change and ends with its sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_with_its_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    lodge(&daemon, &["create", "w"]).await?.exited(0)?;
    let mut watch = command(&daemon, &["watch", "w"])?.spawn()?;
    let mut stdout = watch.stdout.take().context("piped")?;
    let mut first = [0; 1];
    stdout.read_exact(&mut first).await?;
    lodge(&daemon, &["stop", "w"]).await?.exited(0)?;
    lodge(&daemon, &["rm", "w"]).await?.exited(0)?;
    let status = timeout(Duration::from_secs(60), watch.wait()).await??;
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await?;
    ensure!(
        status.success() && rest.ends_with("  w  deleted\n"),
        "{rest}"
    );
    Ok(())
}
