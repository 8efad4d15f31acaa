//! `lodge image build`: a recipe becomes an archive or an image, with mmdebstrap and the host's own apt sources.
//!
//! The host's sources, proxies and credentials serve the build and are taken out of the result at its end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use tokio::process::{Child, Command};

use super::archive::Archive;
use super::progress;
use super::recipe::Recipe;
use crate::cli::Daemon;
use crate::failure::Advice;
use crate::terminal;

/// Makes a root file system from Debian packages.
const BUILDER: &str = "mmdebstrap";
/// Where the host's code name is.
const OS_RELEASE: &str = "/etc/os-release";
/// The host's sources: this file, and files with these endings in that directory.
const SOURCES_FILE: &str = "/etc/apt/sources.list";
const SOURCES_DIR: &str = "/etc/apt/sources.list.d";
const SOURCES_ENDINGS: &[&str] = &["list", "sources"];
/// How the host gets packages: proxies and what else its mirror needs. Everything else is the image's own business.
const APT_SETTINGS: &[&str] = &[
    "Acquire::http",
    "Acquire::https",
    "Acquire::Retries",
    "Acquire::Check-Date",
    "Acquire::Check-Valid-Until",
];
/// Temporary files are private; an archive of public packages need not be.
const ARCHIVE_MODE: u32 = 0o644;
/// Before anything is fetched; `$1` is the root file system.
const GIVE_CREDENTIALS: &str = r#"mkdir -p "$1/etc/apt"; for f in /etc/apt/auth.conf /etc/apt/auth.conf.d; do [ ! -e "$f" ] || cp -a "$f" "$1/etc/apt/"; done"#;
/// After the last script. An image must not tell where it was built, nor keep what only the build may use.
const TAKE_BACK: &str = r#"set -eu
rm -rf "$1"/etc/apt/auth.conf "$1"/etc/apt/auth.conf.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/apt/sources.list.d/*
: >"$1/etc/apt/sources.list"
rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1/etc/hosts""#;

/// Build an image from a recipe
///
/// DIR has a recipe.toml. The packages come from this host's own apt sources; root and the package mmdebstrap are
/// needed. The result is imported, or with -o written to a file as tar.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with a recipe.toml
    dir: PathBuf,
    /// Write a tar archive instead of importing the image
    #[arg(short, long, value_name = "FILE", conflicts_with = "name")]
    output: Option<PathBuf>,
    /// Name to give the image [default: the directory's]
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let dir = fs::canonicalize(&args.dir);
    let dir = dir.with_context(|| format!("cannot find {}", args.dir.display()))?;
    let recipe = Recipe::read(&dir)?;
    match &args.output {
        Some(file) => write(&recipe, file).await,
        None => import(&recipe, &image_name(&args, &dir)?, daemon).await,
    }
}

fn image_name(args: &Args, dir: &Path) -> Result<String> {
    let of_dir = || {
        dir.file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    };
    let name = args.name.clone().or_else(of_dir);
    let name = name.context("the directory's name is no image name: give --name")?;
    if is_image_name(&name) {
        return Ok(name);
    }
    let hint =
        "a name is 1 to 128 of [a-z0-9._/:-] and begins with a letter or a digit: give --name";
    Err(Advice::new(format!("not an image name: {name:?}"), hint).into())
}

/// The API's rule. The daemon checks it too, but only when the build has taken its minutes.
fn is_image_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 128
        && name.bytes().next().is_some_and(plain)
        && name
            .bytes()
            .all(|byte| plain(byte) || b"._/:-".contains(&byte))
}

/// Builds beside the file and renames, so that a file of that name is a whole archive.
async fn write(recipe: &Recipe, file: &Path) -> Result<()> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let part = tempfile::Builder::new()
        .prefix(".lodge-build-")
        .suffix(".tar")
        .tempfile_in(dir);
    let part = part.with_context(|| format!("cannot write in {}", dir.display()))?;
    let to = part
        .reopen()
        .context("cannot open the archive that is built")?;
    let mut build = start(recipe, to.into()).await?;
    finish(&mut build).await?;
    fs::set_permissions(part.path(), PermissionsExt::from_mode(ARCHIVE_MODE))
        .context("cannot make the archive readable")?;
    part.persist(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    terminal::note(&format!("wrote {}", file.display()));
    Ok(())
}

/// Imports the archive as it is built.
async fn import(recipe: &Recipe, name: &str, daemon: &Daemon) -> Result<()> {
    let images = daemon.connect().await?.images();
    let mut build = start(recipe, Stdio::piped()).await?;
    let archive = build
        .stdout
        .take()
        .context("the builder's output is not piped")?;
    let verdict = async move { finish(&mut build).await.map_err(std::io::Error::other) };
    progress::import(&images, name, Archive::new(archive, verdict)).await
}

async fn start(recipe: &Recipe, to: Stdio) -> Result<Child> {
    let mut command = Command::new(BUILDER);
    command.args(["--mode=root", "--format=tar", "--skip=output/dev"]);
    command.arg(format!("--variant={}", recipe.variant));
    command.arg(format!("--include={}", recipe.packages.join(",")));
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    for setting in apt_settings().await? {
        command.arg(format!("--aptopt={setting}"));
    }
    command.arg(format!("--setup-hook={GIVE_CREDENTIALS}"));
    for script in &recipe.scripts {
        command.arg(format!("--customize-hook={}", script.display()));
    }
    command.arg(format!("--customize-hook={TAKE_BACK}"));
    let host = host_suite()?;
    let suite = recipe.suite.as_deref().unwrap_or(&host);
    command.args([suite, "-"]);
    if suite == host {
        // Of another release the host has no sources: then it is mmdebstrap's own mirror.
        command.args(host_sources()?);
    }
    // What it says goes to our standard error: bars on a terminal, lines in a pipe.
    match command
        .stdin(Stdio::null())
        .stdout(to)
        .kill_on_drop(true)
        .spawn()
    {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "install it: apt-get install mmdebstrap";
            Err(Advice::new(format!("{BUILDER} is not installed"), hint).into())
        }
        result => result.with_context(|| format!("cannot run {BUILDER}")),
    }
}

async fn finish(build: &mut Child) -> Result<()> {
    let status = tokio::select! {
        status = build.wait() => status,
        _ = tokio::signal::ctrl_c() => {
            // The terminal told the builder too. It has mounts to undo, and we have a file to remove.
            let _ = build.wait().await;
            bail!("interrupted");
        }
    };
    let status = status.with_context(|| format!("cannot wait for {BUILDER}"))?;
    if status.success() {
        return Ok(());
    }
    let hint = "its own messages are above; it has to run as root";
    Err(Advice::new(format!("{BUILDER} failed ({status})"), hint).into())
}

/// `name "value";` for each of the host's settings that the build needs.
async fn apt_settings() -> Result<Vec<String>> {
    let mut command = Command::new("apt-config");
    command
        .args(["dump", "--no-empty", "--format", "%F \"%v\"%n"])
        .args(APT_SETTINGS);
    let output = command
        .stdin(Stdio::null())
        .output()
        .await
        .context("cannot run apt-config")?;
    if !output.status.success() {
        bail!(
            "apt-config failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8(output.stdout).context("the host's apt settings are not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn host_suite() -> Result<String> {
    let text =
        fs::read_to_string(OS_RELEASE).with_context(|| format!("cannot read {OS_RELEASE}"))?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.map(|name| name.trim_matches('"').to_owned());
    name.with_context(|| {
        format!("{OS_RELEASE} has no VERSION_CODENAME: name a suite in the recipe")
    })
}

fn host_sources() -> Result<Vec<PathBuf>> {
    let is_source = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| SOURCES_ENDINGS.contains(&ending))
    };
    let mut sources: Vec<PathBuf> = match fs::read_dir(SOURCES_DIR) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.path())
            .filter(is_source)
            .collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).context(format!("cannot read {SOURCES_DIR}")),
    };
    sources.sort();
    sources.extend(Some(PathBuf::from(SOURCES_FILE)).filter(|file| file.exists()));
    match sources.is_empty() {
        true => bail!("this host has no apt sources in {SOURCES_FILE} or {SOURCES_DIR}"),
        false => Ok(sources),
    }
}
