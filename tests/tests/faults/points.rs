//! Which faults there are to try: every point that the daemon has, and what must be so that it is reached.

use std::fmt;

use anyhow::Result;
use lodge_tests::fault;
use lodge_tests::host::has_cap_sys_resource;
use lodge_tests::storage::Driver;

use crate::tour::Flood;

/// What an earlier daemon must have left for a point to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// The neighbour alone.
    Nothing,
    /// A sandbox whose PID 1 was killed while no daemon was there.
    DeadHolder,
    /// A directory of a create that did not come far.
    Unfinished,
    /// A sandbox with a journal of runs that is mostly of no use.
    LongJournal,
    /// No template of a layer.
    NoTemplates,
    /// A sandbox with a subvolume in its own, which it cannot make itself.
    NestedSubvolume,
}

/// One fault.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// The point that must be reached.
    pub(crate) point: String,
    /// What the daemon is told.
    pub(crate) text: String,
    pub(crate) before: Before,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Fault {
    fn at(point: &str, action: &str) -> Self {
        Self {
            point: point.to_owned(),
            text: format!("{point}={action}"),
            before: before(point),
        }
    }

    /// Whether the daemon dies of it.
    pub(crate) fn kills(&self) -> bool {
        self.text.contains("=kill")
    }

    /// Whether it needs a log larger than what is kept of one.
    pub(crate) fn flood(&self) -> Flood {
        if self.point.starts_with("log.punch") {
            Flood::Yes
        } else {
            Flood::No
        }
    }
}

fn before(point: &str) -> Before {
    match point.trim_end_matches(".done") {
        "recover.take up dead" => Before::DeadHolder,
        "recover.discard unfinished" => Before::Unfinished,
        "journal.compact" => Before::LongJournal,
        "overlay.make template" | "overlay.place template" => Before::NoTemplates,
        "btrfs.destroy nested" => Before::NestedSubvolume,
        _ => Before::Nothing,
    }
}

/// Acts that are not reached on the tour. Those on a file system that sandboxes share are in `pool.rs`.
const OFF_TOUR: &[&str] = &[
    // It takes a second create while the first one's daemon lives: `spares.rs`.
    "overlay.place spare",
    // A file system that has its quotas from the first start on.
    "btrfs.enable quotas",
    // A delete for which there is no room: `full_disk.rs`.
    "discard.forget",
];

/// Whether the tour gets there, with the driver that the tests are run on.
fn is_on_tour(name: &str, driver: Driver) -> bool {
    let act = name.trim_end_matches(".done");
    match act.split_once('.') {
        // The first start of a state directory, pools, and images: `images.rs`.
        Some(("storage" | "pool" | "image", _)) => false,
        _ if OFF_TOUR.contains(&act) => false,
        // The kernel refuses the act itself.
        Some(("overlay", "resize mounted")) if name != act && !has_cap_sys_resource() => false,
        Some((of @ ("overlay" | "btrfs"), _)) => of == driver.name(),
        _ => true,
    }
}

/// `action` at every point that is reached without a failure elsewhere.
pub(crate) fn faults(action: &str) -> Result<Vec<Fault>> {
    let driver = Driver::of_tests()?;
    let names = fault::points()?
        .into_iter()
        .filter(|name| !name.ends_with(".undo") && is_on_tour(name, driver));
    let mut all = Vec::new();
    for point in names {
        all.push(Fault::at(&point, action));
        if point.starts_with("record.") {
            // The first record is of a create, the second one takes its place.
            all.push(Fault::at(&point, &action.replace("@1", "@2")));
        }
    }
    Ok(all)
}

/// `action` where a step is taken back: after a failure of that very step, and after one of the table's last step.
pub(crate) fn undos(action: &str) -> Result<Vec<Fault>> {
    let names = fault::points()?;
    let mut all = Vec::new();
    for point in names.iter().filter(|name| name.ends_with(".undo")) {
        let step = point.trim_end_matches(".undo");
        let table = step.split_once('.').map_or(step, |(table, _)| table);
        let mut of_table = names
            .iter()
            .filter(|n| n.starts_with(table) && n.ends_with(".undo"));
        let last = of_table
            .next_back()
            .map_or(step, |n| n.trim_end_matches(".undo"));
        for failed in [format!("{step}=error@1"), format!("{last}.done=error@1")] {
            let mut fault = Fault::at(point, action);
            fault.text = format!("{failed},{}", fault.text);
            all.push(fault);
        }
    }
    Ok(all)
}
