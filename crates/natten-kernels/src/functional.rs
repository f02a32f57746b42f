//! Neighborhood attention and dense attention on raw device pointers, whichever backend runs them: choose,
//! make room, bring tensors into the backend's order, call it, bring results back.
//!
//! | function | computes | on the CPU |
//! |---|---|---|
//! | [`na1d_forward`], [`na2d_forward`], [`na3d_forward`] | neighborhood attention | [`cpu::forward`] |
//! | [`na1d_backward`], [`na2d_backward`], [`na3d_backward`] | its gradients | [`cpu::backward`] |
//! | [`attention_forward`] | dense attention, causal or not, sequences of variable length | [`cpu::attention_forward`] |
//! | [`attention_backward`] | its gradients | [`cpu::attention_backward`] |
//!
//! | [`merge_attentions`] | attention to several sets of keys, from attentions to each | [`cpu::merge_attentions`] |
//! | [`add_gradients`] | the gradient of what several of them saw | |
//!
//! # Tensors
//!
//! Dense, row-major, heads last: `[batch, *extents, heads, dim]` as [`Problem`] documents, `[batch, seqlen,
//! heads, dim]` as [`Dense`] does; there are no stride arguments, so a view must be made contiguous first.
//! Element type: float32, float16 or bfloat16; forward on Blackwell also the 8-bit types. `logsumexp` is
//! float32 and may be null in a forward pass. Outputs overlap nothing else. A pointer is aligned to 16
//! bytes (`logsumexp` and `delta` to 4); the reference backend, and neighborhood attention on Hopper and Blackwell,
//! whose tensors are copied anyway, take the alignment of an element.
//!
//! # What happens on the device
//!
//! Everything is enqueued on [`Launch::stream`] in one order; nothing waits, and nothing is allocated but
//! through [`Launch::allocator`] (CUDA's stream-ordered pool by default), so a call can be captured into a
//! graph. Temporaries are one block of [`workspace_bytes`] bytes, freed in stream order; an operation may ask
//! the allocator for more of its own.
//!
//! - **Hopper and Blackwell neighborhood attention** work on tokens in tile order. Forward, query, key and
//!   value are permuted, out and logsumexp permuted back; backward, out, grad_out and logsumexp are permuted
//!   too, and the three gradients permuted back.
//! - **Grouped heads** (GQA, MQA) are taken as they are by Blackwell and the reference backend. For the others
//!   each key and value head is copied for its query heads first; backward, the gradients of the copies are added
//!   up, which needs the merge backend. Without that, the dispatcher has another backend take the heads, if it can.
//!   The gradients of tokens of no sequence are then of no meaning.
//! - **Extra key/value tokens** are keys like the others to dense attention over whole axes; else the
//!   reference backend takes them.
//! - **delta** is computed by the backend that needs it if it is null.
//!
//! # Choosing once
//!
//! A choice depends on shapes alone. A program that calls with the same shapes again keeps the [`Decision`]
//! that a call returns, or makes it with [`dispatch::choose`], and calls [`forward`] or [`backward`] with it.
//!
//! ```
//! use natten_kernels::device::Properties;
//! use natten_kernels::functional::{self, Options};
//! use natten_kernels::ops::ForwardTensors;
//! use natten_kernels::{ComputeCapability, Dtype, Error, Problem, cpu};
//!
//! let problem = Problem::builder(Dtype::Float32, &[8, 8]).heads(2).dim(16).window(&[3, 3]).build()?;
//! let (q, k, v) = (vec![0.1_f32; 2048], vec![0.2_f32; 2048], vec![0.3_f32; 2048]);
//! // A program with a device has its pointers and properties from there.
//! let h200 = Properties { capability: ComputeCapability { major: 9, minor: 0 }, shared_memory: 232_448 };
//! let null = ForwardTensors {
//!     query: std::ptr::null(),
//!     key: std::ptr::null(),
//!     value: std::ptr::null(),
//!     out: std::ptr::null_mut(),
//!     logsumexp: std::ptr::null_mut(),
//! };
//! // SAFETY: null pointers are refused before anything is followed.
//! match unsafe { functional::na2d_forward(&problem, &h200, &null, &Options::default()) } {
//!     // No artifact is linked: the CPU computes the same.
//!     Err(Error::BackendNotBuilt { .. }) => {
//!         let result = cpu::forward(&problem, &q, &k, &v)?;
//!         assert!((result.out[0] - 0.3).abs() < 1e-6);
//!     }
//!     other => assert!(other.is_err(), "null pointers"),
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! [`cpu::forward`]: crate::cpu::forward
//! [`cpu::backward`]: crate::cpu::backward
//! [`cpu::attention_forward`]: crate::cpu::attention_forward
//! [`cpu::attention_backward`]: crate::cpu::attention_backward
//! [`cpu::merge_attentions`]: crate::cpu::merge_attentions

mod compose;

use crate::backend::Backend;
use crate::device::{self, Properties};
use crate::dispatch::{self, Decision, Request};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{self, BackwardTensors, Dense, ForwardTensors, Launch, Sequences, Stream, TokenTensor};
use crate::permutation::TokenPermutation;
use crate::problem::Problem;
use crate::table::Direction;
use crate::tiles::Determinism;
use compose::{Engine, HeadCopy, Way};
use std::ffi::c_void;

pub use crate::ops::{add_gradients, merge_attentions};

/// How to choose, and how to start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Only this backend; `None` lets the dispatcher choose.
    pub backend: Option<Backend>,
    /// Whether a backward pass must give the same bits every time.
    pub determinism: Determinism,
    /// Stream and allocator.
    pub launch: Launch,
}

impl Options {
    fn request(&self, direction: Direction) -> Request {
        Request { direction, determinism: self.determinism, backend: self.backend }
    }
}

macro_rules! ranked {
    ($($rank:literal $forward:ident $backward:ident;)+) => {
        $(
            #[doc = concat!("Neighborhood attention over ", $rank, "-D tokens, by the backend that fits; the decision says which.")]
            ///
            /// # Errors
            #[doc = concat!("[`Error::InvalidArgument`] if the problem is not ", $rank, "-D or a pointer is null or not aligned;")]
            /// else as [`dispatch::choose`] and the operation that was chosen.
            ///
            /// # Safety
            /// Pointers lead to device memory of the current device, which has `properties`, of the sizes that
            /// `problem` implies, live until the stream has passed the call; outputs overlap nothing else.
            pub unsafe fn $forward(
                problem: &Problem,
                properties: &Properties,
                tensors: &ForwardTensors,
                options: &Options,
            ) -> Result<Decision> {
                check_rank(problem, $rank)?;
                let decision = dispatch::choose(problem, properties, &options.request(Direction::Forward))?;
                // SAFETY: the caller's promise.
                unsafe { forward(&decision, problem, tensors, &options.launch) }?;
                Ok(decision)
            }

            #[doc = concat!("Gradients of [`", stringify!($forward), "`]; `out` and `logsumexp` are its results.")]
            ///
            /// The backend need not be that of the forward pass.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($forward), "`].")]
            ///
            /// # Safety
            #[doc = concat!("As [`", stringify!($forward), "`].")]
            pub unsafe fn $backward(
                problem: &Problem,
                properties: &Properties,
                tensors: &BackwardTensors,
                options: &Options,
            ) -> Result<Decision> {
                check_rank(problem, $rank)?;
                let decision = dispatch::choose(problem, properties, &options.request(Direction::Backward))?;
                // SAFETY: the caller's promise.
                unsafe { backward(&decision, problem, tensors, &options.launch) }?;
                Ok(decision)
            }
        )+
    };
}

ranked! {
    1 na1d_forward na1d_backward;
    2 na2d_forward na2d_backward;
    3 na3d_forward na3d_backward;
}

fn check_rank(problem: &Problem, rank: usize) -> Result<()> {
    if problem.rank() == rank {
        return Ok(());
    }
    Err(Error::invalid(format!("na{rank}d takes a {rank}-D problem, got {}-D", problem.rank())))
}

/// Dense attention, by the backend that fits; the decision says which.
///
/// With `sequences`, tokens of no sequence are not written.
///
/// # Errors
/// [`Error::InvalidArgument`] for a pointer that is null or not aligned and for sequences that do not fit;
/// else as [`dispatch::choose_dense`] and the operation that was chosen.
///
/// # Safety
/// Pointers lead to device memory of the current device, which has `properties`, of the sizes that
/// `problem` implies, live until the stream has passed the call; outputs overlap nothing else. The numbers of
/// `sequences` are as it says.
pub unsafe fn attention_forward(
    problem: &Dense,
    sequences: Option<&Sequences>,
    properties: &Properties,
    tensors: &ForwardTensors,
    options: &Options,
) -> Result<Decision> {
    let decision =
        dispatch::choose_dense(problem, sequences, properties, &options.request(Direction::Forward))?;
    // SAFETY: the caller's promise.
    unsafe { dense_forward(&decision, problem, sequences, tensors, &options.launch) }?;
    Ok(decision)
}

/// Gradients of [`attention_forward`]; `out` and `logsumexp` are its results, or what they were merged to.
///
/// # Errors
/// As [`attention_forward`].
///
/// # Safety
/// As [`attention_forward`].
pub unsafe fn attention_backward(
    problem: &Dense,
    sequences: Option<&Sequences>,
    properties: &Properties,
    tensors: &BackwardTensors,
    options: &Options,
) -> Result<Decision> {
    let decision =
        dispatch::choose_dense(problem, sequences, properties, &options.request(Direction::Backward))?;
    // SAFETY: the caller's promise.
    unsafe { dense_backward(&decision, problem, sequences, tensors, &options.launch) }?;
    Ok(decision)
}

/// The forward pass of `problem` as `decision` says.
///
/// # Errors
/// [`Error::InvalidArgument`] for a decision of another pass or another problem; else as the operation.
///
/// # Safety
/// As [`na1d_forward`], with the device that the decision was made for.
pub unsafe fn forward(
    decision: &Decision,
    problem: &Problem,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { compose::forward(&Device(launch), decision, problem, tensors) }
}

/// The backward pass of `problem` as `decision` says.
///
/// # Errors
/// As [`forward`].
///
/// # Safety
/// As [`forward`].
pub unsafe fn backward(
    decision: &Decision,
    problem: &Problem,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { compose::backward(&Device(launch), decision, problem, tensors) }
}

/// The forward pass of dense attention as `decision` says.
///
/// # Errors
/// As [`forward`].
///
/// # Safety
/// As [`attention_forward`], with the device that the decision was made for.
pub unsafe fn dense_forward(
    decision: &Decision,
    problem: &Dense,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { compose::dense_forward(&Device(launch), decision, problem, sequences, tensors) }
}

/// The backward pass of dense attention as `decision` says.
///
/// # Errors
/// As [`forward`].
///
/// # Safety
/// As [`dense_forward`].
pub unsafe fn dense_backward(
    decision: &Decision,
    problem: &Dense,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { compose::dense_backward(&Device(launch), decision, problem, sequences, tensors) }
}

/// Bytes that a call with `decision` asks the allocator for, beside what the operation itself asks for. With a
/// `logsumexp` that is wanted or not: some backends write it always.
///
/// # Errors
/// [`Error::InvalidArgument`] for a decision of another problem.
pub fn workspace_bytes(decision: &Decision, problem: &Problem, logsumexp_wanted: bool) -> Result<usize> {
    compose::workspace_bytes(decision, problem, logsumexp_wanted)
}

/// The current device, through the artifact and the driver.
struct Device<'a>(&'a Launch);

impl Device<'_> {
    fn stream(&self) -> Stream {
        self.0.stream
    }
}

impl Engine for Device<'_> {
    fn alloc(&self, bytes: usize) -> Result<*mut c_void> {
        self.0.allocator.alloc(bytes, self.stream())
    }

    fn free(&self, pointer: *mut c_void) {
        self.0.allocator.free(pointer, self.stream());
    }

    unsafe fn reorder(
        &self,
        order: &TokenPermutation,
        way: Way,
        tensor: TokenTensor,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()> {
        match way {
            // SAFETY: the caller's promise.
            Way::Into => unsafe { ops::token_permute(order, tensor, from, to, self.stream()) },
            // SAFETY: the caller's promise.
            Way::Back => unsafe { ops::token_unpermute(order, tensor, from, to, self.stream()) },
        }
    }

    unsafe fn copy_heads(&self, copy: &HeadCopy, from: *const c_void, to: *mut c_void) -> Result<()> {
        for at in 0..copy.copies {
            let rows = device::Rows {
                from,
                from_pitch: copy.width,
                to: to.wrapping_byte_add(at * copy.width),
                to_pitch: copy.copies * copy.width,
                width: copy.width,
                rows: copy.heads,
            };
            // SAFETY: the caller's promise: `heads` rows of `width` bytes each, `copies` times as many in `to`.
            unsafe { device::copy_rows_async(&rows, self.stream()) }?;
        }
        Ok(())
    }

    unsafe fn add_heads(
        &self,
        copy: &HeadCopy,
        dtype: Dtype,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()> {
        let HeadCopy { heads, width, copies } = *copy;
        let tensor = TokenTensor { dtype, batch: 1, heads: 1, dim: width / dtype.size() };
        // SAFETY: the caller's promise: `heads` rows of `copies` rows of `width` bytes each.
        unsafe { ops::add_gradients(tensor, heads, copies, from, to, self.stream()) }
    }

    unsafe fn na_forward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &ForwardTensors,
    ) -> Result<()> {
        let launch = self.0;
        match (decision.backend, &decision.tiles, decision.schedule, decision.scheduler) {
            (Backend::Reference, ..) => {
                // SAFETY: the caller's promise.
                unsafe { ops::reference_na_forward(problem, tensors, launch.stream) }
            }
            (Backend::Fna, Some(tiles), ..) => {
                // SAFETY: the caller's promise.
                unsafe { ops::na_forward(problem, tiles, tensors, launch) }
            }
            (Backend::HopperFna, Some(tiles), Some(schedule), _) => {
                // SAFETY: the caller's promise.
                unsafe { ops::hopper_na_forward(problem, tiles, schedule, tensors, launch) }
            }
            (Backend::BlackwellFna, Some(tiles), _, Some(scheduler)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::blackwell_na_forward(problem, tiles, scheduler, tensors, launch) }
            }
            _ => Err(incomplete(decision)),
        }
    }

    unsafe fn na_backward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &BackwardTensors,
    ) -> Result<()> {
        let launch = self.0;
        match (decision.backend, &decision.tiles) {
            (Backend::Reference, _) => {
                // SAFETY: the caller's promise.
                unsafe { ops::reference_na_backward(problem, tensors, launch.stream) }
            }
            (Backend::Fna, Some(tiles)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::na_backward(problem, tiles, decision.key_splits, tensors, launch) }
            }
            (Backend::HopperFna, Some(tiles)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::hopper_na_backward(problem, tiles, tensors, launch) }
            }
            (Backend::BlackwellFna, Some(tiles)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::blackwell_na_backward(problem, tiles, tensors, launch) }
            }
            _ => Err(incomplete(decision)),
        }
    }

    unsafe fn dense_forward(
        &self,
        decision: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &ForwardTensors,
    ) -> Result<()> {
        let launch = self.0;
        match (decision.backend, decision.dense_tiles(), decision.schedule, decision.scheduler) {
            (Backend::Fmha, Some(tiles), ..) => {
                // SAFETY: the caller's promise.
                unsafe { ops::fmha_forward(problem, tiles, sequences, tensors, launch) }
            }
            (Backend::HopperFmha, Some(tiles), Some(schedule), _) => {
                // SAFETY: the caller's promise.
                unsafe { ops::hopper_fmha_forward(problem, tiles, schedule, sequences, tensors, launch) }
            }
            (Backend::BlackwellFmha, Some(tiles), _, Some(scheduler)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::blackwell_fmha_forward(problem, tiles, scheduler, sequences, tensors, launch) }
            }
            _ => Err(incomplete(decision)),
        }
    }

    unsafe fn dense_backward(
        &self,
        decision: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &BackwardTensors,
    ) -> Result<()> {
        let launch = self.0;
        match (decision.backend, decision.dense_tiles()) {
            (Backend::Fmha, Some(tiles)) => {
                let splits = decision.key_splits[0];
                // SAFETY: the caller's promise.
                unsafe { ops::fmha_backward(problem, tiles, splits, sequences, tensors, launch) }
            }
            (Backend::HopperFmha, Some(tiles)) => {
                // SAFETY: the caller's promise.
                unsafe { ops::hopper_fmha_backward(problem, tiles, sequences, tensors, launch) }
            }
            (Backend::BlackwellFmha, Some(tiles)) => {
                let order = decision.determinism;
                // SAFETY: the caller's promise.
                unsafe { ops::blackwell_fmha_backward(problem, tiles, order, sequences, tensors, launch) }
            }
            _ => Err(incomplete(decision)),
        }
    }
}

fn incomplete(decision: &Decision) -> Error {
    Error::invalid(format!(
        "a decision for {} {} must have tiles and a schedule, and come from the dispatcher: {decision}",
        decision.backend, decision.direction
    ))
}

#[cfg(test)]
mod tests;
