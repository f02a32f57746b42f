//! Neighborhood attention (in work).

pub mod cpu;
mod backend;
mod dtype;
mod error;
mod neighborhood;
mod problem;
#[cfg(test)]
mod testing;

pub use backend::Backend;
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};
pub use neighborhood::Axis;
pub use problem::{Problem, ProblemBuilder};
