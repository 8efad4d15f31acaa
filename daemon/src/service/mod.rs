//! The calls of Lodge in its own words. Adapters translate to them; [`Lodge`] answers them on this host. A later part may
//! answer them by asking another host: it implements the same trait.

/// The calls.
mod calls;
/// What answers them on this host.
mod lodge;

pub use calls::{NodeInfo, Service};
pub use lodge::Lodge;
