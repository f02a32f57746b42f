//! For tests: a small seeded generator, so that a failure can be repeated, and comparisons of numbers.

/// xorshift64*: enough for test data.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from `low..=high`.
    pub(crate) fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 33) as usize % (high - low + 1)
    }

    /// Numbers from -1 to 1.
    pub(crate) fn vec(&mut self, len: usize) -> Vec<f64> {
        (0..len).map(|_| (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0).collect()
    }
}

/// Every element within `tolerance`, relative to one more than the expected magnitude.
#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "element {at}: {a} is not {b}");
    }
}

/// The same numbers in double precision.
pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}
