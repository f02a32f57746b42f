//! Element types: what a tensor holds, and how the CPU backend reads it.

use half::{bf16, f16};

/// What the elements of `query`, `key`, `value` and `out` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE single precision.
    Float32,
    /// IEEE half precision, [`half::f16`].
    Float16,
    /// bfloat16, [`half::bf16`].
    Bfloat16,
    /// 8 bits, 4 of exponent. Blackwell forward operations and token permutation only.
    Float8E4m3,
    /// 8 bits, 5 of exponent. Blackwell forward operations and token permutation only.
    Float8E5m2,
    /// IEEE double precision. The CPU backend only: no kernel takes it.
    Float64,
}

impl Dtype {
    /// Every element type that the C ABI knows, in the order of its codes.
    pub const DEVICE: [Dtype; 5] =
        [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Float8E4m3, Dtype::Float8E5m2];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::Float8E4m3 | Dtype::Float8E5m2 => 1,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Float32 => 4,
            Dtype::Float64 => 8,
        }
    }

    /// The name that upstream and our manifests use: `float16`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float8E4m3 => "float8_e4m3",
            Dtype::Float8E5m2 => "float8_e5m2",
            Dtype::Float64 => "float64",
        }
    }

    /// The C ABI's code, `None` for a type that no kernel takes.
    pub fn code(self) -> Option<i32> {
        Dtype::DEVICE.iter().position(|d| *d == self).map(|at| at as i32)
    }

    /// The type of a C ABI code.
    pub fn from_code(code: i32) -> Option<Dtype> {
        usize::try_from(code).ok().and_then(|at| Dtype::DEVICE.get(at).copied())
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that the CPU backend computes with. It reads into `f64` exactly, and writes with one rounding.
pub trait Element: Copy + Send + Sync + Default + std::fmt::Debug + sealed::Sealed + 'static {
    /// Which [`Dtype`] it is.
    const DTYPE: Dtype;
    /// The value, exactly.
    fn to_f64(self) -> f64;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:expr, |$read:ident| $to:expr, |$write:ident| $from:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = $dtype;
            fn to_f64(self) -> f64 {
                let $read = self;
                $to
            }
            fn from_f64($write: f64) -> Self {
                $from
            }
        }
    };
}

element!(f32, Dtype::Float32, |x| f64::from(x), |x| x as f32);
element!(f64, Dtype::Float64, |x| x, |x| x);
element!(f16, Dtype::Float16, |x| x.to_f64(), |x| f16::from_f64(x));
element!(bf16, Dtype::Bfloat16, |x| x.to_f64(), |x| bf16::from_f64(x));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_types_are_inverse() {
        for (at, dtype) in Dtype::DEVICE.into_iter().enumerate() {
            assert_eq!(dtype.code(), Some(at as i32));
            assert_eq!(Dtype::from_code(at as i32), Some(dtype));
        }
        assert_eq!(Dtype::Float64.code(), None);
        assert_eq!(Dtype::from_code(5), None);
        assert_eq!(Dtype::from_code(-1), None);
    }
}
