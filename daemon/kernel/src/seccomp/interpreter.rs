//! Runs a program without the kernel.
