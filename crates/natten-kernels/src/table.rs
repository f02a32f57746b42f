//! One row of an artifact's kernel table.

use crate::dtype::Dtype;

/// Which pass a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Output and logsumexp.
    Forward,
    /// Gradients of query, key and value.
    Backward,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        })
    }
}

/// A kernel of an artifact. The C header documents the numbers (`natten_kernel_info`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The backend's name: `fna`.
    pub family: String,
    /// The entry point's name, as upstream spells it.
    pub name: String,
    /// Forward or backward.
    pub direction: Direction,
    /// Token axes, 1 to 3; 0 where the family has no such notion.
    pub rank: usize,
    /// Element type; `None` for a code that this crate does not know.
    pub dtype: Option<Dtype>,
    /// Which axes are causal.
    pub causal: [bool; 3],
    /// Query tokens of a tile; fna: `[product, 0, 0]`.
    pub query_tile: [i32; 3],
    /// Key tokens of a tile; fna: `[product, 0, 0]`.
    pub key_tile: [i32; 3],
    /// The largest head dim it takes.
    pub max_head_dim: usize,
    /// Head dims must be multiples of this many elements.
    pub alignment: usize,
    /// Dynamic shared memory, bytes.
    pub shared_memory: usize,
    /// Devices of capability `sm_min <= 10 * major + minor < sm_max`.
    pub sm_min: u32,
    /// See `sm_min`.
    pub sm_max: u32,
    /// Hopper forward: upstream's kernel type 0, 1, 2. Blackwell forward: 1 is persistent, 0 not. Else -1.
    pub schedule: i32,
}
