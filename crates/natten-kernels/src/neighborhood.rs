//! Which keys a query attends to: the rule that every backend implements, one axis at a time.

use std::ops::Range;

/// One token axis of a checked problem: `1 <= stride <= window`, `window * dilation <= extent`.
///
/// An axis of `extent` tokens with dilation `d` splits into `d` groups: group `r` holds the tokens
/// `r, r + d, r + 2d, ..`, and attention stays within a group. A group of `n` tokens is an axis
/// without dilation:
///
/// - A query `i` uses the window of its stride group's leader. Queries `0..stride` share the first,
///   `stride..2 stride` the next, and so on. The leader is the group's middle token
///   (`stride / 2`-th), on a causal axis its last one, and never lies beyond the axis.
/// - The window holds `window / 2` keys before the leader, the leader and the rest after it, and is
///   shifted to lie within the axis, so that every query sees exactly `window` keys.
/// - On a causal axis the window ends at the leader instead, is cut at 0, and a query sees no key
///   after itself.
///
/// In 2-D and 3-D a query sees the box of its axes' intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Tokens along the axis.
    pub extent: usize,
    /// Keys that a query sees.
    pub window: usize,
    /// Queries that share a window.
    pub stride: usize,
    /// Distance between neighbors.
    pub dilation: usize,
    /// Whether a query sees no key after itself.
    pub causal: bool,
}

impl Axis {
    /// An axis of a single token, which pads a problem to three axes.
    pub(crate) const UNIT: Axis = Axis { extent: 1, window: 1, stride: 1, dilation: 1, causal: false };

    /// How many tokens dilation group `residue` holds; `residue < dilation`.
    pub fn group_extent(&self, residue: usize) -> usize {
        (self.extent - residue).div_ceil(self.dilation)
    }

    /// The keys that query `index` of a group of `length` tokens sees, as indices within the group.
    pub fn keys(&self, index: usize, length: usize) -> Range<usize> {
        let first = index / self.stride * self.stride;
        if self.causal {
            let leader = (first + self.stride - 1).min(length - 1);
            (leader + 1).saturating_sub(self.window)..index + 1
        } else {
            let leader = (first + self.stride / 2).min(length - 1);
            let start = leader.saturating_sub(self.window / 2).min(length - self.window);
            start..start + self.window
        }
    }
}

/// Keys of each query and queries of each key, for one dilation group of one axis.
#[derive(Debug)]
pub(crate) struct Spans {
    /// `keys[i]`: what query `i` sees.
    pub(crate) keys: Vec<Range<usize>>,
    /// `queries[j]`: who sees key `j`. An interval, since both ends of a window never move backwards.
    pub(crate) queries: Vec<Range<usize>>,
}

impl Spans {
    pub(crate) fn new(axis: &Axis, residue: usize) -> Spans {
        let length = axis.group_extent(residue);
        let keys: Vec<Range<usize>> = (0..length).map(|index| axis.keys(index, length)).collect();
        let mut queries = Vec::with_capacity(length);
        let (mut first, mut end) = (0, 0);
        for key in 0..length {
            while first < length && keys[first].end <= key {
                first += 1;
            }
            while end < length && keys[end].start <= key {
                end += 1;
            }
            queries.push(first..end.max(first));
        }
        Spans { keys, queries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(extent: usize, window: usize, stride: usize, dilation: usize, causal: bool) -> Axis {
        Axis { extent, window, stride, dilation, causal }
    }

    /// Worked out by hand from the rule.
    #[test]
    fn windows_are_those_of_the_rule() {
        let cases: &[(Axis, &[(usize, usize)])] = &[
            // Odd window: centred, shifted at both ends.
            (axis(6, 3, 1, 1, false), &[(0, 3), (0, 3), (1, 4), (2, 5), (3, 6), (3, 6)]),
            // Even window: one key more before the query than after.
            (axis(6, 4, 1, 1, false), &[(0, 4), (0, 4), (0, 4), (1, 5), (2, 6), (2, 6)]),
            // Stride 2: the leader of 0, 1 is 1, of 2, 3 is 3, of 4, 5 is 5.
            (axis(6, 3, 2, 1, false), &[(0, 3), (0, 3), (2, 5), (2, 5), (3, 6), (3, 6)]),
            // Stride == window: blocks.
            (axis(6, 3, 3, 1, false), &[(0, 3), (0, 3), (0, 3), (3, 6), (3, 6), (3, 6)]),
            // An incomplete last stride group takes the last token as its leader.
            (axis(7, 3, 3, 1, false), &[(0, 3), (0, 3), (0, 3), (3, 6), (3, 6), (3, 6), (4, 7)]),
            // Causal: ends at the query.
            (axis(5, 3, 1, 1, true), &[(0, 1), (0, 2), (0, 3), (1, 4), (2, 5)]),
            // Causal with stride 2: starts at the window of the group's last token.
            (axis(6, 3, 2, 1, true), &[(0, 1), (0, 2), (1, 3), (1, 4), (3, 5), (3, 6)]),
            (axis(5, 3, 3, 1, true), &[(0, 1), (0, 2), (0, 3), (2, 4), (2, 5)]),
        ];
        for (axis, expected) in cases {
            let spans = Spans::new(axis, 0);
            let found: Vec<(usize, usize)> = spans.keys.iter().map(|r| (r.start, r.end)).collect();
            assert_eq!(&found, expected, "{axis:?}");
        }
    }

    #[test]
    fn dilation_groups_partition_the_axis() {
        for extent in 1..20 {
            for dilation in 1..=extent {
                let axis = axis(extent, 1, 1, dilation, false);
                let sizes: Vec<usize> = (0..dilation).map(|r| axis.group_extent(r)).collect();
                let counted: Vec<usize> =
                    (0..dilation).map(|r| (0..extent).filter(|x| x % dilation == r).count()).collect();
                assert_eq!(sizes, counted, "{axis:?}");
            }
        }
    }

    /// All small axes: windows lie inside, have their size, contain the query, and the inverse is exact.
    #[test]
    fn spans_are_sound_and_their_inverse_is_exact() {
        for extent in 1..=14 {
            for window in 1..=extent {
                for stride in 1..=window {
                    for dilation in 1..=extent / window {
                        for causal in [false, true] {
                            let axis = axis(extent, window, stride, dilation, causal);
                            for residue in 0..dilation {
                                check(&axis, residue);
                            }
                        }
                    }
                }
            }
        }
    }

    fn check(axis: &Axis, residue: usize) {
        let spans = Spans::new(axis, residue);
        let length = axis.group_extent(residue);
        for (index, keys) in spans.keys.iter().enumerate() {
            assert!(keys.end <= length && !keys.is_empty(), "{axis:?} {index}");
            if axis.causal {
                assert_eq!(keys.end, index + 1);
                assert!(keys.len() <= axis.window);
            } else {
                assert_eq!(keys.len(), axis.window);
            }
            if axis.stride == 1 {
                assert!(keys.contains(&index), "{axis:?} {index}");
            }
        }
        for key in 0..length {
            let seen: Vec<usize> = (0..length).filter(|q| spans.keys[*q].contains(&key)).collect();
            let claimed: Vec<usize> = spans.queries[key].clone().collect();
            assert_eq!(claimed, seen, "{axis:?} key {key}");
        }
    }
}
