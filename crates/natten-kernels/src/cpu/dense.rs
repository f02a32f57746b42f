//! Dense attention over sequences, and the merge of attentions to several sets of keys.

use super::attention::{add_scaled, dot, row};
use super::{Forward, Gradients, check_len};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::ops::Dense;
use rayon::prelude::*;
use std::ops::Range;

/// Lengths of the sequences that lie one after another in tensors of a single batch entry: sequence `i` has
/// the query tokens from `queries[i]` up to `queries[i + 1]`, and the keys likewise. The device's
/// [`Sequences`](crate::ops::Sequences) point to the same numbers.
#[derive(Debug, Clone, Copy)]
pub struct Cumulative<'a> {
    /// From 0 up.
    pub queries: &'a [i32],
    /// From 0 up, as many.
    pub keys: &'a [i32],
}

/// Dense attention: `out = softmax(scale * query . key) . value`, each query over the keys of its sequence, or
/// if causal over those up to its own position.
///
/// Shapes: `query` `[batch, seqlen_q, heads, dim]`, `key` `[batch, seqlen_kv, heads_kv, dim]`, `value`
/// `[batch, seqlen_kv, heads_kv, dim_value]`. A query without keys and a token of no sequence have 0 for
/// output and minus infinity for logsumexp.
///
/// # Errors
/// [`Error::InvalidArgument`] if a slice has another length, `T` is another type than the problem's, or
/// `sequences` are out of order or beyond the tokens.
///
/// ```
/// use natten_kernels::{Dtype, cpu, ops::Dense};
///
/// // Two queries, three keys; the first query sees one key, the second two.
/// let problem = Dense { seqlen_q: 2, seqlen_kv: 3, dim: 1, dim_value: 1, causal: true, ..Dense::new(Dtype::Float32) };
/// let result = cpu::attention_forward(&problem, None, &[1.0_f32; 2], &[1.0; 3], &[2.0, 4.0, 9.0])?;
/// assert_eq!(result.out, [2.0, 3.0]);
/// # Ok::<(), natten_kernels::Error>(())
/// ```
pub fn attention_forward<T: Element>(
    problem: &Dense,
    sequences: Option<&Cumulative<'_>>,
    query: &[T],
    key: &[T],
    value: &[T],
) -> Result<Forward<T>> {
    let lengths = Lengths::check::<T>(problem, [query.len(), key.len(), value.len()])?;
    let segments = segments(problem, sequences)?;
    let mut result =
        Forward { out: vec![T::default(); lengths.out], logsumexp: vec![f32::NEG_INFINITY; lengths.rows] };
    let heads: Vec<(usize, usize)> = pairs(segments.len(), problem.heads);
    let computed: Vec<(Vec<f64>, Vec<f64>)> = heads
        .par_iter()
        .map(|(at, head)| {
            let segment = &segments[*at];
            let operands = Operands::gather(problem, segment, *head, query, key, value);
            let mut out = vec![0.0; segment.queries.len() * problem.dim_value];
            let mut logsumexp = vec![f64::NEG_INFINITY; segment.queries.len()];
            for (index, to) in out.chunks_exact_mut(problem.dim_value).enumerate() {
                let scores: Vec<f64> = (0..segment.seen(problem, index))
                    .map(|key| operands.score(problem, index, key))
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                for (key, score) in scores.iter().enumerate() {
                    add_scaled(
                        to,
                        (score - largest).exp() / sum,
                        row(&operands.values, key, problem.dim_value),
                    );
                }
                if !scores.is_empty() {
                    logsumexp[index] = largest + sum.ln();
                }
            }
            (out, logsumexp)
        })
        .collect();
    for ((at, head), (out, logsumexp)) in heads.iter().zip(&computed) {
        let tokens = &segments[*at].queries;
        scatter(out, &mut result.out, tokens, (problem.heads, *head, problem.dim_value));
        for (token, value) in tokens.clone().zip(logsumexp) {
            result.logsumexp[token * problem.heads + head] = *value as f32;
        }
    }
    Ok(result)
}

/// What a backward pass of dense attention reads.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a, T> {
    /// `[batch, seqlen_q, heads, dim]`.
    pub query: &'a [T],
    /// `[batch, seqlen_kv, heads_kv, dim]`.
    pub key: &'a [T],
    /// `[batch, seqlen_kv, heads_kv, dim_value]`.
    pub value: &'a [T],
    /// The forward pass's output; if it was merged with others, the merged one.
    pub out: &'a [T],
    /// The gradient of `out`.
    pub grad_out: &'a [T],
    /// The forward pass's logsumexp; if it was merged with others, the merged one.
    pub logsumexp: &'a [f32],
}

/// Gradients of [`attention_forward`]. With grouped heads, a key head's gradient is the sum over its query
/// heads. Tokens of no sequence have none.
///
/// # Errors
/// As [`attention_forward`].
pub fn attention_backward<T: Element>(
    problem: &Dense,
    sequences: Option<&Cumulative<'_>>,
    saved: &AttentionSaved<'_, T>,
) -> Result<Gradients<T>> {
    let AttentionSaved { query, key, value, out, grad_out, logsumexp } = *saved;
    let lengths = Lengths::check::<T>(problem, [query.len(), key.len(), value.len()])?;
    check_len("out", out, lengths.out)?;
    check_len("grad_out", grad_out, lengths.out)?;
    check_len("logsumexp", logsumexp, lengths.rows)?;
    let segments = segments(problem, sequences)?;
    let mut gradients = Gradients {
        query: vec![T::default(); query.len()],
        key: vec![T::default(); key.len()],
        value: vec![T::default(); value.len()],
    };
    let (dim, dim_value, group) = (problem.dim, problem.dim_value, problem.heads / problem.heads_kv);
    let heads = pairs(segments.len(), problem.heads_kv);
    let computed: Vec<KeyHead> = heads
        .par_iter()
        .map(|(at, head_kv)| {
            let segment = &segments[*at];
            let mut grad_keys = vec![0.0; segment.keys.len() * dim];
            let mut grad_values = vec![0.0; segment.keys.len() * dim_value];
            let each = (head_kv * group..(head_kv + 1) * group).map(|head| {
                let operands = Operands::gather(problem, segment, head, query, key, value);
                let outs = gather(out, &segment.queries, (problem.heads, head, dim_value));
                let grad_outs = gather(grad_out, &segment.queries, (problem.heads, head, dim_value));
                let mut grad_queries = vec![0.0; segment.queries.len() * dim];
                for (index, token) in segment.queries.clone().enumerate() {
                    let grad_out = row(&grad_outs, index, dim_value);
                    let delta = dot(row(&outs, index, dim_value), grad_out);
                    let total = f64::from(logsumexp[token * problem.heads + head]);
                    for key in 0..segment.seen(problem, index) {
                        let weight = (operands.score(problem, index, key) - total).exp();
                        let grad = dot(grad_out, row(&operands.values, key, dim_value)) - delta;
                        let grad = weight * grad * f64::from(problem.scale);
                        add_scaled(
                            &mut grad_queries[index * dim..][..dim],
                            grad,
                            row(&operands.keys, key, dim),
                        );
                        add_scaled(
                            &mut grad_keys[key * dim..][..dim],
                            grad,
                            row(&operands.queries, index, dim),
                        );
                        add_scaled(&mut grad_values[key * dim_value..][..dim_value], weight, grad_out);
                    }
                }
                grad_queries
            });
            let grad_queries = each.collect();
            (grad_queries, grad_keys, grad_values)
        })
        .collect();
    for ((at, head_kv), (grad_queries, grad_keys, grad_values)) in heads.iter().zip(&computed) {
        let segment = &segments[*at];
        for (member, grads) in grad_queries.iter().enumerate() {
            let shape = (problem.heads, head_kv * group + member, dim);
            scatter(grads, &mut gradients.query, &segment.queries, shape);
        }
        scatter(grad_keys, &mut gradients.key, &segment.keys, (problem.heads_kv, *head_kv, dim));
        scatter(grad_values, &mut gradients.value, &segment.keys, (problem.heads_kv, *head_kv, dim_value));
    }
    Ok(gradients)
}

/// Attention to the keys of several attentions together, from what each of them gave for the same queries:
/// outputs `[.., dim]` and logsumexps `[..]`, two or more.
///
/// Its gradient is that of each part, taken with the merged output and logsumexp in the place of the part's
/// own: pass those to each backward pass, and add up the gradients of the queries.
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than two parts, or lengths that differ.
///
/// ```
/// use natten_kernels::cpu::{self, Forward};
///
/// // One token, one element: a part with logsumexp 0 and one with ln 3 weigh 1 to 3.
/// let parts = [(1.0_f32, 0.0), (5.0, 3.0_f32.ln())]
///     .map(|(out, logsumexp)| Forward { out: vec![out], logsumexp: vec![logsumexp] });
/// let merged = cpu::merge_attentions(&parts.each_ref())?;
/// assert!((merged.out[0] - 4.0).abs() < 1e-6);
/// assert!((merged.logsumexp[0] - 4.0_f32.ln()).abs() < 1e-6);
/// # Ok::<(), natten_kernels::Error>(())
/// ```
pub fn merge_attentions<T: Element>(parts: &[&Forward<T>]) -> Result<Forward<T>> {
    let [first, rest @ ..] = parts else {
        return Err(Error::invalid("merge_attentions takes two attentions or more, got 0"));
    };
    if rest.is_empty() {
        return Err(Error::invalid("merge_attentions takes two attentions or more, got 1"));
    }
    let rows = first.logsumexp.len();
    if rows == 0 || first.out.is_empty() || !first.out.len().is_multiple_of(rows) {
        return Err(Error::invalid(format!(
            "attention 0 has {} elements of out for {rows} of logsumexp",
            first.out.len()
        )));
    }
    for part in rest {
        check_len("out of every attention", &part.out, first.out.len())?;
        check_len("logsumexp of every attention", &part.logsumexp, rows)?;
    }
    let dim = first.out.len() / rows;
    let mut merged = Forward { out: vec![T::default(); first.out.len()], logsumexp: vec![0.0; rows] };
    merged.out.par_chunks_mut(dim).zip(&mut merged.logsumexp).enumerate().for_each(
        |(at, (out, logsumexp))| {
            let largest =
                parts.iter().map(|part| f64::from(part.logsumexp[at])).fold(f64::NEG_INFINITY, f64::max);
            if largest == f64::NEG_INFINITY {
                // No part has a key for this query.
                *logsumexp = f32::NEG_INFINITY;
                return;
            }
            let weights: Vec<f64> =
                parts.iter().map(|part| (f64::from(part.logsumexp[at]) - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            *logsumexp = (largest + sum.ln()) as f32;
            for (d, to) in out.iter_mut().enumerate() {
                let total: f64 = parts
                    .iter()
                    .zip(&weights)
                    .map(|(part, weight)| weight * part.out[at * dim + d].to_f64())
                    .sum();
                *to = T::from_f64(total / sum);
            }
        },
    );
    Ok(merged)
}

/// Lengths that the tensors must have.
struct Lengths {
    out: usize,
    rows: usize,
}

impl Lengths {
    fn check<T: Element>(problem: &Dense, found: [usize; 3]) -> Result<Lengths> {
        problem.check_sizes()?;
        if problem.dtype != T::DTYPE {
            return Err(Error::invalid(format!(
                "the problem is of {}, the slices of {}",
                problem.dtype,
                T::DTYPE
            )));
        }
        let Dense { batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value, .. } = *problem;
        let product = |name: &str, factors: &[usize]| {
            let product = factors.iter().try_fold(1_usize, |n, next| n.checked_mul(*next));
            product.ok_or_else(|| Error::invalid(format!("{name}: too many elements, {factors:?}")))
        };
        for ((name, factors), found) in [
            ("query", [batch, seqlen_q, heads, dim]),
            ("key", [batch, seqlen_kv, heads_kv, dim]),
            ("value", [batch, seqlen_kv, heads_kv, dim_value]),
        ]
        .into_iter()
        .zip(found)
        {
            let expected = product(name, &factors)?;
            if found != expected {
                return Err(Error::invalid(format!("{name} must have {expected} elements, got {found}")));
            }
        }
        let out = product("out", &[batch, seqlen_q, heads, dim_value])?;
        Ok(Lengths { out, rows: batch * seqlen_q * heads })
    }
}

/// Query tokens and key tokens that belong together, of the tokens of all batch entries in a row.
struct Segment {
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Segment {
    /// How many keys query `index` sees.
    fn seen(&self, problem: &Dense, index: usize) -> usize {
        if problem.causal { self.keys.len().min(index + 1) } else { self.keys.len() }
    }
}

fn segments(problem: &Dense, sequences: Option<&Cumulative<'_>>) -> Result<Vec<Segment>> {
    let Some(Cumulative { queries, keys }) = sequences else {
        let entry = |at: usize, tokens: usize| at * tokens..(at + 1) * tokens;
        return Ok((0..problem.batch)
            .map(|at| Segment { queries: entry(at, problem.seqlen_q), keys: entry(at, problem.seqlen_kv) })
            .collect());
    };
    if problem.batch != 1 {
        return Err(Error::invalid(format!(
            "sequences of variable length lie in one batch entry, got batch {}",
            problem.batch
        )));
    }
    if queries.len() < 2 || queries.len() != keys.len() {
        return Err(Error::invalid(format!(
            "sequences: as many of queries as of keys and at least one, got {} and {} numbers",
            queries.len(),
            keys.len()
        )));
    }
    let ranges = |name: &str, numbers: &[i32], tokens: usize| -> Result<Vec<Range<usize>>> {
        let numbers: Option<Vec<usize>> = numbers.iter().map(|n| usize::try_from(*n).ok()).collect();
        numbers
            .filter(|n| n[0] == 0 && n.is_sorted() && n.last().is_some_and(|end| *end <= tokens))
            .map(|n| n.windows(2).map(|pair| pair[0]..pair[1]).collect())
            .ok_or_else(|| {
                Error::invalid(format!("cumulative {name} must rise from 0 to at most {tokens}, the tokens"))
            })
    };
    let queries = ranges("queries", queries, problem.seqlen_q)?;
    let keys = ranges("keys", keys, problem.seqlen_kv)?;
    Ok(queries.into_iter().zip(keys).map(|(queries, keys)| Segment { queries, keys }).collect())
}

fn pairs(segments: usize, heads: usize) -> Vec<(usize, usize)> {
    (0..segments).flat_map(|at| (0..heads).map(move |head| (at, head))).collect()
}

/// Gradients of one key head of one sequence: of each of its query heads, of keys, of values.
type KeyHead = (Vec<Vec<f64>>, Vec<f64>, Vec<f64>);

/// One query head of one sequence.
struct Operands {
    queries: Vec<f64>,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl Operands {
    fn gather<T: Element>(
        problem: &Dense,
        segment: &Segment,
        head: usize,
        query: &[T],
        key: &[T],
        value: &[T],
    ) -> Operands {
        let head_kv = head / (problem.heads / problem.heads_kv);
        Operands {
            queries: gather(query, &segment.queries, (problem.heads, head, problem.dim)),
            keys: gather(key, &segment.keys, (problem.heads_kv, head_kv, problem.dim)),
            values: gather(value, &segment.keys, (problem.heads_kv, head_kv, problem.dim_value)),
        }
    }

    fn score(&self, problem: &Dense, query: usize, key: usize) -> f64 {
        let score = dot(row(&self.queries, query, problem.dim), row(&self.keys, key, problem.dim));
        score * f64::from(problem.scale)
    }
}

/// `(heads, head, width)` of a tensor `[tokens, heads, width]`.
type Rows = (usize, usize, usize);

fn gather<T: Element>(source: &[T], tokens: &Range<usize>, (heads, head, width): Rows) -> Vec<f64> {
    tokens
        .clone()
        .flat_map(|token| source[(token * heads + head) * width..][..width].iter().map(|x| x.to_f64()))
        .collect()
}

fn scatter<T: Element>(source: &[f64], target: &mut [T], tokens: &Range<usize>, (heads, head, width): Rows) {
    for (token, row) in tokens.clone().zip(source.chunks_exact(width)) {
        for (to, from) in target[(token * heads + head) * width..][..width].iter_mut().zip(row) {
            *to = T::from_f64(*from);
        }
    }
}

#[cfg(test)]
mod tests;
