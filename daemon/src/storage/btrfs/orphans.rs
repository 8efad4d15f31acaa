//! Which roots of no sandbox may go at a start. A few are what a crash leaves. Many, with no sandbox that names any, are rather the
//! files of sandboxes whose directories are gone: those stay, and are noted down in `<state_dir>/roots.kept`, so that they also
//! stay once there is a sandbox again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::volume::Volume;
use crate::storage::StorageError;
use crate::store::{replace_file, sync_dir};

/// Roots that are nobody's after a crash on a host without sandboxes: as many as are made ahead at most.
const OF_A_CRASH: usize = 8;
const FILE: &str = "roots.kept";

/// Roots that a start found, and the file that says which of them stay.
#[derive(Debug)]
pub(super) struct Orphans {
    file: PathBuf,
    noted: Noted,
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Noted {
    /// There is none.
    Nothing,
    /// These stay.
    Kept(BTreeSet<Volume>),
    /// Somebody emptied it: all may go.
    AllMayGo,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    go: Vec<Volume>,
    stay: BTreeSet<Volume>,
}

impl Orphans {
    /// Reads what an earlier start noted in the state directory.
    pub(super) fn of(state_dir: &Path) -> Result<Self, StorageError> {
        let file = state_dir.join(FILE);
        let noted = match fs::read_to_string(&file) {
            Ok(text) if text.trim().is_empty() => Noted::AllMayGo,
            // What is no name names nothing, and is not an empty file either.
            Ok(text) => Noted::Kept(text.lines().filter_map(Volume::parse).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Noted::Nothing,
            Err(error) => return Err(StorageError::io("read", &file, error)),
        };
        Ok(Self { file, noted })
    }

    /// Those of `all` that may go, where `owned` are named by sandboxes. What stays is on disk in the file when this returns.
    pub(super) fn that_may_go(
        &self,
        all: &[Volume],
        owned: &BTreeSet<Volume>,
        has_root: impl Fn(Volume) -> bool,
    ) -> Result<Vec<Volume>, StorageError> {
        let Verdict { go, stay } = verdict(&self.noted, all, owned, has_root);
        if stay.is_empty() {
            return Ok(go);
        }
        tracing::error!(
            roots = stay.len(), noted_in = %self.file.display(),
            "files of sandboxes are here whose directories in `sandboxes` are gone: nothing of them is removed. Bring \
             `sandboxes` back and start again; or, to have them removed, empty that file and start again"
        );
        self.note(&stay)
            .map_err(|e| StorageError::io("write", &self.file, e))?;
        Ok(go)
    }

    fn note(&self, stay: &BTreeSet<Volume>) -> io::Result<()> {
        if self.noted == Noted::Kept(stay.clone()) {
            return Ok(());
        }
        let lines: String = stay.iter().map(|volume| format!("{volume}\n")).collect();
        replace_file(&self.file, lines.as_bytes())
    }

    /// Forgets what was noted, once all that might go has gone.
    pub(super) fn forget_if_none(
        self,
        all: &[Volume],
        owned: &BTreeSet<Volume>,
        gone: &[Volume],
    ) -> Result<(), StorageError> {
        let is_left = all
            .iter()
            .any(|volume| !owned.contains(volume) && !gone.contains(volume));
        if is_left || self.noted == Noted::Nothing {
            return Ok(());
        }
        fs::remove_file(&self.file)
            .and_then(|()| sync_dir(self.file.parent().expect("a file of a directory")))
            .map_err(|e| StorageError::io("remove", &self.file, e))
    }
}

fn verdict(
    noted: &Noted,
    all: &[Volume],
    owned: &BTreeSet<Volume>,
    has_root: impl Fn(Volume) -> bool,
) -> Verdict {
    let orphans = all.iter().copied().filter(|volume| !owned.contains(volume));
    let none = BTreeSet::new();
    let kept = match noted {
        Noted::AllMayGo => {
            return Verdict {
                go: orphans.collect(),
                stay: none,
            };
        }
        Noted::Kept(kept) => kept,
        Noted::Nothing => &none,
    };
    let (mut stay, go): (BTreeSet<_>, Vec<_>) = {
        let (stay, go): (Vec<_>, Vec<_>) = orphans.partition(|volume| kept.contains(volume));
        (stay.into_iter().collect(), go)
    };
    let is_odd =
        owned.is_empty() && go.iter().filter(|volume| has_root(**volume)).count() > OF_A_CRASH;
    if is_odd {
        stay.extend(go);
        return Verdict {
            go: Vec::new(),
            stay,
        };
    }
    Verdict { go, stay }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(numbers: std::ops::Range<u64>) -> Vec<Volume> {
        let parsed = numbers.map(|number| Volume::parse(&format!("{number:016x}")));
        parsed.map(|volume| volume.expect("a number")).collect()
    }

    fn judged(noted: &Noted, all: &[Volume], owned: &[Volume]) -> (usize, usize) {
        let owned = owned.iter().copied().collect();
        let Verdict { go, stay } = verdict(noted, all, &owned, |_| true);
        (go.len(), stay.len())
    }

    #[test]
    fn many_roots_of_nobody_stay_where_nobody_has_any() {
        let all = volumes(1..OF_A_CRASH as u64 + 2);
        assert_eq!(judged(&Noted::Nothing, &all[1..], &[]), (OF_A_CRASH, 0));
        assert_eq!(judged(&Noted::Nothing, &all, &[]), (0, OF_A_CRASH + 1));
        assert_eq!(judged(&Noted::Nothing, &all, &all[..1]), (OF_A_CRASH, 0));
        let groups_alone = verdict(&Noted::Nothing, &all, &BTreeSet::new(), |_| false);
        assert_eq!(groups_alone.go, all);
    }

    #[test]
    fn what_was_kept_stays_until_somebody_says_otherwise() {
        let all = volumes(1..40);
        let kept = Noted::Kept(all[..20].iter().copied().collect());
        assert_eq!(judged(&kept, &all, &all[39 - 3..]), (16, 20));
        assert_eq!(judged(&kept, &all[..20], &all[..5]), (0, 15));
        // A second time.
        assert_eq!(judged(&kept, &all, &[]), (0, 39));
        assert_eq!(judged(&Noted::AllMayGo, &all, &[]), (39, 0));
    }
}
