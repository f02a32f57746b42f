//! Feature `cudarc`: the functional API on the device slices and streams of the crate `cudarc`, without `unsafe`.
//!
//! Tensors are `CudaSlice`s or views, dense and heads last as [`functional`] documents them, of
//! `f32`, `f16` or `bf16`; their lengths, type and device are checked before anything is called. Work is enqueued on
//! the stream that is passed, which waits for what other streams still do with the tensors, by cudarc's own events.
//! Nothing waits on the host. Temporaries come from CUDA's stream-ordered pool.
//!
//! The crate loads the driver when it is first used, so this compiles, and documents itself, without one. A kernel's
//! code is in the linked artifact; without an artifact every function answers
//! [`Error::BackendNotBuilt`].
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use half::f16;
//! use natten_kernels::cudarc::{Forward, Options, na_forward};
//! use natten_kernels::{Dtype, Problem};
//!
//! let context = CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let problem = Problem::builder(Dtype::Float16, &[64, 64]).heads(4).dim(64).window(&[7, 7]).build()?;
//! let query = stream.clone_htod(&vec![f16::from_f32(0.1); problem.query_len()])?;
//! let key = stream.clone_htod(&vec![f16::from_f32(0.2); problem.key_len()])?;
//! let value = stream.clone_htod(&vec![f16::from_f32(0.3); problem.value_len()])?;
//! let mut out = stream.alloc_zeros::<f16>(problem.out_len())?;
//! let mut logsumexp = stream.alloc_zeros::<f32>(problem.logsumexp_len())?;
//!
//! let tensors = Forward {
//!     query: &query,
//!     key: &key,
//!     value: &value,
//!     out: &mut out,
//!     logsumexp: Some(&mut logsumexp),
//! };
//! let decision = na_forward(&problem, tensors, &stream, &Options::default())?;
//! println!("{decision}: {:?}", stream.clone_dtoh(&out)?.first());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::backend::Backend;
use crate::capability::ComputeCapability;
use crate::device::Properties;
use crate::dispatch::{self, Decision, Request};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::functional;
use crate::ops::{self, BackwardTensors, Dense, ForwardTensors, Launch, Part, TokenTensor};
use crate::problem::Problem;
use crate::table::Direction;
use crate::tiles::Determinism;
use ::cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr};
use ::cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError};
use std::ffi::c_void;

/// How to choose a backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Only this one; `None` lets the dispatcher choose.
    pub backend: Option<Backend>,
    /// Whether a backward pass must give the same bits every time.
    pub determinism: Determinism,
}

/// Tensors of a forward pass, `[batch, *extents, heads, dim]` as [`Problem`] documents, or as [`Dense`] does.
#[expect(missing_debug_implementations, reason = "cudarc's traits have none")]
pub struct Forward<'a, T> {
    /// Queries.
    pub query: &'a dyn DevicePtr<T>,
    /// Keys.
    pub key: &'a dyn DevicePtr<T>,
    /// Values.
    pub value: &'a dyn DevicePtr<T>,
    /// Written.
    pub out: &'a mut dyn DevicePtrMut<T>,
    /// `[batch, *extents, heads]`, written; a backward pass needs it.
    pub logsumexp: Option<&'a mut dyn DevicePtrMut<f32>>,
}

/// Tensors of a backward pass; `out` and `logsumexp` are the forward pass's, or what they were merged to.
#[expect(missing_debug_implementations, reason = "cudarc's traits have none")]
pub struct Backward<'a, T> {
    /// Queries.
    pub query: &'a dyn DevicePtr<T>,
    /// Keys.
    pub key: &'a dyn DevicePtr<T>,
    /// Values.
    pub value: &'a dyn DevicePtr<T>,
    /// The forward pass's output.
    pub out: &'a dyn DevicePtr<T>,
    /// The gradient of `out`.
    pub grad_out: &'a dyn DevicePtr<T>,
    /// The forward pass's logsumexp.
    pub logsumexp: &'a dyn DevicePtr<f32>,
    /// Written, as long as `query`.
    pub grad_query: &'a mut dyn DevicePtrMut<T>,
    /// Written, as long as `key`.
    pub grad_key: &'a mut dyn DevicePtrMut<T>,
    /// Written, as long as `value`.
    pub grad_value: &'a mut dyn DevicePtrMut<T>,
}

/// Neighborhood attention of `problem`'s rank, by the backend that fits; the decision says which.
///
/// # Errors
/// [`Error::InvalidArgument`] for a tensor of another length, type or device; [`Error::Cuda`] if the context cannot be
/// asked; else as [`functional::na2d_forward`].
pub fn na_forward<T: Element>(
    problem: &Problem,
    tensors: Forward<'_, T>,
    stream: &CudaStream,
    options: &Options,
) -> Result<Decision> {
    check_dtype::<T>(problem.dtype())?;
    tensors.check(stream, Lengths::of(problem))?;
    let (properties, launch) = on(stream)?;
    let decision = dispatch::choose(problem, &properties, &options.request(Direction::Forward))?;
    tensors.call(stream, |tensors| {
        // SAFETY: memory of the stream's device and of the problem's sizes, kept alive by cudarc until the stream
        // has passed; outputs are borrowed mutably, so they overlap nothing.
        unsafe { functional::forward(&decision, problem, tensors, &launch) }
    })?;
    Ok(decision)
}

/// Gradients of [`na_forward`].
///
/// # Errors
/// As [`na_forward`].
pub fn na_backward<T: Element>(
    problem: &Problem,
    tensors: Backward<'_, T>,
    stream: &CudaStream,
    options: &Options,
) -> Result<Decision> {
    check_dtype::<T>(problem.dtype())?;
    tensors.check(stream, Lengths::of(problem))?;
    let (properties, launch) = on(stream)?;
    let decision = dispatch::choose(problem, &properties, &options.request(Direction::Backward))?;
    tensors.call(stream, |tensors| {
        // SAFETY: as in `na_forward`.
        unsafe { functional::backward(&decision, problem, tensors, &launch) }
    })?;
    Ok(decision)
}

/// Dense attention, by the backend that fits; the decision says which.
///
/// # Errors
/// As [`na_forward`]; else as [`functional::attention_forward`].
pub fn attention_forward<T: Element>(
    problem: &Dense,
    tensors: Forward<'_, T>,
    stream: &CudaStream,
    options: &Options,
) -> Result<Decision> {
    check_dtype::<T>(problem.dtype)?;
    tensors.check(stream, Lengths::of_dense(problem)?)?;
    let (properties, launch) = on(stream)?;
    let decision = dispatch::choose_dense(problem, None, &properties, &options.request(Direction::Forward))?;
    tensors.call(stream, |tensors| {
        // SAFETY: as in `na_forward`.
        unsafe { functional::dense_forward(&decision, problem, None, tensors, &launch) }
    })?;
    Ok(decision)
}

/// Gradients of [`attention_forward`].
///
/// # Errors
/// As [`attention_forward`].
pub fn attention_backward<T: Element>(
    problem: &Dense,
    tensors: Backward<'_, T>,
    stream: &CudaStream,
    options: &Options,
) -> Result<Decision> {
    check_dtype::<T>(problem.dtype)?;
    tensors.check(stream, Lengths::of_dense(problem)?)?;
    let (properties, launch) = on(stream)?;
    let decision = dispatch::choose_dense(problem, None, &properties, &options.request(Direction::Backward))?;
    tensors.call(stream, |tensors| {
        // SAFETY: as in `na_forward`.
        unsafe { functional::dense_backward(&decision, problem, None, tensors, &launch) }
    })?;
    Ok(decision)
}

/// Attention to the keys of several attentions together, from each one's `out` (`rows * dim` elements) and logsumexp
/// (`rows`), for the same queries; see [`functional::merge_attentions`], also for gradients.
///
/// # Errors
/// [`Error::InvalidArgument`] for a tensor of another length or device; else as [`functional::merge_attentions`].
pub fn merge_attentions<T: Element>(
    dim: usize,
    parts: &[(&dyn DevicePtr<T>, &dyn DevicePtr<f32>)],
    out: &mut dyn DevicePtrMut<T>,
    logsumexp: &mut dyn DevicePtrMut<f32>,
    stream: &CudaStream,
) -> Result<()> {
    let rows = logsumexp.len();
    let len = rows.checked_mul(dim).ok_or_else(|| Error::invalid("rows * dim cannot be counted"))?;
    check_slice("out", &*out, len, stream)?;
    check_slice("logsumexp", &*logsumexp, rows, stream)?;
    for (out, logsumexp) in parts {
        check_slice("out of every attention", *out, len, stream)?;
        check_slice("logsumexp of every attention", *logsumexp, rows, stream)?;
    }
    let (_, launch) = on(stream)?;
    // The events at the end of `held` are recorded when the call has been enqueued.
    let held: Vec<_> =
        parts.iter().map(|(out, sum)| (out.device_ptr(stream), sum.device_ptr(stream))).collect();
    let parts: Vec<Part> =
        held.iter().map(|((out, _), (sum, _))| Part { out: at(*out), logsumexp: at(*sum).cast() }).collect();
    let (out, _out) = out.device_ptr_mut(stream);
    let (sums, _sums) = logsumexp.device_ptr_mut(stream);
    let tensor = TokenTensor { dtype: T::DTYPE, batch: 1, heads: 1, dim };
    // SAFETY: as in `na_forward`; the numbers of elements were checked.
    unsafe { ops::merge_attentions(tensor, rows, &parts, at(out), at(sums).cast(), launch.stream) }
}

impl Options {
    fn request(&self, direction: Direction) -> Request {
        Request { direction, determinism: self.determinism, backend: self.backend }
    }
}

/// Elements of the tensors.
struct Lengths {
    query: usize,
    key: usize,
    value: usize,
    out: usize,
    logsumexp: usize,
}

impl Lengths {
    fn of(problem: &Problem) -> Lengths {
        Lengths {
            query: problem.query_len(),
            key: problem.key_len(),
            value: problem.value_len(),
            out: problem.out_len(),
            logsumexp: problem.logsumexp_len(),
        }
    }

    fn of_dense(problem: &Dense) -> Result<Lengths> {
        problem.check_sizes()?;
        let Dense { batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value, .. } = *problem;
        let product = |factors: [usize; 4]| {
            factors
                .iter()
                .try_fold(1_usize, |n, next| n.checked_mul(*next))
                .ok_or_else(|| Error::invalid(format!("the elements of {factors:?} cannot be counted")))
        };
        Ok(Lengths {
            query: product([batch, seqlen_q, heads, dim])?,
            key: product([batch, seqlen_kv, heads_kv, dim])?,
            value: product([batch, seqlen_kv, heads_kv, dim_value])?,
            out: product([batch, seqlen_q, heads, dim_value])?,
            logsumexp: product([batch, seqlen_q, heads, 1])?,
        })
    }
}

impl<T: Element> Forward<'_, T> {
    fn check(&self, stream: &CudaStream, lengths: Lengths) -> Result<()> {
        check_slice("query", self.query, lengths.query, stream)?;
        check_slice("key", self.key, lengths.key, stream)?;
        check_slice("value", self.value, lengths.value, stream)?;
        check_slice("out", &*self.out, lengths.out, stream)?;
        match &self.logsumexp {
            Some(logsumexp) => check_slice("logsumexp", &**logsumexp, lengths.logsumexp, stream),
            None => Ok(()),
        }
    }

    /// The events of the tensors are recorded after `body`.
    fn call(self, stream: &CudaStream, body: impl FnOnce(&ForwardTensors) -> Result<()>) -> Result<()> {
        let (query, _query) = self.query.device_ptr(stream);
        let (key, _key) = self.key.device_ptr(stream);
        let (value, _value) = self.value.device_ptr(stream);
        let (out, _out) = self.out.device_ptr_mut(stream);
        let logsumexp = self.logsumexp.map(|logsumexp| logsumexp.device_ptr_mut(stream));
        body(&ForwardTensors {
            query: at(query),
            key: at(key),
            value: at(value),
            out: at(out),
            logsumexp: logsumexp.as_ref().map_or(std::ptr::null_mut(), |(pointer, _)| at(*pointer).cast()),
        })
    }
}

impl<T: Element> Backward<'_, T> {
    fn check(&self, stream: &CudaStream, lengths: Lengths) -> Result<()> {
        check_slice("query", self.query, lengths.query, stream)?;
        check_slice("key", self.key, lengths.key, stream)?;
        check_slice("value", self.value, lengths.value, stream)?;
        check_slice("out", self.out, lengths.out, stream)?;
        check_slice("grad_out", self.grad_out, lengths.out, stream)?;
        check_slice("logsumexp", self.logsumexp, lengths.logsumexp, stream)?;
        check_slice("grad_query", &*self.grad_query, lengths.query, stream)?;
        check_slice("grad_key", &*self.grad_key, lengths.key, stream)?;
        check_slice("grad_value", &*self.grad_value, lengths.value, stream)
    }

    /// The events of the tensors are recorded after `body`.
    fn call(self, stream: &CudaStream, body: impl FnOnce(&BackwardTensors) -> Result<()>) -> Result<()> {
        let (query, _query) = self.query.device_ptr(stream);
        let (key, _key) = self.key.device_ptr(stream);
        let (value, _value) = self.value.device_ptr(stream);
        let (out, _out) = self.out.device_ptr(stream);
        let (grad_out, _grad_out) = self.grad_out.device_ptr(stream);
        let (logsumexp, _logsumexp) = self.logsumexp.device_ptr(stream);
        let (grad_query, _grad_query) = self.grad_query.device_ptr_mut(stream);
        let (grad_key, _grad_key) = self.grad_key.device_ptr_mut(stream);
        let (grad_value, _grad_value) = self.grad_value.device_ptr_mut(stream);
        body(&BackwardTensors {
            query: at(query),
            key: at(key),
            value: at(value),
            out: at(out),
            grad_out: at(grad_out),
            logsumexp: at(logsumexp).cast(),
            delta: std::ptr::null(),
            grad_query: at(grad_query),
            grad_key: at(grad_key),
            grad_value: at(grad_value),
        })
    }
}

fn at(pointer: CUdeviceptr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(pointer as usize)
}

/// The stream's device, made current, and a launch on the stream.
fn on(stream: &CudaStream) -> Result<(Properties, Launch)> {
    let context = stream.context();
    context.bind_to_thread().map_err(|error| cuda("cuCtxSetCurrent", &error))?;
    let attribute = |name| context.attribute(name).map_err(|error| cuda("cuDeviceGetAttribute", &error));
    let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let shared = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let properties = Properties {
        capability: ComputeCapability { major: major.cast_unsigned(), minor: minor.cast_unsigned() },
        shared_memory: usize::try_from(shared).unwrap_or_default(),
    };
    // SAFETY: cudarc's stream, alive as long as the reference, of the device that has just been made current.
    let stream = unsafe { ops::Stream::from_raw(stream.cu_stream().cast()) };
    Ok((properties, Launch { stream, ..Launch::default() }))
}

fn cuda(call: &str, error: &DriverError) -> Error {
    Error::Cuda(format!("{call}: {error}"))
}

fn check_dtype<T: Element>(expected: Dtype) -> Result<()> {
    if expected == T::DTYPE {
        return Ok(());
    }
    Err(Error::invalid(format!("the problem is of {expected}, the slices of {}", T::DTYPE)))
}

fn check_slice<T>(
    name: &str,
    slice: &(impl DeviceSlice<T> + ?Sized),
    expected: usize,
    stream: &CudaStream,
) -> Result<()> {
    check_len(name, slice.len(), expected)?;
    let context: &CudaContext = slice.stream().context();
    if context == &**stream.context() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name} is of device {}, the stream of device {}, or of another context there",
        context.ordinal(),
        stream.context().ordinal()
    )))
}

fn check_len(name: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must have {expected} elements, got {found}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices cannot be made without a driver, so what is tested here is what does not need one.
    #[test]
    fn lengths_and_types_are_told() {
        let problem = Dense {
            batch: 2,
            seqlen_q: 3,
            seqlen_kv: 5,
            heads: 4,
            heads_kv: 2,
            dim: 8,
            dim_value: 16,
            ..Dense::new(Dtype::Float16)
        };
        let lengths = Lengths::of_dense(&problem).unwrap();
        let found = [lengths.query, lengths.key, lengths.value, lengths.out, lengths.logsumexp];
        assert_eq!(found, [2 * 3 * 4 * 8, 2 * 5 * 2 * 8, 2 * 5 * 2 * 16, 2 * 3 * 4 * 16, 2 * 3 * 4]);
        assert!(Lengths::of_dense(&Dense { batch: usize::MAX, ..problem }).is_err());
        let error = check_len("key", 7, 8).unwrap_err().to_string();
        assert!(error.contains("key must have 8 elements, got 7"), "{error}");
        let error = check_dtype::<f32>(Dtype::Float16).unwrap_err().to_string();
        assert!(error.contains("the problem is of float16, the slices of float32"), "{error}");
        check_dtype::<half::bf16>(Dtype::Bfloat16).unwrap();
    }
}
