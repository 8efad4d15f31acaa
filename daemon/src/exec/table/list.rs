//! Lists of runs, the newest first, page by page.

use super::{RunTable, ShortId};
use crate::error::Result;
use crate::exec::run::Run;
use crate::sandbox::id::RunId;

/// Which runs are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All that are known.
    All,
    /// Those whose command lives.
    Live,
}

/// A part of the list.
#[derive(Debug, Clone)]
pub struct Page {
    /// Which runs.
    pub which: Which,
    /// The last run of the page before: its start, in milliseconds since 1970, and its id.
    pub after: Option<(u64, RunId)>,
    /// Runs at most.
    pub limit: usize,
}

/// What a page has.
pub struct Listed {
    /// Its runs. One that cannot be read, or went meanwhile, is left out.
    pub runs: Vec<Run>,
    /// Where the next page begins after; `None` if this is the last. It may be a run that was left out.
    pub last: Option<(u64, RunId)>,
}

impl RunTable {
    /// The runs of a page, by their start, the newest first.
    pub async fn list(&self, page: Page) -> Result<Listed> {
        let after = page.after.map(|(ms, id)| (ms, ShortId::from(&id)));
        let mut keys = self.keys(page.which);
        keys.retain(|key| after.is_none_or(|after| *key < after));
        keys.sort_unstable_by(|a, b| b.cmp(a));
        let is_last = keys.len() <= page.limit;
        keys.truncate(page.limit);
        let last = keys.last().filter(|_| !is_last);
        let last = last.map(|(ms, id)| (*ms, RunId::from(*id)));
        let ids: Vec<ShortId> = keys.into_iter().map(|(_, id)| id).collect();
        let known: Vec<Option<Run>> = {
            let inner = self.lock();
            ids.iter().map(|id| inner.known.get(id).cloned()).collect()
        };
        let missing = ids.iter().zip(&known).filter(|(_, run)| run.is_none());
        let missing: Vec<ShortId> = missing.map(|(id, _)| *id).collect();
        let mut recorded = if missing.is_empty() {
            Vec::new()
        } else {
            self.read(missing).await?
        }
        .into_iter();
        let runs = known
            .into_iter()
            .filter_map(|run| run.or_else(|| recorded.next().flatten()));
        Ok(Listed {
            runs: runs.collect(),
            last,
        })
    }

    fn keys(&self, which: Which) -> Vec<(u64, ShortId)> {
        let inner = self.lock();
        let known = inner
            .known
            .iter()
            .filter(|(_, run)| which == Which::All || run.is_live());
        let known = known.map(|(id, run)| (run.started_at_ms(), *id));
        let ended = inner.history.iter().filter(|_| which == Which::All);
        let ended = ended.filter(|kept| !inner.known.contains_key(&kept.id));
        known
            .chain(ended.map(|kept| (kept.started_ms, kept.id)))
            .collect()
    }
}
