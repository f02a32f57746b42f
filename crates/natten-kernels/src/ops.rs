//! The operations of an artifact, argument-checked: raw device pointers in, a typed error out.
//!
//! Shapes come from a [`Problem`] (or [`TokenPermutation`]), which is legal by construction; each
//! operation adds the checks of its own backend, as strict as upstream's C++ and Python layers
//! together, before it calls the library. What no one can check is that a pointer leads to device
//! memory of the right size: that is the caller's promise, and why these functions are `unsafe`.
//!
//! Work is enqueued on [`Launch::stream`] of the current device and nothing waits for it. Without an
//! artifact every operation checks its arguments and then answers [`Error::BackendNotBuilt`].

mod blackwell;
mod dense;
mod hopper;
mod merge;

pub use blackwell::{Scheduler, blackwell_na_backward, blackwell_na_forward};
pub use dense::{
    Dense, DenseTiles, Sequences, blackwell_fmha_backward, blackwell_fmha_forward, fmha_backward,
    fmha_forward, hopper_fmha_backward, hopper_fmha_forward,
};
pub use hopper::{Schedule, hopper_na_backward, hopper_na_forward, tiled_order};
pub use merge::{MOST_PARTS, Part, add_gradients, merge_attentions};

pub(crate) use blackwell::check_blackwell_fna;
pub(crate) use dense::{check_blackwell_fmha, check_fmha, check_hopper_fmha};
pub(crate) use hopper::check_hopper_fna;

use hopper::check_hopper_head_dim;

use crate::backend::Backend;
use crate::device;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::launch;
use crate::permutation::TokenPermutation;
use crate::problem::Problem;
use crate::sys;
use crate::table::Direction;
use crate::tiles::{Tiles, key_tiles};
use std::ffi::c_void;

/// A `cudaStream_t` (or `CUstream`) of the current device; [`Default`] is the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(*mut c_void);

impl Stream {
    /// CUDA's default stream.
    pub const DEFAULT: Stream = Stream(std::ptr::null_mut());

    /// A stream of another library's.
    ///
    /// # Safety
    /// `raw` is null or a live stream of the device that is current when an operation uses it.
    pub const unsafe fn from_raw(raw: *mut c_void) -> Stream {
        Stream(raw)
    }

    /// The handle.
    pub const fn as_raw(self) -> *mut c_void {
        self.0
    }
}

impl Default for Stream {
    fn default() -> Self {
        Stream::DEFAULT
    }
}

/// Where an operation's workspace comes from; [`Default`] is CUDA's stream-ordered pool.
#[derive(Debug, Clone, Copy)]
pub struct Allocator(sys::natten_allocator);

impl Allocator {
    /// An allocator of the caller's.
    ///
    /// # Safety
    /// `alloc.alloc` returns null or device memory of at least `bytes` bytes, aligned to 256, zeroed on
    /// the stream if asked, and usable in stream order until `alloc.free`; both may be called during
    /// every operation that is given this allocator, from its thread.
    pub const unsafe fn from_raw(alloc: sys::natten_allocator) -> Allocator {
        Allocator(alloc)
    }

    /// Memory for temporaries of this crate's, as the C ABI takes it for its own.
    pub(crate) fn alloc(&self, bytes: usize, stream: Stream) -> Result<*mut c_void> {
        let (alloc, ctx) = match self.0 {
            sys::natten_allocator { ctx, alloc: Some(alloc), free: Some(_) } => (alloc, ctx),
            sys::natten_allocator { alloc: None, free: None, .. } => {
                return device::allocate_async(bytes, stream);
            }
            _ => return Err(Error::invalid("allocator: alloc and free, or neither of them")),
        };
        // SAFETY: the promise of `from_raw`.
        let pointer = unsafe { alloc(ctx, bytes, 0, stream.0) };
        if pointer.is_null() {
            return Err(Error::OutOfMemory(format!("the allocator returned null for {bytes} bytes")));
        }
        Ok(pointer)
    }

    /// Frees memory of [`alloc`](Allocator::alloc) in stream order.
    pub(crate) fn free(&self, pointer: *mut c_void, stream: Stream) {
        match self.0.free {
            // SAFETY: the promise of `from_raw`; `pointer` is from its `alloc` and freed once.
            Some(free) => unsafe { free(self.0.ctx, pointer, stream.0) },
            None => device::free_async(pointer, stream),
        }
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Allocator(sys::natten_allocator { ctx: std::ptr::null_mut(), alloc: None, free: None })
    }
}

/// How to start an operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Launch {
    /// The stream that the work is enqueued on.
    pub stream: Stream,
    /// Where workspace comes from.
    pub allocator: Allocator,
}

/// Device tensors of a forward pass, in the shapes that [`Problem`] documents.
#[derive(Debug, Clone, Copy)]
pub struct ForwardTensors {
    /// Read.
    pub query: *const c_void,
    /// Read.
    pub key: *const c_void,
    /// Read.
    pub value: *const c_void,
    /// Written.
    pub out: *mut c_void,
    /// Written, float32. Null if not wanted, where the operation says that it may be.
    pub logsumexp: *mut f32,
}

/// Device tensors of a backward pass, in the shapes that [`Problem`] documents.
#[derive(Debug, Clone, Copy)]
pub struct BackwardTensors {
    /// Read.
    pub query: *const c_void,
    /// Read.
    pub key: *const c_void,
    /// Read.
    pub value: *const c_void,
    /// Read: the forward pass's output.
    pub out: *const c_void,
    /// Read: the gradient of `out`.
    pub grad_out: *const c_void,
    /// Read, float32: the forward pass's.
    pub logsumexp: *const f32,
    /// Read, float32 `[batch, *extents, heads]`: `sum over dim of out * grad_out`. Null: computed by the
    /// operation, where it says so.
    pub delta: *const f32,
    /// Written.
    pub grad_query: *mut c_void,
    /// Written.
    pub grad_key: *mut c_void,
    /// Written.
    pub grad_value: *mut c_void,
}

/// Batch, heads and head dim of a tensor whose tokens something else describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Batch size.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Elements per head.
    pub dim: usize,
}

/// Neighborhood attention by the fna backend (`natten_na{1,2,3}d_forward`).
///
/// float32, float16 or bfloat16; as many key heads as query heads; no extra tokens; head dims a
/// multiple of 16 bytes; tensors aligned to 16 bytes. `logsumexp` may be null. The kernel is the
/// table's first whose tile products are those of `tiles`, that takes the head dims, and whose shared
/// memory the device has.
///
/// # Errors
/// [`Error::InvalidArgument`] for a broken rule, [`Error::Unsupported`] if no kernel of the artifact
/// takes the problem, and whatever the library reports.
///
/// # Safety
/// Pointers lead to device memory of the current device, of the size that `problem` implies, live
/// until the stream has passed the operation; `out` and `logsumexp` overlap nothing else.
pub unsafe fn na_forward(
    problem: &Problem,
    tiles: &Tiles,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_fna(problem)?;
    tiles.check(problem.rank(), Direction::Forward)?;
    check_forward_pointers(tensors, 16)?;
    let shape = Shape::new(problem)?;
    let args = sys::natten_fna_forward_args {
        size: size_of::<sys::natten_fna_forward_args>() as u32,
        dtype: shape.dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        logsumexp: tensors.logsumexp,
        batch: shape.batch,
        heads: shape.heads,
        dim: shape.dim,
        dim_value: shape.dim_value,
        qkv_shape: shape.extent,
        window: shape.window,
        stride: shape.stride,
        dilation: shape.dilation,
        causal: shape.causal,
        query_tile: three("query tile", tiles.query)?,
        key_tile: three("key tile", tiles.key)?,
        scale: problem.scale(),
        stream: launch.stream.0,
        allocator: launch.allocator.0,
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fna_forward(Backend::Fna, problem.rank() - 1, &args) }
}

/// Gradients of [`na_forward`] (`natten_na{1,2,3}d_backward`).
///
/// `key_splits` is how many tasks share the keys, per axis, from 1 to the number of key tiles of a
/// dilation group; a product above 1 adds in varying order ([`crate::tiles::key_splits`] has the default).
/// `delta` may be null: it is then computed, which needs the compute_delta backend. `logsumexp` is required.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// As [`na_forward`]; the gradients overlap nothing else.
pub unsafe fn na_backward(
    problem: &Problem,
    tiles: &Tiles,
    key_splits: [usize; 3],
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_fna(problem)?;
    tiles.check(problem.rank(), Direction::Backward)?;
    let most = key_tiles(problem, &tiles.key);
    if (0..3).any(|axis| key_splits[axis] == 0 || key_splits[axis] > most[axis]) {
        return Err(Error::invalid(format!(
            "key_splits must lie between 1 and the number of key tiles, {most:?}, got {key_splits:?}"
        )));
    }
    check_backward_pointers(tensors, 16)?;
    let shape = Shape::new(problem)?;
    let args = sys::natten_fna_backward_args {
        size: size_of::<sys::natten_fna_backward_args>() as u32,
        dtype: shape.dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        grad_out: tensors.grad_out,
        logsumexp: tensors.logsumexp,
        delta: tensors.delta,
        grad_query: tensors.grad_query,
        grad_key: tensors.grad_key,
        grad_value: tensors.grad_value,
        batch: shape.batch,
        heads: shape.heads,
        dim: shape.dim,
        dim_value: shape.dim_value,
        qkv_shape: shape.extent,
        window: shape.window,
        stride: shape.stride,
        dilation: shape.dilation,
        causal: shape.causal,
        query_tile: three("query tile", tiles.query)?,
        key_tile: three("key tile", tiles.key)?,
        key_splits: three("key_splits", key_splits)?,
        scale: problem.scale(),
        stream: launch.stream.0,
        allocator: launch.allocator.0,
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fna_backward(Backend::Fna, problem.rank() - 1, &args) }
}

/// Neighborhood attention by the reference backend (`natten_reference_na{1,2,3}d_forward`).
///
/// Every option of [`Problem`], extra tokens and grouped heads included; float32, float16 or bfloat16;
/// `dim_value` at most 1024; tensors of fewer than 2^31 elements. `logsumexp` is required. Slow: each
/// query computes every score.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// As [`na_forward`].
pub unsafe fn reference_na_forward(
    problem: &Problem,
    tensors: &ForwardTensors,
    stream: Stream,
) -> Result<()> {
    check_reference(problem, Direction::Forward)?;
    check_forward_pointers(tensors, problem.dtype().size())?;
    check_pointers(&[("logsumexp", tensors.logsumexp.cast(), 4)])?;
    let shape = Shape::new(problem)?;
    let args = sys::natten_reference_forward_args {
        size: size_of::<sys::natten_reference_forward_args>() as u32,
        dtype: shape.dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        logsumexp: tensors.logsumexp,
        batch: shape.batch,
        heads: shape.heads,
        heads_kv: shape.heads_kv,
        dim: shape.dim,
        dim_value: shape.dim_value,
        num_extra_kv: shape.extra_kv,
        qkv_shape: shape.extent,
        window: shape.window,
        stride: shape.stride,
        dilation: shape.dilation,
        causal: shape.causal,
        scale: problem.scale(),
        stream: stream.0,
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::reference_forward(Backend::Reference, problem.rank() - 1, &args) }
}

/// Gradients of [`reference_na_forward`] (`natten_reference_na{1,2,3}d_backward`).
///
/// `dim` and `dim_value` at most 1024. `delta` is not used and may be null.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// As [`na_backward`].
pub unsafe fn reference_na_backward(
    problem: &Problem,
    tensors: &BackwardTensors,
    stream: Stream,
) -> Result<()> {
    check_reference(problem, Direction::Backward)?;
    check_backward_pointers(tensors, problem.dtype().size())?;
    let shape = Shape::new(problem)?;
    let args = sys::natten_reference_backward_args {
        size: size_of::<sys::natten_reference_backward_args>() as u32,
        dtype: shape.dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        grad_out: tensors.grad_out,
        logsumexp: tensors.logsumexp,
        grad_query: tensors.grad_query,
        grad_key: tensors.grad_key,
        grad_value: tensors.grad_value,
        batch: shape.batch,
        heads: shape.heads,
        heads_kv: shape.heads_kv,
        dim: shape.dim,
        dim_value: shape.dim_value,
        num_extra_kv: shape.extra_kv,
        qkv_shape: shape.extent,
        window: shape.window,
        stride: shape.stride,
        dilation: shape.dilation,
        causal: shape.causal,
        scale: problem.scale(),
        stream: stream.0,
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::reference_backward(Backend::Reference, problem.rank() - 1, &args) }
}

/// Token permutation (`natten_token_permute_{1,2,3}d`): `input` `[batch, *layout, heads, dim]` to
/// `output` `[batch, tokens_permuted, heads, dim]`, padding written as zero.
///
/// float32, float16, bfloat16; on 10.0 and 10.3 with the blackwell section also the 8-bit types. Fastest
/// if `heads * dim` is a multiple of 8 and both tensors are aligned to 8 elements.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// `input` and `output` lead to device memory of the current device of those sizes, live until the
/// stream has passed the operation, and do not overlap.
pub unsafe fn token_permute(
    permutation: &TokenPermutation,
    tensor: TokenTensor,
    input: *const c_void,
    output: *mut c_void,
    stream: Stream,
) -> Result<()> {
    let args = token_permute_args(permutation, tensor, input, output, stream)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::token_permute(Backend::TokenPermute, permutation.layout().len() - 1, &args) }
}

/// The inverse of [`token_permute`] (`natten_token_unpermute_{1,2,3}d`): `input`
/// `[batch, tokens_permuted, heads, dim]` to `output` `[batch, *layout, heads, dim]`.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// As [`token_permute`].
pub unsafe fn token_unpermute(
    permutation: &TokenPermutation,
    tensor: TokenTensor,
    input: *const c_void,
    output: *mut c_void,
    stream: Stream,
) -> Result<()> {
    let args = token_permute_args(permutation, tensor, input, output, stream)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::token_unpermute(Backend::TokenPermute, permutation.layout().len() - 1, &args) }
}

/// Row sums (`natten_compute_delta`): `delta = sum over dim of out * grad_out`, for `out` and `grad_out`
/// `[batch, tokens, heads, dim]` and `delta` `[batch, tokens, heads]`, float32.
///
/// float32, float16 or bfloat16; an even `dim`.
///
/// # Errors
/// As [`na_forward`].
///
/// # Safety
/// The pointers lead to device memory of the current device of those sizes, live until the stream has
/// passed the operation; `delta` overlaps nothing else.
pub unsafe fn compute_delta(
    tensor: TokenTensor,
    tokens: usize,
    out: *const c_void,
    grad_out: *const c_void,
    delta: *mut f32,
    stream: Stream,
) -> Result<()> {
    let dtype = device_dtype(tensor.dtype, &FLOATS, "compute_delta")?;
    check_token_tensor(&tensor, tokens)?;
    if !tensor.dim.is_multiple_of(2) {
        return Err(Error::unsupported(format!("compute_delta needs an even dim, got {}", tensor.dim)));
    }
    check_grid("compute_delta", &[("batch", tensor.batch), ("heads", tensor.heads)])?;
    // Two elements are read at once.
    let alignment = 2 * tensor.dtype.size();
    check_pointers(&[
        ("out", out, alignment),
        ("grad_out", grad_out, alignment),
        ("delta", delta.cast(), 4),
    ])?;
    let args = sys::natten_compute_delta_args {
        size: size_of::<sys::natten_compute_delta_args>() as u32,
        dtype,
        out,
        grad_out,
        delta,
        batch: int("batch", tensor.batch)?,
        seqlen: int("tokens", tokens)?,
        heads: int("heads", tensor.heads)?,
        dim: int("dim", tensor.dim)?,
        stream: stream.0,
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::compute_delta(Backend::ComputeDelta, 0, &args) }
}

pub(crate) const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The rules of the fna backend that do not depend on a device or an artifact.
pub(crate) fn check_fna(problem: &Problem) -> Result<()> {
    device_dtype(problem.dtype(), &FLOATS, "fna")?;
    let alignment = 16 / problem.dtype().size();
    for (name, dim) in [("dim", problem.dim()), ("dim_value", problem.dim_value())] {
        if !dim.is_multiple_of(alignment) {
            return Err(Error::unsupported(format!(
                "fna needs {name} to be a multiple of {alignment} for {} (16 bytes), got {dim}",
                problem.dtype()
            )));
        }
    }
    if problem.heads() != problem.heads_kv() {
        return Err(Error::unsupported(format!(
            "fna needs as many key heads as query heads, got {} and {}: repeat the key heads",
            problem.heads_kv(),
            problem.heads()
        )));
    }
    if problem.extra_kv() > 0 {
        return Err(Error::unsupported(format!(
            "fna takes no extra key/value tokens, got {}",
            problem.extra_kv()
        )));
    }
    let groups: usize = problem.axes().iter().map(|axis| axis.dilation).product();
    check_grid(
        "fna",
        &[("batch", problem.batch()), ("heads * dilation", problem.heads().saturating_mul(groups))],
    )
}

/// The rules of the reference backend that do not depend on a device or an artifact.
pub(crate) fn check_reference(problem: &Problem, direction: Direction) -> Result<()> {
    device_dtype(problem.dtype(), &FLOATS, "reference")?;
    let mut dims = vec![("dim_value", problem.dim_value())];
    if direction == Direction::Backward {
        dims.push(("dim", problem.dim()));
    }
    for (name, dim) in dims {
        if dim > 1024 {
            return Err(Error::unsupported(format!("reference takes {name} up to 1024, got {dim}")));
        }
    }
    // The kernels count elements with 32 bits: of a whole tensor, or of one batch entry backward.
    let entries = match direction {
        Direction::Forward => 1,
        Direction::Backward => problem.batch(),
    };
    let largest = problem.query_len().max(problem.out_len()).max(problem.key_len()).max(problem.value_len());
    if largest / entries > i32::MAX as usize {
        return Err(Error::unsupported(format!(
            "reference takes tensors of fewer than 2^31 elements, got {}",
            largest / entries
        )));
    }
    check_grid("reference", &[("batch * heads", problem.batch().saturating_mul(problem.heads()))])
}

/// CUDA's limit on the second and third dimension of a grid.
fn check_grid(backend: &str, sizes: &[(&str, usize)]) -> Result<()> {
    for (name, size) in sizes {
        if *size > 65535 {
            return Err(Error::unsupported(format!("{backend} takes {name} up to 65535, got {size}")));
        }
    }
    Ok(())
}

fn device_dtype(dtype: Dtype, takes: &[Dtype], backend: &str) -> Result<i32> {
    let listed: Vec<&str> = takes.iter().map(|dtype| dtype.name()).collect();
    dtype
        .code()
        .filter(|_| takes.contains(&dtype))
        .ok_or_else(|| Error::unsupported(format!("{backend} takes {}, got {dtype}", listed.join(", "))))
}

/// Name, pointer and required alignment in bytes.
fn check_pointers(pointers: &[(&str, *const c_void, usize)]) -> Result<()> {
    for (name, pointer, alignment) in pointers {
        if pointer.is_null() {
            return Err(Error::invalid(format!("{name} must not be null")));
        }
        if !pointer.addr().is_multiple_of(*alignment) {
            return Err(Error::invalid(format!(
                "{name} must be aligned to {alignment} bytes, got {pointer:?}"
            )));
        }
    }
    Ok(())
}

pub(crate) fn check_forward_pointers(tensors: &ForwardTensors, alignment: usize) -> Result<()> {
    let ForwardTensors { query, key, value, out, logsumexp } = *tensors;
    check_pointers(&[
        ("query", query, alignment),
        ("key", key, alignment),
        ("value", value, alignment),
        ("out", out, alignment),
    ])?;
    check_optional("logsumexp", logsumexp.cast())
}

pub(crate) fn check_backward_pointers(tensors: &BackwardTensors, alignment: usize) -> Result<()> {
    let BackwardTensors {
        query,
        key,
        value,
        out,
        grad_out,
        logsumexp,
        delta,
        grad_query,
        grad_key,
        grad_value,
    } = *tensors;
    check_pointers(&[
        ("query", query, alignment),
        ("key", key, alignment),
        ("value", value, alignment),
        ("out", out, alignment),
        ("grad_out", grad_out, alignment),
        ("logsumexp", logsumexp.cast(), 4),
        ("grad_query", grad_query, alignment),
        ("grad_key", grad_key, alignment),
        ("grad_value", grad_value, alignment),
    ])?;
    check_optional("delta", delta.cast())
}

fn check_optional(name: &str, pointer: *const c_void) -> Result<()> {
    if pointer.is_null() { Ok(()) } else { check_pointers(&[(name, pointer, 4)]) }
}

fn check_token_tensor(tensor: &TokenTensor, tokens: usize) -> Result<()> {
    let TokenTensor { dtype: _, batch, heads, dim } = *tensor;
    for (name, value) in [("batch", batch), ("tokens", tokens), ("heads", heads), ("dim", dim)] {
        if value == 0 {
            return Err(Error::invalid(format!("{name} must be at least 1, got 0")));
        }
        int(name, value)?;
    }
    // The kernels count the elements of a token with 32 bits.
    int("heads * dim", heads.saturating_mul(dim)).map(|_| ())
}

fn token_permute_args(
    permutation: &TokenPermutation,
    tensor: TokenTensor,
    input: *const c_void,
    output: *mut c_void,
    stream: Stream,
) -> Result<sys::natten_token_permute_args> {
    let dtype = device_dtype(tensor.dtype, &Dtype::DEVICE, "token_permute")?;
    check_token_tensor(&tensor, permutation.tokens_permuted())?;
    let alignment = tensor.dtype.size();
    check_pointers(&[("input", input, alignment), ("output", output, alignment)])?;
    Ok(sys::natten_token_permute_args {
        size: size_of::<sys::natten_token_permute_args>() as u32,
        dtype,
        r#in: input,
        out: output,
        batch: int("batch", tensor.batch)?,
        seqlen: int("tokens", permutation.tokens_permuted())?,
        heads: int("heads", tensor.heads)?,
        dim: int("dim", tensor.dim)?,
        token_layout: padded("layout", permutation.layout())?,
        tile: padded("tile", permutation.tile())?,
        dilation: padded("dilation", permutation.dilation())?,
        flip_tiled_dims: i32::from(permutation.flipped()),
        stream: stream.0,
    })
}

/// A problem in the C ABI's integers.
struct Shape {
    dtype: i32,
    batch: i32,
    heads: i32,
    heads_kv: i32,
    dim: i32,
    dim_value: i32,
    extra_kv: i32,
    extent: [i32; 3],
    window: [i32; 3],
    stride: [i32; 3],
    dilation: [i32; 3],
    causal: [i32; 3],
}

impl Shape {
    fn new(problem: &Problem) -> Result<Shape> {
        let axes = |name: &str, part: fn(&crate::neighborhood::Axis) -> usize| {
            padded(name, &problem.axes().iter().map(part).collect::<Vec<_>>())
        };
        Ok(Shape {
            dtype: device_dtype(problem.dtype(), &Dtype::DEVICE, "a device")?,
            batch: int("batch", problem.batch())?,
            heads: int("heads", problem.heads())?,
            heads_kv: int("heads_kv", problem.heads_kv())?,
            dim: int("dim", problem.dim())?,
            dim_value: int("dim_value", problem.dim_value())?,
            extra_kv: int("extra_kv", problem.extra_kv())?,
            extent: axes("extent", |axis| axis.extent)?,
            window: axes("window", |axis| axis.window)?,
            stride: axes("stride", |axis| axis.stride)?,
            dilation: axes("dilation", |axis| axis.dilation)?,
            causal: problem.causal().map(i32::from),
        })
    }
}

fn int(name: &str, value: usize) -> Result<i32> {
    i32::try_from(value)
        .map_err(|_| Error::invalid(format!("{name} is {value}, more than the kernels can count")))
}

fn three(name: &str, values: [usize; 3]) -> Result<[i32; 3]> {
    Ok([int(name, values[0])?, int(name, values[1])?, int(name, values[2])?])
}

/// Up to three numbers, the missing ones 1.
fn padded(name: &str, values: &[usize]) -> Result<[i32; 3]> {
    three(name, std::array::from_fn(|at| values.get(at).copied().unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dtype: Dtype, dim: usize) -> crate::ProblemBuilder {
        Problem::builder(dtype, &[16, 16]).dim(dim).heads(2).window(&[3, 3])
    }

    /// An address that is never followed: every case fails before the library is called.
    pub(super) fn at(address: usize) -> *mut c_void {
        std::ptr::without_provenance_mut(address)
    }

    pub(super) fn tensors() -> ForwardTensors {
        ForwardTensors {
            query: at(256),
            key: at(512),
            value: at(768),
            out: at(1024),
            logsumexp: at(2048).cast(),
        }
    }

    pub(super) fn gradients() -> BackwardTensors {
        BackwardTensors {
            query: at(256),
            key: at(512),
            value: at(768),
            out: at(1024),
            grad_out: at(1280),
            logsumexp: at(1536).cast(),
            delta: std::ptr::null(),
            grad_query: at(2048),
            grad_key: at(4096),
            grad_value: at(8192),
        }
    }

    fn forward_error(problem: &Problem, tiles: Tiles, tensors: &ForwardTensors) -> Error {
        // SAFETY: the arguments are refused, so no pointer is followed.
        unsafe { na_forward(problem, &tiles, tensors, &Launch::default()) }.unwrap_err()
    }

    #[test]
    fn fna_refuses_what_no_kernel_of_it_can_take() {
        let square = Tiles { query: [8, 8, 1], key: [8, 8, 1] };
        let build = |builder: crate::ProblemBuilder| builder.build().unwrap();
        let cases = [
            (build(problem(Dtype::Float64, 32)), "fna takes float32, float16, bfloat16"),
            (build(problem(Dtype::Float8E4m3, 32)), "fna takes float32, float16, bfloat16"),
            (build(problem(Dtype::Float16, 36)), "dim to be a multiple of 8"),
            (build(problem(Dtype::Float32, 34)), "dim to be a multiple of 4"),
            (build(problem(Dtype::Float16, 32).dim_value(20)), "dim_value to be a multiple of 8"),
            (build(problem(Dtype::Float16, 32).heads_kv(1)), "as many key heads"),
            (build(problem(Dtype::Float16, 32).extra_kv(1)), "no extra key/value tokens"),
            (build(problem(Dtype::Float16, 32).batch(65536)), "batch up to 65535"),
            (
                build(problem(Dtype::Float16, 32).heads(32768).dilation(&[2, 1])),
                "heads * dilation up to 65535",
            ),
        ];
        for (problem, expected) in cases {
            match forward_error(&problem, square, &tensors()) {
                Error::Unsupported(message) => {
                    assert!(message.contains(expected), "`{message}` lacks `{expected}`");
                }
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn pointers_are_checked_by_name() {
        let square = Tiles { query: [8, 8, 1], key: [8, 8, 1] };
        let problem = problem(Dtype::Float16, 32).build().unwrap();
        let cases: [(ForwardTensors, &str); 5] = [
            (ForwardTensors { query: at(0), ..tensors() }, "query must not be null"),
            (ForwardTensors { key: at(520), ..tensors() }, "key must be aligned to 16"),
            (ForwardTensors { value: at(0), ..tensors() }, "value must not be null"),
            (ForwardTensors { out: at(1), ..tensors() }, "out must be aligned"),
            (ForwardTensors { logsumexp: at(2).cast(), ..tensors() }, "logsumexp must be aligned to 4"),
        ];
        for (tensors, expected) in cases {
            let message = forward_error(&problem, square, &tensors).to_string();
            assert!(message.contains(expected), "`{message}` lacks `{expected}`");
        }
        let without = ForwardTensors { logsumexp: std::ptr::null_mut(), ..tensors() };
        // SAFETY: the arguments are refused, so no pointer is followed.
        let error = unsafe { reference_na_forward(&problem, &without, Stream::DEFAULT) }.unwrap_err();
        assert!(error.to_string().contains("logsumexp must not be null"), "{error}");
    }

    /// Temporaries come from the caller's allocator and go back to it, with its context and the stream.
    #[test]
    fn a_callers_allocator_is_asked_and_told() {
        #[derive(Default)]
        struct Calls {
            asked: Vec<(usize, i32, usize)>,
            freed: Vec<(usize, usize)>,
        }
        unsafe extern "C" fn alloc(
            ctx: *mut c_void,
            bytes: usize,
            zero: i32,
            stream: *mut c_void,
        ) -> *mut c_void {
            // SAFETY: `ctx` is the test's, which outlives the calls.
            let calls = unsafe { &mut *ctx.cast::<Calls>() };
            calls.asked.push((bytes, zero, stream.addr()));
            if bytes > 1000 { std::ptr::null_mut() } else { at(4096) }
        }
        unsafe extern "C" fn free(ctx: *mut c_void, pointer: *mut c_void, stream: *mut c_void) {
            // SAFETY: as above.
            let calls = unsafe { &mut *ctx.cast::<Calls>() };
            calls.freed.push((pointer.addr(), stream.addr()));
        }
        let mut calls = Calls::default();
        let ctx = (&raw mut calls).cast();
        let whole = sys::natten_allocator { ctx, alloc: Some(alloc), free: Some(free) };
        // SAFETY: the stream is a number that no one follows.
        let stream = unsafe { Stream::from_raw(at(77)) };
        // SAFETY: nothing follows the pointers that it hands out.
        let allocator = unsafe { Allocator::from_raw(whole) };
        let pointer = allocator.alloc(1000, stream).unwrap();
        allocator.free(pointer, stream);
        let error = allocator.alloc(1001, stream).unwrap_err();
        assert_eq!(error, Error::OutOfMemory("the allocator returned null for 1001 bytes".into()));
        assert_eq!(calls.asked, [(1000, 0, 77), (1001, 0, 77)]);
        assert_eq!(calls.freed, [(4096, 77)]);
        // SAFETY: as above; half an allocator is refused.
        let half = unsafe { Allocator::from_raw(sys::natten_allocator { free: None, ..whole }) };
        assert!(matches!(half.alloc(1, stream), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn backward_checks_splits_and_dims() {
        let square = Tiles { query: [8, 8, 1], key: [8, 8, 1] };
        let problem = problem(Dtype::Float16, 32).build().unwrap();
        for splits in [[0, 1, 1], [3, 1, 1], [1, 1, 2]] {
            // SAFETY: the arguments are refused, so no pointer is followed.
            let error = unsafe { na_backward(&problem, &square, splits, &gradients(), &Launch::default()) };
            assert!(error.unwrap_err().to_string().contains("key_splits"), "{splits:?}");
        }
        let wide = self::problem(Dtype::Float16, 1032).dim_value(32).build().unwrap();
        // SAFETY: the arguments are refused, so no pointer is followed.
        let error = unsafe { reference_na_backward(&wide, &gradients(), Stream::DEFAULT) }.unwrap_err();
        assert!(error.to_string().contains("dim up to 1024"), "{error}");
    }

    #[test]
    fn token_operations_check_their_tensors() {
        let permutation = TokenPermutation::new(&[16], &[4], &[1], true).unwrap();
        let tensor = TokenTensor { dtype: Dtype::Float16, batch: 1, heads: 1, dim: 8 };
        let permute = |tensor, input, output| {
            // SAFETY: the arguments are refused, so no pointer is followed.
            unsafe { token_permute(&permutation, tensor, input, output, Stream::DEFAULT) }
                .unwrap_err()
                .to_string()
        };
        assert!(
            permute(TokenTensor { dtype: Dtype::Float64, ..tensor }, at(256), at(512))
                .contains("got float64")
        );
        assert!(
            permute(TokenTensor { heads: 0, ..tensor }, at(256), at(512))
                .contains("heads must be at least 1")
        );
        assert!(permute(tensor, at(257), at(512)).contains("input must be aligned to 2"));
        assert!(
            permute(TokenTensor { dim: 1 << 40, ..tensor }, at(256), at(512))
                .contains("more than the kernels")
        );
        // SAFETY: the arguments are refused, so no pointer is followed.
        let error = unsafe { compute_delta(tensor, 0, at(256), at(512), at(1024).cast(), Stream::DEFAULT) };
        assert!(error.unwrap_err().to_string().contains("tokens must be at least 1"));
    }

    #[cfg(natten_kernels_unlinked)]
    #[test]
    fn without_an_artifact_every_operation_names_the_command_that_builds_one() {
        let problem = problem(Dtype::Float16, 32).build().unwrap();
        let square = Tiles { query: [8, 8, 1], key: [8, 8, 1] };
        let permutation = TokenPermutation::new(&[16], &[4], &[1], true).unwrap();
        let tensor = TokenTensor { dtype: Dtype::Float16, batch: 1, heads: 1, dim: 8 };
        let launch = Launch::default();
        // SAFETY: nothing is linked, so no pointer is followed.
        let fna = unsafe { na_forward(&problem, &square, &tensors(), &launch) };
        // SAFETY: as above.
        let fna_backward = unsafe { na_backward(&problem, &square, [1; 3], &gradients(), &launch) };
        // SAFETY: as above.
        let reference = unsafe { reference_na_forward(&problem, &tensors(), Stream::DEFAULT) };
        // SAFETY: as above.
        let reference_backward = unsafe { reference_na_backward(&problem, &gradients(), Stream::DEFAULT) };
        // SAFETY: as above.
        let permute = unsafe { token_permute(&permutation, tensor, at(256), at(512), Stream::DEFAULT) };
        // SAFETY: as above.
        let unpermute = unsafe { token_unpermute(&permutation, tensor, at(256), at(512), Stream::DEFAULT) };
        // SAFETY: as above.
        let delta = unsafe { compute_delta(tensor, 4, at(256), at(512), at(1024).cast(), Stream::DEFAULT) };
        for (result, expected) in [
            (fna, Backend::Fna),
            (fna_backward, Backend::Fna),
            (reference, Backend::Reference),
            (reference_backward, Backend::Reference),
            (permute, Backend::TokenPermute),
            (unpermute, Backend::TokenPermute),
            (delta, Backend::ComputeDelta),
        ] {
            match result {
                Err(Error::BackendNotBuilt { backend, variant: None, reason }) => {
                    assert_eq!(backend, expected);
                    assert!(reason.contains("nattenc build --variant cu130 --preset starter"), "{reason}");
                }
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}
