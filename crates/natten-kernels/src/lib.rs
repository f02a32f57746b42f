//! Neighborhood attention (in work).

mod backend;
mod capability;
pub mod cpu;
pub mod device;
pub mod dispatch;
mod dtype;
mod error;
mod launch;
mod neighborhood;
pub mod ops;
mod permutation;
mod problem;
mod status;
pub mod sys;
mod table;
#[cfg(test)]
mod testing;
pub mod tiles;
mod variant;

pub use backend::Backend;
pub use capability::{ComputeCapability, Target};
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};
pub use neighborhood::Axis;
pub use permutation::TokenPermutation;
pub use problem::{Problem, ProblemBuilder};
pub use table::{Direction, Kernel};
pub use variant::{Artifact, Built, available_backends, linked};
