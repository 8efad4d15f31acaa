//! Attacks F01 to F23 of the catalogue as far as they concern images: every archive is hostile. The extractor's unit
//! tests have each rule in detail; here an archive goes through the API, and the host is looked at afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::{Arena, find_mention};
use lodge_tests::host;
use lodge_tests::hostile::{Archive, Entry, docker_save, gzip};
use lodge_tests::image;
use tonic::{Code, Status};

/// The daemon may grow by this much while it imports.
const IMPORT_MEMORY: u64 = 64 << 20;
/// An archive that must fail, fails within this time.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

fn images_dir(arena: &Arena) -> PathBuf {
    arena.daemon.slot().state().join("images")
}

/// Every path below `top`.
fn walk(top: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(top)
        .with_context(|| top.display().to_string())?
        .flatten()
    {
        all.push(entry.path());
        if entry.file_type()?.is_dir() {
            all.extend(walk(&entry.path())?);
        }
    }
    Ok(all)
}

/// What is in the directory that an escape would reach first, without the images themselves.
fn around(arena: &Arena) -> Result<BTreeSet<PathBuf>> {
    let mut found: BTreeSet<PathBuf> = walk(arena.daemon.slot().home())?.into_iter().collect();
    found.extend(
        fs::read_dir(arena.daemon.slot().state())?
            .flatten()
            .map(|e| e.path()),
    );
    found.extend(fs::read_dir("/")?.flatten().map(|e| e.path()));
    found.extend(fs::read_dir("/etc")?.flatten().map(|e| e.path()));
    Ok(found)
}

/// Imports an archive; refused in a typed way, or taken with everything dangerous left out. Either way nothing appears
/// outside the store, and no device in it.
async fn import(arena: &Arena, archive: &[u8]) -> Result<Result<pb::Image, Status>> {
    let before = around(arena)?;
    let outcome = arena.daemon.api().import("hostile", archive).await;
    if let Err(status) = &outcome {
        let typed = [
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::ResourceExhausted,
            Code::Unimplemented,
            Code::OutOfRange,
        ];
        ensure!(
            typed.contains(&status.code()),
            "not a typed refusal: {status:?}"
        );
        ensure!(
            !status.message().contains("test-state"),
            "a path of the host: {}",
            status.message()
        );
    }
    let appeared: Vec<PathBuf> = around(arena)?.difference(&before).cloned().collect();
    ensure!(
        appeared.is_empty(),
        "outside the store appeared {appeared:?}"
    );
    for path in walk(&images_dir(arena))? {
        let kind = fs::symlink_metadata(&path)?.file_type();
        let fine = !(kind.is_char_device() || kind.is_block_device() || kind.is_socket());
        ensure!(fine, "{} is {kind:?}", path.display());
    }
    Ok(outcome)
}

async fn refused(arena: &Arena, archive: &[u8], what: &str) -> Result<String> {
    match import(arena, archive).await? {
        Ok(image) => bail!("{what} was imported: {image:?}"),
        Err(status) => Ok(status.message().to_owned()),
    }
}

/// Names that climb are refused by name; an absolute name lands inside.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f01_names_that_climb() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    for name in ["../../escaped", "a/../../escaped", "/../escaped", ".."] {
        let mut archive = image::tiny()?;
        archive.file(name, b"escaped")?;
        let message = refused(&arena, &archive.finish(), name).await?;
        ensure!(
            message.contains(name.trim_start_matches('/')),
            "{name} is not named: {message}"
        );
    }
    let mut archive = image::tiny()?;
    archive.file("/etc/absolute", b"inside")?;
    archive.file("..\\..\\windows", b"inside")?;
    if import(&arena, &archive.finish()).await?.is_ok() {
        ensure!(!Path::new("/etc/absolute").exists());
        ensure!(
            find_mention(&images_dir(&arena), "absolute")?.is_some(),
            "neither refused nor inside"
        );
    }
    arena.check().await
}

/// A link out, then a file through it: the file never lands where the link leads.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f02_symlink_then_write_through() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let outside = arena.daemon.slot().home().join("outside");
    fs::create_dir(&outside)?;
    let target = outside.to_string_lossy().into_owned();
    let climb = format!("{}{target}", "..".to_owned() + &"/..".repeat(40));
    for link in [target.as_str(), climb.as_str(), "/etc", ".."] {
        let mut archive = image::tiny()?;
        archive.symlink("l", link)?;
        archive.file("l/escaped", b"escaped")?;
        archive.hardlink("l/hard", "etc/passwd")?;
        archive.dir("l/made")?;
        let _ = import(&arena, &archive.finish()).await?;
        ensure!(
            fs::read_dir(&outside)?.count() == 0,
            "written through {link}"
        );
        ensure!(!Path::new("/etc/escaped").exists());
    }
    let mut chain = image::tiny()?;
    for n in 0..40 {
        chain.symlink(&format!("l{n}"), &format!("{}l{}", "../".repeat(n), n + 1))?;
    }
    chain.symlink("l40", &target)?;
    chain.file("l0/escaped", b"escaped")?;
    let _ = import(&arena, &chain.finish()).await?;
    ensure!(
        fs::read_dir(&outside)?.count() == 0,
        "written through a chain"
    );
    fs::remove_dir(&outside)?;
    arena.check().await
}

/// Hard links to files of the host, upwards, to links, and to each other: no file of the host gets a name in the store.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f04_hard_links_out() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let canary = arena.host_canary_file();
    let links_before = fs::metadata(&canary)?.nlink();
    let canary_name = canary.to_string_lossy().into_owned();
    for target in [
        canary_name.as_str(),
        "../../../../etc/shadow",
        "l",
        "missing",
        "self",
    ] {
        let mut archive = image::tiny()?;
        archive.symlink("l", &canary_name)?;
        archive.hardlink("self", target)?;
        let _ = import(&arena, &archive.finish()).await?;
        ensure!(
            fs::metadata(&canary)?.nlink() == links_before,
            "linked to through {target}"
        );
        let copied = find_mention(&images_dir(&arena), &arena.canaries.host)?;
        ensure!(copied.is_none(), "{copied:?} has the host's content");
    }
    arena.check().await
}

/// Devices, whiteouts, fifos and unknown kinds of entry: refused or left out, and never a crash.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f05_devices_and_unknown_kinds() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    for kind in *b"346SDMVxgLK7\0\xffz" {
        for device in [(1, 1), (0, 0)] {
            let mut archive = image::tiny()?;
            archive.entry(&Entry {
                name: b"odd",
                kind,
                device,
                link: b"x",
                ..Entry::default()
            })?;
            archive.file("after", b"after")?;
            let _ = import(&arena, &archive.finish()).await?;
        }
    }
    arena.check().await
}

/// Headers that lie, archives that end at every block, names of every sort and size: a typed answer in bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f07_header_torture() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let mut small = Archive::new();
    small
        .dir("etc")?
        .file("etc/a", &[b'a'; 700])?
        .symlink("etc/b", "a")?;
    let whole = small.finish();
    for end in (0..whole.len() - 1024).step_by(512) {
        let _ = import(&arena, &whole[..end]).await?;
        let _ = import(&arena, &whole[..end + 100]).await?;
    }
    let mut checksum = whole.clone();
    checksum[148..156].copy_from_slice(b"0000000\0");
    refused(&arena, &checksum, "a wrong checksum").await?;
    refused(&arena, &[0xff; 4096], "noise").await?;
    let mut names = Archive::new();
    for name in [
        &b""[..],
        b".",
        b"/",
        b"./",
        b"//",
        b"\xff\xfe",
        b"a\nb",
        b"a//b/./c",
        &[b'n'; 100],
    ] {
        names.entry(&Entry {
            name,
            ..Entry::default()
        })?;
    }
    let _ = import(&arena, &names.finish()).await?;
    let mut deep = Archive::new();
    deep.pax(&[("path", "d/".repeat(65_536).as_bytes())])?;
    deep.entry(&Entry {
        name: b"d",
        kind: b'5',
        ..Entry::default()
    })?;
    refused(&arena, &deep.finish(), "65,536 nested directories").await?;
    let mut long = Archive::new();
    long.entry(&Entry {
        name: b"././@LongLink",
        kind: b'L',
        data: &vec![b'n'; 200_000],
        ..Entry::default()
    })?;
    long.file("n", b"")?;
    refused(&arena, &long.finish(), "a name of 200,000 bytes").await?;
    let mut repeated = Archive::new();
    for _ in 0..20_000 {
        repeated.file("same", b"")?;
    }
    let start = Instant::now();
    let _ = import(&arena, &repeated.finish()).await?;
    ensure!(
        start.elapsed() < REFUSED_WITHIN,
        "20,000 entries of one name took {:?}",
        start.elapsed()
    );
    arena.check().await
}

/// Compressed bombs and files that claim to be huge: stopped at the ratio, the window or the size, in flat memory.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f08_decompression_bombs() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let daemon = arena.daemon.pid()?;
    host::reset_peak_memory(daemon)?;
    let before = host::memory_field(daemon, "VmHWM")?;
    let mut zeros = Archive::new();
    zeros.file("zeros", &vec![0; 100 << 20])?;
    let bomb = gzip(&zeros.finish())?;
    let start = Instant::now();
    refused(&arena, &bomb, "a gzip bomb").await?;
    let zstd = zstd::encode_all(&*zeros.finish(), 1)?;
    drop(zeros);
    refused(&arena, &zstd, "a zstd bomb").await?;
    refused(&arena, &gzip(&bomb)?, "a bomb in a bomb").await?;
    // A zstd frame whose window is 2 GiB: magic, descriptor, window of 2^31.
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
    refused(&arena, &window, "a zstd window of 2 GiB").await?;
    let mut sparse = Archive::new();
    sparse.pax(&[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.realsize", b"9223372036854775807"),
    ])?;
    sparse.file("s", b"1\n9223372036854775806\n1\n")?;
    let _ = import(&arena, &sparse.finish()).await?;
    let mut claims = Archive::new();
    claims
        .pax(&[("size", b"9223372036854775807")])?
        .file("claims", b"little")?;
    refused(&arena, &claims.finish(), "a file that claims 8 EiB").await?;
    ensure!(
        start.elapsed() < REFUSED_WITHIN,
        "it took {:?}",
        start.elapsed()
    );
    let peak = host::memory_field(daemon, "VmHWM")?;
    ensure!(
        peak < before + IMPORT_MEMORY,
        "the daemon grew from {before} to {peak} bytes"
    );
    arena.check().await
}

/// Extended attributes in the archive, each as a PAX record, and whether it may be on disk afterwards.
async fn attributes_of(arena: &Arena, names: &[&str]) -> Result<Vec<String>> {
    let mut archive = image::tiny()?;
    let keys: Vec<String> = names.iter().map(|n| format!("SCHILY.xattr.{n}")).collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|k| (k.as_str(), &b"y"[..])).collect();
    archive.pax(&records)?.entry(&Entry {
        name: b"marked-file",
        mode: 0o755,
        ..Entry::default()
    })?;
    archive.pax(&records)?.entry(&Entry {
        name: b"marked-dir",
        kind: b'5',
        mode: 0o755,
        ..Entry::default()
    })?;
    if let Err(status) = import(arena, &archive.finish()).await? {
        ensure!(
            names.iter().any(|n| status.message().contains(n)),
            "no attribute is named: {status:?}"
        );
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for path in walk(&images_dir(arena))?
        .iter()
        .filter(|p| p.to_string_lossy().contains("marked-"))
    {
        let mut buffer = vec![0u8; 64 << 10];
        let length = rustix::fs::llistxattr(path, &mut buffer)?;
        let list = String::from_utf8_lossy(&buffer[..length]).into_owned();
        found.extend(
            list.split('\0')
                .filter(|n| !n.is_empty())
                .map(str::to_owned),
        );
    }
    Ok(found)
}

/// Capabilities, ACLs of foreign ids and other privileged attributes of files do not reach the disk.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f09_privileged_attributes() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let names = [
        "security.capability",
        "security.selinux",
        "trusted.evil",
        "system.posix_acl_access",
        "system.posix_acl_default",
        "user.overlay.redirect",
        "user.harmless",
    ];
    for name in names {
        let found = attributes_of(&arena, &[name]).await?;
        ensure!(
            found.iter().all(|n| n == "user.harmless"),
            "on disk: {found:?}"
        );
    }
    arena.check().await
}

/// Tools in the sandbox's PATH that leave a mark when they are run: no import, start, run or delete runs one.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f15_trojan_tools() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let mut archive = image::tiny()?;
    archive.parents("usr/local/bin/x")?;
    for tool in [
        "tar", "gzip", "gunzip", "xz", "unpigz", "pigz", "zstd", "mount", "id", "stat", "cat",
    ] {
        let trojan = format!("#!/bin/bash\n: > /tmp/mark-{tool}\n");
        archive.executable(&format!("usr/local/bin/{tool}"), trojan.as_bytes())?;
    }
    let compressed = gzip(&archive.finish())?;
    import(&arena, &compressed).await??;
    import(&arena, &zstd::encode_all(&*archive.finish(), 1)?).await??;
    let request = pb::AcquireRequest {
        name: "trojan".into(),
        image: "hostile".into(),
        ..Default::default()
    };
    let room = arena.daemon.api().acquire(request).await?;
    room.run("exit 3").cwd("/tmp").stdin("x").await?.exited(3)?;
    room.argv(&["bash", "-c", "echo $0"])
        .root()
        .await?
        .exited(0)?;
    room.processes().await?;
    let marks = room.run("echo /tmp/mark-*").await?.ok()?;
    ensure!(marks == "/tmp/mark-*", "run: {marks}");
    let state = walk(&arena.daemon.state_dir())?;
    let mark = state.iter().find(|p| {
        p.file_name()
            .is_some_and(|n| n.as_bytes().starts_with(b"mark-"))
    });
    ensure!(mark.is_none(), "{mark:?}");
    room.delete().await?;
    arena.check().await
}

/// An archive that brings our own layout along, twice and as links out: the layout is never taken from the archive.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f20_archive_brings_the_layout() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    let outside = arena.daemon.slot().home().join("outside");
    fs::create_dir(&outside)?;
    let target = outside.to_string_lossy().into_owned();
    let names = [
        "rootfs",
        "templates",
        "metadata",
        "layers",
        "upper",
        "work",
        "index.json",
        "lock",
        "blobs",
    ];
    let mut twice = image::tiny()?;
    for name in names {
        twice.symlink(name, &target)?;
        twice.dir(name)?;
        twice.file(&format!("{name}/escaped"), b"escaped")?;
        twice.symlink(name, &target)?;
    }
    let _ = import(&arena, &twice.finish()).await?;
    ensure!(
        fs::read_dir(&outside)?.count() == 0,
        "written through the layout"
    );
    let mut root = Archive::new();
    root.entry(&Entry {
        name: b".",
        kind: b'2',
        link: target.as_bytes(),
        ..Entry::default()
    })?;
    root.file("escaped", b"escaped")?;
    let _ = import(&arena, &root.finish()).await?;
    ensure!(
        fs::read_dir(&outside)?.count() == 0,
        "written through the root"
    );
    // A `docker save` archive whose manifest names layers and config outside the archive.
    let mut manifest = Archive::new();
    let config = arena.host_canary_file().to_string_lossy().into_owned();
    let json = serde_json::json!([{"Config": config, "RepoTags": [], "Layers": ["../../../etc/passwd", target]}]);
    manifest.file("manifest.json", &serde_json::to_vec(&json)?)?;
    refused(&arena, &manifest.finish(), "a manifest that points out").await?;
    fs::remove_dir(&outside)?;
    arena.check().await
}

/// Attributes that steer an overlay do not reach the disk, and a whiteout that climbs removes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f23_overlay_attributes() -> Result<()> {
    let arena = Arena::with_own_images().await?;
    for name in ["redirect", "opaque", "metacopy", "whiteout", "origin"] {
        for prefix in ["trusted.overlay", "user.overlay"] {
            let found = attributes_of(&arena, &[&format!("{prefix}.{name}")]).await?;
            ensure!(found.is_empty(), "on disk: {found:?}");
        }
    }
    let mut upper = Archive::new();
    upper
        .file(".wh...", b"")?
        .file("etc/.wh.../..", b"")?
        .file(".wh.bin/x", b"")?;
    let layers = [image::tiny()?.finish(), upper.finish()];
    let _ = import(&arena, &docker_save(&layers, &serde_json::json!({}))?).await?;
    arena.attacker.run("true").await?.exited(0)?;
    arena.check().await
}
