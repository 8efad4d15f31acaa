//! A sandbox's record: what it is, and its form on disk.
//!
//! On disk: `{"version":3,"sha256":"<of record>","record":{…}}`. The checksum is over the very bytes of `record`, so
//! that a half-written or edited file is told from a good one. A version has every field that it has; a field more or less
//! is another version. Version 2 added the idle policy, version 3 the limits on files; older ones are still read, and are
//! version 3 from their next write on.
//! A daemon that does not know a version lists the sandbox as damaged and leaves it as it is: before a downgrade, run the
//! older daemon's sandboxes out, or keep the newer one.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::sandbox::id::{SandboxId, SandboxName, Tenant};
use crate::sandbox::idle::IdlePolicy;
use crate::sandbox::limits::Limits;
use crate::sandbox::spec::Spec;

/// The version that this daemon writes.
const VERSION: u64 = 3;
/// The oldest version that it reads.
const OLDEST: u64 = 1;

/// What a record of an older version gets that lacks it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Upgrade {
    /// Of version 1.
    pub idle: IdlePolicy,
    /// Of versions 1 and 2: the limits on files.
    pub limits: Limits,
}

/// A sandbox's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its id.
    pub id: SandboxId,
    /// When it was created: milliseconds since 1970, UTC.
    pub created_at_ms: u64,
    /// First host id of its 65,536.
    pub uid_base: u32,
    /// What it was made from.
    pub spec: Spec,
}

/// Why a record cannot be used, and what of it could still be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The reason, for people.
    pub reason: String,
    /// Its tenant, where it could be read.
    pub tenant: Option<Tenant>,
    /// Its name, where it could be read.
    pub name: Option<SandboxName>,
    /// Its uid range, where it could be read.
    pub uid_base: Option<u32>,
}

#[derive(Serialize)]
struct OutEnvelope<'a> {
    version: u64,
    sha256: String,
    record: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InEnvelope<'a> {
    version: u64,
    sha256: String,
    #[serde(borrow)]
    record: &'a RawValue,
}

impl Record {
    /// Its form on disk.
    pub(super) fn encode(&self) -> Vec<u8> {
        const PLAIN: &str = "a record is plain data: strings, numbers and maps with string keys";
        let record = serde_json::value::to_raw_value(self).expect(PLAIN);
        let envelope = OutEnvelope {
            version: VERSION,
            sha256: checksum(record.get()),
            record: &record,
        };
        let mut bytes = serde_json::to_vec(&envelope).expect(PLAIN);
        bytes.push(b'\n');
        bytes
    }

    /// Reads what `encode` wrote for the sandbox `id`.
    pub(super) fn decode(bytes: &[u8], id: &SandboxId, upgrade: &Upgrade) -> Result<Self, Damage> {
        Self::parse(bytes, id, upgrade).map_err(|reason| salvage(bytes, id, reason))
    }

    fn parse(bytes: &[u8], id: &SandboxId, upgrade: &Upgrade) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("its record is empty".into());
        }
        // The version comes first: what follows it may have any form in another version.
        let any: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| format!("its record is not JSON: {e}"))?;
        match any.get("version").and_then(serde_json::Value::as_u64) {
            Some(OLDEST..=VERSION) => {}
            Some(other) => {
                return Err(format!(
                    "its record has version {other}; this daemon reads versions {OLDEST} to {VERSION}"
                ));
            }
            None => return Err("its record has no version".into()),
        }
        let envelope: InEnvelope<'_> =
            serde_json::from_slice(bytes).map_err(|e| format!("its record is malformed: {e}"))?;
        if checksum(envelope.record.get()) != envelope.sha256 {
            return Err("its record does not have the checksum that it says".into());
        }
        let record = match envelope.version {
            VERSION => serde_json::from_str(envelope.record.get()),
            older => from_older(older, envelope.record.get(), upgrade),
        };
        let record: Self = record.map_err(|e| format!("its record is malformed: {e}"))?;
        if record.id != *id {
            return Err(format!("its record is that of sandbox {}", record.id));
        }
        Ok(record)
    }
}

/// Gives a record of an older version what it lacks. One that has it is not of that version.
fn from_older(version: u64, record: &str, upgrade: &Upgrade) -> serde_json::Result<Record> {
    let mut record: serde_json::Value = serde_json::from_str(record)?;
    if version < 2 {
        let idle = serde_json::to_value(upgrade.idle)?;
        add(&mut record, "/spec", "idle", idle)?;
    }
    let Limits {
        disk_bytes, inodes, ..
    } = upgrade.limits;
    add(&mut record, "/spec/limits", "disk_bytes", disk_bytes.into())?;
    add(&mut record, "/spec/limits", "inodes", inodes.into())?;
    serde_json::from_value(record)
}

fn add(
    record: &mut serde_json::Value,
    to: &str,
    field: &str,
    value: serde_json::Value,
) -> serde_json::Result<()> {
    let object = record
        .pointer_mut(to)
        .and_then(|object| object.as_object_mut());
    match object.and_then(|object| object.insert(field.to_owned(), value)) {
        Some(_) => Err(serde::de::Error::custom(format!(
            "its version has no field `{field}`"
        ))),
        // What is not an object is told when it is read as a record.
        None => Ok(()),
    }
}

fn checksum(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// As much of an envelope of any version as tells whether the record in it is the one that was written.
#[derive(Deserialize)]
struct Sealed<'a> {
    sha256: String,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// What a damaged record still tells. None of it is trusted for more than to list the sandbox and to keep its name and
/// range from being given to another; a record that names another sandbox claims neither.
fn salvage(bytes: &[u8], id: &SandboxId, reason: String) -> Damage {
    let any: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let named = any
        .pointer("/record/id")
        .and_then(serde_json::Value::as_str);
    let is_its_own = named.is_none_or(|named| named == id.as_str());
    let text = |pointer| any.pointer(pointer).and_then(serde_json::Value::as_str);
    // A tenant whose name has a wrong bit is nobody: no caller would see the sandbox again.
    let whole = serde_json::from_slice::<Sealed<'_>>(bytes)
        .is_ok_and(|sealed| checksum(sealed.record.get()) == sealed.sha256);
    let tenant = text("/record/spec/tenant").filter(|_| whole);
    Damage {
        reason,
        tenant: tenant.and_then(|text| Tenant::parse(text).ok()),
        name: text("/record/spec/name")
            .filter(|_| is_its_own)
            .and_then(|text| SandboxName::parse(text).ok()),
        uid_base: any
            .pointer("/record/uid_base")
            .and_then(serde_json::Value::as_u64)
            .filter(|_| is_its_own)
            .and_then(|base| u32::try_from(base).ok()),
    }
}
