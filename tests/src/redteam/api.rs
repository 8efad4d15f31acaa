//! Abuse of the API.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("A01", "hostile names and ids").star(),
    row("A02", "hostile environments").star(),
    row("A03", "hostile commands").star(),
    row("A04", "hostile timeouts").star(),
    row("A05", "hostile limits"),
    row("A06", "a hundred creates of one name").star(),
    row("A07", "random interleavings").star(),
    row("A08", "delete under ten runs").star(),
    row("A09", "delete twice, unknown and early").star(),
    row("A10", "pause while running").star(),
    row("A11", "calls to a frozen sandbox").star(),
    row("A12", "hundreds of pauses"),
    row("A13", "callers who vanish").star(),
    row("A15", "random messages to every call"),
    row("A16", "input out of place"),
    row("A17", "forged page tokens"),
    row("A18", "offsets that no log has"),
    row("A20", "every call without a right to it").waits_for("tokens"),
    row("A21", "callers' texts in arguments of programs").star(),
    row("A22", "settings in free form").named(&["a_caller_may_set_no_kernel_setting_in_free_form"]),
    row("A23", "a client whose clock is wrong")
        .see("DESIGN: deadlines are durations, and no time of a client is read"),
    row("A40", "messages beyond the bound").star(),
    row("A42", "floods of frames").star(),
    row("A44", "what is no gRPC, to the socket"),
    row("A45", "calls that tell of the API, without a right to it")
        .see("SECURITY.md: the socket's file mode guards them as it does all"),
    row("A46", "a socket that is taken, or not what it seems")
        .named(&["second_daemon_on_a_directory_refuses"]),
];
