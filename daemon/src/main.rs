//! lodged: the Lodge daemon.
fn main() {}
