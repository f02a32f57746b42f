//! Feature `candle-cuda`: candle's device storage to the linked artifact.

use super::{Backward, Work, padded};
use crate::cudarc::{self as safe, Options};
use crate::dtype::Element;
use ::cudarc::driver::{CudaSlice, CudaView, DeviceRepr, ValidAsZeroBits};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::{CudaStorage, DType, Error, Layout, Result, Storage};
use std::sync::{Arc, OnceLock};

/// What a forward pass leaves for its backward pass.
#[derive(Clone, Default)]
pub(super) struct Logsumexp(Arc<OnceLock<CudaSlice<f32>>>);

/// Three tensors of a device.
pub(super) type DeviceOperands<'a> = [(&'a CudaStorage, &'a Layout); 3];

/// An element type of candle, cudarc and this crate.
trait Number: Element + CudaDType + DeviceRepr + ValidAsZeroBits {}
impl Number for f32 {}
impl Number for half::f16 {}
impl Number for half::bf16 {}

macro_rules! for_type {
    ($dtype:expr, $call:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => $call::<f32>($($argument),*),
            DType::F16 => $call::<half::f16>($($argument),*),
            DType::BF16 => $call::<half::bf16>($($argument),*),
            other => Err(Error::msg(format!("attention on a device takes f32, f16 and bf16, got {other:?}"))),
        }
    };
}

/// A tensor's elements; it is contiguous.
fn view<'a, T: CudaDType>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, T>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(Error::RequiresContiguous { op: "attention" }.bt());
    };
    Ok(storage.as_cuda_slice::<T>()?.slice(start..end))
}

pub(super) fn forward(
    work: &Work,
    operands: DeviceOperands<'_>,
    logsumexp: &Logsumexp,
) -> Result<CudaStorage> {
    fn run<T: Number>(
        work: &Work,
        [q, k, v]: DeviceOperands<'_>,
        logsumexp: &Logsumexp,
    ) -> Result<CudaStorage> {
        let device = q.0.device().clone();
        let stream = device.cuda_stream();
        let (query, key, value) = (view::<T>(q.0, q.1)?, view::<T>(k.0, k.1)?, view::<T>(v.0, v.1)?);
        let (len, rows) = match work {
            Work::Neighborhood(problem) => (problem.out_len(), problem.logsumexp_len()),
            Work::Dense(problem) => {
                let rows = problem.batch * problem.seqlen_q * problem.heads;
                (rows * problem.dim_value, rows)
            }
        };
        let mut out = device.alloc_zeros::<T>(len)?;
        let mut sums = device.alloc_zeros::<f32>(rows)?;
        let tensors = safe::Forward {
            query: &query,
            key: &key,
            value: &value,
            out: &mut out,
            logsumexp: Some(&mut sums),
        };
        match work {
            Work::Neighborhood(problem) => safe::na_forward(problem, tensors, &stream, &Options::default()),
            Work::Dense(problem) => safe::attention_forward(problem, tensors, &stream, &Options::default()),
        }
        .map_err(Error::wrap)?;
        // An operation is applied once, so nothing was there.
        let _ = logsumexp.0.set(sums);
        Ok(CudaStorage::wrap_cuda_slice(out, device))
    }
    for_type!(operands[0].0.dtype(), run(work, operands, logsumexp))
}

pub(super) fn backward(of: &Backward, operands: DeviceOperands<'_>) -> Result<CudaStorage> {
    fn run<T: Number>(of: &Backward, [q, k, v]: DeviceOperands<'_>) -> Result<CudaStorage> {
        let elsewhere =
            || Error::msg("out or the gradient of attention is on another device than its operands");
        let device = q.0.device().clone();
        let stream = device.cuda_stream();
        let logsumexp = of.logsumexp.0.get().ok_or_else(elsewhere)?;
        let ((out, out_layout), (grad_out, grad_layout)) =
            (of.out.storage_and_layout(), of.grad_out.storage_and_layout());
        let (Storage::Cuda(out), Storage::Cuda(grad_out)) = (&*out, &*grad_out) else {
            return Err(elsewhere());
        };
        let (query, key, value) = (view::<T>(q.0, q.1)?, view::<T>(k.0, k.1)?, view::<T>(v.0, v.1)?);
        let (out, grad_out) = (view::<T>(out, out_layout)?, view::<T>(grad_out, grad_layout)?);
        let mut all = device.alloc_zeros::<T>(of.len())?;
        let [query_len, key_len, value_len] = of.lengths;
        let (mut first, mut rest) = all.split_at_mut(padded(query_len));
        let (mut second, mut third) = rest.split_at_mut(padded(key_len));
        let mut grad_query = first.slice_mut(..query_len);
        let mut grad_key = second.slice_mut(..key_len);
        let mut grad_value = third.slice_mut(..value_len);
        let tensors = safe::Backward {
            query: &query,
            key: &key,
            value: &value,
            out: &out,
            grad_out: &grad_out,
            logsumexp,
            grad_query: &mut grad_query,
            grad_key: &mut grad_key,
            grad_value: &mut grad_value,
        };
        match &of.work {
            Work::Neighborhood(problem) => safe::na_backward(problem, tensors, &stream, &Options::default()),
            Work::Dense(problem) => safe::attention_backward(problem, tensors, &stream, &Options::default()),
        }
        .map_err(Error::wrap)?;
        Ok(CudaStorage::wrap_cuda_slice(all, device))
    }
    for_type!(operands[0].0.dtype(), run(of, operands))
}
