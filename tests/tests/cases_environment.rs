//! Cases L1 to L3: what a command finds in its environment.

use anyhow::{Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::refused;
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::hostile::docker_save;
use lodge_tests::image;
use tonic::Code;

/// The call's variable wins over the sandbox's, that over the image's, and that over the defaults; the same after a
/// restart of the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn case_l1_environment_precedence() -> Result<()> {
    let mut daemon = Daemon::start(Options {
        images: Images::Own,
        ..Options::default()
    })
    .await?;
    let config = serde_json::json!({
        "Env": ["A=image", "B=image", "C=image", "LANG=image"], "User": "user", "WorkingDir": "/tmp",
    });
    let archive = docker_save(&[image::tiny()?.finish()], &config)?;
    daemon.api().import("layers", &archive).await?;
    let env = [("B", "sandbox"), ("C", "sandbox")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let request = pb::AcquireRequest {
        name: "l1".into(),
        image: "layers".into(),
        env: env.into(),
        ..Default::default()
    };
    let room = daemon.api().acquire(request).await?;
    let script = "echo $A $B $C $LANG $PWD $USER";
    let expected = "image sandbox call image /tmp user";
    ensure!(room.run(script).env("C", "call").await?.ok()? == expected);
    ensure!(
        room.run(script).secret("C", "call-secret").await?.ok()?
            == "image sandbox «C» image /tmp user"
    );
    daemon.restart()?;
    ensure!(room.run(script).env("C", "call").await?.ok()? == expected);
    // A call's variable was the call's alone.
    ensure!(room.run(script).await?.ok()? == "image sandbox sandbox image /tmp user");
    Ok(())
}

/// HOME, USER, LOGNAME and SHELL are those of the user that the command runs as; `~` and `cd` lead home.
#[tokio::test(flavor = "multi_thread")]
async fn case_l2_home_and_names_match_the_user() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("l2").await?;
    let script = "echo $HOME $USER $LOGNAME $SHELL ~ $(id -un) $(id -u); pwd; cd /tmp; cd; pwd";
    let home = |user: &str, home: &str, uid: u32| {
        format!("{home} {user} {user} /bin/bash {home} {user} {uid}")
    };
    let user = home("user", "/home/user", 1000);
    ensure!(room.run(script).await?.ok()? == format!("{user}\n/home/user\n/home/user"));
    ensure!(
        room.run(script).user("1000").await?.ok()? == format!("{user}\n/home/user\n/home/user")
    );
    let root = home("root", "/root", 0);
    let as_root = room.run(script).root().await?.ok()?;
    ensure!(
        as_root.starts_with(&root) && as_root.ends_with("\n/root"),
        "{as_root}"
    );
    Ok(())
}

/// Newlines, quotes, equal signs and 100 KiB in a value arrive exactly, and so do 5,000 variables.
#[tokio::test(flavor = "multi_thread")]
async fn case_l3_values_arrive_exactly() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("l3").await?;
    for value in [
        "a\nb",
        "it's \"quoted\"",
        "x=y=z",
        "",
        " blank ",
        "é€😀",
        "$HOME `id` \\",
    ] {
        let ran = room.argv(&["printenv", "V"]).env("V", value).await?;
        ensure!(
            ran.exited(0)?.text() == format!("{value}\n"),
            "{value:?}: {}",
            ran.story()
        );
    }
    let large = "0123456789".repeat(10_240);
    let ran = room.argv(&["printenv", "V"]).env("V", &large).await?;
    ensure!(ran.exited(0)?.text() == format!("{large}\n"));
    let mut many =
        room.python("import os\nprint(all(os.environ[f'V{i}'] == f'{i}=' for i in range(5000)))");
    for i in 0..5000 {
        many = many.env(format!("V{i}"), format!("{i}="));
    }
    ensure!(many.await?.ok()? == "True");
    Ok(())
}

/// What cannot be a variable is refused, the variable is named, and nothing is run with another one changed.
#[tokio::test(flavor = "multi_thread")]
async fn case_l3_impossible_variables_are_refused_by_name() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("l3").await?;
    let too_large = "x".repeat(131_073);
    for (name, value, named) in [
        ("WITH=SIGN", "x", "WITH=SIGN"),
        ("WITH\0NUL", "x", "WITH"),
        ("", "x", ""),
        ("VALUE_WITH_NUL", "a\0b", "VALUE_WITH_NUL"),
        ("TOO_LARGE", too_large.as_str(), "TOO_LARGE"),
    ] {
        let plain = room.run("touch ran").env(name, value).send().await;
        let message = refused(plain, Code::InvalidArgument, &format!("variable {name:?}"))?;
        ensure!(message.contains(named), "{name:?} is not named: {message}");
        let secret = room
            .run("touch ran")
            .secret(name, format!("{value}-long-enough"))
            .send()
            .await;
        refused(secret, Code::InvalidArgument, &format!("secret {name:?}"))?;
    }
    let twice = room
        .run("touch ran")
        .env("TWICE", "1")
        .env("TWICE", "2")
        .send()
        .await;
    ensure!(refused(twice, Code::InvalidArgument, "a name given twice")?.contains("TWICE"));
    room.run("test ! -e ran").await?.exited(0)?;
    Ok(())
}
