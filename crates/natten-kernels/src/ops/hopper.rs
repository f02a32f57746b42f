//! Neighborhood attention on Hopper, over tensors in the order of [`TokenPermutation`].

use super::{
    BackwardTensors, ForwardTensors, Launch, Shape, check_backward_pointers, check_forward_pointers,
    check_grid, check_pointers, device_dtype, int, three,
};
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::launch;
use crate::neighborhood::Axis;
use crate::permutation::TokenPermutation;
use crate::problem::Problem;
use crate::sys;
use crate::table::Direction;
use crate::tiles::Tiles;

/// How the warps of a Hopper forward kernel share the work: upstream's kernel type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Schedule {
    /// Every warp loads and computes.
    NonPersistent,
    /// Some warps load, the others compute one tile together.
    Cooperative,
    /// Some warps load, two groups of the others compute a tile each, in turn.
    PingPong,
}

impl Schedule {
    /// The number in the C ABI and in kernel tables.
    pub const fn number(self) -> i32 {
        match self {
            Schedule::NonPersistent => 0,
            Schedule::Cooperative => 1,
            Schedule::PingPong => 2,
        }
    }

    /// The schedule of that number.
    pub fn from_number(number: i32) -> Option<Schedule> {
        [Schedule::NonPersistent, Schedule::Cooperative, Schedule::PingPong]
            .into_iter()
            .find(|schedule| schedule.number() == number)
    }
}

/// The token order of the Hopper and Blackwell backends for tiles of `tile` tokens: what query, out, logsumexp and their
/// gradients are permuted by with the query tile, key, value and their gradients with the key tile.
///
/// A permuted tensor is `[batch, tokens_permuted, heads, dim]`; the operations see the groups of a
/// dilation as batch entries, which needs no copy.
///
/// # Errors
/// As [`TokenPermutation::new`].
pub fn tiled_order(problem: &Problem, tile: &[usize; 3]) -> Result<TokenPermutation> {
    let axes = problem.axes();
    let three =
        |part: fn(&Axis) -> usize| -> [usize; 3] { std::array::from_fn(|at| axes.get(at).map_or(1, part)) };
    let (extents, dilation) = (three(|axis| axis.extent), three(|axis| axis.dilation));
    let rank = problem.rank();
    TokenPermutation::new(&extents[..rank], &tile[..rank], &dilation[..rank], true)
}

/// Neighborhood attention on Hopper (`natten_hopper_na{1,2,3}d_forward`), over tensors in the order of
/// [`tiled_order`].
///
/// float16 or bfloat16; one head dim of 32, 64, 128 or 256; as many key heads as query heads; no extra
/// tokens; a scale other than 0; tensors aligned to 16 bytes; `logsumexp` is required. The kernel is the
/// one with exactly these tile shapes, head dim and schedule.
///
/// # Errors
/// [`Error::InvalidArgument`] for a broken rule, [`Error::Unsupported`] if no kernel of the artifact
/// takes the problem, and whatever the library reports.
///
/// # Safety
/// Pointers lead to device memory of the current device, of the size that `problem` and the tiles
/// imply, live until the stream has passed the operation; `out` and `logsumexp` overlap nothing else.
pub unsafe fn hopper_na_forward(
    problem: &Problem,
    tiles: &Tiles,
    schedule: Schedule,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_hopper_fna(problem, Direction::Forward)?;
    check_forward_pointers(tensors, 16)?;
    check_pointers(&[("logsumexp", tensors.logsumexp.cast(), 4)])?;
    let args = forward_args(problem, tiles, schedule.number(), 0, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::tiled_fna_forward(Backend::HopperFna, problem.rank() - 1, &args) }
}

/// Gradients of [`hopper_na_forward`] (`natten_hopper_na{1,2,3}d_backward`), added in varying order.
///
/// Head dims 32, 64 and 128. All tensors, `out`, `grad_out` and `logsumexp` among them, are in the order
/// of the tiles given here, which need not be those of the forward pass. `delta` is not used and may be
/// null.
///
/// # Errors
/// As [`hopper_na_forward`].
///
/// # Safety
/// As [`hopper_na_forward`]; the gradients overlap nothing else.
pub unsafe fn hopper_na_backward(
    problem: &Problem,
    tiles: &Tiles,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<()> {
    check_hopper_fna(problem, Direction::Backward)?;
    check_backward_pointers(tensors, 16)?;
    let args = backward_args(problem, tiles, tensors, launch)?;
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::tiled_fna_backward(Backend::HopperFna, problem.rank() - 1, &args) }
}

/// What a tiled forward operation is called with; `kernel_type` is Hopper's, `persistent` Blackwell's.
pub(super) fn forward_args(
    problem: &Problem,
    tiles: &Tiles,
    kernel_type: i32,
    persistent: i32,
    tensors: &ForwardTensors,
    launch: &Launch,
) -> Result<sys::natten_tiled_fna_forward_args> {
    let shape = Shape::new(problem)?;
    let tiled = Tiled::new(problem, tiles)?;
    Ok(sys::natten_tiled_fna_forward_args {
        size: size_of::<sys::natten_tiled_fna_forward_args>() as u32,
        dtype: shape.dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        logsumexp: tensors.logsumexp,
        batch: tiled.batch,
        seqlen_q: tiled.query.tokens,
        seqlen_kv: tiled.key.tokens,
        heads: shape.heads,
        heads_kv: shape.heads_kv,
        dim: shape.dim,
        num_extra_kv: 0,
        q_shape: tiled.query.extents,
        kv_shape: tiled.key.extents,
        qkv_shape: shape.extent,
        window: shape.window,
        stride: shape.stride,
        dilation: shape.dilation,
        causal: shape.causal,
        query_tile: three("query tile", tiles.query)?,
        key_tile: three("key tile", tiles.key)?,
        kernel_type,
        persistent,
        scale: problem.scale(),
        scale_q: 1.0,
        scale_k: 1.0,
        scale_v: 1.0,
        inv_scale_o: 1.0,
        stream: launch.stream.0,
        allocator: launch.allocator.0,
    })
}

/// What a tiled backward operation is called with.
pub(super) fn backward_args(
    problem: &Problem,
    tiles: &Tiles,
    tensors: &BackwardTensors,
    launch: &Launch,
) -> Result<sys::natten_tiled_fna_backward_args> {
    let shape = Shape::new(problem)?;
    let tiled = Tiled::new(problem, tiles)?;
    Ok(sys::natten_tiled_fna_backward_args {
        size: size_of::<sys::natten_tiled_fna_backward_args>() as u32,
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
        batch: tiled.batch,
        seqlen_q: tiled.query.tokens,
        seqlen_kv: tiled.key.tokens,
        heads: shape.heads,
        heads_kv: shape.heads_kv,
        dim: shape.dim,
        num_extra_kv: 0,
        q_shape: tiled.query.extents,
        kv_shape: tiled.key.extents,
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
    })
}

/// The rules of the hopper_fna backend that do not depend on a device or an artifact.
pub(crate) fn check_hopper_fna(problem: &Problem, direction: Direction) -> Result<()> {
    let backend = Backend::HopperFna;
    device_dtype(problem.dtype(), &[Dtype::Float16, Dtype::Bfloat16], backend.name())?;
    check_one_head_dim(backend, problem.dim(), problem.dim_value())?;
    check_hopper_head_dim(backend, problem.dim(), problem.scale(), direction)?;
    if problem.heads() != problem.heads_kv() {
        return Err(Error::unsupported(format!(
            "{backend} needs as many key heads as query heads, got {} and {}: repeat the key heads",
            problem.heads_kv(),
            problem.heads()
        )));
    }
    check_no_extra(backend, problem)?;
    check_tiled_grid(backend, problem)
}

pub(super) fn check_one_head_dim(backend: Backend, dim: usize, dim_value: usize) -> Result<()> {
    if dim == dim_value {
        return Ok(());
    }
    Err(Error::unsupported(format!("{backend} takes one head dim, got {dim} and {dim_value}")))
}

pub(super) fn check_no_extra(backend: Backend, problem: &Problem) -> Result<()> {
    match problem.extra_kv() {
        0 => Ok(()),
        extra => Err(Error::unsupported(format!("{backend} takes no extra key/value tokens, got {extra}"))),
    }
}

pub(super) fn check_tiled_grid(backend: Backend, problem: &Problem) -> Result<()> {
    check_grid(
        backend.name(),
        &[("batch * dilation", problem.batch().saturating_mul(groups(problem))), ("heads", problem.heads())],
    )
}

/// What both Hopper backends ask of head dim and scale.
pub(crate) fn check_hopper_head_dim(
    backend: Backend,
    dim: usize,
    scale: f32,
    direction: Direction,
) -> Result<()> {
    let takes: &[usize] = match direction {
        Direction::Forward => &[32, 64, 128, 256],
        Direction::Backward => &[32, 64, 128],
    };
    if !takes.contains(&dim) {
        return Err(Error::unsupported(format!(
            "{backend} {direction} takes head dims {takes:?}, got {dim}"
        )));
    }
    // The kernels take 0 for the default scale.
    if scale == 0.0 {
        return Err(Error::unsupported(format!("{backend} takes no scale of 0")));
    }
    Ok(())
}

fn groups(problem: &Problem) -> usize {
    problem.axes().iter().map(|axis| axis.dilation).product()
}

/// One dilation group of one side, padded to its tiles.
struct Side {
    extents: [i32; 3],
    tokens: i32,
}

/// A problem as the tiled operations see it.
struct Tiled {
    batch: i32,
    query: Side,
    key: Side,
}

impl Tiled {
    fn new(problem: &Problem, tiles: &Tiles) -> Result<Tiled> {
        Ok(Tiled {
            batch: int("batch * dilation", problem.batch() * groups(problem))?,
            query: side(problem, "query tile", &tiles.query)?,
            key: side(problem, "key tile", &tiles.key)?,
        })
    }
}

fn side(problem: &Problem, name: &str, tile: &[usize; 3]) -> Result<Side> {
    if tile[problem.rank()..].iter().any(|n| *n != 1) || tile.contains(&0) {
        return Err(Error::invalid(format!(
            "{name} must be at least 1 on every axis and 1 beyond the rank, got {tile:?} for {}-D",
            problem.rank()
        )));
    }
    let tokens = tiled_order(problem, tile)?.tokens_permuted() / groups(problem);
    let mut extents = [1; 3];
    for (at, axis) in problem.axes().iter().enumerate() {
        extents[at] = axis.extent.div_ceil(tile[at]).div_ceil(axis.dilation) * tile[at];
    }
    Ok(Side { extents: three(name, extents)?, tokens: int("tokens of a dilation group", tokens)? })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gradients, tensors};
    use super::*;

    fn problem(dim: usize) -> crate::ProblemBuilder {
        Problem::builder(Dtype::Bfloat16, &[20, 16]).dim(dim).heads(2).window(&[5, 5])
    }

    const TILES: Tiles = Tiles { query: [8, 8, 1], key: [16, 8, 1] };

    #[test]
    fn what_no_kernel_can_take_is_refused_by_name() {
        let build = |builder: crate::ProblemBuilder| builder.build().unwrap();
        let float = Problem::builder(Dtype::Float32, &[20, 16]).dim(64).window(&[5, 5]);
        for (problem, expected) in [
            (build(float), "hopper_fna takes float16, bfloat16, got float32"),
            (build(problem(48)), "hopper_fna forward takes head dims [32, 64, 128, 256], got 48"),
            (build(problem(64).dim_value(32)), "one head dim, got 64 and 32"),
            (build(problem(64).heads_kv(1)), "as many key heads"),
            (build(problem(64).extra_kv(1)), "no extra key/value tokens"),
            (build(problem(64).scale(0.0)), "no scale of 0"),
            (build(problem(64).batch(32768).dilation(&[2, 1])), "batch * dilation up to 65535"),
            (build(problem(64).heads(65536)), "heads up to 65535"),
        ] {
            let (schedule, launch) = (Schedule::NonPersistent, Launch::default());
            // SAFETY: the arguments are refused, so no pointer is followed.
            let error = unsafe { hopper_na_forward(&problem, &TILES, schedule, &tensors(), &launch) };
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            assert!(error.to_string().contains(expected), "`{error}` lacks `{expected}`");
        }
        let wide = build(problem(256));
        // SAFETY: as above.
        let error = unsafe { hopper_na_backward(&wide, &TILES, &gradients(), &Launch::default()) };
        assert!(error.unwrap_err().to_string().contains("backward takes head dims [32, 64, 128], got 256"));
        let legal = build(problem(64));
        let without = ForwardTensors { logsumexp: std::ptr::null_mut(), ..tensors() };
        let (schedule, launch) = (Schedule::NonPersistent, Launch::default());
        // SAFETY: as above.
        let error = unsafe { hopper_na_forward(&legal, &TILES, schedule, &without, &launch) };
        assert!(error.unwrap_err().to_string().contains("logsumexp must not be null"));
        let flat = Tiles { query: [8, 8, 2], ..TILES };
        // SAFETY: as above.
        let error = unsafe { hopper_na_forward(&legal, &flat, schedule, &tensors(), &launch) };
        assert!(error.unwrap_err().to_string().contains("1 beyond the rank"));
    }

    #[test]
    fn a_group_is_padded_to_whole_tiles_and_groups_are_batch_entries() {
        // 20 tokens in 2 groups of 10: two query tiles of 8, one key tile of 16.
        let dilated = problem(64).batch(3).dilation(&[2, 1]).window(&[5, 5]).build().unwrap();
        let tiled = Tiled::new(&dilated, &TILES).unwrap();
        assert_eq!((tiled.batch, tiled.query.extents, tiled.query.tokens), (6, [16, 16, 1], 256));
        assert_eq!((tiled.key.extents, tiled.key.tokens), ([16, 16, 1], 256));
        // As many elements as the permutation writes.
        for (extents, dilation) in [([37, 9], [3, 2]), ([8, 8], [1, 1]), ([65, 17], [4, 1])] {
            let problem = Problem::builder(Dtype::Float16, &extents).batch(2).dim(32).window(&[2, 2]);
            let problem = problem.dilation(&dilation).build().unwrap();
            for tile in [TILES.query, TILES.key] {
                let side = side(&problem, "tile", &tile).unwrap();
                assert_eq!(side.tokens, side.extents.iter().product::<i32>());
                let order = tiled_order(&problem, &tile).unwrap();
                assert_eq!(
                    side.tokens as usize * dilation.iter().product::<usize>(),
                    order.tokens_permuted()
                );
            }
        }
    }

    #[test]
    fn schedules_are_upstreams_numbers() {
        for number in 0..3 {
            assert_eq!(Schedule::from_number(number).unwrap().number(), number);
        }
        assert_eq!(Schedule::from_number(-1), None);
        assert_eq!(Schedule::from_number(3), None);
    }

    #[cfg(natten_kernels_unlinked)]
    #[test]
    fn without_an_artifact_both_passes_name_the_backend() {
        let problem = problem(64).build().unwrap();
        let (schedule, launch) = (Schedule::NonPersistent, Launch::default());
        // SAFETY: nothing is linked, so no pointer is followed.
        let forward = unsafe { hopper_na_forward(&problem, &TILES, schedule, &tensors(), &launch) };
        // SAFETY: as above.
        let backward = unsafe { hopper_na_backward(&problem, &TILES, &gradients(), &launch) };
        for result in [forward, backward] {
            assert!(matches!(result, Err(Error::BackendNotBuilt { backend: Backend::HopperFna, .. })));
        }
    }
}
