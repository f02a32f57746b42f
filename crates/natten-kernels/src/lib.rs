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
//! | [`functional`] | `na1d` to `na3d` and `attention`, forward and backward, and `merge_attentions`, on raw device pointers |
//! | [`cpu`] | the same in double precision: backend and oracle |
//! | [`dispatch`] | which backend, tile shapes and schedule a problem runs with on a device: a pure function |
//! | [`ops`] | the artifact's operations, argument-checked, over raw device pointers and a stream |
//! | [`sys`] | the C ABI, declarations only |
//! | [`device`] | minimal access to a device, for programs that have no CUDA library of their own |
//!
//! Programs that have their tensors from elsewhere take a feature: `cudarc` for safe functions on its slices and
//! streams, `candle` for operations with gradients on its tensors (`candle-cuda`: those of devices too).
//!
//! On a device, a program checks a [`Problem`] and calls [`functional::na2d_forward`] with its pointers and
//! stream; or it asks [`dispatch::choose`] once and runs the decision with [`functional::forward`] often.
//! `examples/na2d.rs` is the whole of it.
//!
//! Dense attention is a [`Dense`](ops::Dense) problem. Attention to two sets of keys, merged, is attention to
//! both:
//!
//! ```
//! use natten_kernels::{Dtype, cpu, ops::Dense};
//!
//! // Two queries of 2 heads of 4 elements; three keys, and two more elsewhere.
//! let base = Dense { seqlen_q: 2, heads: 2, heads_kv: 2, dim: 4, dim_value: 4, ..Dense::new(Dtype::Float32) };
//! let here = Dense { seqlen_kv: 3, ..base };
//! let there = Dense { seqlen_kv: 2, ..base };
//! let both = Dense { seqlen_kv: 5, ..base };
//! let numbers = |len: usize, step: f32| (0..len).map(|n| (n as f32 * step).sin()).collect::<Vec<f32>>();
//! let (query, key, value) = (numbers(2 * 8, 0.3), numbers(5 * 8, 0.7), numbers(5 * 8, 1.1));
//!
//! let first = cpu::attention_forward(&here, None, &query, &key[..24], &value[..24])?;
//! let second = cpu::attention_forward(&there, None, &query, &key[24..], &value[24..])?;
//! let merged = cpu::merge_attentions(&[&first, &second])?;
//! let whole = cpu::attention_forward(&both, None, &query, &key, &value)?;
//! assert!(merged.out.iter().zip(&whole.out).all(|(a, b)| (a - b).abs() < 1e-5));
//! # Ok::<(), natten_kernels::Error>(())
//! ```
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
//! Calls to the C ABI are in `launch.rs`, calls to the driver in `device.rs`, calls to a caller's allocator in
//! `ops.rs`, one call in each block. The functions of [`ops`] and [`functional`] are `unsafe` for one reason:
//! no one can check where a device pointer leads.

mod backend;
#[cfg(feature = "candle")]
pub mod candle;
mod capability;
pub mod cpu;
#[cfg(feature = "cudarc")]
pub mod cudarc;
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
