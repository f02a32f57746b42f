//! The CPU backend: neighborhood attention with every option, dense attention and their merge, in double
//! precision.
//!
//! It is both a backend and the oracle that device kernels are tested against. Inputs are read
//! exactly, everything is summed in `f64` in a fixed order, and results are rounded once, so equal
//! inputs give equal bits on any number of threads.
//!
//! Cost: `tokens * window` scores, each once forward and three times backward. For one batch entry
//! and one key head at a time, keys and values are copied into dilation-group order as `f64`, where
//! a neighborhood is a few contiguous runs.

mod attention;
mod delta;
mod dense;
mod grid;

pub use attention::{Forward, Gradients, backward, forward};
pub use delta::compute_delta;
pub use dense::{AttentionSaved, Cumulative, attention_backward, attention_forward, merge_attentions};

use crate::error::{Error, Result};

/// Refuses a slice of another length, by name.
pub(crate) fn check_len<T>(name: &str, slice: &[T], expected: usize) -> Result<()> {
    if slice.len() == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must have {expected} elements, got {}", slice.len())))
}
