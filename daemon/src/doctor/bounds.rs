//! What all sandboxes together may have of the host, as the kernel holds it. Missing bounds are warnings: each sandbox has its own.

use lodge_kernel::cgroup::{Controller, EffectiveLimit, Parent, Room};

use super::report::Check;

/// Sets the bounds, as a daemon does at its start, and says what is in force. Blocks.
pub(super) fn checks(parent: &Parent) -> Vec<Check> {
    let held = parent.hold(Room::of_host());
    held.iter().filter_map(check).collect()
}

fn check(bound: &EffectiveLimit) -> Option<Check> {
    let (name, unit) = match bound.controller {
        Controller::Memory => ("memory-of-all", "bytes"),
        Controller::Pids => ("pids-of-all", "processes and threads"),
        Controller::Cpu | Controller::Devices => return None,
    };
    Some(match &bound.effective {
        Ok(most) => Check::ok(name, format!("all sandboxes together: {most} {unit}")),
        Err(why) => Check::warn(
            name,
            format!("all sandboxes together have no bound: {why}"),
            format!(
                "many sandboxes, each within its limit, can take all {unit} of the host; enable \
                 the {} controller on the kernel's command line",
                bound.controller
            ),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    fn bound(controller: Controller, effective: Result<u64, String>) -> EffectiveLimit {
        EffectiveLimit {
            controller,
            requested: 28_672,
            effective,
        }
    }

    #[test]
    fn what_is_in_force_is_shown_and_what_is_missing_is_a_warning() {
        let held = check(&bound(Controller::Pids, Ok(28_672))).expect("a check");
        assert_eq!((held.name, held.outcome), ("pids-of-all", Outcome::Ok));
        assert!(held.detail.contains("28672"), "{held:?}");
        let missing = bound(
            Controller::Memory,
            Err("this host has no memory controller".into()),
        );
        let missing = check(&missing).expect("a check");
        assert_eq!(
            (missing.name, missing.outcome),
            ("memory-of-all", Outcome::Warn)
        );
        assert!(
            missing.detail.contains("no memory controller"),
            "{missing:?}"
        );
    }
}
