//! Tokens in dilation-group order: each group's tokens lie together, row-major, so that the keys of
//! a query, a box of the group's grid, are a few contiguous runs.

use crate::neighborhood::{Axis, Spans};
use std::ops::Range;

/// The groups of a problem and where each token lies.
pub(crate) struct Grid {
    /// Per padded axis, per residue.
    spans: [Vec<Spans>; 3],
    groups: Vec<Group>,
    /// `token[position]`: row-major token index of the token at a position.
    token: Vec<usize>,
    /// `position[token]`: the inverse.
    position: Vec<usize>,
}

struct Group {
    first: usize,
    residues: [usize; 3],
    extents: [usize; 3],
}

/// Which side of the relation a box lists.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// The keys that a query sees.
    KeysOfQuery,
    /// The queries that see a key.
    QueriesOfKey,
}

impl Grid {
    pub(crate) fn new(axes: &[Axis; 3]) -> Grid {
        let spans = axes.map(|axis| (0..axis.dilation).map(|residue| Spans::new(&axis, residue)).collect());
        let [outer, middle, inner] = axes;
        let tokens = outer.extent * middle.extent * inner.extent;
        let mut token = Vec::with_capacity(tokens);
        let mut groups = Vec::new();
        for r0 in 0..outer.dilation {
            for r1 in 0..middle.dilation {
                for r2 in 0..inner.dilation {
                    groups.push(Group {
                        first: token.len(),
                        residues: [r0, r1, r2],
                        extents: [outer.group_extent(r0), middle.group_extent(r1), inner.group_extent(r2)],
                    });
                    for x in (r0..outer.extent).step_by(outer.dilation) {
                        for y in (r1..middle.extent).step_by(middle.dilation) {
                            for z in (r2..inner.extent).step_by(inner.dilation) {
                                token.push((x * middle.extent + y) * inner.extent + z);
                            }
                        }
                    }
                }
            }
        }
        let mut position = vec![0; tokens];
        for (at, token) in token.iter().enumerate() {
            position[*token] = at;
        }
        Grid { spans, groups, token, position }
    }

    /// How many tokens there are.
    pub(crate) fn tokens(&self) -> usize {
        self.token.len()
    }

    /// Row-major index of the token at `position`.
    pub(crate) fn token(&self, position: usize) -> usize {
        self.token[position]
    }

    /// Where the token of a row-major index lies.
    pub(crate) fn position(&self, token: usize) -> usize {
        self.position[token]
    }

    /// Calls `visit(position, runs)` for each position of `range`, with the runs of positions on the
    /// other side, in order. `runs` is the caller's buffer, so that a visit allocates nothing.
    pub(crate) fn visit(
        &self,
        range: Range<usize>,
        side: Side,
        runs: &mut Vec<Range<usize>>,
        mut visit: impl FnMut(usize, &[Range<usize>]),
    ) {
        let mut at = range.start;
        while at < range.end {
            let index = self.groups.partition_point(|group| group.first <= at) - 1;
            let group = &self.groups[index];
            let [n0, n1, n2] = group.extents;
            let end = range.end.min(group.first + n0 * n1 * n2);
            let offset = at - group.first;
            let mut here = [offset / (n1 * n2), offset / n2 % n1, offset % n2];
            while at < end {
                self.collect(group, here, side, runs);
                visit(at, runs);
                at += 1;
                here[2] += 1;
                if here[2] == n2 {
                    here[2] = 0;
                    here[1] += 1;
                    if here[1] == n1 {
                        here[1] = 0;
                        here[0] += 1;
                    }
                }
            }
        }
    }

    fn collect(&self, group: &Group, here: [usize; 3], side: Side, runs: &mut Vec<Range<usize>>) {
        let interval = |axis: usize| {
            let spans = &self.spans[axis][group.residues[axis]];
            match side {
                Side::KeysOfQuery => &spans.keys[here[axis]],
                Side::QueriesOfKey => &spans.queries[here[axis]],
            }
        };
        let [_, n1, n2] = group.extents;
        runs.clear();
        for x in interval(0).clone() {
            for y in interval(1).clone() {
                let row = group.first + (x * n1 + y) * n2;
                let z = interval(2);
                runs.push(row + z.start..row + z.end);
            }
        }
    }
}
