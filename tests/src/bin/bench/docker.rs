//! Docker's HTTP API over its unix socket, as little of it as the bench needs, without its command line.
//!
//! HTTP/1.0 on a connection per request: the answer ends with the connection, so there is nothing to parse but a
//! status line. A connection to a unix socket costs some tens of microseconds, of some tens of milliseconds measured.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::world::Identity;
use lodge_tests::rootfs::Rootfs;

/// Where `make bench-peers` has Docker listen.
const SOCKET: &str = "/run/lodge-bench-peers/docker.sock";
/// Docker answers within this time, image import included, or it never will.
const PATIENCE: Duration = Duration::from_secs(120);
/// An answer is smaller than this; whatever comes beyond is not read.
const MAX_ANSWER: u64 = 1 << 20;
/// Repository name of the base image in Docker.
const REPOSITORY: &str = "lodge-bench";

/// A Docker engine that has the base image.
pub(crate) struct Docker {
    socket: PathBuf,
    image: String,
}

impl Docker {
    /// Connects to the peer engine and gives it the base image, once; `None` if there is no such engine.
    pub(crate) fn find(rootfs: &Rootfs) -> Result<Option<Self>> {
        let socket = PathBuf::from(SOCKET);
        if !socket.exists() {
            return Ok(None);
        }
        let docker = Self {
            socket,
            image: format!("{REPOSITORY}:{}", rootfs.key()),
        };
        let (status, _) = docker.call("GET", &format!("/images/{}/json", docker.image), None)?;
        if status != 200 {
            docker.import(rootfs.archive(), rootfs.key())?;
        }
        Ok(Some(docker))
    }

    fn import(&self, archive: &Path, tag: &str) -> Result<()> {
        let mut file = std::fs::File::open(archive)?;
        let mut stream = self.connect()?;
        let length = file.metadata()?.len();
        let path = format!("/images/create?fromSrc=-&repo={REPOSITORY}&tag={tag}");
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n"
        )?;
        std::io::copy(&mut file, &mut stream).context("send the base image to docker")?;
        let (status, body) = answer(stream)?;
        ensure!(
            status == 200,
            "docker refused the image: {status} {}",
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }

    /// Creates a container that runs `command` as the sandbox's user, with its environment and without a network.
    pub(crate) fn create(&self, identity: &Identity, command: &[&str]) -> Result<Container<'_>> {
        let body = json!({
            "Image": self.image, "Cmd": command, "Env": env_of(identity), "WorkingDir": identity.workdir,
            "User": identity.numbers(), "HostConfig": { "NetworkMode": "none" },
        });
        let created = self.expect("POST", "/containers/create", Some(&body), 201)?;
        let id = created["Id"]
            .as_str()
            .context("docker gave no container id")?
            .to_owned();
        Ok(Container { docker: self, id })
    }

    /// A call that must answer with this status.
    fn expect(&self, method: &str, path: &str, body: Option<&Value>, want: u16) -> Result<Value> {
        let (status, answer) = self.call(method, path, body)?;
        ensure!(
            status == want,
            "docker {path}: {status} {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(serde_json::from_slice(&answer).unwrap_or(Value::Null))
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Vec<u8>)> {
        let body = body.map_or(String::new(), Value::to_string);
        let mut stream = self.connect()?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .with_context(|| format!("ask docker for {path}"))?;
        answer(stream).with_context(|| format!("docker's answer to {path}"))
    }

    fn connect(&self) -> Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket).context("connect to docker")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// The environment of a sandbox's commands, as Docker takes it.
fn env_of(identity: &Identity) -> Vec<String> {
    let env = identity.env.iter();
    env.map(|(name, value)| format!("{name}={value}")).collect()
}

/// Reads an answer to its end: status and body.
fn answer(stream: UnixStream) -> Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut bytes)?;
    let end = bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .context("no end of the header")?;
    let status = std::str::from_utf8(&bytes[..end])?
        .split(' ')
        .nth(1)
        .context("no status")?
        .parse()?;
    Ok((status, bytes.split_off(end + 4)))
}

/// A container, removed when this is dropped.
pub(crate) struct Container<'a> {
    docker: &'a Docker,
    id: String,
}

impl Container<'_> {
    /// Starts its command.
    pub(crate) fn start(&self) -> Result<()> {
        let path = format!("/containers/{}/start", self.id);
        self.docker.expect("POST", &path, None, 204).map(|_| ())
    }

    /// Waits until its command has ended well.
    pub(crate) fn wait(&self) -> Result<()> {
        let path = format!("/containers/{}/wait", self.id);
        let ended = self.docker.expect("POST", &path, None, 200)?;
        ensure!(ended["StatusCode"] == 0, "the container ended with {ended}");
        Ok(())
    }

    /// What `docker exec` does: create, start, read the output to its end, ask for the exit code.
    pub(crate) fn exec(&self, identity: &Identity, command: &[&str]) -> Result<()> {
        let body = json!({
            "Cmd": command, "Env": env_of(identity), "User": identity.numbers(), "WorkingDir": identity.workdir,
            "AttachStdout": true, "AttachStderr": true,
        });
        let path = format!("/containers/{}/exec", self.id);
        let created = self.docker.expect("POST", &path, Some(&body), 201)?;
        let exec = created["Id"].as_str().context("docker gave no exec id")?;
        let attached = json!({ "Detach": false, "Tty": false });
        self.docker
            .expect("POST", &format!("/exec/{exec}/start"), Some(&attached), 200)?;
        let ended = self
            .docker
            .expect("GET", &format!("/exec/{exec}/json"), None, 200)?;
        ensure!(
            ended["ExitCode"] == 0,
            "docker exec ended with {}",
            ended["ExitCode"]
        );
        Ok(())
    }

    /// The container's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let path = format!("/containers/{}?force=true&v=true", self.id);
        if let Err(error) = self.docker.expect("DELETE", &path, None, 204) {
            eprintln!(
                "bench: could not remove docker's container {}: {error:#}",
                self.id
            );
        }
    }
}
