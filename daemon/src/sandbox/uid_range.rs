//! Host uid ranges: 65,536 ids for each sandbox, from one block that nobody else on the host uses.
//!
//! A range is durable in its sandbox's record, and free again only when the sandbox's files are gone. When none is
//! left, creating is refused; a range is never shared. What the block must keep clear of is in
//! <https://systemd.io/UIDS-GIDS/> and /etc/subuid.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Ids of one sandbox: every id that a distribution inside may use.
pub const RANGE_LEN: u32 = 65_536;
/// How long a create waits for the range of a sandbox that is being removed, where all others are in use.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// systemd's ids for containers whose range is picked by hand (nspawn's "foreign" files) begin here.
const FOREIGN_START: u64 = 0x7FFE_0000;
/// systemd-nspawn picks its containers' ranges here.
const NSPAWN: Range<u32> = 0x0008_0000..0x7000_0000;

/// The block that ranges are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    start: u32,
    count: u32,
}

impl Block {
    /// From the end of nspawn's ids to the start of systemd's foreign ones: given to nobody, and far above /etc/subuid's
    /// usual 100,000 to 600,100,000.
    pub const DEFAULT: Self = Self {
        start: 0x7000_0000,
        count: 4094,
    };

    /// A block of `count` ranges from `start` on, or what is wrong with it.
    pub fn new(start: u64, count: u64) -> Result<Self, String> {
        let len = u64::from(RANGE_LEN);
        if !start.is_multiple_of(len) || start < len {
            return Err(format!(
                "uid_range_start must be a multiple of {len} and not zero, not {start}"
            ));
        }
        let end = count
            .checked_mul(len)
            .and_then(|ids| ids.checked_add(start));
        match (u32::try_from(start), u32::try_from(count), end) {
            (Ok(start), Ok(count), Some(end)) if count > 0 && end <= FOREIGN_START => {
                Ok(Self { start, count })
            }
            _ => Err(format!(
                "{count} uid ranges from {start} on must be at least one, and end by {FOREIGN_START}, \
                 where systemd's own ids begin"
            )),
        }
    }

    /// The first id.
    pub fn start(self) -> u32 {
        self.start
    }

    /// How many ranges there are.
    pub fn count(self) -> u32 {
        self.count
    }

    fn ids(self) -> Range<u32> {
        self.start..self.start + self.count * RANGE_LEN
    }

    fn base(self, index: u32) -> u32 {
        self.start + index * RANGE_LEN
    }

    fn index(self, id: u32) -> Option<u32> {
        self.ids()
            .contains(&id)
            .then(|| (id - self.start) / RANGE_LEN)
    }
}

/// Who holds which range. Cheap to clone.
#[derive(Debug, Clone)]
pub struct UidRanges(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    block: Block,
    taken: Mutex<Taken>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    all: BTreeSet<u32>,
    /// Those of them whose sandbox is being removed.
    leaving: BTreeSet<u32>,
}

/// A range that is given back when this is dropped, unless [`UidLease::keep`] was called.
#[derive(Debug)]
pub struct UidLease {
    ranges: UidRanges,
    base: u32,
}

impl UidRanges {
    /// All ranges of `block`, free.
    pub fn new(block: Block) -> Self {
        Self(Arc::new(Inner {
            block,
            taken: Mutex::default(),
            released: Condvar::new(),
        }))
    }

    /// The block that ranges are taken from.
    pub fn block(&self) -> Block {
        self.0.block
    }

    /// Marks the range of an existing record as taken. A base outside the block (the setting was changed) stays with its
    /// sandbox and needs no mark. False if another record has it.
    #[must_use]
    pub fn claim(&self, base: u32) -> bool {
        match self.0.block.index(base) {
            Some(index) => self.taken().all.insert(index),
            None => true,
        }
    }

    /// A free range, held until the lease is dropped or kept. Where there is none and sandboxes are being removed, the range
    /// of one of those is waited for: who creates faster than the disk forgets is slowed down, not refused. Blocks.
    pub fn lease(&self) -> Result<UidLease> {
        self.lease_within(LEAVES_WITHIN)
    }

    fn lease_within(&self, patience: Duration) -> Result<UidLease> {
        let count = self.0.block.count;
        let none_free =
            |taken: &mut Taken| taken.all.len() >= count as usize && !taken.leaving.is_empty();
        let waited = self
            .0
            .released
            .wait_timeout_while(self.taken(), patience, none_free);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let free = (0..count).find(|index| !taken.all.contains(index));
        let index = free.ok_or_else(|| exhausted(count))?;
        taken.all.insert(index);
        Ok(UidLease {
            ranges: self.clone(),
            base: self.0.block.base(index),
        })
    }

    /// Notes that the sandbox that has this range is being removed: the range will be released.
    pub fn leaves(&self, base: u32) {
        if let Some(index) = self.0.block.index(base) {
            self.taken().leaving.insert(index);
        }
    }

    /// Gives a range back. The caller has removed every file and process that had it.
    pub fn release(&self, base: u32) {
        if let Some(index) = self.0.block.index(base) {
            let mut taken = self.taken();
            taken.all.remove(&index);
            taken.leaving.remove(&index);
            self.0.released.notify_one();
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // A set of numbers is whole after each of its operations, also if a thread died between two.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UidLease {
    /// The range's first id.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Hands the range over to a record: from now on only [`UidRanges::release`] frees it.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for UidLease {
    fn drop(&mut self) {
        self.ranges.release(self.base);
    }
}

fn exhausted(count: u32) -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        "UID_RANGES_EXHAUSTED",
        format!("all {count} uid ranges are in use"),
    )
    .hint("delete a sandbox, or raise uid_range_count")
}

/// What a start-up check found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Somebody else's ids in our block: Lodge must not start.
    pub conflicts: Vec<String>,
    /// Ranges in which processes live that no record accounts for: they are left out.
    pub occupied: Vec<u32>,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// Compares the block with /etc/subuid, /etc/subgid, and the uids of every process. `ours` are the bases in records.
pub fn survey(block: Block, ours: &BTreeSet<u32>) -> io::Result<Survey> {
    let mut survey = Survey::default();
    for path in ["/etc/subuid", "/etc/subgid"] {
        survey
            .conflicts
            .extend(conflicts_in(Path::new(path), &subid_text(path)?, block));
    }
    let strangers = strangers(block, ours, &live_uids(Path::new("/proc"))?);
    let ids = block.ids();
    if ids.start < NSPAWN.end && NSPAWN.start < ids.end {
        survey.warnings.push(format!(
            "uid ranges {} to {} are among those that systemd-nspawn picks from",
            ids.start,
            ids.end - 1
        ));
    }
    survey.occupied = strangers;
    Ok(survey)
}

/// A missing file means that nobody has subordinate ids.
fn subid_text(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

/// Lines `name:start:count` that share an id with the block.
fn conflicts_in(path: &Path, text: &str, block: Block) -> Vec<String> {
    let ids = block.ids();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let start: u64 = fields.next()?.trim().parse().ok()?;
            let count: u64 = fields.next()?.trim().parse().ok()?;
            let meets =
                start < u64::from(ids.end) && u64::from(ids.start) < start.saturating_add(count);
            meets.then(|| format!("{} gives {name} ids of the uid ranges", path.display()))
        })
        .collect()
}

/// Bases of ranges with live processes that no record accounts for.
fn strangers(block: Block, ours: &BTreeSet<u32>, live: &BTreeSet<u32>) -> Vec<u32> {
    let bases: BTreeSet<u32> = live
        .iter()
        .filter_map(|uid| block.index(*uid))
        .map(|index| block.base(index))
        .collect();
    bases.difference(ours).copied().collect()
}

/// Real, effective, saved and file system uid of every live process. One that ends meanwhile is none, and so is one that
/// has ended and that nobody reaps: a host whose init is slow at that, or never does, must not run out of ranges.
fn live_uids(proc: &Path) -> io::Result<BTreeSet<u32>> {
    let mut uids = BTreeSet::new();
    for entry in fs::read_dir(proc)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // The owner of /proc/<pid> is root for a process that is not dumpable; the status file tells the truth.
        if let Ok(status) = fs::read_to_string(proc.join(name).join("status"))
            && !has_ended(&status)
        {
            uids.extend(uids_of(&status));
        }
    }
    Ok(uids)
}

fn uids_of(status: &str) -> impl Iterator<Item = u32> + '_ {
    let uids = field(status, "Uid:").split_whitespace();
    uids.filter_map(|field| field.parse().ok())
}

/// Whether a process is a zombie with all its threads. One whose first thread alone has ended lives on.
fn has_ended(status: &str) -> bool {
    field(status, "State:").trim_start().starts_with(['Z', 'X'])
        && field(status, "Threads:").trim() == "1"
}

/// What follows `name` on its line of a status file.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Block = Block {
        start: 0x7000_0000,
        count: 3,
    };

    #[test]
    fn ranges_differ_and_exhaustion_is_refused() {
        let ranges = UidRanges::new(BLOCK);
        let leases: Vec<_> = (0..3).map(|_| ranges.lease().expect("free")).collect();
        let bases: BTreeSet<u32> = leases.iter().map(UidLease::base).collect();
        assert_eq!(bases.len(), 3);

        let error = ranges.lease().expect_err("none left");
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error.reason(), "UID_RANGES_EXHAUSTED");
    }

    #[test]
    fn a_dropped_lease_is_free_again_and_a_kept_one_is_not() {
        let ranges = UidRanges::new(Block {
            start: 0x7000_0000,
            count: 1,
        });
        drop(ranges.lease().expect("free"));
        let lease = ranges.lease().expect("free again");
        let base = lease.base();
        lease.keep();
        assert!(ranges.lease().is_err());
        ranges.release(base);
        assert!(ranges.lease().is_ok());
    }

    /// Not refused while a sandbox is on its way out, and refused where it takes too long for that.
    #[test]
    fn the_range_of_one_that_leaves_is_waited_for() {
        let ranges = UidRanges::new(BLOCK);
        let [first, ..] = [(); 3].map(|()| {
            let lease = ranges.lease().expect("free");
            let base = lease.base();
            lease.keep();
            base
        });
        ranges.leaves(first);
        assert!(ranges.lease_within(Duration::from_millis(1)).is_err());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ranges.lease_within(Duration::from_secs(60)));
            ranges.release(first);
            let leased = waiting.join().expect("no panic").expect("released");
            assert_eq!(leased.base(), first);
        });
    }

    #[test]
    fn two_records_cannot_claim_one_range() {
        let ranges = UidRanges::new(BLOCK);
        assert!(ranges.claim(0x7001_0000));
        assert!(!ranges.claim(0x7001_0000));
        let bases: Vec<u32> = (0..2)
            .map(|_| ranges.lease().expect("two are left"))
            .map(|l| l.base())
            .collect();
        assert!(!bases.contains(&0x7001_0000));
    }

    #[test]
    fn subordinate_ids_in_the_block_are_a_conflict() {
        let path = Path::new("/etc/subuid");
        assert_eq!(
            conflicts_in(path, "me:100000:65536\n", BLOCK),
            Vec::<String>::new()
        );
        assert_eq!(
            conflicts_in(path, "# odd\n\nme:1879048192:1\n", BLOCK).len(),
            1
        );
        assert_eq!(
            conflicts_in(path, "me:0:18446744073709551615\n", BLOCK).len(),
            1
        );
    }

    #[test]
    fn a_live_process_in_a_range_without_a_record_occupies_it() {
        let live = BTreeSet::from([0, 1000, 0x7000_0005, 0x7001_03E8]);
        let ours = BTreeSet::from([0x7000_0000]);
        assert_eq!(strangers(BLOCK, &ours, &live), vec![0x7001_0000]);
    }

    #[test]
    fn uids_are_read_from_a_status_file() {
        let uids: Vec<u32> = uids_of("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t9\t9\t9\t9\n").collect();
        assert_eq!(uids, [1, 2, 3, 4]);
        assert!(
            live_uids(Path::new("/proc"))
                .expect("/proc is mounted")
                .contains(&0)
        );
    }

    #[test]
    fn a_process_that_nobody_reaps_occupies_no_range() {
        let status = |state, threads| format!("State:\t{state}\nUid:\t7\nThreads:\t{threads}\n");
        assert!(has_ended(&status("Z (zombie)", 1)));
        // The first thread has ended, others go on.
        assert!(!has_ended(&status("Z (zombie)", 2)));
        assert!(!has_ended(&status("S (sleeping)", 1)));
    }
}
