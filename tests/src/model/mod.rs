//! A reference model of one sandbox, as its caller knows it, and what a caller does to it.
//!
//! The model is a set of beliefs: after a call that was not answered, or after two at once, more than one may be true,
//! and what is seen next rules some of them out. When none is left, the daemon has contradicted itself. It knows nothing
//! of how the daemon works.

mod belief; // what may be true of a sandbox, and which of it an answer leaves
mod perform; // doing a step by the API
mod step; // steps and answers

pub use belief::{Belief, Beliefs, Company, Phase};
pub use perform::{perform, seen};
pub use step::{Answer, Done, Step};
