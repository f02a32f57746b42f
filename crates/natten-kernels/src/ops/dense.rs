//! Dense attention: every query attends to every key, or if causal to the keys up to its own position.

use super::blackwell::{Scheduler, check_blackwell};
use super::hopper::check_one_head_dim;
use super::{
    BackwardTensors, FLOATS, ForwardTensors, Launch, Schedule, check_backward_pointers,
    check_forward_pointers, check_grid, check_hopper_head_dim, check_pointers, device_dtype, int,
};
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::launch;
use crate::problem::Problem;
use crate::sys;
use crate::table::Direction;
use crate::tiles::Determinism;

/// What a dense operation computes. Tensors are `[batch, seqlen, heads, dim]`, those of the queries with
/// `seqlen_q` tokens, those of the keys with `seqlen_kv`; `value` and `out` have `dim_value` elements.
/// logsumexp and delta are `[batch, seqlen_q, heads]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    /// Element type.
    pub dtype: Dtype,
    /// Batch size; with [`Sequences`], 1.
    pub batch: usize,
    /// Query tokens.
    pub seqlen_q: usize,
    /// Key tokens.
    pub seqlen_kv: usize,
    /// Heads of query and out.
    pub heads: usize,
    /// Heads of key and value, a divisor of `heads` (GQA, MQA): query head `h` reads key head
    /// `h / (heads / heads_kv)`. fmha and hopper_fmha take only `heads`.
    pub heads_kv: usize,
    /// Elements per head of query and key.
    pub dim: usize,
    /// Elements per head of value and out.
    pub dim_value: usize,
    /// Whether the query at position i attends only to the keys up to position i.
    pub causal: bool,
    /// Factor of the scores.
    pub scale: f32,
}

impl Dense {
    /// One query, one key, one head of one element, scale 1: what a problem is written down from, with
    /// `..Dense::new(dtype)`.
    pub const fn new(dtype: Dtype) -> Dense {
        Dense {
            dtype,
            batch: 1,
            seqlen_q: 1,
            seqlen_kv: 1,
            heads: 1,
            heads_kv: 1,
            dim: 1,
            dim_value: 1,
            causal: false,
            scale: 1.0,
        }
    }

    /// Refuses sizes of 0, heads that do not divide, and a scale that is not finite.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        check_sizes(self)
    }

    /// The dense problem that `problem` is, if its windows are the whole axes: upstream's rule. Extra
    /// tokens are then keys like the others. Causal axes need a single axis and no extra tokens.
    pub fn of(problem: &Problem) -> Option<Dense> {
        let axes = problem.axes();
        let causal = axes.iter().any(|axis| axis.causal);
        let full = axes.iter().all(|axis| axis.window == axis.extent);
        if !full || causal && (axes.len() > 1 || problem.extra_kv() > 0) {
            return None;
        }
        Some(Dense {
            dtype: problem.dtype(),
            batch: problem.batch(),
            seqlen_q: problem.tokens(),
            seqlen_kv: problem.tokens_kv(),
            heads: problem.heads(),
            heads_kv: problem.heads_kv(),
            dim: problem.dim(),
            dim_value: problem.dim_value(),
            causal,
            scale: problem.scale(),
        })
    }

    /// The same problem after each key head was repeated for its query heads.
    pub(crate) fn ungrouped(&self) -> Dense {
        Dense { heads_kv: self.heads, ..*self }
    }
}

/// Sequences of variable length, one after another in tensors of a single batch entry. Sequence `i` has
/// the query tokens from `cumulative_q[i]` up to `cumulative_q[i + 1]`, and the keys likewise.
#[derive(Debug, Clone, Copy)]
pub struct Sequences {
    /// How many.
    pub count: usize,
    /// `count + 1` numbers on the device, from 0 up.
    pub cumulative_q: *const i32,
    /// `count + 1` numbers on the device, from 0 up.
    pub cumulative_kv: *const i32,
    /// The longest sequence of queries.
    pub max_q: usize,
    /// The longest sequence of keys.
    pub max_kv: usize,
}

/// Tokens of a tile of queries and of a tile of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseTiles {
    /// Query tokens.
    pub query: usize,
    /// Key tokens.
    pub key: usize,
}

/// Dense attention by the fmha backend (`natten_fmha_forward`).
///
/// float32, float16 or bfloat16; head dims a multiple of 16 bytes; tensors aligned to 16 bytes;
/// `logsumexp` may be null. Tokens that belong to no sequence are not written.
///
/// # Errors
/// [`Error::InvalidArgument`] for a broken rule, [`Error::Unsupported`] if no kernel of the artifact
/// takes the problem, and whatever the library reports.
///
/// # Safety
/// Pointers lead to device memory of the current device, of the size that `problem` implies, live
/// until the stream has passed the operation; `out` and `logsumexp` overlap nothing else. The numbers
/// of `sequences` are as it says.
pub unsafe fn fmha_forward(
    problem: &Dense,
    tiles: DenseTiles,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_fmha(problem)?;
    check_forward_pointers(tensors, 16)?;
    let args = forward_args(problem, tiles, 0, sequences, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_forward(Backend::Fmha, FMHA, &args) }
}

/// Gradients of [`fmha_forward`] (`natten_fmha_backward`).
///
/// `key_splits` is how many tasks share the keys, from 1 to the number of key tiles; above 1 they add in
/// varying order. `delta` may be null: it is then computed, which needs the compute_delta backend.
/// `logsumexp` is required.
///
/// # Errors
/// As [`fmha_forward`].
///
/// # Safety
/// As [`fmha_forward`]; the gradients overlap nothing else.
pub unsafe fn fmha_backward(
    problem: &Dense,
    tiles: DenseTiles,
    key_splits: usize,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_fmha(problem)?;
    let keys = sequences.map_or(problem.seqlen_kv, |sequences| sequences.max_kv);
    let most = keys.div_ceil(tiles.key.max(1));
    if key_splits == 0 || key_splits > most {
        return Err(Error::invalid(format!(
            "key_splits must lie between 1 and the number of key tiles, {most}, got {key_splits}"
        )));
    }
    check_backward_pointers(tensors, 16)?;
    let args = backward_args(problem, tiles, key_splits, sequences, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_backward(Backend::Fmha, FMHA, &args) }
}

/// Dense attention on Hopper (`natten_hopper_fmha_forward`).
///
/// float16 or bfloat16; one head dim of 32, 64, 128 or 256; tensors aligned to 16 bytes; `logsumexp` is
/// required. Tokens that belong to no sequence are not written.
///
/// # Errors
/// As [`fmha_forward`].
///
/// # Safety
/// As [`fmha_forward`].
pub unsafe fn hopper_fmha_forward(
    problem: &Dense,
    tiles: DenseTiles,
    schedule: Schedule,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_hopper_fmha(problem, Direction::Forward)?;
    check_forward_pointers(tensors, 16)?;
    check_pointers(&[("logsumexp", tensors.logsumexp.cast(), 4)])?;
    let args = forward_args(problem, tiles, schedule.number(), sequences, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_forward(Backend::HopperFmha, HOPPER, &args) }
}

/// Gradients of [`hopper_fmha_forward`] (`natten_hopper_fmha_backward`), added in varying order.
///
/// Head dims 32, 64 and 128. `delta` is not used and may be null.
///
/// # Errors
/// As [`fmha_forward`].
///
/// # Safety
/// As [`fmha_backward`].
pub unsafe fn hopper_fmha_backward(
    problem: &Dense,
    tiles: DenseTiles,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_hopper_fmha(problem, Direction::Backward)?;
    check_backward_pointers(tensors, 16)?;
    let args = backward_args(problem, tiles, 1, sequences, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_backward(Backend::HopperFmha, HOPPER, &args) }
}

/// Dense attention on Blackwell (`natten_blackwell_fmha_forward`).
///
/// float16, bfloat16, or an 8-bit type whose scales are all 1; one head dim of up to 128, a multiple of 16
/// bytes; grouped heads as they are; tensors aligned to 16 bytes; `logsumexp` may be null. Tokens that
/// belong to no sequence are not written.
///
/// # Errors
/// As [`fmha_forward`].
///
/// # Safety
/// As [`fmha_forward`].
pub unsafe fn blackwell_fmha_forward(
    problem: &Dense,
    tiles: DenseTiles,
    scheduler: Scheduler,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_blackwell_fmha(problem, Direction::Forward)?;
    check_forward_pointers(tensors, 16)?;
    let mut args = forward_args(problem, tiles, 0, sequences, tensors, launch)?;
    args.persistent = scheduler.number();
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_forward(Backend::BlackwellFmha, BLACKWELL, &args) }
}

/// Gradients of [`blackwell_fmha_forward`] (`natten_blackwell_fmha_backward`): the same bits every time if
/// `determinism` requires it, else added in varying order.
///
/// float16 and bfloat16. `delta` is not used and may be null.
///
/// # Errors
/// As [`fmha_forward`].
///
/// # Safety
/// As [`fmha_backward`].
pub unsafe fn blackwell_fmha_backward(
    problem: &Dense,
    tiles: DenseTiles,
    determinism: Determinism,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_blackwell_fmha(problem, Direction::Backward)?;
    check_backward_pointers(tensors, 16)?;
    let mut args = backward_args(problem, tiles, 1, sequences, tensors, launch)?;
    args.deterministic = i32::from(determinism == Determinism::Required);
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::fmha_backward(Backend::BlackwellFmha, BLACKWELL, &args) }
}

/// Indices of the launchers' operations.
const FMHA: usize = 0;
const HOPPER: usize = 1;
const BLACKWELL: usize = 2;

pub(crate) fn check_fmha(problem: &Dense) -> Result<()> {
    device_dtype(problem.dtype, &FLOATS, "fmha")?;
    check_sizes(problem)?;
    let alignment = 16 / problem.dtype.size();
    for (name, dim) in [("dim", problem.dim), ("dim_value", problem.dim_value)] {
        if !dim.is_multiple_of(alignment) {
            return Err(Error::unsupported(format!(
                "fmha needs {name} to be a multiple of {alignment} for {} (16 bytes), got {dim}",
                problem.dtype
            )));
        }
    }
    check_same_heads(Backend::Fmha, problem)?;
    check_grid("fmha", &[("batch", problem.batch), ("heads", problem.heads)])
}

pub(crate) fn check_hopper_fmha(problem: &Dense, direction: Direction) -> Result<()> {
    let backend = Backend::HopperFmha;
    device_dtype(problem.dtype, &[Dtype::Float16, Dtype::Bfloat16], backend.name())?;
    check_sizes(problem)?;
    check_one_head_dim(backend, problem.dim, problem.dim_value)?;
    check_hopper_head_dim(backend, problem.dim, problem.scale, direction)?;
    check_same_heads(backend, problem)?;
    check_grid(backend.name(), &[("batch", problem.batch), ("heads", problem.heads)])
}

pub(crate) fn check_blackwell_fmha(problem: &Dense, direction: Direction) -> Result<()> {
    let backend = Backend::BlackwellFmha;
    check_sizes(problem)?;
    check_one_head_dim(backend, problem.dim, problem.dim_value)?;
    check_blackwell(backend, problem.dtype, problem.dim, problem.scale, direction)?;
    check_grid(backend.name(), &[("batch", problem.batch), ("heads", problem.heads)])
}

fn check_same_heads(backend: Backend, problem: &Dense) -> Result<()> {
    if problem.heads == problem.heads_kv {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "{backend} needs as many key heads as query heads, got {} and {}: repeat the key heads",
        problem.heads_kv, problem.heads
    )))
}

fn check_sizes(problem: &Dense) -> Result<()> {
    let Dense { dtype: _, batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value, causal: _, scale } =
        *problem;
    for (name, value) in [
        ("batch", batch),
        ("seqlen_q", seqlen_q),
        ("seqlen_kv", seqlen_kv),
        ("heads", heads),
        ("heads_kv", heads_kv),
        ("dim", dim),
        ("dim_value", dim_value),
    ] {
        if value == 0 {
            return Err(Error::invalid(format!("{name} must be at least 1, got 0")));
        }
    }
    if !heads.is_multiple_of(heads_kv) {
        return Err(Error::invalid(format!(
            "heads must be a multiple of heads_kv, got {heads} and {heads_kv}"
        )));
    }
    if scale.is_finite() { Ok(()) } else { Err(Error::invalid(format!("scale must be finite, got {scale}"))) }
}

/// Batch size and variable length, as the C ABI has them.
struct Lengths {
    batch: i32,
    cumulative_q: *const i32,
    cumulative_kv: *const i32,
    max_q: i32,
    max_kv: i32,
}

fn lengths(problem: &Dense, sequences: Option<&Sequences>) -> Result<Lengths> {
    let Some(sequences) = sequences else {
        let none = std::ptr::null();
        let batch = int("batch", problem.batch)?;
        return Ok(Lengths { batch, cumulative_q: none, cumulative_kv: none, max_q: 0, max_kv: 0 });
    };
    let Sequences { count, cumulative_q, cumulative_kv, max_q, max_kv } = *sequences;
    if problem.batch != 1 {
        return Err(Error::invalid(format!(
            "sequences of variable length lie in one batch entry, got batch {}",
            problem.batch
        )));
    }
    if count == 0 {
        return Err(Error::invalid("sequences: at least one, got 0"));
    }
    check_grid("dense attention", &[("the number of sequences", count)])?;
    check_pointers(&[("cumulative_q", cumulative_q.cast(), 4), ("cumulative_kv", cumulative_kv.cast(), 4)])?;
    for (name, longest, tokens) in [("max_q", max_q, problem.seqlen_q), ("max_kv", max_kv, problem.seqlen_kv)]
    {
        if longest == 0 || longest > tokens {
            return Err(Error::invalid(format!(
                "{name} must lie between 1 and the number of tokens, {tokens}, got {longest}"
            )));
        }
    }
    Ok(Lengths {
        batch: int("the number of sequences", count)?,
        cumulative_q,
        cumulative_kv,
        max_q: int("max_q", max_q)?,
        max_kv: int("max_kv", max_kv)?,
    })
}

fn forward_args(
    problem: &Dense,
    tiles: DenseTiles,
    kernel_type: i32,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<sys::natten_fmha_forward_args> {
    let lengths = lengths(problem, sequences)?;
    Ok(sys::natten_fmha_forward_args {
        size: size_of::<sys::natten_fmha_forward_args>() as u32,
        dtype: device_dtype(problem.dtype, &Dtype::DEVICE, "dense attention")?,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        logsumexp: tensors.logsumexp,
        batch: lengths.batch,
        seqlen_q: int("seqlen_q", problem.seqlen_q)?,
        seqlen_kv: int("seqlen_kv", problem.seqlen_kv)?,
        heads: int("heads", problem.heads)?,
        heads_kv: int("heads_kv", problem.heads_kv)?,
        dim: int("dim", problem.dim)?,
        dim_value: int("dim_value", problem.dim_value)?,
        causal: i32::from(problem.causal),
        query_tile: int("query tile", tiles.query)?,
        key_tile: int("key tile", tiles.key)?,
        kernel_type,
        persistent: 0,
        scale: problem.scale,
        scale_q: 1.0,
        scale_k: 1.0,
        scale_v: 1.0,
        inv_scale_o: 1.0,
        cumulative_seqlen_q: lengths.cumulative_q,
        cumulative_seqlen_kv: lengths.cumulative_kv,
        max_seqlen_q: lengths.max_q,
        max_seqlen_kv: lengths.max_kv,
        stream: launch.stream.0,
        allocator: launch.allocator.0,
    })
}

fn backward_args(
    problem: &Dense,
    tiles: DenseTiles,
    key_splits: usize,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<sys::natten_fmha_backward_args> {
    let lengths = lengths(problem, sequences)?;
    Ok(sys::natten_fmha_backward_args {
        size: size_of::<sys::natten_fmha_backward_args>() as u32,
        dtype: device_dtype(problem.dtype, &Dtype::DEVICE, "dense attention")?,
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
        batch: lengths.batch,
        seqlen_q: int("seqlen_q", problem.seqlen_q)?,
        seqlen_kv: int("seqlen_kv", problem.seqlen_kv)?,
        heads: int("heads", problem.heads)?,
        heads_kv: int("heads_kv", problem.heads_kv)?,
        dim: int("dim", problem.dim)?,
        dim_value: int("dim_value", problem.dim_value)?,
        causal: i32::from(problem.causal),
        query_tile: int("query tile", tiles.query)?,
        key_tile: int("key tile", tiles.key)?,
        key_splits: int("key_splits", key_splits)?,
        scale: problem.scale,
        cumulative_seqlen_q: lengths.cumulative_q,
        cumulative_seqlen_kv: lengths.cumulative_kv,
        max_seqlen_q: lengths.max_q,
        max_seqlen_kv: lengths.max_kv,
        stream: launch.stream.0,
        allocator: launch.allocator.0,
        deterministic: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, gradients, tensors};
    use super::*;

    const LEGAL: Dense = Dense {
        dtype: Dtype::Float16,
        batch: 1,
        seqlen_q: 100,
        seqlen_kv: 200,
        heads: 2,
        heads_kv: 2,
        dim: 64,
        dim_value: 64,
        causal: false,
        scale: 0.125,
    };
    const TILES: DenseTiles = DenseTiles { query: 64, key: 128 };

    fn two_sequences() -> Sequences {
        Sequences {
            count: 2,
            cumulative_q: at(64).cast(),
            cumulative_kv: at(128).cast(),
            max_q: 60,
            max_kv: 150,
        }
    }

    #[test]
    fn problems_that_no_kernel_can_take_are_refused_by_name() {
        for (problem, fmha, hopper) in [
            (Dense { dtype: Dtype::Float64, ..LEGAL }, "fmha takes float32", "hopper_fmha takes float16"),
            (Dense { heads: 0, ..LEGAL }, "heads must be at least 1", "heads must be at least 1"),
            (Dense { seqlen_kv: 0, ..LEGAL }, "seqlen_kv must be", "seqlen_kv must be"),
            (Dense { scale: f32::NAN, ..LEGAL }, "scale must be finite", "scale must be finite"),
            (Dense { dim: 60, ..LEGAL }, "dim to be a multiple of 8", "one head dim, got 60 and 64"),
            (Dense { heads: 3, ..LEGAL }, "multiple of heads_kv", "multiple of heads_kv"),
            (Dense { heads_kv: 1, ..LEGAL }, "as many key heads", "as many key heads"),
            (Dense { batch: 65536, ..LEGAL }, "batch up to 65535", "batch up to 65535"),
        ] {
            // SAFETY: the arguments are refused, so no pointer is followed.
            let error = unsafe { fmha_forward(&problem, TILES, None, &tensors(), &Launch::default()) };
            assert!(error.as_ref().unwrap_err().to_string().contains(fmha), "{fmha}: {error:?}");
            let schedule = Schedule::Cooperative;
            let launch = Launch::default();
            // SAFETY: as above.
            let error = unsafe { hopper_fmha_forward(&problem, TILES, schedule, None, &tensors(), &launch) };
            assert!(error.as_ref().unwrap_err().to_string().contains(hopper), "{hopper}: {error:?}");
        }
    }

    #[test]
    fn hopper_takes_its_head_dims_alone() {
        for (dim, forward, backward) in
            [(32, true, true), (96, false, false), (256, true, false), (512, false, false)]
        {
            let problem = Dense { dim, dim_value: dim, ..LEGAL };
            assert_eq!(check_hopper_fmha(&problem, Direction::Forward).is_ok(), forward, "{dim}");
            assert_eq!(check_hopper_fmha(&problem, Direction::Backward).is_ok(), backward, "{dim}");
        }
        let error = check_hopper_fmha(&Dense { scale: 0.0, ..LEGAL }, Direction::Forward).unwrap_err();
        assert!(error.to_string().contains("scale"), "{error}");
    }

    #[test]
    fn sequences_and_splits_are_checked() {
        let legal = two_sequences();
        for (problem, sequences, expected) in [
            (Dense { batch: 2, ..LEGAL }, legal, "one batch entry, got batch 2"),
            (LEGAL, Sequences { count: 0, ..legal }, "at least one, got 0"),
            (LEGAL, Sequences { count: 65536, ..legal }, "number of sequences up to 65535"),
            (LEGAL, Sequences { cumulative_kv: std::ptr::null(), ..legal }, "cumulative_kv must not be null"),
            (LEGAL, Sequences { cumulative_q: at(66).cast(), ..legal }, "cumulative_q must be aligned to 4"),
            (
                LEGAL,
                Sequences { max_q: 101, ..legal },
                "max_q must lie between 1 and the number of tokens, 100",
            ),
            (LEGAL, Sequences { max_kv: 0, ..legal }, "max_kv must lie between 1"),
        ] {
            let error = lengths(&problem, Some(&sequences)).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{expected}: {error:?}");
        }
        assert_eq!(lengths(&LEGAL, Some(&legal)).unwrap().batch, 2);
        for (splits, sequences) in [(0, None), (3, None), (3, Some(&legal))] {
            let launch = Launch::default();
            // SAFETY: the arguments are refused, so no pointer is followed.
            let error = unsafe { fmha_backward(&LEGAL, TILES, splits, sequences, &gradients(), &launch) };
            assert!(error.unwrap_err().to_string().contains("key tiles, 2, got"), "{splits}");
        }
    }

    #[cfg(natten_kernels_unlinked)]
    #[test]
    fn without_an_artifact_each_names_its_backend() {
        let (launch, schedule) = (Launch::default(), Schedule::NonPersistent);
        // SAFETY: nothing is linked, so no pointer is followed.
        let fmha = unsafe { fmha_forward(&LEGAL, TILES, None, &tensors(), &launch) };
        // SAFETY: as above.
        let fmha_back = unsafe { fmha_backward(&LEGAL, TILES, 2, None, &gradients(), &launch) };
        // SAFETY: as above.
        let hopper = unsafe { hopper_fmha_forward(&LEGAL, TILES, schedule, None, &tensors(), &launch) };
        // SAFETY: as above.
        let hopper_back = unsafe { hopper_fmha_backward(&LEGAL, TILES, None, &gradients(), &launch) };
        for (result, expected) in [
            (fmha, Backend::Fmha),
            (fmha_back, Backend::Fmha),
            (hopper, Backend::HopperFmha),
            (hopper_back, Backend::HopperFmha),
        ] {
            assert!(
                matches!(result, Err(Error::BackendNotBuilt { backend, .. }) if backend == expected),
                "{expected}"
            );
        }
    }
}
