//! The faults that were asked for, and what happens when one is hit.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::points::{DONE, is_a_point, suffix};
use super::{FaultsError, Injected, Moment, VARIABLE};

/// Words in this binary that no build without fault points has: `make release` looks for them.
const MARK: &str = "this lodged has fault points, for tests alone";

static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();

/// One fault.
#[derive(Debug)]
struct Fault {
    point: String,
    action: Action,
    /// The hit at which it happens, from 1; at every one if there is none.
    at: Option<u64>,
    hits: AtomicU64,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Error(Errno),
    Delay(Duration),
    Panic,
}

pub(super) fn arm() -> Result<(), FaultsError> {
    let text = match std::env::var(VARIABLE) {
        Ok(text) => text,
        Err(std::env::VarError::NotPresent) => return Ok(()),
        Err(error) => return Err(FaultsError::Malformed(error.to_string())),
    };
    let faults = parse(&text).map_err(FaultsError::Malformed)?;
    tracing::warn!(faults = text, "{MARK}");
    FAULTS
        .set(faults)
        .map_err(|_| FaultsError::Malformed("read twice".to_owned()))
}

fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',').map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<Fault, String> {
    let (point, rest) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not name=action"))?;
    if !is_a_point(point) {
        return Err(format!(
            "there is no fault point {point:?}; `lodged fault-points` lists them"
        ));
    }
    let (action, at) = match rest.split_once('@') {
        Some((action, at)) => {
            let at = at.parse().ok().filter(|at| *at > 0);
            let at = at.ok_or_else(|| format!("{text:?}: a hit is a number from 1"))?;
            (action, Some(at))
        }
        None => (rest, None),
    };
    Ok(Fault {
        point: point.to_owned(),
        action: parse_action(action)?,
        at,
        hits: AtomicU64::new(0),
    })
}

fn parse_action(text: &str) -> Result<Action, String> {
    match (text, text.split_once(':')) {
        ("kill", _) => Ok(Action::Kill),
        ("error", _) => Ok(Action::Error(Errno::EIO)),
        ("full", _) => Ok(Action::Error(Errno::ENOSPC)),
        ("panic", _) => Ok(Action::Panic),
        (_, Some(("delay", ms))) => ms
            .parse()
            .map(|ms| Action::Delay(Duration::from_millis(ms)))
            .map_err(|_| format!("{ms:?} is not a number of milliseconds")),
        _ => Err(format!(
            "{text:?} is none of kill, error, full, panic, delay:<ms>"
        )),
    }
}

pub(super) fn hit(point: &str) -> Result<(), Injected> {
    debug_assert!(is_a_point(point), "{point:?} is not in the table of points");
    let Some(faults) = FAULTS.get() else {
        return Ok(());
    };
    faults
        .iter()
        .filter(|fault| fault.point == point && fault.is_due())
        .try_for_each(Fault::happen)
}

pub(super) fn hit_step(table: &str, step: &str, moment: Moment) -> Result<(), Injected> {
    if FAULTS.get().is_none() {
        return Ok(());
    }
    hit(&format!("{table}.{step}{}", suffix(moment)))
}

pub(super) fn hit_done(name: &str) -> Result<(), Injected> {
    if FAULTS.get().is_none() {
        return Ok(());
    }
    hit(&format!("{name}{DONE}"))
}

/// Waits in the place of the act alone: on a thread of the reactor, its other tasks go to another one first, as they would
/// while the act itself waited.
fn wait(time: Duration) {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => {
            tokio::task::block_in_place(|| std::thread::sleep(time));
        }
        _ => std::thread::sleep(time),
    }
}

impl Fault {
    fn is_due(&self) -> bool {
        let hit = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        self.at.is_none_or(|at| at == hit)
    }

    fn happen(&self) -> Result<(), Injected> {
        tracing::warn!(point = self.point, action = ?self.action, "fault");
        match self.action {
            Action::Kill => die(),
            Action::Error(errno) => Err(Injected {
                point: self.point.clone(),
                errno,
            }),
            Action::Delay(time) => {
                wait(time);
                Ok(())
            }
            Action::Panic => panic!("fault point {:?}", self.point),
        }
    }
}

/// Ends this process as `kill -9` does: nothing is flushed, nothing is dropped.
fn die() -> ! {
    let killed = kill_process(getpid(), Signal::KILL);
    unreachable!("a process that kills itself is dead, not {killed:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_or_refused_with_the_reason() {
        let faults = parse("record.rename=kill@2,create.write record.done=delay:20");
        let faults = faults.expect("well-formed");
        assert_eq!((faults[0].action, faults[0].at), (Action::Kill, Some(2)));
        let delay = Action::Delay(Duration::from_millis(20));
        assert_eq!((faults[1].action, faults[1].at), (delay, None));
        for (text, why) in [
            ("record.renamed=kill", "no fault point"),
            ("record.rename", "not name=action"),
            ("record.rename=die", "none of kill"),
            ("record.rename=kill@0", "a number from 1"),
            ("record.rename=delay:soon", "milliseconds"),
            ("", "not name=action"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_fault_happens_at_its_hit_alone() {
        let fault = parse_one("record.rename=error@2").expect("well-formed");
        let due: Vec<bool> = (0..3).map(|_| fault.is_due()).collect();
        assert_eq!(due, [false, true, false]);
    }
}
