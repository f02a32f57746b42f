//! Neighborhood attention on Blackwell, over tensors in the order of [`super::tiled_order`].

use super::hopper::{backward_args, check_no_extra, check_one_head_dim, check_tiled_grid, forward_args};
use super::{
    BackwardTensors, ForwardTensors, Launch, check_backward_pointers, check_forward_pointers, device_dtype,
};
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::launch;
use crate::problem::Problem;
use crate::table::Direction;
use crate::tiles::Tiles;

/// How the blocks of a Blackwell forward kernel get their tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheduler {
    /// One tile for each block.
    NonPersistent,
    /// As many blocks as the device runs at once, each working through its share of the tiles: the default.
    Persistent,
}

impl Scheduler {
    /// The number in the C ABI and in kernel tables.
    pub const fn number(self) -> i32 {
        match self {
            Scheduler::NonPersistent => 0,
            Scheduler::Persistent => 1,
        }
    }
}

/// Neighborhood attention on Blackwell (`natten_blackwell_na{1,2,3}d_forward`), over tensors in the order
/// of [`super::tiled_order`].
///
/// float16, bfloat16, or an 8-bit type whose scales are all 1; one head dim of up to 128, a multiple of 16
/// bytes; grouped heads (GQA, MQA) as they are; no extra tokens; a scale other than 0; tensors aligned to
/// 16 bytes. `logsumexp` may be null. The kernel is the one with exactly these tile shapes and scheduler
/// and the smallest of the head dims 32, 64 and 128 that holds the problem's.
///
/// # Errors
/// [`Error::InvalidArgument`] for a broken rule, [`Error::Unsupported`] if no kernel of the artifact
/// takes the problem, and whatever the library reports.
///
/// # Safety
/// Pointers lead to device memory of the current device, of the size that `problem` and the tiles
/// imply, live until the stream has passed the operation; `out` and `logsumexp` overlap nothing else.
pub unsafe fn blackwell_na_forward(
    problem: &Problem,
    tiles: &Tiles,
    scheduler: Scheduler,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_blackwell_fna(problem, Direction::Forward)?;
    check_forward_pointers(tensors, 16)?;
    let args = forward_args(problem, tiles, 0, scheduler.number(), tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::tiled_fna_forward(Backend::BlackwellFna, problem.rank() + 2, &args) }
}

/// Gradients of [`blackwell_na_forward`] (`natten_blackwell_na{1,2,3}d_backward`), added in varying order.
///
/// float16 and bfloat16. All tensors, `out`, `grad_out` and `logsumexp` among them, are in the order of
/// the tiles given here, which need not be those of the forward pass. `delta` is not used and may be null.
///
/// # Errors
/// As [`blackwell_na_forward`].
///
/// # Safety
/// As [`blackwell_na_forward`]; the gradients overlap nothing else.
pub unsafe fn blackwell_na_backward(
    problem: &Problem,
    tiles: &Tiles,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_blackwell_fna(problem, Direction::Backward)?;
    check_backward_pointers(tensors, 16)?;
    let args = backward_args(problem, tiles, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::tiled_fna_backward(Backend::BlackwellFna, problem.rank() + 2, &args) }
}

/// The rules of the blackwell_fna backend that do not depend on a device or an artifact.
pub(crate) fn check_blackwell_fna(problem: &Problem, direction: Direction) -> Result<()> {
    let backend = Backend::BlackwellFna;
    check_one_head_dim(backend, problem.dim(), problem.dim_value())?;
    check_blackwell(backend, problem.dtype(), problem.dim(), problem.scale(), direction)?;
    check_no_extra(backend, problem)?;
    check_tiled_grid(backend, problem)
}

/// What both Blackwell backends ask of element type, head dim and scale.
pub(crate) fn check_blackwell(
    backend: Backend,
    dtype: Dtype,
    dim: usize,
    scale: f32,
    direction: Direction,
) -> Result<()> {
    let takes: &[Dtype] = match direction {
        Direction::Forward => &[Dtype::Float16, Dtype::Bfloat16, Dtype::Float8E4m3, Dtype::Float8E5m2],
        Direction::Backward => &[Dtype::Float16, Dtype::Bfloat16],
    };
    device_dtype(dtype, takes, &format!("{backend} {direction}"))?;
    let multiple = 16 / dtype.size();
    if dim > 128 || !dim.is_multiple_of(multiple) {
        return Err(Error::unsupported(format!(
            "{backend} takes head dims up to 128 that are multiples of {multiple} for {dtype} (16 bytes), got {dim}"
        )));
    }
    if scale == 0.0 {
        return Err(Error::unsupported(format!("{backend} takes no scale of 0")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, gradients, tensors};
    use super::*;

    fn problem(dtype: Dtype, dim: usize) -> crate::ProblemBuilder {
        Problem::builder(dtype, &[20, 16]).dim(dim).heads(4).window(&[5, 5])
    }

    const TILES: Tiles = Tiles { query: [16, 16, 1], key: [16, 8, 1] };

    #[test]
    fn what_no_kernel_can_take_is_refused_by_name() {
        let half = |dim| problem(Dtype::Float16, dim);
        let build = |builder: crate::ProblemBuilder| builder.build().unwrap();
        for (problem, expected) in [
            (build(problem(Dtype::Float32, 64)), "float8_e5m2, got float32"),
            (build(half(136)), "head dims up to 128"),
            (build(half(36)), "multiples of 8 for float16"),
            (build(problem(Dtype::Float8E4m3, 40)), "multiples of 16 for float8_e4m3"),
            (build(half(64).dim_value(32)), "one head dim, got 64 and 32"),
            (build(half(64).extra_kv(1)), "no extra key/value tokens"),
            (build(half(64).scale(0.0)), "no scale of 0"),
            (build(half(64).batch(65536)), "batch * dilation up to 65535"),
        ] {
            let (scheduler, launch) = (Scheduler::Persistent, Launch::default());
            // SAFETY: the arguments are refused, so no pointer is followed.
            let error = unsafe { blackwell_na_forward(&problem, &TILES, scheduler, &tensors(), &launch) };
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            assert!(error.to_string().contains(expected), "`{error}` lacks `{expected}`");
        }
        let narrow = build(problem(Dtype::Float8E4m3, 64));
        // SAFETY: as above.
        let error = unsafe { blackwell_na_backward(&narrow, &TILES, &gradients(), &Launch::default()) };
        assert!(error.unwrap_err().to_string().contains("backward takes float16, bfloat16"));
        let unaligned = BackwardTensors { grad_out: at(1288), ..gradients() };
        // SAFETY: as above.
        let error =
            unsafe { blackwell_na_backward(&build(half(64)), &TILES, &unaligned, &Launch::default()) };
        assert!(error.unwrap_err().to_string().contains("grad_out must be aligned to 16"));
    }

    /// Grouped heads and any head dim of 16 bytes pass the checks and reach the library.
    #[cfg(natten_kernels_unlinked)]
    #[test]
    fn without_an_artifact_both_passes_name_the_backend() {
        let problem = problem(Dtype::Float16, 40).heads_kv(2).build().unwrap();
        let (scheduler, launch) = (Scheduler::NonPersistent, Launch::default());
        // SAFETY: nothing is linked, so no pointer is followed.
        let forward = unsafe { blackwell_na_forward(&problem, &TILES, scheduler, &tensors(), &launch) };
        // SAFETY: as above.
        let backward = unsafe { blackwell_na_backward(&problem, &TILES, &gradients(), &launch) };
        for result in [forward, backward] {
            assert!(matches!(result, Err(Error::BackendNotBuilt { backend: Backend::BlackwellFna, .. })));
        }
    }
}
