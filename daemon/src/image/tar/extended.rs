//! Extended headers: PAX records and GNU long names, which stand before the entry that they are about.
//!
//! PAX records are taken by their length. (The `tar` crate splits them at line ends, which breaks on attribute values
//! with a line end in them.)

/// How a PAX key of an extended attribute begins.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
/// Most extended attributes of one entry.
const XATTRS_MAX: usize = 64;

/// A point in time: seconds since 1970, which may be negative, and nanoseconds after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image) struct PaxTime {
    pub(in crate::image) seconds: i64,
    pub(in crate::image) nanos: u32,
}

/// What the extended headers of one entry say.
#[derive(Debug, Default)]
pub(in crate::image) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<PaxTime>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pax_seen: bool,
}

impl Extended {
    /// Whether any extended header was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.path.is_none() && self.link.is_none() && !self.pax_seen
    }

    /// A GNU long name (`L`).
    pub(super) fn long_name(&mut self, content: &[u8]) -> Result<(), &'static str> {
        set_once(&mut self.path, until_nul(content).to_vec())
    }

    /// A GNU long link target (`K`).
    pub(super) fn long_link(&mut self, content: &[u8]) -> Result<(), &'static str> {
        set_once(&mut self.link, until_nul(content).to_vec())
    }

    /// The PAX records of one entry (`x`).
    pub(super) fn pax(&mut self, content: &[u8]) -> Result<(), &'static str> {
        if std::mem::replace(&mut self.pax_seen, true) {
            return Err("two PAX headers for one entry");
        }
        records(content, |key, value| self.record(key, value))
    }

    /// PAX records for the whole archive (`g`): only remarks are let through.
    pub(super) fn global(content: &[u8]) -> Result<(), &'static str> {
        records(content, |key, _| match key {
            b"path" | b"linkpath" | b"size" | b"uid" | b"gid" => {
                Err("a global header sets what only an entry can have")
            }
            _ => Ok(()),
        })
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"path" => set_once(&mut self.path, value.to_vec()),
            b"linkpath" => set_once(&mut self.link, value.to_vec()),
            b"size" => set_once(&mut self.size, number(value)?),
            b"uid" => set_once(&mut self.uid, number(value)?),
            b"gid" => set_once(&mut self.gid, number(value)?),
            b"mtime" => set_once(&mut self.mtime, time(value)?),
            _ if key.starts_with(b"GNU.sparse.") => {
                Err("a sparse file in PAX form (make the archive without --sparse)")
            }
            _ => self.attribute(key, value),
        }
    }

    fn attribute(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        // ACLs and SELinux labels have keys of their own; they are left out under their key.
        let foreign = key.starts_with(b"SCHILY.acl.") || key.starts_with(b"RHT.security.");
        let name = key.strip_prefix(XATTR_PREFIX).or(foreign.then_some(key));
        let Some(name) = name else { return Ok(()) };
        if self.xattrs.len() == XATTRS_MAX {
            return Err("more than 64 extended attributes");
        }
        self.xattrs.push((name.to_vec(), value.to_vec()));
        Ok(())
    }
}

/// Calls `each` with the key and the value of each record: `<length> <key>=<value>\n`, the length being of all of it.
fn records(
    mut rest: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    const DAMAGED: &str = "a damaged PAX record";
    while !rest.is_empty() {
        let space = rest
            .iter()
            .take(20)
            .position(|b| *b == b' ')
            .ok_or(DAMAGED)?;
        let length = usize::try_from(number(&rest[..space])?).map_err(|_| DAMAGED)?;
        if length <= space + 1 || length > rest.len() {
            return Err(DAMAGED);
        }
        let (record, next) = rest.split_at(length);
        let body = record[space + 1..].strip_suffix(b"\n").ok_or(DAMAGED)?;
        let equals = body.iter().position(|b| *b == b'=').ok_or(DAMAGED)?;
        each(&body[..equals], &body[equals + 1..])?;
        rest = next;
    }
    Ok(())
}

fn set_once<T>(slot: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err("two extended headers say the same thing"),
    }
}

fn until_nul(content: &[u8]) -> &[u8] {
    content.split(|b| *b == 0).next().unwrap_or_default()
}

fn number(text: &[u8]) -> Result<u64, &'static str> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| digits);
    text.and_then(|t| t.parse().ok())
        .ok_or("a number in a PAX record is none")
}

/// `[-]seconds[.fraction]`; digits beyond the nanosecond are dropped.
fn time(text: &[u8]) -> Result<PaxTime, &'static str> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |b| *b == b'.');
    let whole = number(parts.next().unwrap_or_default())?;
    let whole = i64::try_from(whole).map_err(|_| "its time is out of range")?;
    let mut nanos = 0;
    let fraction = parts.next().unwrap_or_default();
    for place in 0..9 {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return Err("a time in a PAX record is none");
        }
        nanos = nanos * 10 + u32::from(digit - b'0');
    }
    Ok(match (negative, nanos) {
        (false, _) => PaxTime {
            seconds: whole,
            nanos,
        },
        (true, 0) => PaxTime {
            seconds: -whole,
            nanos,
        },
        // Nanoseconds count forward from the earlier second.
        (true, _) => PaxTime {
            seconds: -whole - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_hold_line_ends() {
        let mut extended = Extended::default();
        extended
            .pax(b"27 SCHILY.xattr.user.a=1\n2\n17 path=dir/file\n")
            .expect("valid");
        assert_eq!(extended.xattrs, [(b"user.a".to_vec(), b"1\n2".to_vec())]);
        assert_eq!(extended.path.as_deref(), Some(b"dir/file".as_slice()));
    }

    #[test]
    fn damaged_records_are_refused() {
        for content in [
            "8 path=a\n",
            "99 path=a\n",
            "path=a\n",
            "3 a\n",
            "0 a=b\n",
            "18446744073709551616 a=b\n",
            "9 size=x\n",
            "10 path=a\n10 path=b\n",
            "-5 a=b\n",
            "7 patha",
        ] {
            assert!(
                Extended::default().pax(content.as_bytes()).is_err(),
                "{content:?}"
            );
        }
    }

    #[test]
    fn times_before_1970_round_down() {
        let at = |text: &[u8]| time(text).map(|t| (t.seconds, t.nanos));
        assert_eq!(at(b"1.5"), Ok((1, 500_000_000)));
        assert_eq!(at(b"-1.25"), Ok((-2, 750_000_000)));
        assert_eq!(at(b"-0"), Ok((0, 0)));
        assert!(at(b"1.x").is_err());
        assert!(at(b"").is_err());
    }
}
