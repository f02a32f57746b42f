//! Neighborhood attention for Rust: NATTEN's CUDA kernels as an artifact that `nattenc` built, and a CPU
//! backend that needs nothing.
//!
//! A token attends to the tokens around it: `out = softmax(scale * query . key) . value`, over a window
//! per axis, in 1-D, 2-D and 3-D, with stride, dilation and causal axes. [`Problem`] states and checks
//! one such call; [`Axis`] has the exact rule of who sees whom.
//!
//! ```
//! use natten_kernels::{Dtype, Problem, cpu};
//!
//! // 8 x 8 tokens, 2 heads of 16 elements; each token sees the 3 x 3 tokens around it.
//! let problem = Problem::builder(Dtype::Float32, &[8, 8]).heads(2).dim(16).window(&[3, 3]).build()?;
//! let query = vec![0.1_f32; problem.query_len()];
//! let key = vec![0.2_f32; problem.key_len()];
//! let value = vec![0.3_f32; problem.value_len()];
//!
//! let result = cpu::forward(&problem, &query, &key, &value)?;
//! assert_eq!(result.out.len(), 8 * 8 * 2 * 16);
//! assert!(result.out.iter().all(|x| (x - 0.3).abs() < 1e-6));
//! # Ok::<(), natten_kernels::Error>(())
//! ```
//!
//! # Layers
//!
//! | layer | what it is |
//! |---|---|
//! | [`cpu`] | every option, forward and backward, in double precision: backend and oracle |
//! | [`dispatch`] | which backend and tile shapes a problem runs with on a device: a pure function |
//! | [`ops`] | the artifact's operations, argument-checked, over raw device pointers and a stream |
//! | [`sys`] | the C ABI, declarations only |
//! | [`device`] | minimal access to a device, for programs that have no CUDA library of their own |
//!
//! On a device, a program checks a [`Problem`], asks [`dispatch::choose`], and passes the decision to
//! [`ops::forward`] with its pointers and stream; `examples/na2d.rs` is the whole of it.
//!
//! # Linking an artifact
//!
//! The build script links `dist/<variant>/` of this workspace, or what `NATTEN_KERNELS_VARIANT_DIR`
//! names; see `build/main.rs` for the order. Without an artifact everything compiles all the same:
//! [`linked`] is `None`, [`available_backends`] is empty, and device operations answer
//! [`Error::BackendNotBuilt`] with the command that builds one. A static artifact
//! (`NATTEN_KERNELS_LINK=static`, the default) makes a program that needs only the driver; a shared one is
//! found at run time through `LD_LIBRARY_PATH` or the program's own rpath.
//!
//! # Unsafe code
//!
//! Calls to the C ABI are in `launch.rs`, calls to the driver in `device.rs`, one call in each block. The
//! functions of [`ops`] are `unsafe` for one reason: no one can check where a device pointer leads.

mod backend;
mod capability;
pub mod cpu;
pub mod device;
pub mod dispatch;
mod dtype;
mod error;
pub mod functional;
mod launch;
mod neighborhood;
pub mod ops;
mod permutation;
mod problem;
#[cfg(any(test, not(natten_kernels_unlinked)))]
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
