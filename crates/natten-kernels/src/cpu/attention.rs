//! Forward and backward over a [`Grid`].

use super::check_len;
use super::grid::{Grid, Side};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::problem::Problem;
use rayon::prelude::*;
use std::ops::Range;

/// Queries (or keys) that one task handles: long enough to pay for the task, short enough to share out.
const BLOCK: usize = 16;

/// What a forward pass computes.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward<T> {
    /// `[batch, *extents, heads, dim_value]`: the attention-weighted mean of the values.
    pub out: Vec<T>,
    /// `[batch, *extents, heads]`: natural logarithm of the sum of the exponentials of the scaled scores.
    pub logsumexp: Vec<f32>,
}

/// What a backward pass computes.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<T> {
    /// `[batch, *extents, heads, dim]`.
    pub query: Vec<T>,
    /// `[batch, *extents, heads_kv, dim]`, or with extra tokens as [`Problem`] says.
    pub key: Vec<T>,
    /// `[batch, *extents, heads_kv, dim_value]`, or with extra tokens as [`Problem`] says.
    pub value: Vec<T>,
}

/// Neighborhood attention: `out = softmax(scale * query . key) . value` over each query's neighborhood.
///
/// Slices have the shapes that [`Problem`] documents, and `T` is the problem's dtype.
///
/// # Errors
/// [`Error::InvalidArgument`] if a slice has another length or `T` is another type than the problem's.
///
/// ```
/// use natten_kernels::{Dtype, Problem, cpu};
///
/// // Four tokens, window 2 around each; equal keys give the mean of the two values.
/// let problem = Problem::builder(Dtype::Float32, &[4]).dim(1).window(&[2]).build()?;
/// let result = cpu::forward(&problem, &[1.0_f32; 4], &[1.0; 4], &[0.0, 2.0, 4.0, 6.0])?;
/// assert_eq!(result.out, [1.0, 1.0, 3.0, 5.0]);
/// # Ok::<(), natten_kernels::Error>(())
/// ```
pub fn forward<T: Element>(problem: &Problem, query: &[T], key: &[T], value: &[T]) -> Result<Forward<T>> {
    check_type::<T>(problem)?;
    check_len("query", query, problem.query_len())?;
    check_len("key", key, problem.key_len())?;
    check_len("value", value, problem.value_len())?;

    let grid = Grid::new(&problem.padded_axes());
    let sizes = Sizes::new(problem);
    let mut out = vec![T::default(); problem.out_len()];
    let mut logsumexp = vec![0_f32; problem.logsumexp_len()];
    for batch in 0..problem.batch() {
        for head_kv in 0..problem.heads_kv() {
            let keys = gather(key, &grid, &sizes.key(batch, head_kv));
            let values = gather(value, &grid, &sizes.value(batch, head_kv));
            for head in sizes.query_heads(head_kv) {
                let queries = gather(query, &grid, &sizes.query(batch, head));
                let result = forward_head(&grid, &sizes, &queries, &keys, &values);
                scatter(&result.out, &mut out, &grid, &sizes.out(batch, head));
                let rows = Rows { width: 1, ..sizes.out(batch, head) };
                scatter(&result.logsumexp, &mut logsumexp, &grid, &rows);
            }
        }
    }
    Ok(Forward { out, logsumexp })
}

/// Gradients of [`forward`] with respect to query, key and value, given that of `out`.
///
/// Output and logsumexp are computed again from the inputs in double precision rather than taken
/// from the caller, so the result does not carry their rounding. With grouped heads, a key head's
/// gradient is the sum over its query heads.
///
/// # Errors
/// As [`forward`].
///
/// ```
/// use natten_kernels::{Dtype, Problem, cpu};
///
/// let problem = Problem::builder(Dtype::Float32, &[4]).dim(1).window(&[2]).build()?;
/// let ones = [1.0_f32; 4];
/// let gradients = cpu::backward(&problem, &ones, &ones, &ones, &ones)?;
/// // Each value's gradient is the attention it gets: key 0 half of queries 0 and 1, and so on.
/// assert_eq!(gradients.value, [1.0, 1.5, 1.0, 0.5]);
/// # Ok::<(), natten_kernels::Error>(())
/// ```
pub fn backward<T: Element>(
    problem: &Problem,
    query: &[T],
    key: &[T],
    value: &[T],
    grad_out: &[T],
) -> Result<Gradients<T>> {
    check_type::<T>(problem)?;
    check_len("query", query, problem.query_len())?;
    check_len("key", key, problem.key_len())?;
    check_len("value", value, problem.value_len())?;
    check_len("grad_out", grad_out, problem.out_len())?;

    let grid = Grid::new(&problem.padded_axes());
    let sizes = Sizes::new(problem);
    let mut gradients = Gradients {
        query: vec![T::default(); problem.query_len()],
        key: vec![T::default(); problem.key_len()],
        value: vec![T::default(); problem.value_len()],
    };
    for batch in 0..problem.batch() {
        for head_kv in 0..problem.heads_kv() {
            let keys = gather(key, &grid, &sizes.key(batch, head_kv));
            let values = gather(value, &grid, &sizes.value(batch, head_kv));
            let mut grad_keys = vec![0.0; keys.len()];
            let mut grad_values = vec![0.0; values.len()];
            for head in sizes.query_heads(head_kv) {
                let queries = gather(query, &grid, &sizes.query(batch, head));
                let grad_outs = gather(grad_out, &grid, &sizes.out(batch, head));
                let HeadForward { out, logsumexp } = forward_head(&grid, &sizes, &queries, &keys, &values);
                let delta: Vec<f64> = out
                    .par_chunks(sizes.dim_value)
                    .zip(grad_outs.par_chunks(sizes.dim_value))
                    .map(|(out, grad)| dot(out, grad))
                    .collect();
                let saved = Saved {
                    queries: &queries,
                    keys: &keys,
                    values: &values,
                    grad_outs: &grad_outs,
                    logsumexp: &logsumexp,
                    delta: &delta,
                };
                let grad_queries = backward_queries(&grid, &sizes, &saved);
                scatter(&grad_queries, &mut gradients.query, &grid, &sizes.query(batch, head));
                backward_keys(&grid, &sizes, &saved, &mut grad_keys, &mut grad_values);
            }
            scatter(&grad_keys, &mut gradients.key, &grid, &sizes.key(batch, head_kv));
            scatter(&grad_values, &mut gradients.value, &grid, &sizes.value(batch, head_kv));
        }
    }
    Ok(gradients)
}

fn check_type<T: Element>(problem: &Problem) -> Result<()> {
    if problem.dtype() == T::DTYPE {
        return Ok(());
    }
    Err(Error::invalid(format!("the problem is of {}, the slices of {}", problem.dtype(), T::DTYPE)))
}

/// The numbers that the loops need.
struct Sizes {
    heads: usize,
    heads_kv: usize,
    tokens: usize,
    tokens_kv: usize,
    dim: usize,
    dim_value: usize,
    scale: f64,
}

/// Where one head of one batch entry lies in a tensor `[batch, tokens, heads, width]`.
struct Rows {
    batch: usize,
    tokens: usize,
    heads: usize,
    head: usize,
    width: usize,
}

impl Sizes {
    fn new(problem: &Problem) -> Sizes {
        Sizes {
            heads: problem.heads(),
            heads_kv: problem.heads_kv(),
            tokens: problem.tokens(),
            tokens_kv: problem.tokens_kv(),
            dim: problem.dim(),
            dim_value: problem.dim_value(),
            scale: f64::from(problem.scale()),
        }
    }

    fn query_heads(&self, head_kv: usize) -> Range<usize> {
        let group = self.heads / self.heads_kv;
        head_kv * group..(head_kv + 1) * group
    }

    fn query(&self, batch: usize, head: usize) -> Rows {
        Rows { batch, tokens: self.tokens, heads: self.heads, head, width: self.dim }
    }

    fn out(&self, batch: usize, head: usize) -> Rows {
        Rows { width: self.dim_value, ..self.query(batch, head) }
    }

    fn key(&self, batch: usize, head: usize) -> Rows {
        Rows { batch, tokens: self.tokens_kv, heads: self.heads_kv, head, width: self.dim }
    }

    fn value(&self, batch: usize, head: usize) -> Rows {
        Rows { width: self.dim_value, ..self.key(batch, head) }
    }

    /// The positions of the extra tokens, which follow the grid's.
    fn extra(&self) -> Range<usize> {
        self.tokens..self.tokens_kv
    }
}

/// One head as `f64`, in grid order, extra tokens last.
fn gather<T: Element>(source: &[T], grid: &Grid, rows: &Rows) -> Vec<f64> {
    let mut gathered = vec![0.0; rows.tokens * rows.width];
    gathered.par_chunks_mut(rows.width).with_min_len(BLOCK).enumerate().for_each(|(position, row)| {
        let token = if position < grid.tokens() { grid.token(position) } else { position };
        let first = ((rows.batch * rows.tokens + token) * rows.heads + rows.head) * rows.width;
        for (to, from) in row.iter_mut().zip(&source[first..first + rows.width]) {
            *to = from.to_f64();
        }
    });
    gathered
}

/// The inverse of [`gather`], into one head of `target`.
fn scatter<T: Element>(source: &[f64], target: &mut [T], grid: &Grid, rows: &Rows) {
    let entry = rows.tokens * rows.heads * rows.width;
    let target = &mut target[rows.batch * entry..][..entry];
    target.par_chunks_mut(rows.heads * rows.width).with_min_len(BLOCK).enumerate().for_each(
        |(token, row)| {
            let position = if token < grid.tokens() { grid.position(token) } else { token };
            let row = &mut row[rows.head * rows.width..][..rows.width];
            for (to, from) in row.iter_mut().zip(&source[position * rows.width..]) {
                *to = T::from_f64(*from);
            }
        },
    );
}

struct HeadForward {
    out: Vec<f64>,
    logsumexp: Vec<f64>,
}

fn forward_head(grid: &Grid, sizes: &Sizes, queries: &[f64], keys: &[f64], values: &[f64]) -> HeadForward {
    let (dim, dim_value) = (sizes.dim, sizes.dim_value);
    let mut out = vec![0.0; sizes.tokens * dim_value];
    let mut logsumexp = vec![0.0; sizes.tokens];
    out.par_chunks_mut(BLOCK * dim_value).zip(logsumexp.par_chunks_mut(BLOCK)).enumerate().for_each(
        |(block, (out, logsumexp))| {
            let first = block * BLOCK;
            let mut runs = Vec::new();
            let mut weights = Vec::new();
            grid.visit(first..first + logsumexp.len(), Side::KeysOfQuery, &mut runs, |at, runs| {
                let query = row(queries, at, dim);
                let out = &mut out[(at - first) * dim_value..][..dim_value];
                weights.clear();
                for key in each(runs, sizes.extra()) {
                    weights.push(dot(query, row(keys, key, dim)) * sizes.scale);
                }
                let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut sum = 0.0;
                for weight in &mut weights {
                    *weight = (*weight - largest).exp();
                    sum += *weight;
                }
                for (key, weight) in each(runs, sizes.extra()).zip(&weights) {
                    add_scaled(out, *weight, row(values, key, dim_value));
                }
                for element in out {
                    *element /= sum;
                }
                logsumexp[at - first] = largest + sum.ln();
            });
        },
    );
    HeadForward { out, logsumexp }
}

/// One head's inputs, and what its forward pass left.
struct Saved<'a> {
    queries: &'a [f64],
    keys: &'a [f64],
    values: &'a [f64],
    grad_outs: &'a [f64],
    logsumexp: &'a [f64],
    delta: &'a [f64],
}

impl Saved<'_> {
    /// The attention that `query` pays to `key`, and the gradient of their scaled score.
    fn pair(&self, sizes: &Sizes, query: usize, key: usize) -> (f64, f64) {
        let score = dot(row(self.queries, query, sizes.dim), row(self.keys, key, sizes.dim)) * sizes.scale;
        let weight = (score - self.logsumexp[query]).exp();
        let grad = dot(row(self.grad_outs, query, sizes.dim_value), row(self.values, key, sizes.dim_value));
        (weight, weight * (grad - self.delta[query]))
    }
}

fn backward_queries(grid: &Grid, sizes: &Sizes, saved: &Saved<'_>) -> Vec<f64> {
    let dim = sizes.dim;
    let mut grad_queries = vec![0.0; sizes.tokens * dim];
    grad_queries.par_chunks_mut(BLOCK * dim).enumerate().for_each(|(block, grads)| {
        let first = block * BLOCK;
        let mut runs = Vec::new();
        grid.visit(first..first + grads.len() / dim, Side::KeysOfQuery, &mut runs, |at, runs| {
            let grad = &mut grads[(at - first) * dim..][..dim];
            for key in each(runs, sizes.extra()) {
                let (_, grad_score) = saved.pair(sizes, at, key);
                add_scaled(grad, grad_score * sizes.scale, row(saved.keys, key, dim));
            }
        });
    });
    grad_queries
}

/// Adds one query head's share to the gradients of its key head. Each key gathers from the queries
/// that see it, so no two tasks write the same row and the order of additions is fixed.
fn backward_keys(
    grid: &Grid,
    sizes: &Sizes,
    saved: &Saved<'_>,
    grad_keys: &mut [f64],
    grad_values: &mut [f64],
) {
    let (dim, dim_value) = (sizes.dim, sizes.dim_value);
    let (grid_keys, extra_keys) = grad_keys.split_at_mut(sizes.tokens * dim);
    let (grid_values, extra_values) = grad_values.split_at_mut(sizes.tokens * dim_value);
    let add = |key: usize, query: usize, grad_key: &mut [f64], grad_value: &mut [f64]| {
        let (weight, grad_score) = saved.pair(sizes, query, key);
        add_scaled(grad_key, grad_score * sizes.scale, row(saved.queries, query, dim));
        add_scaled(grad_value, weight, row(saved.grad_outs, query, dim_value));
    };
    grid_keys
        .par_chunks_mut(BLOCK * dim)
        .zip(grid_values.par_chunks_mut(BLOCK * dim_value))
        .enumerate()
        .for_each(|(block, (grad_keys, grad_values))| {
            let first = block * BLOCK;
            let mut runs = Vec::new();
            grid.visit(first..first + grad_keys.len() / dim, Side::QueriesOfKey, &mut runs, |at, runs| {
                let grad_key = &mut grad_keys[(at - first) * dim..][..dim];
                let grad_value = &mut grad_values[(at - first) * dim_value..][..dim_value];
                for query in each(runs, 0..0) {
                    add(at, query, grad_key, grad_value);
                }
            });
        });
    extra_keys.par_chunks_mut(dim).zip(extra_values.par_chunks_mut(dim_value)).enumerate().for_each(
        |(extra, (grad_key, grad_value))| {
            for query in 0..sizes.tokens {
                add(sizes.tokens + extra, query, grad_key, grad_value);
            }
        },
    );
}

fn each(runs: &[Range<usize>], extra: Range<usize>) -> impl Iterator<Item = usize> + '_ {
    runs.iter().cloned().flatten().chain(extra)
}

pub(super) fn row(rows: &[f64], at: usize, width: usize) -> &[f64] {
    &rows[at * width..][..width]
}

/// Four partial sums, so that the additions do not wait for each other.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (a_blocks, b_blocks) = (a.chunks_exact(4), b.chunks_exact(4));
    let tail: f64 = a_blocks.remainder().iter().zip(b_blocks.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a_blocks.zip(b_blocks) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + tail
}

pub(super) fn add_scaled(target: &mut [f64], factor: f64, source: &[f64]) {
    for (to, from) in target.iter_mut().zip(source) {
        *to += factor * from;
    }
}

#[cfg(test)]
mod tests;
