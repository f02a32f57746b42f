//! The operations of the backend `merge`: what joins the results of several attentions.

use super::{FLOATS, Stream, TokenTensor, check_optional, check_token_tensor, device_dtype, int};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::launch;
use crate::ops::check_pointers;
use crate::sys;
use std::ffi::c_void;

/// What one attention gave, for [`merge_attentions`].
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// `[batch, tokens, heads, dim]`.
    pub out: *const c_void,
    /// `[batch, tokens, heads]`, float32.
    pub logsumexp: *const f32,
}

/// The most attentions that one call of [`merge_attentions`] takes; what it gives can be merged further.
pub const MOST_PARTS: usize = 32;

/// Attention to the keys of several attentions together, from what each of them gave for the same queries
/// (`natten_merge_attentions`): `logsumexp = ln(sum of exp(each logsumexp))`, `out = sum of exp(each logsumexp -
/// logsumexp) * each out`, with sums of float32. `out` is `[batch, tokens, heads, dim]`, `logsumexp` `[batch,
/// tokens, heads]`, float32, and may be null; both may be those of a part.
///
/// float32, float16 or bfloat16; pointers are aligned to an element, those of float32 to 4 bytes. A part with
/// minus infinity for a query's logsumexp has no key for it; a query that no part has keys for gets 0 and minus
/// infinity. Nothing is allocated. [`cpu::merge_attentions`] does the same on the CPU.
///
/// # Gradients
/// There is no backward operation, as upstream has none: give each attention's backward pass the merged `out`
/// and `logsumexp` in the place of its own, and `grad_out` as it is. The gradients of keys and values are then
/// right, and those of the queries add up ([`add_gradients`]). `logsumexp` has no gradient.
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than two parts, a size of 0, a pointer that is null or not aligned;
/// [`Error::Unsupported`] for another element type or more than [`MOST_PARTS`]; [`Error::BackendNotBuilt`] if the
/// artifact has no `merge`; [`Error::Device`] and [`Error::Cuda`] from the device.
///
/// # Safety
/// Pointers lead to device memory of the current device of those sizes, live until the stream has passed the
/// operation; outputs overlap nothing but the same tensor of a part.
///
/// [`cpu::merge_attentions`]: crate::cpu::merge_attentions
pub unsafe fn merge_attentions(
    tensor: TokenTensor,
    tokens: usize,
    parts: &[Part],
    out: *mut c_void,
    logsumexp: *mut f32,
    stream: Stream,
) -> Result<()> {
    let dtype = device_dtype(tensor.dtype, &FLOATS, "merge_attentions")?;
    check_token_tensor(&tensor, tokens)?;
    if parts.len() < 2 {
        return Err(Error::invalid(format!(
            "merge_attentions takes two attentions or more, got {}",
            parts.len()
        )));
    }
    if parts.len() > MOST_PARTS {
        return Err(Error::unsupported(format!(
            "merge_attentions takes up to {MOST_PARTS} attentions at once, got {}: merge what it gives with the rest",
            parts.len()
        )));
    }
    let alignment = tensor.dtype.size();
    check_pointers(&[("out", out, alignment)])?;
    check_optional("logsumexp", logsumexp.cast())?;
    for part in parts {
        check_pointers(&[
            ("out of every attention", part.out, alignment),
            ("logsumexp of every attention", part.logsumexp.cast(), 4),
        ])?;
    }
    let parts: Vec<sys::natten_attention_part> = parts
        .iter()
        .map(|part| sys::natten_attention_part { out: part.out, logsumexp: part.logsumexp })
        .collect();
    let args = sys::natten_merge_attentions_args {
        size: size_of::<sys::natten_merge_attentions_args>() as u32,
        dtype,
        parts: parts.as_ptr(),
        out,
        logsumexp,
        part_count: int("the number of attentions", parts.len())?,
        batch: int("batch", tensor.batch)?,
        seqlen: int("tokens", tokens)?,
        heads: int("heads", tensor.heads)?,
        dim: int("dim", tensor.dim)?,
        stream: stream.as_raw(),
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats; `parts` outlives the call.
    unsafe { launch::merge_attentions(Backend::Merge, 0, &args) }
}

/// Adds up gradients of what was used several times (`natten_add_gradients`): `addends` is `[batch, tokens,
/// heads, count, dim]`, `sum` `[batch, tokens, heads, dim]`, the sum over `count` in its order, of float32.
///
/// The gradient of key heads that were copied `count` times each; or, with `batch`, `tokens` and `heads` of 1, of
/// `count` tensors of `dim` elements that lie one after another, as the gradients of queries that several
/// attentions saw. float32, float16 or bfloat16; pointers are aligned to an element. Deterministic.
///
/// # Errors
/// As [`merge_attentions`].
///
/// # Safety
/// As [`merge_attentions`]; `sum` overlaps nothing.
pub unsafe fn add_gradients(
    tensor: TokenTensor,
    tokens: usize,
    count: usize,
    addends: *const c_void,
    sum: *mut c_void,
    stream: Stream,
) -> Result<()> {
    let dtype = device_dtype(tensor.dtype, &FLOATS, "add_gradients")?;
    check_token_tensor(&tensor, tokens)?;
    if count == 0 {
        return Err(Error::invalid("count must be at least 1, got 0"));
    }
    let alignment = tensor.dtype.size();
    check_pointers(&[("addends", addends, alignment), ("sum", sum, alignment)])?;
    let args = sys::natten_add_gradients_args {
        size: size_of::<sys::natten_add_gradients_args>() as u32,
        dtype,
        addends,
        sum,
        batch: int("batch", tensor.batch)?,
        seqlen: int("tokens", tokens)?,
        heads: int("heads", tensor.heads)?,
        count: int("count", count)?,
        dim: int("dim", tensor.dim)?,
        stream: stream.as_raw(),
    };
    // SAFETY: the caller's promise about the pointers, which `args` repeats.
    unsafe { launch::add_gradients(Backend::Merge, 0, &args) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;
    use crate::dtype::Dtype;

    const TENSOR: TokenTensor = TokenTensor { dtype: Dtype::Float16, batch: 1, heads: 2, dim: 3 };

    #[test]
    fn arguments_are_checked_by_name() {
        let part = Part { out: at(256), logsumexp: at(512).cast() };
        let merge = |tensor, parts: &[Part], out, logsumexp: *mut c_void| {
            // SAFETY: the arguments are refused, so no pointer is followed.
            unsafe { merge_attentions(tensor, 4, parts, out, logsumexp.cast(), Stream::DEFAULT) }
                .unwrap_err()
                .to_string()
        };
        let two = [part; 2];
        for (message, expected) in [
            (merge(TENSOR, &two[..1], at(1024), at(2048)), "two attentions or more, got 1"),
            (merge(TENSOR, &[part; 33], at(1024), at(2048)), "up to 32 attentions at once, got 33"),
            (merge(TENSOR, &two, at(1), at(2048)), "out must be aligned to 2"),
            (merge(TENSOR, &two, at(1024), at(2)), "logsumexp must be aligned to 4"),
            (merge(TokenTensor { dim: 0, ..TENSOR }, &two, at(1024), at(2048)), "dim must be at least 1"),
            (merge(TokenTensor { dtype: Dtype::Float64, ..TENSOR }, &two, at(1024), at(2048)), "got float64"),
            (
                merge(TENSOR, &[part, Part { out: at(0), ..part }], at(1024), at(2048)),
                "out of every attention must not be null",
            ),
        ] {
            assert!(message.contains(expected), "`{message}` lacks `{expected}`");
        }
        let add = |count, addends, sum| {
            // SAFETY: as above.
            unsafe { add_gradients(TENSOR, 4, count, addends, sum, Stream::DEFAULT) }.unwrap_err().to_string()
        };
        assert!(add(0, at(256), at(512)).contains("count must be at least 1"));
        assert!(add(2, at(257), at(512)).contains("addends must be aligned to 2"));
        assert!(add(2, at(256), at(0)).contains("sum must not be null"));
    }

    #[cfg(natten_kernels_unlinked)]
    #[test]
    fn without_an_artifact_the_error_names_the_backend() {
        let parts = [Part { out: at(256), logsumexp: at(512).cast() }; 2];
        // SAFETY: nothing is linked, so no pointer is followed.
        let merge =
            unsafe { merge_attentions(TENSOR, 4, &parts, at(1024), std::ptr::null_mut(), Stream::DEFAULT) };
        // SAFETY: as above.
        let add = unsafe { add_gradients(TENSOR, 4, 2, at(256), at(512), Stream::DEFAULT) };
        for result in [merge, add] {
            assert!(
                matches!(result, Err(Error::BackendNotBuilt { backend: Backend::Merge, .. })),
                "{result:?}"
            );
        }
    }
}
