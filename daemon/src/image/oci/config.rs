//! The config of an image: its platform, its layers' digests, and how runs in it start.
//!
//! Entry point, command, volumes and ports are not used: a sandbox runs what it is told.

use serde::{Deserialize, Serialize};

use crate::image::ImageError;
use crate::image::name::Digest;

/// This host's architecture in the words of image configs.
pub(super) const HOST_ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};
/// Most variables of an image.
const ENV_MAX: usize = 1024;
/// Longest user, in bytes: a name, a colon and a group.
const USER_MAX: usize = 256;
/// Longest working directory, in bytes.
const WORKDIR_MAX: usize = 4095;

/// The parts of an image's config that are used.
#[derive(Debug, Deserialize)]
pub(in crate::image) struct ImageConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<Execution>,
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Execution {
    env: Option<Vec<String>>,
    user: String,
    working_dir: String,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// How runs in an image start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::image) struct RunConfig {
    /// Variables, in the config's order.
    pub(in crate::image) env: Vec<(String, String)>,
    /// A user, as the config has it: a name or a number, perhaps with a group.
    pub(in crate::image) user: String,
    /// An absolute path.
    pub(in crate::image) workdir: String,
}

impl ImageConfig {
    pub(super) fn check_platform(&self) -> Result<(), ImageError> {
        let os = self.os.is_empty() || self.os == "linux";
        let architecture = self.architecture.is_empty() || self.architecture == HOST_ARCHITECTURE;
        if os && architecture {
            return Ok(());
        }
        let platform = format!("{}/{}", self.os, self.architecture);
        Err(ImageError::Platform {
            platform,
            host: HOST_ARCHITECTURE,
        })
    }

    pub(super) fn diff_ids(&self) -> Result<Vec<Digest>, ImageError> {
        let parsed = self.rootfs.diff_ids.iter().map(|text| Digest::parse(text));
        parsed
            .collect::<Result<_, _>>()
            .map_err(|_| ImageError::Config {
                problem: "a layer's digest is not SHA-256",
            })
    }

    pub(super) fn run(self) -> Result<RunConfig, ImageError> {
        let execution = self.config.unwrap_or_default();
        let refused = |problem| ImageError::Config { problem };
        let env = execution.env.unwrap_or_default();
        if env.len() > ENV_MAX {
            return Err(refused("it has more than 1024 variables"));
        }
        let env = env.iter().map(|v| variable(v)).collect::<Option<_>>();
        let (user, workdir) = (execution.user, execution.working_dir);
        if user.len() > USER_MAX || user.chars().any(char::is_control) {
            return Err(refused("its user is too long or has control characters"));
        }
        let path = workdir.is_empty() || workdir.starts_with('/');
        if !path || workdir.len() > WORKDIR_MAX || workdir.contains('\0') {
            return Err(refused("its working directory is not an absolute path"));
        }
        let env = env.ok_or_else(|| refused("a variable is not NAME=value"))?;
        Ok(RunConfig { env, user, workdir })
    }
}

fn variable(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let valid = !name.is_empty() && !text.contains('\0');
    valid.then(|| (name.to_owned(), value.to_owned()))
}
