//! The calls of Lodge in its own words. Adapters translate to them; [`Lodge`] answers them on this host. A later part may
//! answer them by asking another host: it implements the same trait.

/// The calls.
mod calls;
/// What answers them on this host.
mod lodge;
/// What is stored on this host, and how much there is room for.
mod node_disk;

pub use calls::{NodeInfo, Service};
pub use lodge::Lodge;
pub use node_disk::{NodeDisk, SandboxDisk};
