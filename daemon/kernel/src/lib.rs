//! Thin, safe layers over the Linux kernel. No tokio, no wire types, no domain words.
//!
//! Reading order:

pub mod sys; // one system call each; the only unsafe code
pub mod protection; // what a test may switch off
pub mod capability; // what this process may do
pub mod identity; // becoming a host uid that nobody else has, and mapping it
pub mod mount; // file systems and bind mounts by descriptor
pub mod block; // files as block devices, mounted by descriptor
pub mod ext4; // what only ext4 can do
pub mod btrfs; // subvolumes, snapshots and quotas
pub mod cgroup; // groups, limits, kill and counters on v2, hybrid and v1
pub mod seccomp; // which system calls a sandbox may make
