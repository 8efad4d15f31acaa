//! The caller's own names for calls: the same one twice starts one run.
//!
//! A name is claimed before anything is done for the call, and the claim is told what came of it. Who comes second waits
//! for that, or gets the run that is known already. What the body of a call was is kept as a hash whose key lies in a file
//! of its own, since secrets are part of it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::run::Run;
use super::spec::{Command, RunSpec, Stdin};
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::id::RunId;
use crate::store::replace_file;

/// Longest name, in bytes.
pub(super) const REQUEST_ID_MAX_BYTES: usize = 128;
/// Bytes of the key.
const KEY_LEN: usize = 32;
/// Bytes of the hash of a body that are kept.
const BODY_LEN: usize = 16;

/// A call that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// The name.
    pub(super) id: String,
    /// Keyed hash of all that decides what is run.
    pub(super) body: String,
}

/// Checks a name; the empty one means none.
pub(super) fn check(id: String) -> Result<Option<String>> {
    match id.len() {
        0 => Ok(None),
        1..=REQUEST_ID_MAX_BYTES => Ok(Some(id)),
        len => Err(Error::invalid(
            "INVALID_REQUEST_ID",
            format!("the request id has {len} bytes; it has 1 to {REQUEST_ID_MAX_BYTES}"),
        )),
    }
}

/// The error of a call whose name another call has.
pub(super) fn reused(id: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        "REQUEST_ID_REUSED",
        format!("request id {id:?} was given to another call in this sandbox"),
    )
    .hint("a request id is for repeating one call as it was; take a new one for another call")
}

/// Hashes by a key that only this node has.
#[derive(Clone)]
pub(super) struct Key([u8; KEY_LEN]);

impl Key {
    /// Reads the key, or makes one. Where it cannot be kept, what this daemon hashes is not known again by the next. Blocks.
    pub(super) fn open(path: &Path) -> Self {
        match fs::read(path).map(|bytes| <[u8; KEY_LEN]>::try_from(bytes.as_slice())) {
            Ok(Ok(key)) => return Self(key),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => {
                tracing::warn!(key = %path.display(), ?other, "key of request bodies unreadable; there will be another")
            }
        }
        let key = Self::random();
        if let Err(error) = replace_file(path, &key.0) {
            tracing::warn!(key = %path.display(), error = &error as &dyn std::error::Error, "key of request bodies not kept");
        }
        key
    }

    pub(super) fn random() -> Self {
        let mut key = [0; KEY_LEN];
        getrandom::fill(&mut key)
            .expect("the kernel's random source does not fail once it is seeded");
        Self(key)
    }

    /// A number for a name, never zero.
    pub(super) fn number(&self, id: &str) -> u64 {
        let hash = Mac::new(&self.0).field(b"id", id.as_bytes()).finish();
        u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes")).max(1)
    }

    /// The call `id` with the body that `spec` is. Takes a millisecond for some hundred KiB of it.
    pub(super) fn request(&self, id: &str, spec: &RunSpec) -> Request {
        let hash = body(Mac::new(&self.0), spec).finish();
        Request {
            id: id.to_owned(),
            body: hex::encode(&hash[..BODY_LEN]),
        }
    }
}

/// All that decides what is run. Who asks for it how (as a stream, until it goes away) is not part of it.
fn body(mut mac: Mac, spec: &RunSpec) -> Mac {
    mac = match &spec.command {
        Command::Shell(script) => mac.field(b"shell", script.as_bytes()),
        Command::Argv(args) => args
            .iter()
            .fold(mac, |mac, arg| mac.field(b"arg", arg.as_bytes())),
    };
    // Clients may keep variables in maps, and send them in another order the next time.
    let mut plain: Vec<_> = spec.env.plain().iter().collect();
    plain.sort();
    for (name, value) in plain {
        mac = mac
            .field(b"name", name.as_bytes())
            .field(b"value", value.as_bytes());
    }
    let mut secrets: Vec<_> = spec.env.secrets().iter().collect();
    secrets.sort_by(|a, b| a.name.cmp(&b.name));
    for secret in secrets {
        mac = mac
            .field(b"secret", secret.name.as_bytes())
            .field(b"value", secret.value.as_bytes());
    }
    mac = match &spec.stdin {
        Stdin::Null => mac.field(b"stdin null", b""),
        Stdin::Bytes(bytes) => mac.field(b"stdin", bytes),
        Stdin::Open => mac.field(b"stdin open", b""),
    };
    let timeout = spec.timeout.map_or(0, |timeout| timeout.as_nanos());
    mac.field(b"cwd", spec.cwd.as_bytes())
        .field(b"user", spec.user.as_bytes())
        .field(b"timeout", &timeout.to_le_bytes())
        .field(b"output", &spec.output_bytes.to_le_bytes())
}

/// HMAC (RFC 2104) with SHA-256 over fields of which each is told from the next.
struct Mac {
    inner: Sha256,
    outer: Sha256,
}

impl Mac {
    fn new(key: &[u8; KEY_LEN]) -> Self {
        const BLOCK: usize = 64;
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK];
            block
                .iter_mut()
                .zip(key)
                .for_each(|(byte, key)| *byte ^= key);
            Sha256::new_with_prefix(block)
        };
        Self {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    fn field(mut self, tag: &[u8], bytes: &[u8]) -> Self {
        for part in [tag, bytes] {
            self.inner.update((part.len() as u64).to_le_bytes());
            self.inner.update(part);
        }
        self
    }

    fn finish(mut self) -> [u8; 32] {
        self.outer.update(self.inner.finalize());
        self.outer.finalize().into()
    }
}

/// What came of the first call of a name.
#[derive(Clone)]
pub(super) enum Answer {
    /// A run.
    Run(Run),
    /// Nothing was started.
    Refused(Arc<Error>),
}

/// How a name is used.
struct Slot {
    body: String,
    state: State,
}

enum State {
    /// Its call is on the way.
    Starting(watch::Receiver<Option<Answer>>),
    /// It has a run, live or with processes.
    Started(RunId),
}

/// What is known of a name.
pub(super) enum Lookup {
    /// The one who asks has it now, and tells the others.
    Claimed(watch::Sender<Option<Answer>>),
    /// A call with it is on the way.
    Starting(watch::Receiver<Option<Answer>>),
    /// It has this run.
    Started(RunId),
    /// Another body has it.
    Reused,
}

/// The names of calls that are on the way, or whose runs are in memory.
#[derive(Default)]
pub(super) struct Requests(HashMap<String, Slot>);

impl Requests {
    /// What is known of a name; `None` if nothing is.
    pub(super) fn find(&self, request: &Request) -> Option<Lookup> {
        let slot = self.0.get(&request.id)?;
        if slot.body != request.body {
            return Some(Lookup::Reused);
        }
        Some(match &slot.state {
            State::Starting(answer) => Lookup::Starting(answer.clone()),
            State::Started(run) => Lookup::Started(run.clone()),
        })
    }

    /// Takes a name that nobody has.
    pub(super) fn claim(&mut self, request: &Request) -> Lookup {
        let (tell, answer) = watch::channel(None);
        let slot = Slot {
            body: request.body.clone(),
            state: State::Starting(answer),
        };
        self.0.insert(request.id.clone(), slot);
        Lookup::Claimed(tell)
    }

    /// The name's call has started this run.
    pub(super) fn started(&mut self, request: &Request, run: &RunId) {
        let slot = Slot {
            body: request.body.clone(),
            state: State::Started(run.clone()),
        };
        self.0.insert(request.id.clone(), slot);
    }

    /// This run has the name no more. A later call that has claimed it meanwhile keeps it.
    pub(super) fn let_go(&mut self, request: &Request, run: &RunId) {
        let is_its = |slot: &Slot| matches!(&slot.state, State::Started(started) if started == run);
        if self.0.get(&request.id).is_some_and(is_its) {
            self.0.remove(&request.id);
        }
    }

    /// The call that has claimed the name gives it up.
    pub(super) fn release(&mut self, request: &Request) {
        self.0.remove(&request.id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{RawCommand, RawRunSpec};
    use super::super::timeout::TimeoutPolicy;
    use super::super::{RawDuration, Secret};
    use super::*;

    fn spec(change: impl FnOnce(&mut RawRunSpec)) -> RunSpec {
        let mut raw = RawRunSpec {
            command: Some(RawCommand::Shell("true".to_owned())),
            ..RawRunSpec::default()
        };
        change(&mut raw);
        let timeouts = TimeoutPolicy {
            default: None,
            maximum: None,
        };
        RunSpec::new(raw, &timeouts).expect("valid")
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn secret(name: &str, value: &str) -> Secret {
        Secret {
            name: name.to_owned(),
            value: value.to_owned().into(),
        }
    }

    fn argv(args: &[&str]) -> Option<RawCommand> {
        Some(RawCommand::Argv(
            args.iter().map(|arg| (*arg).to_owned()).collect(),
        ))
    }

    #[test]
    fn every_part_of_a_body_counts_and_no_two_run_together() {
        let key = Key::random();
        let specs = [
            spec(|_| {}),
            spec(|raw| raw.command = argv(&["true"])),
            spec(|raw| raw.command = argv(&["tr", "ue"])),
            spec(|raw| raw.env = vec![pair("A", "one")]),
            spec(|raw| raw.env = vec![pair("AO", "ne")]),
            spec(|raw| raw.secret_env = vec![secret("A", "seven")]),
            spec(|raw| raw.secret_env = vec![secret("A", "eight")]),
            spec(|raw| raw.env = vec![pair("A", "seven")]),
            spec(|raw| raw.cwd = "/a".to_owned()),
            spec(|raw| raw.user = "a".to_owned()),
            spec(|raw| raw.stdin = Stdin::Open),
            spec(|raw| raw.stdin = Stdin::Bytes("a".into())),
            spec(|raw| {
                raw.timeout = Some(RawDuration {
                    seconds: 1,
                    nanos: 0,
                })
            }),
            spec(|raw| raw.max_output_bytes = Some(1)),
        ];
        let bodies: std::collections::HashSet<_> = specs
            .iter()
            .map(|spec| key.request("a", spec).body)
            .collect();
        assert_eq!(bodies.len(), specs.len());
        let another_key = Key::random().request("a", &specs[0]).body;
        assert!(!bodies.contains(&another_key));
    }

    #[test]
    fn the_order_of_variables_does_not_count() {
        let key = Key::random();
        let one = spec(|raw| raw.env = vec![pair("A", "1"), pair("B", "2")]);
        let other = spec(|raw| raw.env = vec![pair("B", "2"), pair("A", "1")]);
        assert_eq!(key.request("a", &one), key.request("a", &other));
    }

    #[test]
    fn the_hash_is_the_known_one() {
        // As Python's `hmac` has it.
        let hash = Mac::new(&[0x0b; KEY_LEN]).field(b"tag", b"bytes").finish();
        let known = "e1d7ef36fc05b9bc3584b2d4af3c36d5db98664722b44a1fce9072f03436c328";
        assert_eq!(hex::encode(hash), known);
    }

    #[test]
    fn the_key_outlives_the_daemon_and_a_broken_one_is_replaced() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("key");
        let key = Key::open(&path);
        assert_eq!(Key::open(&path).number("a"), key.number("a"));
        assert_ne!(key.number("a"), key.number("b"));
        fs::write(&path, "short").expect("written");
        let new = Key::open(&path);
        assert_ne!(new.number("a"), key.number("a"));
        assert_eq!(Key::open(&path).number("a"), new.number("a"));
    }

    #[test]
    fn names_are_of_bounded_length() {
        assert_eq!(check(String::new()).expect("none"), None);
        assert!(check("é".repeat(64)).is_ok() && check("x".repeat(128)).is_ok());
        let refused = check("x".repeat(129)).expect_err("too long");
        assert_eq!(refused.reason(), "INVALID_REQUEST_ID");
    }
}
