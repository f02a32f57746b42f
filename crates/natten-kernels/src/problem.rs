//! A neighborhood attention problem, checked once when it is made; everything else may trust it.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::neighborhood::Axis;

/// Shapes and parameters of one neighborhood attention call.
///
/// Tensors are dense and row-major:
///
/// | tensor | shape |
/// |---|---|
/// | `query`, `grad_query` | `[batch, *extents, heads, dim]` |
/// | `key`, `grad_key` | `[batch, *extents, heads_kv, dim]` |
/// | `value`, `grad_value` | `[batch, *extents, heads_kv, dim_value]` |
/// | `out`, `grad_out` | `[batch, *extents, heads, dim_value]` |
/// | `logsumexp` | `[batch, *extents, heads]`, float32 |
///
/// With [`extra_kv`](Problem::extra_kv) tokens, the tokens of `key` and `value` are flattened and the
/// extra ones follow: `[batch, tokens + extra_kv, heads_kv, ..]`. Every query attends to them.
///
/// The rules are upstream's: 1 to 3 axes; `window > 1`; `1 <= stride <= window`; `dilation >= 1`;
/// `window * dilation <= extent` on every axis; `heads` a multiple of `heads_kv`. Token and element
/// counts must fit the integers that the kernels use, so that no later product overflows.
///
/// ```
/// use natten_kernels::{Dtype, Problem};
///
/// let problem = Problem::builder(Dtype::Float16, &[32, 32])
///     .heads(4)
///     .dim(64)
///     .window(&[7, 7])
///     .causal(&[true, false])
///     .build()?;
/// assert_eq!(problem.query_len(), 32 * 32 * 4 * 64);
///
/// let error = Problem::builder(Dtype::Float16, &[32, 32]).dim(64).window(&[7, 33]).build();
/// assert!(error.unwrap_err().to_string().contains("axis 1"));
/// # Ok::<(), natten_kernels::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    dtype: Dtype,
    rank: usize,
    batch: usize,
    heads: usize,
    heads_kv: usize,
    dim: usize,
    dim_value: usize,
    extra_kv: usize,
    axes: [Axis; 3],
    scale: f32,
}

/// Collects the parts of a [`Problem`]; [`build`](ProblemBuilder::build) checks them all.
#[derive(Debug, Clone)]
pub struct ProblemBuilder {
    dtype: Dtype,
    extents: Vec<usize>,
    batch: usize,
    heads: usize,
    heads_kv: Option<usize>,
    dim: usize,
    dim_value: Option<usize>,
    extra_kv: usize,
    window: Option<Vec<usize>>,
    stride: Option<Vec<usize>>,
    dilation: Option<Vec<usize>>,
    causal: Option<Vec<bool>>,
    scale: Option<f32>,
}

impl ProblemBuilder {
    /// Batch size; 1 if not given.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Query heads; 1 if not given.
    pub fn heads(mut self, heads: usize) -> Self {
        self.heads = heads;
        self
    }

    /// Key and value heads, a divisor of the query heads (GQA, MQA); the query heads if not given.
    /// Query head `h` reads key head `h / (heads / heads_kv)`.
    pub fn heads_kv(mut self, heads_kv: usize) -> Self {
        self.heads_kv = Some(heads_kv);
        self
    }

    /// Elements per head of `query` and `key`. Required.
    pub fn dim(mut self, dim: usize) -> Self {
        self.dim = dim;
        self
    }

    /// Elements per head of `value` and `out`; `dim` if not given.
    pub fn dim_value(mut self, dim_value: usize) -> Self {
        self.dim_value = Some(dim_value);
        self
    }

    /// Tokens after the neighborhood's in `key` and `value` that every query attends to; 0 if not given.
    pub fn extra_kv(mut self, tokens: usize) -> Self {
        self.extra_kv = tokens;
        self
    }

    /// Keys that a query sees, per axis. Required.
    pub fn window(mut self, window: &[usize]) -> Self {
        self.window = Some(window.to_vec());
        self
    }

    /// Queries that share a window, per axis; 1 if not given.
    pub fn stride(mut self, stride: &[usize]) -> Self {
        self.stride = Some(stride.to_vec());
        self
    }

    /// Distance between neighbors, per axis; 1 if not given.
    pub fn dilation(mut self, dilation: &[usize]) -> Self {
        self.dilation = Some(dilation.to_vec());
        self
    }

    /// Per axis, whether a query sees no key after itself; `false` if not given.
    pub fn causal(mut self, causal: &[bool]) -> Self {
        self.causal = Some(causal.to_vec());
        self
    }

    /// Factor of the scores; `1 / sqrt(dim)` if not given.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// The checked problem.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first rule that is broken and, for a rule about an axis, the axis.
    pub fn build(self) -> Result<Problem> {
        let rank = self.extents.len();
        if !(1..=3).contains(&rank) {
            return Err(Error::invalid(format!(
                "expected 1 to 3 token axes, got {rank}: {:?}",
                self.extents
            )));
        }
        let heads_kv = self.heads_kv.unwrap_or(self.heads);
        let dim_value = self.dim_value.unwrap_or(self.dim);
        for (name, value) in [
            ("batch", self.batch),
            ("heads", self.heads),
            ("heads_kv", heads_kv),
            ("dim", self.dim),
            ("dim_value", dim_value),
        ] {
            if value == 0 {
                return Err(Error::invalid(format!("{name} must be at least 1, got 0")));
            }
            fits_i32(name, value)?;
        }
        if !self.heads.is_multiple_of(heads_kv) {
            return Err(Error::invalid(format!(
                "heads must be a multiple of heads_kv, got {} and {heads_kv}",
                self.heads
            )));
        }
        let scale = self.scale.unwrap_or_else(|| (1.0 / (self.dim as f64).sqrt()) as f32);
        if !scale.is_finite() {
            return Err(Error::invalid(format!("scale must be finite, got {scale}")));
        }
        let window = per_axis("window", self.window.as_deref(), rank, None)?;
        let stride = per_axis("stride", self.stride.as_deref(), rank, Some(1))?;
        let dilation = per_axis("dilation", self.dilation.as_deref(), rank, Some(1))?;
        let causal = per_axis("causal", self.causal.as_deref(), rank, Some(false))?;
        let mut axes = [Axis::UNIT; 3];
        for at in 0..rank {
            axes[at] = Axis {
                extent: self.extents[at],
                window: window[at],
                stride: stride[at],
                dilation: dilation[at],
                causal: causal[at],
            };
            check_axis(at, &axes[at])?;
        }
        let problem = Problem {
            dtype: self.dtype,
            rank,
            batch: self.batch,
            heads: self.heads,
            heads_kv,
            dim: self.dim,
            dim_value,
            extra_kv: self.extra_kv,
            axes,
            scale,
        };
        problem.check_counts()?;
        Ok(problem)
    }
}

fn fits_i32(name: &str, value: usize) -> Result<()> {
    i32::try_from(value).map(|_| ()).map_err(|_| {
        Error::invalid(format!("{name} is {value}, more than the kernels can count ({})", i32::MAX))
    })
}

fn per_axis<T: Copy + std::fmt::Debug>(
    name: &str,
    given: Option<&[T]>,
    rank: usize,
    default: Option<T>,
) -> Result<Vec<T>> {
    match (given, default) {
        (Some(values), _) if values.len() == rank => Ok(values.to_vec()),
        (Some(values), _) => Err(Error::invalid(format!(
            "{name} must have one value per token axis ({rank}), got {}: {values:?}",
            values.len()
        ))),
        (None, Some(value)) => Ok(vec![value; rank]),
        (None, None) => Err(Error::invalid(format!("{name} is required"))),
    }
}

fn check_axis(at: usize, axis: &Axis) -> Result<()> {
    let Axis { extent, window, stride, dilation, causal: _ } = *axis;
    fits_i32("an extent", extent)?;
    let broken = if window <= 1 {
        format!("window must be greater than 1, got {window}")
    } else if dilation == 0 {
        "dilation must be at least 1, got 0".to_owned()
    } else if stride == 0 {
        "stride must be at least 1, got 0".to_owned()
    } else if stride > window {
        format!("stride must not exceed the window, got stride {stride} and window {window}")
    } else if window.checked_mul(dilation).is_none_or(|reach| reach > extent) {
        format!(
            "window * dilation must not exceed the extent, got window {window}, dilation {dilation} and extent {extent}"
        )
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("axis {at}: {broken}")))
}

impl Problem {
    /// Starts a problem over `extents`: one number of tokens per axis, 1 to 3 axes.
    pub fn builder(dtype: Dtype, extents: &[usize]) -> ProblemBuilder {
        ProblemBuilder {
            dtype,
            extents: extents.to_vec(),
            batch: 1,
            heads: 1,
            heads_kv: None,
            dim: 0,
            dim_value: None,
            extra_kv: 0,
            window: None,
            stride: None,
            dilation: None,
            causal: None,
            scale: None,
        }
    }

    fn check_counts(&self) -> Result<()> {
        let product = |name: &str, factors: &[usize], limit: usize| {
            factors
                .iter()
                .try_fold(1_usize, |all, next| all.checked_mul(*next))
                .filter(|n| *n <= limit)
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "{name} ({factors:?}) is more than the kernels can count ({limit})"
                    ))
                })
        };
        let i32_max = i32::MAX as usize;
        let tokens = product("the number of tokens", &self.extents()[..], i32_max)?;
        let tokens_kv = tokens.checked_add(self.extra_kv).filter(|n| *n <= i32_max).ok_or_else(|| {
            Error::invalid(format!("extra_kv ({}) is more than the kernels can count", self.extra_kv))
        })?;
        // Bytes of the largest tensor fit a signed 64-bit offset, with room for float64.
        let limit = (i64::MAX / 8) as usize;
        let dim = self.dim.max(self.dim_value);
        product("the number of query elements", &[self.batch, tokens, self.heads, dim], limit)?;
        product("the number of key elements", &[self.batch, tokens_kv, self.heads_kv, dim], limit)?;
        Ok(())
    }

    /// The same problem over other elements: an oracle for a float16 problem is its float64 twin.
    pub fn with_dtype(&self, dtype: Dtype) -> Problem {
        Problem { dtype, ..self.clone() }
    }

    /// The same problem after each key head was repeated for its query heads.
    pub(crate) fn ungrouped(&self) -> Problem {
        Problem { heads_kv: self.heads, ..self.clone() }
    }

    /// What the elements are.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of token axes, 1 to 3.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Batch size.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Key and value heads.
    pub fn heads_kv(&self) -> usize {
        self.heads_kv
    }

    /// Elements per head of `query` and `key`.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Elements per head of `value` and `out`.
    pub fn dim_value(&self) -> usize {
        self.dim_value
    }

    /// Tokens of `key` and `value` beyond the neighborhood's.
    pub fn extra_kv(&self) -> usize {
        self.extra_kv
    }

    /// Factor of the scores.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The token axes, outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes[..self.rank]
    }

    /// Three axes, the missing outer ones a single token, so that one loop serves every rank.
    pub(crate) fn padded_axes(&self) -> [Axis; 3] {
        let mut padded = [Axis::UNIT; 3];
        padded[3 - self.rank..].copy_from_slice(self.axes());
        padded
    }

    /// Tokens per axis.
    pub fn extents(&self) -> Vec<usize> {
        self.axes().iter().map(|axis| axis.extent).collect()
    }

    /// Causal flags of the three possible axes; `false` beyond the rank.
    pub fn causal(&self) -> [bool; 3] {
        self.axes.map(|axis| axis.causal)
    }

    /// Tokens of `query`: the product of the extents.
    pub fn tokens(&self) -> usize {
        self.axes().iter().map(|axis| axis.extent).product()
    }

    /// Tokens of `key` and `value`: [`tokens`](Problem::tokens) and the extra ones.
    pub fn tokens_kv(&self) -> usize {
        self.tokens() + self.extra_kv
    }

    /// Elements of `query`.
    pub fn query_len(&self) -> usize {
        self.batch * self.tokens() * self.heads * self.dim
    }

    /// Elements of `key`.
    pub fn key_len(&self) -> usize {
        self.batch * self.tokens_kv() * self.heads_kv * self.dim
    }

    /// Elements of `value`.
    pub fn value_len(&self) -> usize {
        self.batch * self.tokens_kv() * self.heads_kv * self.dim_value
    }

    /// Elements of `out`.
    pub fn out_len(&self) -> usize {
        self.batch * self.tokens() * self.heads * self.dim_value
    }

    /// Elements of `logsumexp`.
    pub fn logsumexp_len(&self) -> usize {
        self.batch * self.tokens() * self.heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(extents: &[usize], window: &[usize]) -> ProblemBuilder {
        Problem::builder(Dtype::Float32, extents).heads(4).dim(16).window(window)
    }

    #[test]
    fn every_broken_rule_is_refused_and_named() {
        let huge = usize::MAX / 2;
        let cases: Vec<(ProblemBuilder, &str)> = vec![
            (base(&[], &[]), "1 to 3 token axes"),
            (base(&[8, 8, 8, 8], &[3; 4]), "1 to 3 token axes"),
            (base(&[8, 8], &[3]), "one value per token axis"),
            (base(&[8], &[3]).stride(&[1, 1]), "stride must have one value"),
            (base(&[8], &[3]).dilation(&[]), "dilation must have one value"),
            (base(&[8], &[3]).causal(&[true, false]), "causal must have one value"),
            (Problem::builder(Dtype::Float32, &[8]).dim(8), "window is required"),
            (Problem::builder(Dtype::Float32, &[8]).window(&[3]), "dim must be at least 1"),
            (base(&[8], &[3]).batch(0), "batch must be at least 1"),
            (base(&[8], &[3]).heads(0), "heads must be at least 1"),
            (base(&[8], &[3]).heads_kv(0), "heads_kv must be at least 1"),
            (base(&[8], &[3]).dim_value(0), "dim_value must be at least 1"),
            (base(&[8], &[3]).heads_kv(3), "multiple of heads_kv"),
            (base(&[8], &[3]).heads_kv(8), "multiple of heads_kv"),
            (base(&[8], &[1]), "axis 0: window must be greater than 1"),
            (base(&[8], &[0]), "axis 0: window must be greater than 1"),
            (base(&[8, 8], &[3, 9]), "axis 1: window * dilation"),
            (base(&[8, 8], &[3, 3]).dilation(&[1, 3]), "axis 1: window * dilation"),
            (base(&[8], &[3]).dilation(&[0]), "dilation must be at least 1"),
            (base(&[8], &[3]).stride(&[0]), "stride must be at least 1"),
            (base(&[8], &[3]).stride(&[4]), "stride must not exceed the window"),
            (base(&[0], &[3]), "axis 0: window * dilation"),
            (base(&[8], &[3]).scale(f32::NAN), "scale must be finite"),
            (base(&[8], &[3]).scale(f32::INFINITY), "scale must be finite"),
            // Products that overflow are refused, not wrapped.
            (base(&[8], &[huge]).dilation(&[4]), "axis 0: window * dilation"),
            (base(&[1 << 31], &[3]), "more than the kernels can count"),
            (base(&[1 << 16, 1 << 16], &[3, 3]), "number of tokens"),
            (base(&[8], &[3]).extra_kv(usize::MAX), "extra_kv"),
            (base(&[8], &[3]).batch(huge), "batch is"),
            (base(&[1 << 30], &[3]).batch(1 << 30).heads(1 << 20), "query elements"),
        ];
        for (builder, expected) in cases {
            let shown = format!("{builder:?}");
            match builder.build() {
                Err(Error::InvalidArgument(message)) => {
                    assert!(message.contains(expected), "`{message}` lacks `{expected}`: {shown}");
                }
                other => panic!("{shown}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_limits_themselves_are_accepted() {
        let cases: Vec<ProblemBuilder> = vec![
            base(&[2], &[2]),
            base(&[8], &[8]),
            base(&[8], &[4]).dilation(&[2]).stride(&[4]),
            base(&[8, 9, 10], &[8, 9, 10]).causal(&[true; 3]),
            base(&[8], &[3]).heads_kv(1).extra_kv(5).dim_value(3).scale(-1.0),
        ];
        for builder in cases {
            let shown = format!("{builder:?}");
            assert!(builder.build().is_ok(), "{shown}");
        }
    }

    #[test]
    fn lengths_are_those_of_the_documented_shapes() {
        let problem = base(&[4, 6], &[3, 3]).batch(2).heads_kv(2).dim_value(5).extra_kv(7).build().unwrap();
        assert_eq!(problem.query_len(), 2 * 24 * 4 * 16);
        assert_eq!(problem.key_len(), 2 * 31 * 2 * 16);
        assert_eq!(problem.value_len(), 2 * 31 * 2 * 5);
        assert_eq!(problem.out_len(), 2 * 24 * 4 * 5);
        assert_eq!(problem.logsumexp_len(), 2 * 24 * 4);
        assert_eq!(problem.scale(), 0.25);
        assert_eq!(problem.causal(), [false; 3]);
    }
}
