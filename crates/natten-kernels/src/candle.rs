//! Feature `candle`: attention on the tensors of the crate `candle-core`, with gradients.
//!
//! Tensors of the CPU go to [`cpu`] (float32, float64, float16, bfloat16). With feature `candle-cuda`
//! those of a device go to the linked artifact (float32, float16, bfloat16), by the backend that the
//! [dispatcher](crate::dispatch) chooses, on the stream of candle's device; without it they are refused.
//! candle builds kernels of its own for devices, which takes nvcc; `candle` alone needs neither toolkit nor device.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use natten_kernels::candle::{Neighborhood, neighborhood_attention};
//!
//! // [batch, height, width, heads, dim]
//! let shape = (1, 8, 8, 2, 16);
//! let query = Var::randn(0_f32, 1.0, shape, &Device::Cpu)?;
//! let key = Tensor::randn(0_f32, 1.0, shape, &Device::Cpu)?;
//! let value = Tensor::randn(0_f32, 1.0, shape, &Device::Cpu)?;
//!
//! let neighborhood = Neighborhood { window: vec![3, 3], ..Neighborhood::default() };
//! let out = neighborhood_attention(&query, &key, &value, &neighborhood)?;
//! assert_eq!(out.dims(), [1, 8, 8, 2, 16]);
//! let gradients = out.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&query).expect("query is a variable").dims(), query.dims());
//! # Ok::<(), candle_core::Error>(())
//! ```

#[cfg(feature = "candle-cuda")]
mod device;

use crate::cpu::{self, AttentionSaved, Gradients};
use crate::dtype::{Dtype, Element};
use crate::ops::Dense;
use crate::problem::Problem;
use candle_core::{CpuStorage, CustomOp3, DType, Error, Layout, Result, Shape, Storage, Tensor, WithDType};

/// Which tokens a token attends to, per spatial axis: [`Problem`] says what each number means.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Neighborhood {
    /// Tokens of the window; one number for each spatial axis.
    pub window: Vec<usize>,
    /// Tokens that share a window; empty: 1 everywhere.
    pub stride: Vec<usize>,
    /// Steps between the tokens of a window; empty: 1 everywhere.
    pub dilation: Vec<usize>,
    /// Whether no token attends to later ones; empty: nowhere.
    pub causal: Vec<bool>,
    /// Factor of the scores; `None`: `1 / sqrt(dim)`.
    pub scale: Option<f32>,
}

/// Neighborhood attention, with gradients for all three tensors: `query` `[batch, *spatial, heads, dim]`, `key`
/// `[batch, *spatial, heads_kv, dim]`, `value` `[batch, *spatial, heads_kv, dim_value]`, of one to three spatial axes;
/// gives `[batch, *spatial, heads, dim_value]`. `heads` is a multiple of `heads_kv` (GQA, MQA).
///
/// Tensors are made contiguous. On the CPU the backward pass computes the forward pass again.
///
/// # Errors
/// For shapes, types or devices that differ or are not taken, with the reason of [`Problem`] or of the backend.
pub fn neighborhood_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    neighborhood: &Neighborhood,
) -> Result<Tensor> {
    let sizes = Sizes::of(query, key, value, 1..=3)?;
    if key.dims()[1..=sizes.spatial.len()] != sizes.spatial {
        return Err(mismatch("query and key must have the same spatial axes", [query, key]));
    }
    let Neighborhood { window, stride, dilation, causal, scale } = neighborhood;
    let mut builder = Problem::builder(sizes.dtype, &sizes.spatial)
        .batch(sizes.batch)
        .heads(sizes.heads)
        .heads_kv(sizes.heads_kv)
        .dim(sizes.dim)
        .dim_value(sizes.dim_value)
        .window(window);
    if !stride.is_empty() {
        builder = builder.stride(stride);
    }
    if !dilation.is_empty() {
        builder = builder.dilation(dilation);
    }
    if !causal.is_empty() {
        builder = builder.causal(causal);
    }
    if let Some(scale) = scale {
        builder = builder.scale(*scale);
    }
    apply(Work::Neighborhood(builder.build().map_err(Error::wrap)?), query, key, value)
}

/// Dense attention, with gradients for all three tensors: `query` `[batch, seqlen_q, heads, dim]`, `key` `[batch,
/// seqlen_kv, heads_kv, dim]`, `value` `[batch, seqlen_kv, heads_kv, dim_value]`; gives `[batch, seqlen_q, heads,
/// dim_value]`. With `causal`, the query at position i attends to the keys up to position i. A `scale` of `None` is
/// `1 / sqrt(dim)`.
///
/// # Errors
/// As [`neighborhood_attention`].
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    causal: bool,
    scale: Option<f32>,
) -> Result<Tensor> {
    let Sizes { dtype, batch, spatial, heads, heads_kv, dim, dim_value } =
        Sizes::of(query, key, value, 1..=1)?;
    let problem = Dense {
        dtype,
        batch,
        seqlen_q: spatial[0],
        seqlen_kv: key.dims()[1],
        heads,
        heads_kv,
        dim,
        dim_value,
        causal,
        scale: scale.unwrap_or(1.0 / (dim as f32).sqrt()),
    };
    problem.check_sizes().map_err(Error::wrap)?;
    apply(Work::Dense(problem), query, key, value)
}

fn apply(work: Work, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let mut shape = query.dims().to_vec();
    if let (Some(last), Some(dim)) = (shape.last_mut(), value.dims().last()) {
        *last = *dim;
    }
    let op = Forward {
        work,
        shape: Shape::from_dims(&shape),
        #[cfg(feature = "candle-cuda")]
        logsumexp: device::Logsumexp::default(),
    };
    query.contiguous()?.apply_op3(&key.contiguous()?, &value.contiguous()?, op)
}

/// What the shapes of the tensors say.
struct Sizes {
    dtype: Dtype,
    batch: usize,
    spatial: Vec<usize>,
    heads: usize,
    heads_kv: usize,
    dim: usize,
    dim_value: usize,
}

impl Sizes {
    fn of(
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        ranks: std::ops::RangeInclusive<usize>,
    ) -> Result<Sizes> {
        let ([batch, spatial @ .., heads, dim], [batch_kv, tokens @ .., heads_kv, dim_kv]) =
            (query.dims(), key.dims())
        else {
            return Err(mismatch("query and key must be [batch, tokens.., heads, dim]", [query, key]));
        };
        if !ranks.contains(&spatial.len()) || tokens.len() != spatial.len() {
            let (least, most) = (ranks.start(), ranks.end());
            let what = format!("query and key must have {least} to {most} axes of tokens");
            return Err(mismatch(&what, [query, key]));
        }
        if batch != batch_kv || dim != dim_kv {
            return Err(mismatch("query and key must have the same batch and dim", [query, key]));
        }
        let Some((dim_value, rest)) = value.dims().split_last() else {
            return Err(mismatch("value must be as key but for its last axis", [key, value]));
        };
        if rest != &key.dims()[..key.rank() - 1] {
            return Err(mismatch("value must be as key but for its last axis", [key, value]));
        }
        if query.dtype() != key.dtype() || query.dtype() != value.dtype() {
            return Err(Error::msg(format!(
                "query, key and value must be of one type, got {:?}, {:?} and {:?}",
                query.dtype(),
                key.dtype(),
                value.dtype()
            )));
        }
        Ok(Sizes {
            dtype: dtype(query.dtype())?,
            batch: *batch,
            spatial: spatial.to_vec(),
            heads: *heads,
            heads_kv: *heads_kv,
            dim: *dim,
            dim_value: *dim_value,
        })
    }
}

fn mismatch(what: &str, tensors: [&Tensor; 2]) -> Error {
    Error::msg(format!("{what}, got {:?} and {:?}", tensors[0].shape(), tensors[1].shape())).bt()
}

fn dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::Float32),
        DType::F64 => Ok(Dtype::Float64),
        DType::F16 => Ok(Dtype::Float16),
        DType::BF16 => Ok(Dtype::Bfloat16),
        other => Err(Error::msg(format!("attention takes f32, f64, f16 and bf16, got {other:?}"))),
    }
}

/// What is computed.
#[derive(Debug, Clone)]
enum Work {
    Neighborhood(Problem),
    Dense(Dense),
}

impl Work {
    fn forward<T: Element>(&self, query: &[T], key: &[T], value: &[T]) -> crate::Result<cpu::Forward<T>> {
        match self {
            Work::Neighborhood(problem) => cpu::forward(problem, query, key, value),
            Work::Dense(problem) => cpu::attention_forward(problem, None, query, key, value),
        }
    }

    fn backward<T: Element>(
        &self,
        query: &[T],
        key: &[T],
        value: &[T],
        grad_out: &[T],
    ) -> crate::Result<Gradients<T>> {
        match self {
            Work::Neighborhood(problem) => cpu::backward(problem, query, key, value, grad_out),
            Work::Dense(problem) => {
                let forward = cpu::attention_forward(problem, None, query, key, value)?;
                let (out, logsumexp) = (&forward.out, &forward.logsumexp);
                let saved = AttentionSaved { query, key, value, out, grad_out, logsumexp };
                cpu::attention_backward(problem, None, &saved)
            }
        }
    }
}

/// A tensor's elements; it is contiguous.
fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(Error::RequiresContiguous { op: "attention" }.bt());
    };
    Ok(&storage.as_slice::<T>()?[start..end])
}

/// `$call::<T>($argument..)` for the type of `$storage`.
macro_rules! for_type {
    ($storage:expr, $call:ident($($argument:expr),*)) => {
        match $storage {
            CpuStorage::F32(_) => $call::<f32>($($argument),*),
            CpuStorage::F64(_) => $call::<f64>($($argument),*),
            CpuStorage::F16(_) => $call::<half::f16>($($argument),*),
            CpuStorage::BF16(_) => $call::<half::bf16>($($argument),*),
            other => Err(dtype(candle_core::backend::BackendStorage::dtype(other))
                .err()
                .unwrap_or_else(|| Error::msg("attention does not take this type on the CPU"))),
        }
    };
}

/// Three tensors of the CPU.
type Operands<'a> = [(&'a CpuStorage, &'a Layout); 3];

struct Forward {
    work: Work,
    shape: Shape,
    /// What a device's forward pass leaves for its backward pass.
    #[cfg(feature = "candle-cuda")]
    logsumexp: device::Logsumexp,
}

impl CustomOp3 for Forward {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        fn run<T: Element + WithDType>(work: &Work, [q, k, v]: Operands<'_>) -> Result<CpuStorage> {
            let (q, k, v) = (elements(q.0, q.1)?, elements(k.0, k.1)?, elements(v.0, v.1)?);
            Ok(T::to_cpu_storage_owned(work.forward::<T>(q, k, v).map_err(Error::wrap)?.out))
        }
        let operands = [(s1, l1), (s2, l2), (s3, l3)];
        Ok((for_type!(s1, run(&self.work, operands))?, self.shape.clone()))
    }

    #[cfg(feature = "candle-cuda")]
    fn cuda_fwd(
        &self,
        s1: &candle_core::CudaStorage,
        l1: &Layout,
        s2: &candle_core::CudaStorage,
        l2: &Layout,
        s3: &candle_core::CudaStorage,
        l3: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let operands = [(s1, l1), (s2, l2), (s3, l3)];
        Ok((device::forward(&self.work, operands, &self.logsumexp)?, self.shape.clone()))
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        out: &Tensor,
        grad_out: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let lengths = [query, key, value].map(Tensor::elem_count);
        let backward = Backward {
            work: self.work.clone(),
            lengths,
            out: out.clone(),
            grad_out: grad_out.contiguous()?,
            #[cfg(feature = "candle-cuda")]
            logsumexp: self.logsumexp.clone(),
        };
        let all = query.apply_op3_no_bwd(key, value, &backward)?;
        let mut start = 0;
        let [query, key, value] = [query, key, value].map(|of| {
            let gradient = all.narrow(0, start, of.elem_count()).and_then(|flat| flat.reshape(of.shape()));
            start += padded(of.elem_count());
            gradient
        });
        Ok((Some(query?), Some(key?), Some(value?)))
    }
}

/// The three gradients as one flat tensor, since an operation gives one: each starts at a multiple of 16 bytes.
struct Backward {
    work: Work,
    lengths: [usize; 3],
    #[cfg_attr(not(feature = "candle-cuda"), expect(dead_code, reason = "the CPU computes it again"))]
    out: Tensor,
    grad_out: Tensor,
    #[cfg(feature = "candle-cuda")]
    logsumexp: device::Logsumexp,
}

impl Backward {
    fn len(&self) -> usize {
        self.lengths.iter().map(|len| padded(*len)).sum()
    }
}

/// Elements that a gradient takes in the flat tensor.
fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

impl CustomOp3 for Backward {
    fn name(&self) -> &'static str {
        "attention-backward"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        fn run<T: Element + WithDType>(
            work: &Work,
            [q, k, v]: Operands<'_>,
            (grad, layout): (&CpuStorage, &Layout),
        ) -> Result<CpuStorage> {
            let (q, k, v) = (elements(q.0, q.1)?, elements(k.0, k.1)?, elements(v.0, v.1)?);
            let gradients = work.backward::<T>(q, k, v, elements(grad, layout)?).map_err(Error::wrap)?;
            let mut all = Vec::new();
            for mut part in [gradients.query, gradients.key, gradients.value] {
                part.resize(padded(part.len()), T::default());
                all.append(&mut part);
            }
            Ok(T::to_cpu_storage_owned(all))
        }
        let (grad, layout) = self.grad_out.storage_and_layout();
        let Storage::Cpu(grad) = &*grad else {
            return Err(Error::msg("the gradient of attention is on another device than its operands"));
        };
        let operands = [(s1, l1), (s2, l2), (s3, l3)];
        let all = for_type!(s1, run(&self.work, operands, (grad, layout)))?;
        Ok((all, Shape::from(self.len())))
    }

    #[cfg(feature = "candle-cuda")]
    fn cuda_fwd(
        &self,
        s1: &candle_core::CudaStorage,
        l1: &Layout,
        s2: &candle_core::CudaStorage,
        l2: &Layout,
        s3: &candle_core::CudaStorage,
        l3: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        Ok((device::backward(self, [(s1, l1), (s2, l2), (s3, l3)])?, Shape::from(self.len())))
    }
}

#[cfg(test)]
mod tests;
