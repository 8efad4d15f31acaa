//! Whose sandbox a directory is, beside the record: once the record cannot be read, this still keeps the sandbox's name and
//! range from being given to another one. Or a run would make a new, empty sandbox of that name, and its caller would take
//! the files for lost.
//!
//! It is a symbolic link that leads nowhere, `identity -> <id>/<tenant>/<name>/<first host id>`: it is there as a whole or
//! not at all, and the sync of the directory that a record needs anyway makes it durable. None of it ever changes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::record::{Damage, Record};
use crate::sandbox::id::{SandboxId, SandboxName, Tenant};

const FILE: &str = "identity";

/// What the link of a sandbox says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    tenant: Tenant,
    name: SandboxName,
    uid_base: u32,
}

impl Identity {
    /// Writes that of `record` into the sandbox's directory, unless there is one.
    pub(super) fn keep(dir: &Path, record: &Record) -> io::Result<()> {
        let Record {
            id, uid_base, spec, ..
        } = record;
        let target = format!("{id}/{}/{}/{uid_base}", spec.tenant, spec.name);
        match symlink(target, dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// Reads that of the sandbox `id`. None where there is none, and in the copy of another sandbox's directory, or the
    /// copy would claim what the other one has.
    pub(super) fn read(dir: &Path, id: &SandboxId) -> Option<Self> {
        let target = fs::read_link(dir.join(FILE)).ok()?;
        let mut parts = target.to_str()?.split('/');
        let (of, tenant, name, uid_base) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if of != id.as_str() || parts.next().is_some() {
            return None;
        }
        Some(Self {
            tenant: Tenant::parse(tenant).ok()?,
            name: SandboxName::parse(name).ok()?,
            uid_base: uid_base.parse().ok()?,
        })
    }

    /// First host id of its 65,536.
    pub(super) fn uid_base(&self) -> u32 {
        self.uid_base
    }

    /// Puts it in the place of what a damaged record told, which may have a wrong bit.
    pub(super) fn amend(self, damage: &mut Damage) {
        damage.tenant = Some(self.tenant);
        damage.name = Some(self.name);
        damage.uid_base = Some(self.uid_base);
    }
}
