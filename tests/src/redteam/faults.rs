//! Faults of daemon and host.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("D01", "kill -9 while twenty runs stream").star(),
    row("D02", "killed and failed at every point").star(),
    row("D03", "killed holders").star(),
    row("D05", "a loop of restarts under load").star(),
    row("D06", "damaged state").star(),
    row("D07", "a reboot").star(),
    row("D09", "a protection that cannot be set up").star(),
    row("D10", "a full state directory").star(),
    row("D11", "a broken disk of one sandbox"),
    row("D13", "no memory, no threads, no descriptors"),
    row("D14", "the daemon is killed for memory"),
    row("D17", "a slow disk"),
    row("D18", "stop and start by the service manager"),
    row("D19", "an upgrade and back")
        .named(&["case_j4_attack_d19_upgrade_and_back_with_live_runs"]),
    row("D20", "a host that lacks what is needed"),
    row("D21", "a log that cannot be written"),
    row("D22", "signals to the daemon"),
    row("D23", "a day of everything").see("`make soak`"),
    row("D24", "random input to every parser").see("`make fuzz`"),
    row("D25", "a panic at every point"),
    row("D26", "two daemons at once"),
    row("D27", "what a crashed version left"),
];
