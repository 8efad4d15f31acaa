//! What a sandbox may have taken away beyond what every sandbox lacks. Nothing here gives anything.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::id::SandboxName;

/// How tightly a sandbox is held. The default is what every sandbox has; it is not written to a record, so that records of sandboxes
/// without these options are read by older versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// Set-user-id programs and file capabilities gain nothing: sudo does not work, and root is had by asking for it alone.
    #[serde(default)]
    pub no_new_privileges: bool,
    /// Its files cannot be changed, but for /tmp, which is memory then, and /dev/shm.
    #[serde(default)]
    pub read_only_root: bool,
}

impl Confinement {
    /// Whether it is that of every sandbox.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a caller asks for; `None` where it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Confine {
    /// See [`Confinement::no_new_privileges`].
    pub no_new_privileges: Option<bool>,
    /// See [`Confinement::read_only_root`].
    pub read_only_root: Option<bool>,
}

impl Confine {
    /// For a new sandbox.
    pub fn resolve(self) -> Confinement {
        Confinement {
            no_new_privileges: self.no_new_privileges.unwrap_or_default(),
            read_only_root: self.read_only_root.unwrap_or_default(),
        }
    }

    /// A sandbox keeps what it was made with: who relies on it being otherwise is told so.
    pub(super) fn check(self, name: &SandboxName, has: Confinement) -> Result<()> {
        let options = [
            (
                "no_new_privileges",
                self.no_new_privileges,
                has.no_new_privileges,
            ),
            ("read_only_root", self.read_only_root, has.read_only_root),
        ];
        for (option, asked, has) in options {
            if let Some(asked) = asked
                && asked != has
            {
                return Err(Error::new(
                    ErrorKind::FailedPrecondition,
                    "SANDBOX_DIFFERS",
                    format!("sandbox {name} was made with {option} = {has}, not {asked}"),
                )
                .hint("take another name, delete the sandbox first, or leave the option out"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_relies_on_an_option_is_told_where_it_is_otherwise() {
        let name = SandboxName::parse("a").expect("valid");
        let tight = Confinement {
            read_only_root: true,
            ..Confinement::default()
        };
        let asks = |read_only_root| Confine {
            read_only_root,
            ..Confine::default()
        };
        for (asked, has, fine) in [
            (None, tight, true),
            (Some(true), tight, true),
            (Some(false), tight, false),
            (Some(true), Confinement::default(), false),
        ] {
            let checked = asks(asked).check(&name, has);
            assert_eq!(checked.is_ok(), fine, "{asked:?} of {has:?}");
            if let Err(error) = checked {
                assert_eq!(error.reason(), "SANDBOX_DIFFERS");
            }
        }
    }

    #[test]
    fn a_record_without_it_is_as_before() {
        assert!(Confinement::default().is_default());
        let read: Confinement = serde_json::from_str("{}").expect("nothing is asked for");
        assert!(read.is_default());
        assert!(serde_json::from_str::<Confinement>(r#"{"seccomp":false}"#).is_err());
    }
}
