//! What a call is made of, over an [`Engine`]: a device, or in tests the host, where every step is carried out
//! and checked.

use crate::backend::Backend;
use crate::dispatch::Decision;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{self, BackwardTensors, Dense, ForwardTensors, Sequences, TokenTensor};
use crate::permutation::TokenPermutation;
use crate::problem::Problem;
use crate::table::Direction;
use crate::tiles::Tiles;
use std::ffi::c_void;

/// Into the backend's token order, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Into,
    Back,
}

/// Rows of `width` bytes, one for each head of each token, to be written `copies` times each.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadCopy {
    pub(super) heads: usize,
    pub(super) width: usize,
    pub(super) copies: usize,
}

/// Who carries the steps out. Pointers are of its memory; steps happen in the order of the calls.
pub(super) trait Engine {
    /// Memory aligned to 256 bytes.
    fn alloc(&self, bytes: usize) -> Result<*mut c_void>;
    /// Frees memory of `alloc` after the steps so far.
    fn free(&self, pointer: *mut c_void);
    /// # Safety
    /// As [`ops::token_permute`] and its inverse.
    unsafe fn reorder(
        &self,
        order: &TokenPermutation,
        way: Way,
        tensor: TokenTensor,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()>;
    /// # Safety
    /// `from` has the rows, `to` room for all copies.
    unsafe fn copy_heads(&self, copy: &HeadCopy, from: *const c_void, to: *mut c_void) -> Result<()>;
    /// The inverse of [`Engine::copy_heads`] for gradients, of elements of `dtype`: those of the copies added up.
    ///
    /// # Safety
    /// `from` has all copies, `to` room for the rows.
    unsafe fn add_heads(
        &self,
        copy: &HeadCopy,
        dtype: Dtype,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()>;
    /// # Safety
    /// As the operation; tensors are in its order.
    unsafe fn na_forward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &ForwardTensors,
    ) -> Result<()>;
    /// # Safety
    /// As the operation; tensors are in its order.
    unsafe fn na_backward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &BackwardTensors,
    ) -> Result<()>;
    /// # Safety
    /// As the operation.
    unsafe fn dense_forward(
        &self,
        decision: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &ForwardTensors,
    ) -> Result<()>;
    /// # Safety
    /// As the operation.
    unsafe fn dense_backward(
        &self,
        decision: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &BackwardTensors,
    ) -> Result<()>;
}

/// # Safety
/// As [`super::forward`], with memory of the engine's.
pub(super) unsafe fn forward<E: Engine>(
    engine: &E,
    decision: &Decision,
    problem: &Problem,
    tensors: &ForwardTensors,
) -> Result<()> {
    check_direction(decision, Direction::Forward)?;
    if is_dense(decision.backend) {
        let dense = dense_of(decision, problem)?;
        // SAFETY: the caller's promise; the tensors of the two problems are the same.
        return unsafe { dense_forward(engine, decision, &dense, None, tensors) };
    }
    check_copies(decision, problem.heads(), problem.heads_kv())?;
    let alignment = alignment(decision, problem.dtype());
    ops::check_forward_pointers(tensors, alignment)?;
    let room = ForwardRoom::new(decision, problem, !tensors.logsumexp.is_null())?;
    let block = Block::new(engine, room.total)?;
    let ungrouped;
    let (mut problem, mut inner) = (problem, *tensors);
    if let Some([key, value]) = room.copies {
        let copies = decision.key_head_copies;
        // Rows of key and of value: a head of a token each.
        let heads = problem.batch() * problem.tokens_kv() * problem.heads_kv();
        for (part, from, dim) in [(key, inner.key, problem.dim()), (value, inner.value, problem.dim_value())]
        {
            let copy = HeadCopy { heads, width: dim * problem.dtype().size(), copies };
            // SAFETY: the caller's promise for `from`; the part has room for `copies` times as much.
            unsafe { engine.copy_heads(&copy, from, block.at(part)) }?;
        }
        (inner.key, inner.value) = (block.at(key), block.at(value));
        ungrouped = problem.ungrouped();
        problem = &ungrouped;
    }
    if let Some(at) = room.logsumexp {
        inner.logsumexp = block.at(at).cast();
    }
    let Some(tiled) = &room.tiled else {
        // SAFETY: the caller's promise; what was replaced is as large.
        return unsafe { engine.na_forward(decision, problem, &inner) };
    };
    let mover = Mover::new(problem, &tiled.tiles)?;
    let [query, key, value, out, logsumexp] = tiled.parts.map(|part| block.at(part));
    for (side, from, to) in
        [(&mover.query, inner.query, query), (&mover.key, inner.key, key), (&mover.key, inner.value, value)]
    {
        // SAFETY: the caller's promise for `from`; the part has the size of the permuted tensor.
        unsafe { engine.reorder(&side.order, Way::Into, side.tensor, from, to) }?;
    }
    let permuted = ForwardTensors { query, key, value, out, logsumexp: logsumexp.cast() };
    // SAFETY: all tensors are parts of the block, in the backend's order.
    unsafe { engine.na_forward(decision, problem, &permuted) }?;
    let side = &mover.query;
    // SAFETY: the part holds the permuted tensor; the caller's promise for the target.
    unsafe { engine.reorder(&side.order, Way::Back, side.tensor, out, tensors.out) }?;
    if tensors.logsumexp.is_null() {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { engine.reorder(&side.order, Way::Back, mover.rows, logsumexp, tensors.logsumexp.cast()) }
}

/// # Safety
/// As [`super::backward`], with memory of the engine's.
pub(super) unsafe fn backward<E: Engine>(
    engine: &E,
    decision: &Decision,
    problem: &Problem,
    tensors: &BackwardTensors,
) -> Result<()> {
    check_direction(decision, Direction::Backward)?;
    if is_dense(decision.backend) {
        let dense = dense_of(decision, problem)?;
        // SAFETY: the caller's promise; the tensors of the two problems are the same.
        return unsafe { dense_backward(engine, decision, &dense, None, tensors) };
    }
    check_copies(decision, problem.heads(), problem.heads_kv())?;
    let alignment = alignment(decision, problem.dtype());
    ops::check_backward_pointers(tensors, alignment)?;
    let room = BackwardRoom::new(decision, problem)?;
    let block = Block::new(engine, room.total)?;
    let copies = KeyCopies {
        engine,
        dtype: problem.dtype(),
        copies: decision.key_head_copies,
        heads: problem.batch() * problem.tokens_kv() * problem.heads_kv(),
        dims: [problem.dim(), problem.dim_value()],
    };
    let ungrouped;
    let (mut problem, outer) = (problem, tensors);
    let mut tensors = *tensors;
    if let Some(parts) = room.copies {
        // SAFETY: the caller's promise; the parts have room for the copies.
        tensors = unsafe { copies.spread(&tensors, parts.map(|part| block.at(part))) }?;
        ungrouped = problem.ungrouped();
        problem = &ungrouped;
    }
    // SAFETY: the caller's promise; what was replaced is as large.
    unsafe { backward_in_order(engine, decision, problem, &tensors, room.tiled.as_ref(), &block) }?;
    if room.copies.is_some() {
        // SAFETY: the copies' gradients have been written; the caller's promise for the targets.
        unsafe { copies.gather(&tensors, outer) }?;
    }
    Ok(())
}

/// The backward pass of a problem whose heads are as the backend takes them.
///
/// # Safety
/// As [`backward`]; `block` has the parts of `tiled`.
unsafe fn backward_in_order<E: Engine>(
    engine: &E,
    decision: &Decision,
    problem: &Problem,
    tensors: &BackwardTensors,
    tiled: Option<&TiledRoom<9>>,
    block: &Block<'_, E>,
) -> Result<()> {
    let Some(tiled) = tiled else {
        // SAFETY: the caller's promise.
        return unsafe { engine.na_backward(decision, problem, tensors) };
    };
    let mover = Mover::new(problem, &tiled.tiles)?;
    let [query, key, value, out, grad_out, logsumexp, grad_query, grad_key, grad_value] =
        tiled.parts.map(|part| block.at(part));
    for (order, tensor, from, to) in [
        (&mover.query.order, mover.query.tensor, tensors.query, query),
        (&mover.key.order, mover.key.tensor, tensors.key, key),
        (&mover.key.order, mover.key.tensor, tensors.value, value),
        (&mover.query.order, mover.query.tensor, tensors.out, out),
        (&mover.query.order, mover.query.tensor, tensors.grad_out, grad_out),
        (&mover.query.order, mover.rows, tensors.logsumexp.cast(), logsumexp),
    ] {
        // SAFETY: the caller's promise for `from`; the part has the size of the permuted tensor.
        unsafe { engine.reorder(order, Way::Into, tensor, from, to) }?;
    }
    let permuted = BackwardTensors {
        query,
        key,
        value,
        out,
        grad_out,
        logsumexp: logsumexp.cast(),
        // In the caller's order; the tiled backends compute their own.
        delta: std::ptr::null(),
        grad_query,
        grad_key,
        grad_value,
    };
    // SAFETY: all tensors are parts of the block, in the backend's order.
    unsafe { engine.na_backward(decision, problem, &permuted) }?;
    for (side, from, to) in [
        (&mover.query, grad_query, tensors.grad_query),
        (&mover.key, grad_key, tensors.grad_key),
        (&mover.key, grad_value, tensors.grad_value),
    ] {
        // SAFETY: the part holds the permuted gradient; the caller's promise for the target.
        unsafe { engine.reorder(&side.order, Way::Back, side.tensor, from, to) }?;
    }
    Ok(())
}

/// # Safety
/// As [`super::dense_forward`], with memory of the engine's.
pub(super) unsafe fn dense_forward<E: Engine>(
    engine: &E,
    decision: &Decision,
    problem: &Dense,
    sequences: Option<&Sequences>,
    tensors: &ForwardTensors,
) -> Result<()> {
    check_direction(decision, Direction::Forward)?;
    problem.check_sizes()?;
    check_copies(decision, problem.heads, problem.heads_kv)?;
    ops::check_forward_pointers(tensors, 16)?;
    let room = DenseRoom::new(decision, problem, !tensors.logsumexp.is_null())?;
    let block = Block::new(engine, room.total)?;
    let (mut problem, mut inner) = (*problem, *tensors);
    if let Some([key, value]) = room.copies {
        let copies = decision.key_head_copies;
        let heads = problem.batch * problem.seqlen_kv * problem.heads_kv;
        for (part, from, dim) in [(key, inner.key, problem.dim), (value, inner.value, problem.dim_value)] {
            let copy = HeadCopy { heads, width: dim * problem.dtype.size(), copies };
            // SAFETY: the caller's promise for `from`; the part has room for `copies` times as much.
            unsafe { engine.copy_heads(&copy, from, block.at(part)) }?;
        }
        (inner.key, inner.value) = (block.at(key), block.at(value));
        problem = problem.ungrouped();
    }
    if let Some(at) = room.logsumexp {
        inner.logsumexp = block.at(at).cast();
    }
    // SAFETY: the caller's promise; what was replaced is as large.
    unsafe { engine.dense_forward(decision, &problem, sequences, &inner) }
}

/// # Safety
/// As [`super::dense_backward`], with memory of the engine's.
pub(super) unsafe fn dense_backward<E: Engine>(
    engine: &E,
    decision: &Decision,
    problem: &Dense,
    sequences: Option<&Sequences>,
    tensors: &BackwardTensors,
) -> Result<()> {
    check_direction(decision, Direction::Backward)?;
    problem.check_sizes()?;
    check_copies(decision, problem.heads, problem.heads_kv)?;
    if decision.key_head_copies == 1 {
        // SAFETY: the caller's promise.
        return unsafe { engine.dense_backward(decision, problem, sequences, tensors) };
    }
    ops::check_backward_pointers(tensors, 16)?;
    let room = DenseBackwardRoom::new(decision, problem)?;
    let block = Block::new(engine, room.total)?;
    let copies = KeyCopies {
        engine,
        dtype: problem.dtype,
        copies: decision.key_head_copies,
        heads: problem.batch * problem.seqlen_kv * problem.heads_kv,
        dims: [problem.dim, problem.dim_value],
    };
    // SAFETY: the caller's promise; the parts have room for the copies.
    let inner = unsafe { copies.spread(tensors, room.copies.map(|part| block.at(part))) }?;
    // SAFETY: the caller's promise; what was replaced is as large.
    unsafe { engine.dense_backward(decision, &problem.ungrouped(), sequences, &inner) }?;
    // SAFETY: the copies' gradients have been written; the caller's promise for the targets.
    unsafe { copies.gather(&inner, tensors) }
}

/// Copies of the key heads of a backward pass: a head of key and value for each query head.
struct KeyCopies<'a, E: Engine> {
    engine: &'a E,
    dtype: Dtype,
    copies: usize,
    /// Rows of key and of value: a head of a token each.
    heads: usize,
    /// Elements of a row of key and of value.
    dims: [usize; 2],
}

impl<E: Engine> KeyCopies<'_, E> {
    fn of(&self, dim: usize) -> HeadCopy {
        HeadCopy { heads: self.heads, width: dim * self.dtype.size(), copies: self.copies }
    }

    /// Copies key and value into the first two of `parts`, and says so in the tensors; the other two are for the
    /// gradients of the copies.
    ///
    /// # Safety
    /// As [`Engine::copy_heads`].
    unsafe fn spread(&self, tensors: &BackwardTensors, parts: [*mut c_void; 4]) -> Result<BackwardTensors> {
        let [key, value, grad_key, grad_value] = parts;
        for (from, to, dim) in [(tensors.key, key, self.dims[0]), (tensors.value, value, self.dims[1])] {
            // SAFETY: the caller's promise.
            unsafe { self.engine.copy_heads(&self.of(dim), from, to) }?;
        }
        Ok(BackwardTensors { key, value, grad_key, grad_value, ..*tensors })
    }

    /// Adds the copies' gradients up into those of `to`.
    ///
    /// # Safety
    /// As [`Engine::add_heads`].
    unsafe fn gather(&self, from: &BackwardTensors, to: &BackwardTensors) -> Result<()> {
        for (from, to, dim) in
            [(from.grad_key, to.grad_key, self.dims[0]), (from.grad_value, to.grad_value, self.dims[1])]
        {
            // SAFETY: the caller's promise.
            unsafe { self.engine.add_heads(&self.of(dim), self.dtype, from, to) }?;
        }
        Ok(())
    }
}

pub(super) fn workspace_bytes(
    decision: &Decision,
    problem: &Problem,
    logsumexp_wanted: bool,
) -> Result<usize> {
    match decision.direction {
        Direction::Backward if is_dense(decision.backend) => {
            let dense = dense_of(decision, problem)?;
            Ok(DenseBackwardRoom::new(decision, &dense)?.total)
        }
        Direction::Backward => Ok(BackwardRoom::new(decision, problem)?.total),
        Direction::Forward if is_dense(decision.backend) => {
            let dense = dense_of(decision, problem)?;
            Ok(DenseRoom::new(decision, &dense, logsumexp_wanted)?.total)
        }
        Direction::Forward => Ok(ForwardRoom::new(decision, problem, logsumexp_wanted)?.total),
    }
}

fn is_dense(backend: Backend) -> bool {
    matches!(backend, Backend::Fmha | Backend::HopperFmha | Backend::BlackwellFmha)
}

fn is_tiled(backend: Backend) -> bool {
    matches!(backend, Backend::HopperFna | Backend::BlackwellFna)
}

/// What tensors must be aligned to that a backend reads itself; copies are made of elements.
fn alignment(decision: &Decision, dtype: Dtype) -> usize {
    if decision.backend == Backend::Fna { 16 } else { dtype.size() }
}

fn dense_of(decision: &Decision, problem: &Problem) -> Result<Dense> {
    Dense::of(problem).ok_or_else(|| {
        Error::invalid(format!(
            "a decision for {} is of a problem whose windows are whole axes, this one's are not",
            decision.backend
        ))
    })
}

fn check_direction(decision: &Decision, direction: Direction) -> Result<()> {
    if decision.direction == direction {
        return Ok(());
    }
    Err(Error::invalid(format!("a decision of a {} pass was used for a {direction} one", decision.direction)))
}

/// That copies make as many key heads as query heads, or that there are none.
fn check_copies(decision: &Decision, heads: usize, heads_kv: usize) -> Result<()> {
    let copies = decision.key_head_copies;
    if copies == 1 || copies.checked_mul(heads_kv) == Some(heads) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a decision with {copies} copies of each key head is of another problem: {heads} query heads, {heads_kv} key heads"
    )))
}

/// One side of a problem in the backend's order.
struct Side {
    order: TokenPermutation,
    tensor: TokenTensor,
}

struct Mover {
    query: Side,
    key: Side,
    /// logsumexp, in the order of the queries.
    rows: TokenTensor,
}

impl Mover {
    fn new(problem: &Problem, tiles: &Tiles) -> Result<Mover> {
        let side = |tile, heads| -> Result<Side> {
            let tensor =
                TokenTensor { dtype: problem.dtype(), batch: problem.batch(), heads, dim: problem.dim() };
            Ok(Side { order: ops::tiled_order(problem, tile)?, tensor })
        };
        let query = side(&tiles.query, problem.heads())?;
        let rows = TokenTensor { dtype: Dtype::Float32, dim: 1, ..query.tensor };
        Ok(Mover { query, key: side(&tiles.key, problem.heads_kv())?, rows })
    }
}

impl Side {
    fn bytes(&self) -> Result<usize> {
        bytes_of(self.order.tokens_permuted(), &self.tensor)
    }
}

fn bytes_of(tokens: usize, tensor: &TokenTensor) -> Result<usize> {
    product(&[tensor.batch, tokens, tensor.heads, tensor.dim, tensor.dtype.size()])
}

fn product(factors: &[usize]) -> Result<usize> {
    factors.iter().try_fold(1_usize, |n, next| n.checked_mul(*next)).ok_or_else(|| too_much(factors))
}

fn too_much(factors: &[usize]) -> Error {
    Error::invalid(format!("the temporaries of this problem ({factors:?} bytes) cannot be counted"))
}

/// Parts of one block, each at a multiple of 256 bytes.
#[derive(Default)]
struct Parts(usize);

impl Parts {
    fn add(&mut self, bytes: usize) -> Result<usize> {
        let at = self.0;
        let end = bytes.checked_next_multiple_of(256).and_then(|bytes| at.checked_add(bytes));
        self.0 = end.filter(|end| isize::try_from(*end).is_ok()).ok_or_else(|| too_much(&[at, bytes]))?;
        Ok(at)
    }
}

/// Where tensors in the backend's order lie.
struct TiledRoom<const N: usize> {
    tiles: Tiles,
    parts: [usize; N],
}

struct ForwardRoom {
    total: usize,
    /// Key and value, a head for every query head.
    copies: Option<[usize; 2]>,
    /// For a backend that writes it always.
    logsumexp: Option<usize>,
    /// Query, key, value, out, logsumexp.
    tiled: Option<TiledRoom<5>>,
}

impl ForwardRoom {
    fn new(decision: &Decision, problem: &Problem, logsumexp_wanted: bool) -> Result<ForwardRoom> {
        let mut parts = Parts::default();
        let copied = decision.key_head_copies > 1;
        let copies = copied.then(|| -> Result<[usize; 2]> {
            let tensor = |len: usize| product(&[len, decision.key_head_copies, problem.dtype().size()]);
            Ok([parts.add(tensor(problem.key_len())?)?, parts.add(tensor(problem.value_len())?)?])
        });
        let copies = copies.transpose()?;
        let needs_logsumexp = decision.backend == Backend::Reference && !logsumexp_wanted;
        let logsumexp = needs_logsumexp.then(|| parts.add(problem.logsumexp_len() * size_of::<f32>()));
        let logsumexp = logsumexp.transpose()?;
        let mut tiled = None;
        if is_tiled(decision.backend) {
            let tiles = tiles_of(decision)?;
            let ungrouped = problem.ungrouped();
            let mover = Mover::new(if copied { &ungrouped } else { problem }, &tiles)?;
            let (query, key) = (mover.query.bytes()?, mover.key.bytes()?);
            let rows = bytes_of(mover.query.order.tokens_permuted(), &mover.rows)?;
            let parts = [query, key, key, query, rows].map(|bytes| parts.add(bytes));
            tiled = Some(TiledRoom { tiles, parts: all(parts)? });
        }
        Ok(ForwardRoom { total: parts.0, copies, logsumexp, tiled })
    }
}

struct BackwardRoom {
    total: usize,
    /// Key, value and their gradients, a head for every query head.
    copies: Option<[usize; 4]>,
    /// Query, key, value, out, grad_out, logsumexp, and the three gradients.
    tiled: Option<TiledRoom<9>>,
}

impl BackwardRoom {
    fn new(decision: &Decision, problem: &Problem) -> Result<BackwardRoom> {
        let mut parts = Parts::default();
        let mut copies = None;
        let copied = decision.key_head_copies > 1;
        if copied {
            let tensor = |len: usize| product(&[len, decision.key_head_copies, problem.dtype().size()]);
            let (key, value) = (tensor(problem.key_len())?, tensor(problem.value_len())?);
            copies = Some(all([key, value, key, value].map(|bytes| parts.add(bytes)))?);
        }
        if !is_tiled(decision.backend) {
            return Ok(BackwardRoom { total: parts.0, copies, tiled: None });
        }
        let tiles = tiles_of(decision)?;
        let ungrouped = problem.ungrouped();
        let mover = Mover::new(if copied { &ungrouped } else { problem }, &tiles)?;
        let (query, key) = (mover.query.bytes()?, mover.key.bytes()?);
        let rows = bytes_of(mover.query.order.tokens_permuted(), &mover.rows)?;
        let places = [query, key, key, query, query, rows, query, key, key].map(|bytes| parts.add(bytes));
        Ok(BackwardRoom { copies, tiled: Some(TiledRoom { tiles, parts: all(places)? }), total: parts.0 })
    }
}

struct DenseBackwardRoom {
    total: usize,
    /// Key, value and their gradients, a head for every query head; nothing if none is copied.
    copies: [usize; 4],
}

impl DenseBackwardRoom {
    fn new(decision: &Decision, problem: &Dense) -> Result<DenseBackwardRoom> {
        if decision.key_head_copies == 1 {
            return Ok(DenseBackwardRoom { total: 0, copies: [0; 4] });
        }
        let Dense { dtype, batch, seqlen_kv, heads, dim, dim_value, .. } = *problem;
        let tensor = |dim| product(&[batch, seqlen_kv, heads, dim, dtype.size()]);
        let (key, value) = (tensor(dim)?, tensor(dim_value)?);
        let mut parts = Parts::default();
        let copies = all([key, value, key, value].map(|bytes| parts.add(bytes)))?;
        Ok(DenseBackwardRoom { total: parts.0, copies })
    }
}

struct DenseRoom {
    total: usize,
    /// Key and value, a head for every query head.
    copies: Option<[usize; 2]>,
    /// For a backend that writes it always.
    logsumexp: Option<usize>,
}

impl DenseRoom {
    fn new(decision: &Decision, problem: &Dense, logsumexp_wanted: bool) -> Result<DenseRoom> {
        let Dense { dtype, batch, seqlen_q, seqlen_kv, heads, dim, dim_value, .. } = *problem;
        let mut parts = Parts::default();
        let copies = (decision.key_head_copies > 1).then(|| -> Result<[usize; 2]> {
            let tensor = |dim| product(&[batch, seqlen_kv, heads, dim, dtype.size()]);
            Ok([parts.add(tensor(dim)?)?, parts.add(tensor(dim_value)?)?])
        });
        let copies = copies.transpose()?;
        let needs_logsumexp = decision.backend == Backend::HopperFmha && !logsumexp_wanted;
        let logsumexp = needs_logsumexp
            .then(|| parts.add(product(&[batch, seqlen_q, heads, size_of::<f32>()])?))
            .transpose()?;
        Ok(DenseRoom { total: parts.0, copies, logsumexp })
    }
}

fn tiles_of(decision: &Decision) -> Result<Tiles> {
    decision.tiles.ok_or_else(|| super::incomplete(decision))
}

fn all<const N: usize>(results: [Result<usize>; N]) -> Result<[usize; N]> {
    let mut values = [0; N];
    for (to, result) in values.iter_mut().zip(results) {
        *to = result?;
    }
    Ok(values)
}

/// Memory of an engine's, freed when dropped: after the steps that were enqueued meanwhile.
struct Block<'a, E: Engine> {
    engine: &'a E,
    pointer: *mut c_void,
}

impl<E: Engine> Block<'_, E> {
    fn new(engine: &E, bytes: usize) -> Result<Block<'_, E>> {
        let pointer = if bytes == 0 { std::ptr::null_mut() } else { engine.alloc(bytes)? };
        Ok(Block { engine, pointer })
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.pointer.wrapping_byte_add(offset)
    }
}

impl<E: Engine> Drop for Block<'_, E> {
    fn drop(&mut self) {
        if !self.pointer.is_null() {
            self.engine.free(self.pointer);
        }
    }
}
