//! What all rows share: the daemon under test, a sandbox, and the same root file system for the other sides.

use std::path::PathBuf;

use anyhow::{Context, Result};
use lodge_client::{Client, Sandbox};
use lodge_tests::daemon::{Daemon, Images, Options, StateAt};
use lodge_tests::image;
use lodge_tests::room::Room;
use lodge_tests::storage::Driver;

use crate::spawner::Spawner;
use lodge_tests::rootfs::Rootfs;

/// Name of the sandbox that the rows about runs use.
const SANDBOX: &str = "bench";
/// A line of log per call is not what is measured.
pub(crate) const LOG_LEVEL: &str = "log_level = \"warn\"\n";

/// As whom and with what a run in the sandbox works: the other sides do the same.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) workdir: PathBuf,
}

impl Identity {
    async fn of(room: &Room) -> Result<Self> {
        let numbers = room.run("id -u; id -g").await?.ok()?;
        let mut numbers = numbers.lines().map(str::parse::<u32>);
        let mut number = || {
            numbers
                .next()
                .context("id printed too little")?
                .context("id printed no number")
        };
        let printed = room.argv(&["env", "-0"]).await?.exited(0)?.text();
        let env = printed
            .split_terminator('\0')
            .filter_map(|v| v.split_once('='));
        Ok(Self {
            env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            uid: number()?,
            gid: number()?,
            workdir: room.argv(&["pwd"]).await?.ok()?.into(),
        })
    }

    /// `uid:gid`.
    pub(crate) fn numbers(&self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }
}

/// The daemon with one running sandbox, and the host's side.
pub(crate) struct World {
    pub(crate) spawner: Spawner,
    pub(crate) identity: Identity,
    pub(crate) rootfs: Rootfs,
    pub(crate) sandbox: Sandbox,
    pub(crate) client: Client,
    pub(crate) daemon: Daemon,
    /// One on each driver that rows have asked for, beside the one above.
    by_driver: Vec<(Driver, Daemon, Client)>,
}

impl World {
    /// Starts everything. Dropping it removes everything.
    pub(crate) async fn start() -> Result<Self> {
        let rootfs = Rootfs::unpack()?;
        let daemon = Daemon::with_config(LOG_LEVEL).await?;
        let client = Client::connect(&daemon.endpoint()).await?;
        let room = daemon.api().room(SANDBOX).await?;
        let identity = Identity::of(&room).await?;
        let sandbox = client.sandbox(SANDBOX).await?;
        let spawner = Spawner::start(&identity, rootfs.dir())?;
        Ok(Self {
            spawner,
            identity,
            rootfs,
            sandbox,
            client,
            daemon,
            by_driver: Vec::new(),
        })
    }

    /// A daemon's client where the files of sandboxes are on this storage driver, whatever the others have: that of the other
    /// rows, where none is asked for. On btrfs they are in a pool, as they are for users whose disk is not btrfs.
    pub(crate) async fn client_on(&mut self, driver: Option<Driver>) -> Result<Client> {
        let Some(driver) = driver else {
            return Ok(self.client.clone());
        };
        if let Some((_, _, client)) = self.by_driver.iter().find(|(of, ..)| *of == driver) {
            return Ok(client.clone());
        }
        let daemon = Daemon::start(Options {
            driver: Some(driver),
            state_at: StateAt::Beside,
            images: Images::Unset,
            config: LOG_LEVEL.into(),
            ..Options::default()
        })
        .await?;
        let archive = self.rootfs.archive();
        daemon.api().import_file(image::BASE, archive).await?;
        let client = Client::connect(&daemon.endpoint()).await?;
        self.by_driver.push((driver, daemon, client.clone()));
        Ok(client)
    }
}
