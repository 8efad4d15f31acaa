//! The harness of Lodge's end-to-end tests, in reading order.
//!
//! Every test has its own daemon, with its own directories, cgroup, uid range and network namespace, and leaves the
//! host as it found it, also when it panics. Nothing here decides what is right: the tests do.

pub mod api; // the gRPC clients on one connection
pub mod arena; // an attacked sandbox beside a neighbour, and what must hold after the attack
pub mod attached; // attaching to a run
pub mod binary; // where the product's binaries are
pub mod cgroup; // the host's cgroup trees, seen from outside: find, kill, remove
pub mod cli; // the `lodge` command, run as a user runs it
pub mod daemon; // a `lodged` of the test's own: start, restart, kill, clean up
pub mod fake_holder; // a holder that lies to the daemon
pub mod fault; // the places at which the daemon can be told to fail
pub mod footprint; // what a daemon uses of the host: what must not grow
pub mod host; // processes, mounts and settings of the host, seen from outside
pub mod hostile; // tar archives that no honest tool writes
pub mod image; // images that tests share, and small ones made from the host's own bash
pub mod live; // a streaming run
pub mod model; // a reference model of one sandbox, and what a caller does to it
pub mod notify; // readiness by sd_notify's protocol
pub mod pool; // a daemon with a pool of its own
pub mod proxy; // a proxy between client and daemon, to be broken by a test
pub mod prober; // raw system calls from inside, in Python
pub mod redteam; // the catalogue of attacks, as data
pub mod room; // a sandbox to run things in
pub mod rootfs; // the files of the base image, for other runtimes
pub mod storage; // which storage driver is under test, and what the host has of loop devices and file systems
pub mod strace; // single system calls that fail, by strace
pub mod slot; // a place of one's own on the host: directories, cgroup name, uid range; swept before use
pub mod wait; // waiting for an event, with a deadline
pub mod watcher; // what a watcher is told
pub mod work; // work that people do, in a sandbox and on the host
