//! What to run: from what a caller wrote to a specification that the rest trusts.
//!
//! Every rule about a call that needs no sandbox is here, in `environment` or in `timeout`. User names, paths and
//! programs are looked up by the child, inside, never here.

use std::time::Duration;

use bytes::Bytes;

use super::environment::{self, CallEnv, Secret};
use super::requests;
use super::timeout::{RawDuration, TimeoutPolicy};
use crate::error::{Error, Result};

/// Longest script, in bytes.
pub const SCRIPT_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Longest single argument: the kernel's `MAX_ARG_STRLEN` less the final NUL, in bytes.
pub const ARGUMENT_MAX_BYTES: usize = 131_071;
/// Bytes of each stream that a result keeps if the call does not say.
pub const OUTPUT_DEFAULT_BYTES: u64 = 1024 * 1024;
/// Most bytes of each stream that a result keeps.
pub const OUTPUT_MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Longest path that the kernel takes, without its NUL.
const PATH_MAX_BYTES: usize = 4_095;
/// Longest `user:group`; login names end at 32 bytes, this leaves room for odd systems.
const USER_MAX_BYTES: usize = 256;

/// A call as it came in, checked by nobody.
#[derive(Default)]
pub struct RawRunSpec {
    /// What to execute; `None` where the caller named nothing.
    pub command: Option<RawCommand>,
    /// Variables of the call.
    pub env: Vec<(String, String)>,
    /// Variables whose values are masked.
    pub secret_env: Vec<Secret>,
    /// Working directory; empty for the image's.
    pub cwd: String,
    /// `user`, `uid`, `user:group` or `uid:gid`; empty for the image's.
    pub user: String,
    /// Standard input.
    pub stdin: Stdin,
    /// How long it may run; `None` for the server's default.
    pub timeout: Option<RawDuration>,
    /// Bytes of each stream to keep in the result; `None` for the default.
    pub max_output_bytes: Option<i64>,
    /// The caller's own name for the call; empty for none.
    pub request_id: String,
}

/// The command of a call.
pub enum RawCommand {
    /// A script for the shell.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// Where standard input comes from.
#[derive(Clone, Default)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Null,
    /// These bytes, then its end.
    Bytes(Bytes),
    /// A pipe that the caller writes to while the command runs.
    Open,
}

/// The command of a run, validated.
#[derive(Clone, PartialEq, Eq)]
pub enum Command {
    /// A script for `bash -c` or `sh -c`.
    Shell(String),
    /// A program and its arguments; at least one.
    Argv(Vec<String>),
}

/// A run to be made, validated. It has no `Debug`: commands and environments belong in no log.
#[derive(Clone)]
pub struct RunSpec {
    pub(super) command: Command,
    pub(super) env: CallEnv,
    pub(super) cwd: String,
    pub(super) user: String,
    pub(super) stdin: Stdin,
    pub(super) timeout: Option<Duration>,
    pub(super) output_bytes: u64,
    /// Not part of what is run: see `requests`.
    pub(super) request_id: Option<String>,
}

impl RunSpec {
    /// Checks a call against the rules and the server's timeouts.
    pub fn new(raw: RawRunSpec, timeouts: &TimeoutPolicy) -> Result<Self> {
        Ok(Self {
            command: check_command(raw.command)?,
            env: CallEnv::new(raw.env, raw.secret_env)?,
            cwd: check_cwd(raw.cwd)?,
            user: check_user(raw.user)?,
            stdin: match raw.stdin {
                Stdin::Bytes(bytes) if bytes.is_empty() => Stdin::Null,
                other => other,
            },
            timeout: timeouts.resolve(raw.timeout)?,
            output_bytes: check_output(raw.max_output_bytes)?,
            request_id: requests::check(raw.request_id)?,
        })
    }

    /// Bytes of all that a caller wrote, roughly: what it costs to look at all of it.
    pub(super) fn body_bytes(&self) -> usize {
        let command = match &self.command {
            Command::Shell(script) => script.len(),
            Command::Argv(args) => args.iter().map(String::len).sum(),
        };
        let plain = self.env.plain().iter().map(|(n, v)| n.len() + v.len());
        let secret = self.env.secrets().iter().map(|s| s.value.len());
        let stdin = match &self.stdin {
            Stdin::Bytes(bytes) => bytes.len(),
            Stdin::Null | Stdin::Open => 0,
        };
        command + plain.chain(secret).sum::<usize>() + stdin
    }

    /// What the command's arguments take of [`environment::EXEC_MAX_BYTES`]. A script that goes by descriptor takes
    /// nothing.
    pub(super) fn argument_bytes(&self, script_as_argument_max: usize) -> usize {
        match &self.command {
            Command::Shell(script) if script.len() <= script_as_argument_max => script.len(),
            Command::Shell(_) => 0,
            Command::Argv(args) => environment::exec_cost(args.iter().map(String::as_str)),
        }
    }
}

fn check_command(raw: Option<RawCommand>) -> Result<Command> {
    match raw {
        None => Err(Error::invalid("INVALID_COMMAND", "no command")),
        Some(RawCommand::Shell(script)) => check_script(&script).map(|()| Command::Shell(script)),
        Some(RawCommand::Argv(args)) => check_argv(&args).map(|()| Command::Argv(args)),
    }
}

fn check_script(script: &str) -> Result<()> {
    if script.is_empty() {
        return Err(Error::invalid("INVALID_COMMAND", "the command is empty"));
    }
    if script.contains('\0') {
        return Err(Error::invalid(
            "INVALID_COMMAND",
            "the command has a NUL byte",
        ));
    }
    if script.len() > SCRIPT_MAX_BYTES {
        return Err(Error::invalid(
            "COMMAND_TOO_LARGE",
            format!(
                "the script has {} bytes; at most {SCRIPT_MAX_BYTES} are taken",
                script.len()
            ),
        )
        .hint("write it to a file in the sandbox and run that"));
    }
    Ok(())
}

fn check_argv(args: &[String]) -> Result<()> {
    if args.is_empty() {
        return Err(Error::invalid("INVALID_COMMAND", "no program"));
    }
    for (index, arg) in args.iter().enumerate() {
        if arg.contains('\0') {
            return Err(Error::invalid(
                "INVALID_COMMAND",
                format!("argument {index} has a NUL byte"),
            ));
        }
        if arg.len() > ARGUMENT_MAX_BYTES {
            return Err(Error::invalid(
                "COMMAND_TOO_LARGE",
                format!(
                    "argument {index} has {} bytes; the kernel takes {ARGUMENT_MAX_BYTES}",
                    arg.len()
                ),
            )
            .hint("write long input to a file in the sandbox, or to standard input"));
        }
    }
    let total = environment::exec_cost(args.iter().map(String::as_str));
    if total > environment::EXEC_MAX_BYTES {
        return Err(Error::invalid(
            "COMMAND_TOO_LARGE",
            format!(
                "the arguments need {total} bytes; at most {} are taken",
                environment::EXEC_MAX_BYTES
            ),
        ));
    }
    Ok(())
}

fn check_cwd(cwd: String) -> Result<String> {
    let absolute = cwd.is_empty() || cwd.starts_with('/');
    if absolute && !cwd.contains('\0') && cwd.len() <= PATH_MAX_BYTES {
        return Ok(cwd);
    }
    Err(Error::invalid("INVALID_CWD", "not a working directory")
        .hint("it is an absolute path without NUL, of at most 4095 bytes; empty takes the image's"))
}

fn check_user(user: String) -> Result<String> {
    let mut parts = user.split(':');
    let (name, group, rest) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let valid = user.is_empty()
        || (rest.is_none()
            && user.len() <= USER_MAX_BYTES
            && is_account(name)
            && group.is_none_or(is_account));
    if valid {
        return Ok(user);
    }
    Err(Error::invalid("INVALID_USER", "not a user")
        .hint("it is `user`, `uid`, `user:group` or `uid:gid`; empty takes the image's"))
}

/// A name as it may stand in passwd(5), or a number that is an id.
fn is_account(part: &str) -> bool {
    let name = !part.is_empty()
        && !part.starts_with('-')
        && !part.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    let number = part.bytes().all(|b| b.is_ascii_digit());
    name && (!number || part.parse::<u32>().is_ok_and(|id| id != u32::MAX))
}

fn check_output(asked: Option<i64>) -> Result<u64> {
    let Some(asked) = asked else {
        return Ok(OUTPUT_DEFAULT_BYTES);
    };
    u64::try_from(asked)
        .ok()
        .filter(|bytes| *bytes <= OUTPUT_MAX_BYTES)
        .ok_or_else(|| {
            Error::invalid(
                "INVALID_OUTPUT_LIMIT",
                format!("max_output_bytes is {asked}; it is 0 to {OUTPUT_MAX_BYTES}"),
            )
            .hint("`--max-output` of lodge says it; what is read as it comes (Start, Attach) is not cut")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: TimeoutPolicy = TimeoutPolicy {
        default: None,
        maximum: None,
    };

    fn shell(script: &str) -> RawRunSpec {
        RawRunSpec {
            command: Some(RawCommand::Shell(script.to_owned())),
            ..RawRunSpec::default()
        }
    }

    fn argv(args: &[&str]) -> RawRunSpec {
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        RawRunSpec {
            command: Some(RawCommand::Argv(args)),
            ..RawRunSpec::default()
        }
    }

    fn reason(raw: RawRunSpec) -> &'static str {
        RunSpec::new(raw, &TIMEOUTS)
            .err()
            .expect("must be refused")
            .reason()
    }

    #[test]
    fn commands_that_cannot_be_run_are_refused() {
        assert_eq!(reason(RawRunSpec::default()), "INVALID_COMMAND");
        assert_eq!(reason(shell("")), "INVALID_COMMAND");
        assert_eq!(reason(shell("echo \0")), "INVALID_COMMAND");
        assert_eq!(reason(argv(&[])), "INVALID_COMMAND");
        assert_eq!(reason(argv(&["a", "b\0"])), "INVALID_COMMAND");
        assert_eq!(
            reason(shell(&"x".repeat(SCRIPT_MAX_BYTES + 1))),
            "COMMAND_TOO_LARGE"
        );
        assert_eq!(
            reason(argv(&["a", &"x".repeat(ARGUMENT_MAX_BYTES + 1)])),
            "COMMAND_TOO_LARGE"
        );
        let large = "x".repeat(ARGUMENT_MAX_BYTES);
        assert_eq!(reason(argv(&[large.as_str(); 13])), "COMMAND_TOO_LARGE");
    }

    #[test]
    fn scripts_pass_byte_for_byte() {
        for script in [
            "  ",
            "\r\n",
            "-x",
            "a\\",
            "é",
            &"x".repeat(SCRIPT_MAX_BYTES),
        ] {
            let spec = RunSpec::new(shell(script), &TIMEOUTS).expect("valid");
            assert!(spec.command == Command::Shell(script.to_owned()));
        }
    }

    #[test]
    fn working_directory_is_absolute() {
        for (cwd, valid) in [
            ("", true),
            ("/", true),
            ("/a b", true),
            ("a", false),
            ("/a\0", false),
        ] {
            let raw = RawRunSpec {
                cwd: cwd.to_owned(),
                ..shell("true")
            };
            assert_eq!(RunSpec::new(raw, &TIMEOUTS).is_ok(), valid, "{cwd:?}");
        }
    }

    #[test]
    fn users_are_names_or_ids() {
        let good = ["", "user", "0", "1000:1000", "user:adm", "a.b-c_d$"];
        let bad = [
            ":",
            "a:",
            ":a",
            "a:b:c",
            "a b",
            "a\n",
            "../x",
            "-u",
            "4294967295",
            "99999999999",
        ];
        for (user, valid) in good
            .iter()
            .map(|u| (u, true))
            .chain(bad.iter().map(|u| (u, false)))
        {
            let raw = RawRunSpec {
                user: (*user).to_owned(),
                ..shell("true")
            };
            assert_eq!(RunSpec::new(raw, &TIMEOUTS).is_ok(), valid, "{user:?}");
        }
    }

    #[test]
    fn output_limit_is_bounded_and_zero_keeps_none() {
        let with = |max| {
            RunSpec::new(
                RawRunSpec {
                    max_output_bytes: max,
                    ..shell("true")
                },
                &TIMEOUTS,
            )
        };
        assert_eq!(
            with(None).expect("valid").output_bytes,
            OUTPUT_DEFAULT_BYTES
        );
        assert_eq!(with(Some(0)).expect("valid").output_bytes, 0);
        assert!(with(Some(-1)).is_err() && with(Some(8 * 1024 * 1024 + 1)).is_err());
    }
}
