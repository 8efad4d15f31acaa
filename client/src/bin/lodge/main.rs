//! The `lodge` command.
fn main() {}
