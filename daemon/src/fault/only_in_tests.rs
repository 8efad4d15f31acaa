//! An optimised build never has fault points, nor protections that can be switched off. The test `release_has_no_fault_points` compiles this file as a crate.

#[cfg(all(feature = "fault-points", not(debug_assertions)))]
compile_error!("fault points are for tests; a release is built without the feature `fault-points`");
#[cfg(all(feature = "weaken", not(debug_assertions)))]
compile_error!(
    "protections are switched off in tests; a release is built without the feature `weaken`"
);
