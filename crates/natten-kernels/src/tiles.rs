//! Tile shapes: which are legal for a backend, and which to take by default.
//!
//! Hopper and Blackwell kernels are compiled for fixed shapes, which are listed here, the default first.
//! For fna, a kernel works on a fixed number of query tokens and key tokens; a tile shape says how those spread
//! over the token axes. Legal shapes have powers of two of at least 2 on every axis (in 1-D, just the
//! product). Forward, a query tile must not exceed the key tile on any axis. Which products exist
//! depends on direction, element type, device and head dim; devices of the data center class (8.0, 9.0,
//! 10.0, 10.3) have the shared memory for more of them.

use crate::capability::ComputeCapability;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{Dense, Schedule};
use crate::problem::Problem;
use crate::table::Direction;

/// Query and key tile shapes; axes beyond the problem's rank are 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Query tokens of a tile per axis.
    pub query: [usize; 3],
    /// Key tokens of a tile per axis.
    pub key: [usize; 3],
}

impl Tiles {
    /// Tokens of the query tile and of the key tile.
    pub fn products(&self) -> (usize, usize) {
        (self.query.iter().product(), self.key.iter().product())
    }

    /// The default shapes of a pair of products: as near to a cube as powers of two allow, longer on outer axes.
    pub fn balanced(rank: usize, (query, key): (usize, usize)) -> Tiles {
        Tiles { query: balanced(rank, query), key: balanced(rank, key) }
    }

    /// Refuses what upstream's configurations do not list for any device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the shape and the rule.
    pub fn check(&self, rank: usize, direction: Direction) -> Result<()> {
        let broken = |rule: &str| {
            Err(Error::invalid(format!(
                "tiles: {rule}, got query {:?} and key {:?} for {rank}-D {direction}",
                &self.query[..rank],
                &self.key[..rank]
            )))
        };
        let smallest = if rank == 1 { 1 } else { 2 };
        for shape in [&self.query, &self.key] {
            if shape[..rank].iter().any(|n| !n.is_power_of_two() || *n < smallest || *n > 128) {
                return broken("every axis must be a power of two, of at least 2 in 2-D and 3-D");
            }
            if shape[rank..].iter().any(|n| *n != 1) {
                return broken("axes beyond the rank must be 1");
            }
        }
        let known: &[(usize, usize)] = match direction {
            Direction::Forward => &[(32, 128), (64, 64), (64, 128)],
            Direction::Backward => &[(64, 64), (128, 64), (128, 128)],
        };
        if !known.contains(&self.products()) {
            return broken(&format!("the products must be one of {known:?}"));
        }
        if direction == Direction::Forward && (0..rank).any(|axis| self.query[axis] > self.key[axis]) {
            return broken("the query tile must not exceed the key tile on any axis");
        }
        Ok(())
    }
}

fn balanced(rank: usize, product: usize) -> [usize; 3] {
    let exponent = product.ilog2() as usize;
    std::array::from_fn(|axis| {
        if axis < rank { 1 << (exponent / rank + usize::from(axis < exponent % rank)) } else { 1 }
    })
}

/// The products that a device can use, the default first.
pub(crate) fn products(
    direction: Direction,
    dtype: Dtype,
    device: ComputeCapability,
    head_dim: usize,
) -> &'static [(usize, usize)] {
    let data_center = matches!(device.number(), 80 | 90 | 100 | 103);
    match (direction, data_center) {
        (Direction::Forward, true) => &[(64, 64), (32, 128), (64, 128)],
        (Direction::Forward, false) => &[(64, 64), (32, 128)],
        (Direction::Backward, false) => &[(64, 64)],
        (Direction::Backward, true) if dtype == Dtype::Float32 || head_dim > 128 => &[(64, 64), (128, 64)],
        (Direction::Backward, true) => &[(64, 64), (128, 128)],
    }
}

/// The table's spelling of a pair of shapes.
const fn pair(query: [usize; 3], key: [usize; 3]) -> Tiles {
    Tiles { query, key }
}

/// Tile shapes of the Hopper backends forward, with the schedules that there are for them, the default first.
/// Dense attention uses those of 1-D.
pub(crate) fn hopper_forward(rank: usize, head_dim: usize) -> &'static [(Tiles, Schedule)] {
    use Schedule::{Cooperative, NonPersistent, PingPong};
    match (rank, head_dim) {
        (1, 32 | 64) => const { &[(pair([64, 1, 1], [128, 1, 1]), NonPersistent)] },
        (1, 128) => {
            const { &[(pair([128, 1, 1], [128, 1, 1]), Cooperative), (pair([128, 1, 1], [128, 1, 1]), PingPong)] }
        }
        (1, 256) => const { &[(pair([128, 1, 1], [64, 1, 1]), Cooperative)] },
        (2, 32 | 64) => {
            const { &[(pair([8, 8, 1], [16, 8, 1]), NonPersistent), (pair([8, 8, 1], [8, 16, 1]), NonPersistent)] }
        }
        (2, 128) => {
            const { &[(pair([16, 8, 1], [16, 8, 1]), Cooperative), (pair([16, 8, 1], [16, 8, 1]), PingPong)] }
        }
        (2, 256) => {
            const { &[(pair([16, 8, 1], [8, 8, 1]), Cooperative), (pair([8, 16, 1], [8, 8, 1]), Cooperative)] }
        }
        (3, 32 | 64) => {
            const { &[(pair([4, 4, 4], [4, 4, 8]), NonPersistent), (pair([4, 4, 4], [2, 8, 8]), NonPersistent)] }
        }
        (3, 128) => {
            const {
                &[
                    (pair([4, 4, 8], [4, 4, 8]), Cooperative),
                    (pair([4, 4, 8], [4, 4, 8]), PingPong),
                    (pair([2, 8, 8], [2, 8, 8]), Cooperative),
                    (pair([2, 8, 8], [2, 8, 8]), PingPong),
                ]
            }
        }
        (3, 256) => {
            const { &[(pair([4, 4, 8], [4, 4, 4]), Cooperative), (pair([2, 8, 8], [4, 4, 4]), Cooperative)] }
        }
        _ => &[],
    }
}

/// Tile shapes of the Hopper backends backward, the default first. Dense attention uses those of 1-D.
pub(crate) fn hopper_backward(rank: usize, head_dim: usize) -> &'static [Tiles] {
    match (rank, head_dim) {
        (1, 32 | 64) => const { &[pair([64, 1, 1], [128, 1, 1]), pair([128, 1, 1], [128, 1, 1])] },
        (1, 128) => const { &[pair([64, 1, 1], [128, 1, 1])] },
        (2, 32 | 64) => {
            const {
                &[
                    pair([8, 8, 1], [16, 8, 1]),
                    pair([8, 8, 1], [8, 16, 1]),
                    pair([16, 8, 1], [16, 8, 1]),
                    pair([16, 8, 1], [8, 16, 1]),
                ]
            }
        }
        (2, 128) => const { &[pair([8, 8, 1], [16, 8, 1]), pair([8, 8, 1], [8, 16, 1])] },
        (3, 32 | 64) => {
            const {
                &[
                    pair([4, 4, 4], [4, 4, 8]),
                    pair([4, 4, 4], [2, 8, 8]),
                    pair([4, 4, 8], [4, 4, 8]),
                    pair([4, 4, 8], [2, 8, 8]),
                ]
            }
        }
        (3, 128) => {
            const {
                &[
                    pair([4, 4, 4], [4, 4, 8]),
                    pair([4, 4, 4], [2, 8, 8]),
                    pair([2, 4, 8], [2, 8, 8]),
                    pair([1, 8, 8], [2, 8, 8]),
                ]
            }
        }
        _ => &[],
    }
}

/// Tile shapes of the Blackwell backends, the default first. Dense attention uses those of 1-D.
pub(crate) fn blackwell(direction: Direction, rank: usize) -> &'static [Tiles] {
    match (direction, rank) {
        (Direction::Forward, 1) => const { &[pair([256, 1, 1], [128, 1, 1])] },
        (Direction::Forward, 2) => {
            const {
                &[
                    pair([16, 16, 1], [16, 8, 1]),
                    pair([16, 16, 1], [8, 16, 1]),
                    pair([8, 32, 1], [8, 16, 1]),
                    pair([8, 32, 1], [4, 32, 1]),
                ]
            }
        }
        (Direction::Forward, _) => {
            const {
                &[
                    pair([8, 4, 8], [4, 4, 8]),
                    pair([8, 4, 8], [2, 8, 8]),
                    pair([2, 8, 16], [4, 4, 8]),
                    pair([2, 8, 16], [2, 8, 8]),
                    pair([4, 4, 16], [2, 4, 16]),
                    pair([2, 16, 8], [2, 8, 8]),
                    pair([4, 8, 8], [2, 8, 8]),
                ]
            }
        }
        (Direction::Backward, 1) => const { &[pair([128, 1, 1], [128, 1, 1])] },
        (Direction::Backward, 2) => {
            const {
                &[
                    pair([16, 8, 1], [16, 8, 1]),
                    pair([16, 8, 1], [8, 16, 1]),
                    pair([8, 16, 1], [16, 8, 1]),
                    pair([8, 16, 1], [8, 16, 1]),
                ]
            }
        }
        (Direction::Backward, _) => {
            const {
                &[
                    pair([4, 4, 8], [4, 4, 8]),
                    pair([4, 4, 8], [2, 8, 8]),
                    pair([1, 8, 16], [4, 4, 8]),
                    pair([2, 8, 8], [4, 4, 8]),
                    pair([1, 8, 16], [2, 8, 8]),
                    pair([2, 4, 16], [2, 4, 16]),
                    pair([4, 2, 16], [2, 4, 16]),
                    pair([4, 4, 8], [2, 4, 16]),
                    pair([2, 8, 8], [2, 8, 8]),
                ]
            }
        }
    }
}

/// Whether a backward pass may add in an order that varies from run to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Determinism {
    /// The same bits every time: one task walks over all keys.
    Required,
    /// Keys are split over tasks that add into shared memory: upstream's default, and faster for
    /// small batches.
    #[default]
    NotRequired,
}

/// How many tasks share the keys of a backward pass, per axis: upstream's rule, with its default limit
/// of 4096 tasks in the whole grid.
pub fn key_splits(problem: &Problem, key_tile: &[usize; 3], determinism: Determinism) -> [usize; 3] {
    if determinism == Determinism::Required {
        return [1; 3];
    }
    let tiles = key_tiles(problem, key_tile);
    let groups: usize = problem.axes().iter().map(|axis| axis.dilation).product();
    let allowed = (4096 / (problem.batch() * problem.heads() * groups).max(1)).max(1);
    if tiles.iter().product::<usize>() <= allowed {
        return tiles;
    }
    let rank = problem.rank();
    let mut splits = [1; 3];
    let mut left = allowed;
    for axis in 0..rank {
        // The first axis leaves room for the others; each next one takes what is left.
        let share = if axis == 0 { allowed / rank } else { left };
        splits[axis] = share.clamp(1, tiles[axis]);
        left /= splits[axis];
    }
    splits
}

/// [`key_splits`] of dense attention, whose longest sequence has `keys` keys.
pub(crate) fn dense_key_splits(problem: &Dense, keys: usize, tile: usize, determinism: Determinism) -> usize {
    if determinism == Determinism::Required {
        return 1;
    }
    let allowed = (4096 / (problem.batch * problem.heads).max(1)).max(1);
    keys.div_ceil(tile).min(allowed)
}

/// Key tiles per axis of a dilation group: the most splits that are legal.
pub(crate) fn key_tiles(problem: &Problem, key_tile: &[usize; 3]) -> [usize; 3] {
    let mut tiles = [1; 3];
    for (at, axis) in problem.axes().iter().enumerate() {
        tiles[at] = axis.extent.div_ceil(axis.dilation).div_ceil(key_tile[at]);
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_upstreams() {
        let shapes = |rank| Tiles::balanced(rank, (64, 64)).query;
        assert_eq!([shapes(1), shapes(2), shapes(3)], [[64, 1, 1], [8, 8, 1], [4, 4, 4]]);
        for rank in 1..=3 {
            for direction in [Direction::Forward, Direction::Backward] {
                for (major, minor) in [(8, 0), (8, 6), (9, 0), (10, 3), (12, 0)] {
                    for dtype in [Dtype::Float32, Dtype::Float16] {
                        for head_dim in [32, 256] {
                            let device = ComputeCapability { major, minor };
                            let products = products(direction, dtype, device, head_dim);
                            assert_eq!(products[0], (64, 64));
                            for product in products {
                                let tiles = Tiles::balanced(rank, *product);
                                assert_eq!(tiles.products(), *product);
                                tiles.check(rank, direction).unwrap();
                            }
                        }
                    }
                }
            }
        }
    }

    /// Counts, defaults and products, as upstream's configurations have them.
    #[test]
    fn tiled_backends_have_upstreams_shapes() {
        let shape = |tiles: &Tiles| (tiles.query, tiles.key);
        for (rank, dim, count, default, schedule) in [
            (1, 32, 1, ([64, 1, 1], [128, 1, 1]), Schedule::NonPersistent),
            (1, 128, 2, ([128, 1, 1], [128, 1, 1]), Schedule::Cooperative),
            (1, 256, 1, ([128, 1, 1], [64, 1, 1]), Schedule::Cooperative),
            (2, 64, 2, ([8, 8, 1], [16, 8, 1]), Schedule::NonPersistent),
            (2, 128, 2, ([16, 8, 1], [16, 8, 1]), Schedule::Cooperative),
            (2, 256, 2, ([16, 8, 1], [8, 8, 1]), Schedule::Cooperative),
            (3, 64, 2, ([4, 4, 4], [4, 4, 8]), Schedule::NonPersistent),
            (3, 128, 4, ([4, 4, 8], [4, 4, 8]), Schedule::Cooperative),
            (3, 256, 2, ([4, 4, 8], [4, 4, 4]), Schedule::Cooperative),
        ] {
            let found = hopper_forward(rank, dim);
            assert_eq!(found.len(), count, "{rank}-D {dim}");
            assert_eq!((shape(&found[0].0), found[0].1), (default, schedule), "{rank}-D {dim}");
        }
        for (rank, dim, count, default) in [
            (1, 64, 2, ([64, 1, 1], [128, 1, 1])),
            (1, 128, 1, ([64, 1, 1], [128, 1, 1])),
            (2, 32, 4, ([8, 8, 1], [16, 8, 1])),
            (2, 128, 2, ([8, 8, 1], [16, 8, 1])),
            (3, 64, 4, ([4, 4, 4], [4, 4, 8])),
            (3, 128, 4, ([4, 4, 4], [4, 4, 8])),
        ] {
            let found = hopper_backward(rank, dim);
            assert_eq!((found.len(), shape(&found[0])), (count, default), "{rank}-D {dim}");
        }
        assert!(hopper_forward(2, 96).is_empty() && hopper_backward(2, 256).is_empty());
        for (direction, counts, products) in
            [(Direction::Forward, [1, 4, 7], (256, 128)), (Direction::Backward, [1, 4, 9], (128, 128))]
        {
            for rank in 1..=3 {
                let shapes = blackwell(direction, rank);
                assert_eq!(shapes.len(), counts[rank - 1]);
                assert!(shapes.iter().all(|tiles| tiles.products() == products), "{rank}-D {direction}");
                assert!(shapes.iter().all(|tiles| tiles.query[rank..].iter().all(|n| *n == 1)));
            }
        }
    }

    #[test]
    fn illegal_shapes_are_refused_by_the_rule_they_break() {
        let cases = [
            ([64, 1, 1], [32, 1, 1], 1, Direction::Forward, "products"),
            ([8, 8, 1], [64, 1, 1], 2, Direction::Forward, "power of two"),
            ([8, 8, 2], [8, 8, 1], 2, Direction::Forward, "beyond the rank"),
            ([12, 4, 1], [8, 8, 1], 2, Direction::Forward, "power of two"),
            ([16, 4, 1], [8, 8, 1], 2, Direction::Forward, "must not exceed"),
            ([16, 2, 1], [8, 16, 1], 2, Direction::Forward, "must not exceed"),
            ([32, 1, 1], [128, 1, 1], 1, Direction::Backward, "products"),
            ([0, 64, 1], [8, 8, 1], 2, Direction::Forward, "power of two"),
        ];
        for (query, key, rank, direction, expected) in cases {
            let error = Tiles { query, key }.check(rank, direction).unwrap_err().to_string();
            assert!(error.contains(expected), "`{error}` lacks `{expected}`");
        }
        // Backward, any pair of shapes is legal.
        Tiles { query: [32, 2, 1], key: [2, 32, 1] }.check(2, Direction::Backward).unwrap();
    }

    /// Numbers worked out from upstream's rule.
    #[test]
    fn key_splits_fill_the_grid_and_no_more() {
        let problem = |extents: &[usize], batch, heads, dilation: &[usize]| {
            let builder = Problem::builder(Dtype::Float16, extents).batch(batch).heads(heads).dim(32);
            builder.window(&vec![2; extents.len()]).dilation(dilation).build().unwrap()
        };
        let cases = [
            (problem(&[1024], 1, 1, &[1]), [64, 1, 1], [16, 1, 1]),
            (problem(&[1024], 64, 64, &[1]), [64, 1, 1], [1, 1, 1]),
            (problem(&[1024], 1, 1, &[4]), [64, 1, 1], [4, 1, 1]),
            (problem(&[64, 64], 1, 1, &[1, 1]), [8, 8, 1], [8, 8, 1]),
            // 4096 / 512 = 8 allowed of 64: 8 / 2 = 4 rows, then 8 / 4 = 2 columns.
            (problem(&[64, 64], 64, 8, &[1, 1]), [8, 8, 1], [4, 2, 1]),
            // 4096 / 512 = 8 allowed: 8 / 3 = 2, then 8 / 2 = 4, then 8 / 8 = 1.
            (problem(&[16, 16, 16], 64, 8, &[1, 1, 1]), [4, 4, 4], [2, 4, 1]),
            (problem(&[64, 64], 8192, 8, &[1, 1]), [8, 8, 1], [1, 1, 1]),
        ];
        for (problem, key_tile, expected) in cases {
            assert_eq!(key_splits(&problem, &key_tile, Determinism::NotRequired), expected, "{problem:?}");
            assert_eq!(key_splits(&problem, &key_tile, Determinism::Required), [1; 3]);
        }
    }
}
