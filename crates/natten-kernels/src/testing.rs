//! For tests: a small seeded generator, so that a failure can be repeated.

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
