//! How a sandbox is named on the command line: by its name, or as `id:` and its id. (A name cannot contain a colon.)

use std::convert::Infallible;
use std::str::FromStr;

use lodge_client::SandboxRef;

/// Before an id.
const ID_PREFIX: &str = "id:";

/// A sandbox as named on the command line.
#[derive(Debug, Clone)]
pub(crate) struct SandboxArg {
    text: String,
}

impl SandboxArg {
    /// What calls name it by.
    pub(crate) fn reference(&self) -> SandboxRef {
        match self.text.strip_prefix(ID_PREFIX) {
            Some(id) => SandboxRef::Id(id.to_owned()),
            None => SandboxRef::Name(self.text.clone()),
        }
    }

    /// As typed.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for SandboxArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self {
            text: text.to_owned(),
        })
    }
}

/// The sandbox that a command is about unless it says otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct InSandbox {
    /// Sandbox: its name, or `id:` and its id
    #[arg(
        short,
        long,
        value_name = "NAME",
        env = "LODGE_SANDBOX",
        default_value = "default"
    )]
    pub(crate) sandbox: SandboxArg,
}
