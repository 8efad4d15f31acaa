//! The one tool that an agent gets.
fn main() {}
