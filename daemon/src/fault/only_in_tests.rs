//! An optimised build never has fault points. The test `release_has_no_fault_points` compiles this file as a crate.

#[cfg(all(feature = "fault-points", not(debug_assertions)))]
compile_error!("fault points are for tests; a release is built without the feature `fault-points`");
