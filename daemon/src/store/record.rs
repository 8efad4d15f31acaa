//! A sandbox's record: what it is, and its form on disk.
//!
//! On disk: `{"version":1,"sha256":"<of record>","record":{…}}`. The checksum is over the very bytes of `record`, so
//! that a half-written or edited file is told from a good one. Version 1 has every field below; a field more or less is
//! another version.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::sandbox::id::{SandboxId, SandboxName, Tenant};
use crate::sandbox::spec::Spec;

/// The version that this daemon writes.
const VERSION: u64 = 1;

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
    #[expect(dead_code, reason = "looked at before the rest is read")]
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
    pub(super) fn decode(bytes: &[u8], id: &SandboxId) -> Result<Self, Damage> {
        Self::parse(bytes, id).map_err(|reason| salvage(bytes, reason))
    }

    fn parse(bytes: &[u8], id: &SandboxId) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("its record is empty".into());
        }
        // The version comes first: what follows it may have any form in another version.
        let any: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| format!("its record is not JSON: {e}"))?;
        match any.get("version").and_then(serde_json::Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!(
                    "its record has version {other}; this daemon reads version {VERSION}"
                ));
            }
            None => return Err("its record has no version".into()),
        }
        let envelope: InEnvelope<'_> =
            serde_json::from_slice(bytes).map_err(|e| format!("its record is malformed: {e}"))?;
        if checksum(envelope.record.get()) != envelope.sha256 {
            return Err("its record does not have the checksum that it says".into());
        }
        let record: Self = serde_json::from_str(envelope.record.get())
            .map_err(|e| format!("its record is malformed: {e}"))?;
        if record.id != *id {
            return Err(format!("its record is that of sandbox {}", record.id));
        }
        Ok(record)
    }
}

fn checksum(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// What a damaged record still tells. None of it is trusted for more than to list the sandbox and to keep its name and
/// range from being given to another.
fn salvage(bytes: &[u8], reason: String) -> Damage {
    let any: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |pointer| any.pointer(pointer).and_then(serde_json::Value::as_str);
    Damage {
        reason,
        tenant: text("/record/spec/tenant").and_then(|text| Tenant::parse(text).ok()),
        name: text("/record/spec/name").and_then(|text| SandboxName::parse(text).ok()),
        uid_base: any
            .pointer("/record/uid_base")
            .and_then(serde_json::Value::as_u64)
            .and_then(|base| u32::try_from(base).ok()),
    }
}
