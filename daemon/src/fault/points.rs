//! The table of all points. A test compares it with the tables of steps; a build with debug assertions refuses a point
//! that is not here.

use super::Moment;

/// Ends the name of a point after an act.
pub(super) const DONE: &str = ".done";
const UNDO: &str = ".undo";

/// Steps of tables, as `table.step`. Each has three points: before it, after it (`.done`), and before it is taken back
/// (`.undo`), where only `kill`, `delay` and `panic` do anything.
pub(super) const STEPS: &[&str] = &[
    "create.admit",
    "create.lease uid range",
    "create.make directory",
    "create.prepare layer",
    "create.write record",
    "start.find image",
    "start.make cgroup",
    "start.watch memory",
    "start.open layers",
    "start.launch holder",
    "start.apply limits",
];

/// Acts outside of tables. Each has two points: before it, and after it (`.done`).
pub(super) const ACTS: &[&str] = &[
    // A sandbox's record.
    "record.write temp",
    "record.identity",
    "record.rename",
    "record.sync directory",
    "record.sync parent",
    // The choice of a storage driver.
    "storage.write temp",
    "storage.rename",
    // The pool: made, mounted, grown.
    "pool.make file",
    "pool.format",
    "pool.rename",
    "pool.find device",
    "pool.mount",
    "pool.make directories",
    "pool.extend file",
    "pool.tell device",
    "pool.resize",
    "pool.take back",
    // Other limits.
    "update.limit files",
    // Sandboxes on btrfs.
    "btrfs.enable quotas",
    "btrfs.make group",
    "btrfs.snapshot",
    "btrfs.write volume",
    "btrfs.set limit",
    "btrfs.set reserve",
    "btrfs.destroy nested",
    "btrfs.destroy root",
    "btrfs.remove group",
    "btrfs.remove directory",
    // The layer of a sandbox of the overlay driver: its template, itself, its mount, its limit.
    "overlay.make template",
    "overlay.place template",
    "overlay.copy template",
    "overlay.sync layer",
    "overlay.place layer",
    "overlay.make spare",
    "overlay.place spare",
    "overlay.note limit",
    "overlay.attach device",
    "overlay.mount",
    "overlay.hold limit",
    "overlay.extend image",
    "overlay.resize image",
    "overlay.resize mounted",
    // The form of a store of images.
    "image.remember form",
    // An image: unpacked in staging, made to last, given its place, known. And removed.
    "image.make layer",
    "image.unpack layer",
    "image.finish layer",
    "image.sync",
    "image.place layer",
    "image.sync layers",
    "image.write index",
    "image.place index",
    "image.bury layer",
    "image.empty staging",
    // Frozen, and thawed.
    "pause.tell holder",
    "pause.freeze",
    "pause.reclaim",
    "resume.thaw",
    // Out of sight; where there is no room for that, no sandbox any more.
    "discard.rename",
    "discard.sync",
    "discard.forget",
    // The end of processes and files.
    "stop.end group",
    "stop.remove socket",
    "delete.remove files",
    // A run.
    "run.make leaf",
    "run.ask holder",
    // The journal of a sandbox's runs: a line, all of it on disk, the file written anew.
    "journal.append",
    "journal.sync",
    "journal.compact",
    // A stream's log.
    "log.create",
    "log.append",
    "log.splice",
    "log.punch",
    // The next daemon.
    "recover.load",
    "recover.claim uids",
    "recover.take up running",
    "recover.take up dead",
    "recover.discard unfinished",
];

/// Ends the name of a step's point.
pub(super) fn suffix(moment: Moment) -> &'static str {
    match moment {
        Moment::Before => "",
        Moment::Done => DONE,
        Moment::Undo => UNDO,
    }
}

/// The names of all points, in the order of the tables.
pub fn names() -> Vec<String> {
    let of_steps = STEPS.iter().flat_map(|step| {
        [Moment::Before, Moment::Done, Moment::Undo].map(|m| format!("{step}{}", suffix(m)))
    });
    let of_acts = ACTS
        .iter()
        .flat_map(|act| ["", DONE].map(|end| format!("{act}{end}")));
    of_steps.chain(of_acts).collect()
}

pub(super) fn is_a_point(name: &str) -> bool {
    names().iter().any(|known| known == name)
}

/// Fails unless the table has these steps of `table` in this order.
#[cfg(test)]
pub(crate) fn assert_steps(table: &str, steps: &[&str]) {
    let prefix = format!("{table}.");
    let known: Vec<&str> = STEPS
        .iter()
        .filter_map(|step| step.strip_prefix(prefix.as_str()))
        .collect();
    assert_eq!(known, steps, "the fault points of {table:?}");
}
