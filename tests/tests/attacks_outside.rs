//! Attacks A21, F22 and E51: what of a sandbox reaches the host's programs, the daemon's own opens, or the files of a neighbour.

use anyhow::{Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::prober::{self, program};
use lodge_tests::storage::Driver;
use lodge_tests::strace::Strace;

const MIB: i64 = 1 << 20;
/// In every text of the caller's.
const MARK: &str = "mark7f3a";

/// Texts of callers that begin with a dash, or that a shell would take apart, are in no argument of a program that lodged has the host
/// execute.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a21_callers_texts_in_arguments_of_programs() -> Result<()> {
    let daemon = Daemon::start(Options {
        driver: Some(Driver::Overlay),
        ..Options::default()
    })
    .await?;
    let log = daemon.slot().home().join("strace");
    // Its launcher lives already and is not followed: what is executed inside is the sandbox's own.
    let strace = Strace::attach(daemon.pid()?, "execve", None, log)?;
    let api = daemon.api();
    for image in [
        format!("-{MARK}"),
        format!("$({MARK})"),
        format!("`{MARK}`"),
    ] {
        let request = pb::AcquireRequest {
            name: "a".into(),
            image,
            ..Default::default()
        };
        ensure!(
            api.try_acquire(request).await.is_err(),
            "there is such an image"
        );
    }
    // A limit that nobody had before: the host's mkfs makes a layer for it.
    let request = pb::AcquireRequest {
        name: MARK.into(),
        limits: Some(pb::Limits {
            disk_bytes: Some(77 * MIB),
            ..Default::default()
        }),
        env: [(MARK.to_owned(), format!("-o {MARK}"))].into(),
        labels: [(MARK.to_owned(), MARK.to_owned())].into(),
        ..Default::default()
    };
    let room = api.acquire(request).await?;
    for text in [
        format!("-{MARK}"),
        format!("$({MARK})"),
        format!("`{MARK}`"),
        format!("--{MARK}=;{MARK}"),
    ] {
        // Refused or not found inside: either is fine.
        let _ = room.run("true").user(&text).send().await;
        let _ = room.run("true").cwd(&format!("/{text}")).send().await;
        let _ = room.argv(&[&text, &text]).env(MARK, &text).send().await;
    }
    room.delete().await?;
    let lines = strace.detach()?;
    ensure!(
        lines.iter().any(|line| line.contains("mkfs")),
        "nothing was executed: {lines:?}"
    );
    let marked = lines.iter().find(|line| line.contains(MARK));
    ensure!(marked.is_none(), "{marked:?}");
    Ok(())
}

/// Output, logs and records are never opened by a path that leads into a sandbox: the daemon and its launcher open nothing there while
/// runs come and go.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f22_opens_below_a_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    room.run("mkdir -p d; ln -s /etc/passwd d/stdout; ln -s / d/log")
        .await?;
    let log = daemon.slot().home().join("strace");
    let calls = "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,symlink,symlinkat";
    let strace = Strace::attach(daemon.pid()?, calls, None, log)?;
    for _ in 0..5 {
        room.run("cd d; echo out; echo err >&2; head -c 100000 /dev/zero")
            .await?;
        room.processes().await?;
        room.stats().await?;
    }
    let lines = strace.detach()?;
    ensure!(lines.len() > 10, "nothing was opened: {lines:?}");
    // The host's name of a holder's root, and where the files are.
    let inside = ["/root/", "/upper/", "/pool/roots/", "/cwd/"];
    let led = lines
        .iter()
        .find(|line| inside.iter().any(|part| line.contains(part)));
    ensure!(led.is_none(), "{led:?}");
    Ok(())
}

/// Writes to a file of the image by every way that an ordinary program has: the writer has a file of its own from then on, and the
/// neighbour's is what it was, in memory and on disk. (What exploits of old kernels do is for a machine of its own.)
#[tokio::test(flavor = "multi_thread")]
async fn attack_e51_writes_to_a_shared_file() -> Result<()> {
    const FILE: &str = "/usr/bin/env";
    let arena = Arena::new().await?;
    let hash = format!(
        "sha256sum <{FILE}; dd if={FILE} iflag=direct bs=4096 status=none 2>/dev/null | sha256sum"
    );
    let before = arena.neighbour.run(hash.clone()).root().await?.ok()?;
    let body = "
import mmap
path = '/usr/bin/env'
def read_only(): return os.open(path, os.O_RDONLY)
def from_pipe():
    told, tell_ = os.pipe()
    os.write(tell_, b'attack')
    return told
# What is open for reading cannot be written to, whatever is spliced or mapped.
tell('write', lambda: os.write(read_only(), b'attack'))
tell('splice', lambda: os.splice(from_pipe(), read_only(), 6))
tell('sendfile', lambda: os.sendfile(read_only(), read_only(), 0, 6))
tell('map', lambda: mmap.mmap(read_only(), 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
private = mmap.mmap(read_only(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[0:6] = b'attack'
NUMBER['vmsplice'] = 278 if platform.machine() == 'x86_64' else 75
say('vmsplice', 'vmsplice', 1, None, 0, 0)
# What is open for writing is the sandbox's own.
own = os.open(path, os.O_RDWR)
os.pwrite(own, b'attack', 0)
tell('shared', lambda: mmap.mmap(own, 4096).__setitem__(slice(0, 6), b'attack'))
os.fsync(own)
";
    let ran = arena.attack_python(&program(body)).await?;
    let expected = [
        ("write", "EBADF"),
        ("splice", "EBADF"),
        ("sendfile", "EBADF"),
        ("map", "EACCES"),
        ("vmsplice", "ENOSYS|EPERM"),
        ("shared", "OK"),
    ];
    prober::expect(&ran, &expected)?;
    let after = arena.neighbour.run(hash).root().await?.ok()?;
    ensure!(after == before, "{before}\n{after}");
    arena.check().await
}
