//! Row sums of `out * grad_out`, as the device operation computes them.

use super::check_len;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// `delta[i] = sum over dim of out[i, :] * grad_out[i, :]`, for tensors `[.., dim]`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the lengths differ or are no multiple of `dim`.
pub fn compute_delta<T: Element>(out: &[T], grad_out: &[T], dim: usize) -> Result<Vec<f32>> {
    if dim == 0 || !out.len().is_multiple_of(dim) {
        return Err(Error::invalid(format!("out has {} elements, no multiple of dim {dim}", out.len())));
    }
    check_len("grad_out", grad_out, out.len())?;
    Ok(out
        .chunks_exact(dim)
        .zip(grad_out.chunks_exact(dim))
        .map(|(a, b)| a.iter().zip(b).map(|(x, y)| x.to_f64() * y.to_f64()).sum::<f64>() as f32)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_is_the_row_sum_of_products() {
        assert_eq!(compute_delta(&[1.0_f32, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], 2).unwrap(), [17.0, 53.0]);
        assert!(compute_delta(&[1.0_f32; 3], &[1.0; 3], 2).is_err());
        assert!(compute_delta(&[1.0_f32; 4], &[1.0; 2], 2).is_err());
    }
}
