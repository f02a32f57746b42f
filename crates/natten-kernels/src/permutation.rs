//! The token order of the tiled backends, and the CPU's way to apply it.

use crate::cpu::check_len;
use crate::error::{Error, Result};

/// How tokens are laid out for the tiled backends: each dilation group together, in it each tile
/// together, padded with zeros to whole tiles.
///
/// On an axis, token `x` has tile row `t`, tile `r` and group `d` with `x = (r * tile + t) * dilation + d`.
/// Permuted tokens are ordered by (groups, tiles, tokens in a tile), each over the axes outermost
/// first, or innermost first if `flipped` (upstream's default, the order that its kernels index by).
///
/// ```
/// use natten_kernels::TokenPermutation;
///
/// // Five tokens in tiles of 2: one padding token.
/// let permutation = TokenPermutation::new(&[5], &[2], &[1], true)?;
/// assert_eq!(permutation.tokens_permuted(), 6);
/// let permuted = permutation.permute(&[1.0_f32, 2.0, 3.0, 4.0, 5.0], 1, 1, 1)?;
/// assert_eq!(permuted, [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]);
/// assert_eq!(permutation.unpermute(&permuted, 1, 1, 1)?, [1.0, 2.0, 3.0, 4.0, 5.0]);
/// # Ok::<(), natten_kernels::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPermutation {
    rank: usize,
    /// Axes beyond the rank are 1.
    layout: [usize; 3],
    tile: [usize; 3],
    dilation: [usize; 3],
    rest: [usize; 3],
    flipped: bool,
}

impl TokenPermutation {
    /// A permutation of `layout` (1 to 3 axes) into tiles of `tile` tokens within dilation groups.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of axes, a zero, or counts beyond 32 bits.
    pub fn new(
        layout: &[usize],
        tile: &[usize],
        dilation: &[usize],
        flipped: bool,
    ) -> Result<TokenPermutation> {
        let rank = layout.len();
        if !(1..=3).contains(&rank) || tile.len() != rank || dilation.len() != rank {
            return Err(Error::invalid(format!(
                "layout, tile and dilation must have the same 1 to 3 axes, got {layout:?}, {tile:?} and {dilation:?}"
            )));
        }
        if layout.iter().chain(tile).chain(dilation).any(|n| *n == 0 || i32::try_from(*n).is_err()) {
            return Err(Error::invalid(format!(
                "layout, tile and dilation must lie in 1..=2147483647, got {layout:?}, {tile:?} and {dilation:?}"
            )));
        }
        let three = |numbers: &[usize]| std::array::from_fn(|axis| numbers.get(axis).copied().unwrap_or(1));
        let [wide, tiles, groups]: [[usize; 3]; 3] = [layout, tile, dilation].map(three);
        let rest: [usize; 3] =
            std::array::from_fn(|axis| wide[axis].div_ceil(tiles[axis]).div_ceil(groups[axis]));
        let mut all = rest.iter().chain(&tiles).chain(&groups);
        if all.try_fold(1_usize, |n, next| n.checked_mul(*next)).is_none_or(|n| i32::try_from(n).is_err()) {
            return Err(Error::invalid(format!(
                "the padded tokens of {layout:?} in tiles of {tile:?}, dilation {dilation:?}, are more than the kernels can count"
            )));
        }
        Ok(TokenPermutation { rank, layout: wide, tile: tiles, dilation: groups, rest, flipped })
    }

    /// Tokens before: the product of the layout.
    pub fn tokens(&self) -> usize {
        self.layout.iter().product()
    }

    /// Tokens after, padding included.
    pub fn tokens_permuted(&self) -> usize {
        self.rest.iter().chain(&self.tile).chain(&self.dilation).product()
    }

    /// The token axes before.
    pub fn layout(&self) -> &[usize] {
        &self.layout[..self.rank]
    }

    /// Tokens of a tile per axis.
    pub fn tile(&self) -> &[usize] {
        &self.tile[..self.rank]
    }

    /// Dilation per axis.
    pub fn dilation(&self) -> &[usize] {
        &self.dilation[..self.rank]
    }

    /// Whether axes are ordered innermost first.
    pub fn flipped(&self) -> bool {
        self.flipped
    }

    /// For each permuted token, the row-major index of the token it holds; `None` for padding.
    pub fn sources(&self) -> Vec<Option<usize>> {
        let rank = self.rank;
        let order: Vec<usize> = if self.flipped { (0..rank).rev().collect() } else { (0..rank).collect() };
        (0..self.tokens_permuted())
            .map(|index| {
                // Peel mixed-radix digits off, innermost first: tile rows, then tiles, then groups.
                let mut left = index;
                let mut digits = [[0; 3]; 3];
                for (part, radices) in [&self.tile, &self.rest, &self.dilation].into_iter().enumerate() {
                    for axis in order.iter().rev() {
                        digits[part][*axis] = left % radices[*axis];
                        left /= radices[*axis];
                    }
                }
                let [row, tile, group] = digits;
                (0..rank).try_fold(0, |token, axis| {
                    let x = (tile[axis] * self.tile[axis] + row[axis]) * self.dilation[axis] + group[axis];
                    (x < self.layout[axis]).then_some(token * self.layout[axis] + x)
                })
            })
            .collect()
    }

    /// `[batch, *layout, heads, dim]` to `[batch, tokens_permuted, heads, dim]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `input` has another length.
    pub fn permute<T: Copy + Default>(
        &self,
        input: &[T],
        batch: usize,
        heads: usize,
        dim: usize,
    ) -> Result<Vec<T>> {
        let width = heads * dim;
        check_len("input", input, batch * self.tokens() * width)?;
        let sources = self.sources();
        let mut output = vec![T::default(); batch * sources.len() * width];
        for entry in 0..batch {
            for (to, from) in sources.iter().enumerate() {
                if let Some(from) = from {
                    output[(entry * sources.len() + to) * width..][..width]
                        .copy_from_slice(&input[(entry * self.tokens() + from) * width..][..width]);
                }
            }
        }
        Ok(output)
    }

    /// The inverse of [`permute`](TokenPermutation::permute); padding is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `input` has another length.
    pub fn unpermute<T: Copy + Default>(
        &self,
        input: &[T],
        batch: usize,
        heads: usize,
        dim: usize,
    ) -> Result<Vec<T>> {
        let width = heads * dim;
        let sources = self.sources();
        check_len("input", input, batch * sources.len() * width)?;
        let mut output = vec![T::default(); batch * self.tokens() * width];
        for entry in 0..batch {
            for (from, to) in sources.iter().enumerate() {
                if let Some(to) = to {
                    output[(entry * self.tokens() + to) * width..][..width]
                        .copy_from_slice(&input[(entry * sources.len() + from) * width..][..width]);
                }
            }
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_groups_then_tiles_then_tokens() {
        // 4 x 4 in tiles of 2 x 2: the four quarters, each row-major, or column-major if flipped.
        let plain = TokenPermutation::new(&[4, 4], &[2, 2], &[1, 1], false).unwrap();
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(plain.sources(), expected.map(Some));
        let flipped = TokenPermutation::new(&[4, 4], &[2, 2], &[1, 1], true).unwrap();
        let expected = [0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15];
        assert_eq!(flipped.sources(), expected.map(Some));
        // Dilation 2 separates even and odd tokens.
        let dilated = TokenPermutation::new(&[8], &[2], &[2], true).unwrap();
        assert_eq!(dilated.sources(), [0, 2, 4, 6, 1, 3, 5, 7].map(Some));
        // 7 tokens: the last odd one is padding.
        let padded = TokenPermutation::new(&[7], &[2], &[2], true).unwrap();
        assert_eq!(padded.sources(), [Some(0), Some(2), Some(4), Some(6), Some(1), Some(3), Some(5), None]);
    }

    #[test]
    fn unpermute_is_the_inverse_and_every_token_appears_once() {
        for (layout, tile, dilation) in [
            (vec![13], vec![4], vec![3]),
            (vec![9, 7], vec![4, 2], vec![2, 1]),
            (vec![5, 6, 7], vec![2, 4, 3], vec![1, 2, 2]),
        ] {
            for flipped in [false, true] {
                let permutation = TokenPermutation::new(&layout, &tile, &dilation, flipped).unwrap();
                let tokens = permutation.tokens();
                let mut seen: Vec<usize> = permutation.sources().into_iter().flatten().collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..tokens).collect::<Vec<_>>());
                let input: Vec<u32> = (0..2 * tokens * 3 * 2).map(|n| n as u32 + 1).collect();
                let permuted = permutation.permute(&input, 2, 3, 2).unwrap();
                assert_eq!(permutation.unpermute(&permuted, 2, 3, 2).unwrap(), input);
            }
        }
    }

    #[test]
    fn bad_permutations_are_refused() {
        for (layout, tile, dilation) in [
            (vec![], vec![], vec![]),
            (vec![4; 4], vec![2; 4], vec![1; 4]),
            (vec![4], vec![2, 2], vec![1]),
            (vec![4], vec![0], vec![1]),
            (vec![4], vec![2], vec![0]),
            (vec![0], vec![2], vec![1]),
            (vec![1 << 30, 1 << 30], vec![1, 1], vec![1, 1]),
            (vec![usize::MAX], vec![1], vec![1]),
        ] {
            assert!(TokenPermutation::new(&layout, &tile, &dilation, true).is_err(), "{layout:?}");
        }
    }
}
