//! Whether the host can carry a sandbox at all: a limit above what there is could never be reached, and so says nothing.
//!
//! A comparison of what was asked for with what the host has, which does not change: no sum over sandboxes, so nothing to race for.
//! That all of them together leave the host enough is held by the kernel (`lodge_kernel::cgroup::Room`).

use lodge_kernel::cgroup::Room;

use super::limits::RequestedLimits;
use crate::error::{Error, ErrorKind, Result};

/// Refuses a memory limit above what the host has. A default that nobody asked for is left as it is: on a small host the bound on
/// all sandboxes together is below it.
pub(super) fn admit(room: Room, asked: &RequestedLimits) -> Result<()> {
    let asked = asked
        .memory_bytes
        .and_then(|asked| u64::try_from(asked).ok());
    let (Some(asked), Some(total)) = (asked, room.memory_bytes) else {
        return Ok(());
    };
    if asked <= total {
        return Ok(());
    }
    let text = format!("memory_bytes is {asked}, and the host has {total} bytes of memory");
    Err(
        Error::new(ErrorKind::ResourceExhausted, "HOST_MEMORY", text)
            .detail("asked_bytes", asked.to_string())
            .detail("host_bytes", total.to_string())
            .hint("ask for less, or leave it out to take the server's default"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(memory_bytes: Option<i64>) -> RequestedLimits {
        RequestedLimits {
            memory_bytes,
            ..RequestedLimits::default()
        }
    }

    #[test]
    fn more_memory_than_the_host_has_is_refused_with_figures() {
        let room = Room {
            memory_bytes: Some(1 << 30),
            pids: None,
        };
        let refused = admit(room, &asking(Some((1 << 30) + 1))).expect_err("too much");
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(refused.reason(), "HOST_MEMORY");
        let text = refused.to_string();
        assert!(
            text.contains("1073741825") && text.contains("1073741824"),
            "{text}"
        );
        for fine in [Some(1 << 30), Some(16 << 20), None] {
            admit(room, &asking(fine)).expect("the host has it");
        }
    }

    #[test]
    fn a_host_that_does_not_tell_refuses_nothing() {
        admit(Room::default(), &asking(Some(1 << 44))).expect("nobody knows better");
    }
}
