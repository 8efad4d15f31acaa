//! Work that people do, in a sandbox on either storage driver: a clone, an installation, a build, a database. What comes of it
//! is the same as on the host's own file system, byte for byte where time does not get in, and is still there after a stop.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::Stream;
use lodge_tests::daemon::{Daemon, Images, Options};
use lodge_tests::room::{Command, Ran, Room};
use lodge_tests::work::{ENVIRONMENT, OnHost, workdir};

/// Longer than any of this takes on a busy machine.
const WORK_WITHIN: Duration = Duration::from_secs(120);
/// Bytes of one piece of input.
const PIECE: usize = 256 << 10;
const LISTING: &str = include_str!("listing.py");

/// A kind of work.
struct Work {
    name: &'static str,
    /// A Python program that makes, on the host, the tar that the work begins with; empty if there is none.
    input: &'static str,
    /// What is done, for bash. What it writes is what is compared.
    script: &'static str,
    /// Where the files are that the end of a stop and a start must not change.
    tree: &'static str,
}

impl Work {
    /// Does it on either side. What it said.
    async fn is_the_same_as_on_the_host(&self) -> Result<String> {
        let host = OnHost::new(self.name).await?;
        let input = if self.input.is_empty() {
            Vec::new()
        } else {
            host.run(&["python3", "-c", self.input], &[], b"")?
        };
        let argv = ["bash", "-euo", "pipefail", "-c", self.script];
        let expected = host.run(&argv, &[("LISTING", LISTING)], &input)?;
        let expected = String::from_utf8(expected)?;
        let daemon = Daemon::start(Options {
            images: Images::Work,
            ..Options::default()
        })
        .await?;
        let room = room(&daemon, self.name).await?;
        let got = self
            .said(&room, in_work(&room, self.name, &argv), &input)
            .await?;
        same(&expected, &got)?;
        self.outlives_a_stop(&room).await?;
        Ok(got)
    }

    /// Standard output, all of it.
    async fn said(&self, room: &Room, command: Command, input: &[u8]) -> Result<String> {
        let mut live = command.env("LISTING", LISTING).start_with_stdin().await?;
        for piece in input.chunks(PIECE) {
            live.write(piece).await?;
        }
        live.close_stdin().await?;
        let result = live.end().await?;
        ensure!(
            result.exit_code == 0,
            "{} in the sandbox: {result:?}\n{}",
            self.name,
            String::from_utf8_lossy(&live.stderr)
        );
        let log = room.whole_log(&live.run_id, Stream::Stdout).await?;
        ensure!(log == live.stdout, "the log is not what was streamed");
        Ok(String::from_utf8(live.stdout)?)
    }

    async fn outlives_a_stop(&self, room: &Room) -> Result<()> {
        let list = ["python3", "-c", LISTING, self.tree];
        let before = self
            .said(room, in_work(room, self.name, &list), b"")
            .await?;
        ensure!(!before.is_empty(), "nothing is in {}", self.tree);
        room.stop().await?;
        let after = self
            .said(room, in_work(room, self.name, &list), b"")
            .await?;
        same(&before, &after).context("after a stop and a start")
    }
}

/// A sandbox with a directory for this work.
async fn room(daemon: &Daemon, name: &str) -> Result<Room> {
    let room = daemon.api().room(name).await?;
    room.argv(&["mkdir", &workdir(name)]).await?.exited(0)?;
    Ok(room)
}

/// A command in that directory, with the environment that the host's side has too.
fn in_work(room: &Room, name: &str, argv: &[&str]) -> Command {
    let command = room.argv(argv).cwd(&workdir(name)).timeout(WORK_WITHIN);
    ENVIRONMENT
        .iter()
        .fold(command, |command, (name, value)| command.env(*name, *value))
}

/// Fails with the first line that is other.
fn same(expected: &str, got: &str) -> Result<()> {
    let mut lines = expected.lines().zip(got.lines());
    if let Some((line, (expected, got))) = lines.by_ref().enumerate().find(|(_, (a, b))| a != b) {
        anyhow::bail!("line {line} is {got:?}, where it should be {expected:?}");
    }
    ensure!(
        expected == got,
        "{} lines, where there should be {}",
        got.lines().count(),
        expected.lines().count()
    );
    Ok(())
}

/// A clone of more than 5,000 files, a branch with work in it, a merge, and a collection of garbage.
#[tokio::test(flavor = "multi_thread")]
async fn case_work_git_clone() -> Result<()> {
    let work = Work {
        name: "clone",
        input: include_str!("repository.py"),
        script: include_str!("clone.sh"),
        tree: "clone",
    };
    let said = work.is_the_same_as_on_the_host().await?;
    let files = said.lines().filter(|line| line.contains(" -rw")).count();
    ensure!(files >= 5000, "{files} files are in the clone");
    Ok(())
}

/// Packages from local archives into an environment of their own: wheels, and one that is built from its source.
#[tokio::test(flavor = "multi_thread")]
async fn case_work_pip_install() -> Result<()> {
    let work = Work {
        name: "install",
        input: include_str!("packages.py"),
        script: include_str!("install.sh"),
        tree: "env",
    };
    let said = work.is_the_same_as_on_the_host().await?;
    ensure!(said.contains("No broken requirements found."), "{said}");
    Ok(())
}

/// A C project with libraries and a program that tests them; then again after a change, which builds what it concerns.
#[tokio::test(flavor = "multi_thread")]
async fn case_work_make() -> Result<()> {
    let work = Work {
        name: "build",
        input: include_str!("project.py"),
        script: include_str!("build.sh"),
        tree: "project",
    };
    let said = work.is_the_same_as_on_the_host().await?;
    ensure!(said.lines().any(|line| line == "15"), "{said}");
    Ok(())
}

/// A database with transactions that are written through.
#[tokio::test(flavor = "multi_thread")]
async fn case_work_sqlite() -> Result<()> {
    let work = Work {
        name: "load",
        input: "",
        script: include_str!("load.sh"),
        tree: ".",
    };
    let said = work.is_the_same_as_on_the_host().await?;
    let sound = said.lines().filter(|line| line.starts_with("ok"));
    ensure!(sound.count() == 3, "{said}");
    Ok(())
}

/// Writes entries, each in a transaction of its own, and tells each once it is on the disk.
const WRITE: &str = "
import sqlite3, sys
base = sqlite3.connect('killed.db', isolation_level=None)
base.execute(f'pragma journal_mode={sys.argv[1]}')
base.execute('pragma synchronous=full')
base.execute('create table if not exists entry (id integer primary key, text)')
n, = base.execute('select count(*) from entry').fetchone()
while True:
    n += 1
    base.execute('insert into entry values (?, ?)', (n, 'x' * (n % 3000)))
    print(f'<{n}>', flush=True)
";
/// Opens what a kill left: its journal is played back. How many entries there are.
const READ: &str = "
import sqlite3
base = sqlite3.connect('killed.db')
assert base.execute('pragma integrity_check').fetchall() == [('ok',)]
count, last, size = base.execute('select count(*), max(id), sum(length(text)) from entry').fetchone()
assert count == last and size == sum(n % 3000 for n in range(1, count + 1)), (count, last, size)
print(count)
";

/// A database whose writer is killed in the middle, its whole sandbox with it every other time: whole, and no entry less than
/// was told.
#[tokio::test(flavor = "multi_thread")]
async fn case_work_sqlite_is_whole_after_a_kill() -> Result<()> {
    let daemon = Daemon::start(Options {
        images: Images::Work,
        ..Options::default()
    })
    .await?;
    let name = "killed";
    let room = room(&daemon, name).await?;
    let mut kept = 0;
    for (turn, mode) in ["delete", "delete", "wal", "wal"].iter().enumerate() {
        let write = in_work(&room, name, &["python3", "-c", WRITE, mode]);
        let mut live = write.start().await?;
        live.wait_for(&format!("<{}>", kept + 60)).await?;
        if turn % 2 == 0 {
            ensure!(room.kill(&live.run_id).await? > 0, "nobody was killed");
        } else {
            room.stop().await?;
        }
        live.end().await?;
        let told = last_told(&live.stdout)?;
        let read: Ran = in_work(&room, name, &["python3", "-c", READ]).await?;
        let count: u64 = read.ok()?.parse()?;
        // One may have been written and not told.
        ensure!(
            count == told || count == told + 1,
            "{told} were told, {count} are there ({mode}, turn {turn})"
        );
        kept = count;
    }
    Ok(())
}

/// The number in the last whole line.
fn last_told(stdout: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(stdout);
    let whole = text.rsplit_once('\n').context("it told nothing")?.0;
    let last = whole.lines().last().context("it told nothing")?;
    let number = last.trim_start_matches('<').trim_end_matches('>');
    Ok(number.parse()?)
}
