//! What can be built: every kernel of every family, in upstream's order, from the instance tables
//! beside the templates. Knows nothing of capabilities that were asked for, toolkits or files.

mod table;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::failure::Failure;

/// The release of natten whose kernels the tables list.
pub const NATTEN: &str = "0.21.7";

/// Every family, in upstream's order; those that upstream does not generate come last.
#[derive(Debug)]
pub struct Catalog {
    /// The families.
    pub families: Vec<Family>,
}

/// Kernels that share a template and a C entry group.
#[derive(Debug)]
pub struct Family {
    /// `fna`, `reference`, …: upstream's word for it.
    pub name: String,
    /// Whether it is one of the eleven families that upstream's scripts generate.
    pub autogen: bool,
    /// Units per split policy.
    pub splits: Splits,
    /// The kernels, in upstream's order.
    pub groups: Vec<Group>,
}

/// How many units each split policy makes of a family.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Splits {
    /// Upstream's default.
    pub default: usize,
    /// More, smaller units.
    pub fine: usize,
    /// Fewer, larger units.
    pub coarse: usize,
}

/// The smallest thing that a split may separate.
#[derive(Debug, Clone)]
pub struct Group {
    /// The kernels, in upstream's order.
    pub kernels: Vec<Kernel>,
}

/// One kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its name, as upstream spells it where upstream generates it.
    pub name: String,
    /// For token permutation, backward means the inverse: it is the gradient of permuting.
    pub direction: Direction,
    /// Spatial rank, 0 where the family has none.
    pub rank: u8,
    /// Element type of the operands.
    pub dtype: Dtype,
    /// One flag per dimension; empty where the family has no masks.
    pub causal: Vec<bool>,
    /// Lowest device capability, times ten.
    pub sm_min: u16,
    /// Capability (times ten) that is too high.
    pub sm_max: u16,
    /// What the family's template is instantiated over beside the above: fna's GEMM shape, token
    /// permutation's vector width.
    pub shape: Vec<u32>,
    /// A section of build.toml that must be built too for this kernel to be wanted.
    pub section: Option<String>,
    /// In the families that are picked by tile shapes: those, and what goes with them.
    pub tiles: Option<Tiles>,
}

/// A pair of tile shapes with the head dim and the schedule that it is instantiated for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiles {
    /// Query tokens of a tile per dimension.
    pub query: Vec<u32>,
    /// Key tokens of a tile per dimension.
    pub key: Vec<u32>,
    /// Hopper: the one head dim that the kernel takes; Blackwell: the largest.
    pub head_dim: u32,
    /// Forward kernels: how their warps share the work.
    pub schedule: Option<Schedule>,
}

/// A schedule of forward kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Hopper: every warp loads and computes. Blackwell: a block computes one tile.
    NonPersistent,
    /// Blackwell: a block computes tile after tile.
    Persistent,
    /// Some warps load; the others compute one tile together.
    Cooperative,
    /// Some warps load; two groups of the others compute a tile each, in turn.
    PingPong,
}

/// Forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The operation.
    Forward,
    /// Its gradient.
    Backward,
}

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE single precision.
    Float32,
    /// IEEE half precision.
    Float16,
    /// Brain float.
    Bfloat16,
    /// FP8 with four exponent bits.
    #[serde(rename = "float8_e4m3")]
    Float8E4m3,
    /// FP8 with five exponent bits.
    #[serde(rename = "float8_e5m2")]
    Float8E5m2,
}

/// The catalog, parsed once. An error is a defect of the embedded tables.
pub fn catalog() -> anyhow::Result<&'static Catalog> {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    if let Some(catalog) = CATALOG.get() {
        return Ok(catalog);
    }
    let families = table::TABLES
        .iter()
        .map(|(family, text)| table::family(family, text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(CATALOG.get_or_init(|| Catalog { families }))
}

impl Catalog {
    /// The family of that name.
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }
}

impl Family {
    /// The groups of each of `count` units by upstream's rule: equal shares, the remainder going to
    /// the first. A unit is never empty, so there are at most as many as groups.
    pub fn units(&self, count: usize) -> Vec<Vec<&Group>> {
        let count = count.clamp(1, self.groups.len().max(1));
        let (share, rest) = (self.groups.len() / count, self.groups.len() % count);
        let mut groups = self.groups.iter();
        (0..count).map(|unit| groups.by_ref().take(share + usize::from(unit < rest)).collect()).collect()
    }

    /// The name of unit `index`: `fna_011`.
    pub fn unit_name(&self, index: usize) -> String {
        format!("{}_{index:03}", self.name)
    }

    /// Every kernel, in upstream's order.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.groups.iter().flat_map(|group| &group.kernels)
    }
}

impl Kernel {
    /// Whether code for capability `sm` (times ten) holds this kernel's body.
    pub fn live_on(&self, sm: u16) -> bool {
        (self.sm_min..self.sm_max).contains(&sm)
    }
}

impl Tiles {
    /// The GEMM that a tile pair makes: query tokens, key tokens, head dim.
    pub fn gemm(&self) -> [u32; 3] {
        [self.query.iter().product(), self.key.iter().product(), self.head_dim]
    }
}

impl Schedule {
    /// Upstream's `kernel_type` (Hopper) or `persistent` (Blackwell).
    pub fn number(self) -> u32 {
        match self {
            Schedule::NonPersistent => 0,
            Schedule::Cooperative | Schedule::Persistent => 1,
            Schedule::PingPong => 2,
        }
    }
}

impl Dtype {
    /// Every element type.
    pub const ALL: [Dtype; 5] =
        [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Float8E4m3, Dtype::Float8E5m2];

    /// Bytes of one element.
    pub fn size(self) -> u32 {
        match self {
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Float8E4m3 | Dtype::Float8E5m2 => 1,
        }
    }

    /// The word of selectors and of upstream's kernel names: `e4m3` for `float8_e4m3`.
    pub fn short(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float8E4m3 => "e4m3",
            Dtype::Float8E5m2 => "e5m2",
        }
    }
}

impl Direction {
    /// The word of selectors.
    pub fn word(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float8E4m3 => "float8_e4m3",
            Dtype::Float8E5m2 => "float8_e5m2",
        })
    }
}

impl FromStr for Direction {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        parse("direction", text, &[Direction::Forward, Direction::Backward])
    }
}

impl FromStr for Dtype {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        parse("dtype", text, &Dtype::ALL)
    }
}

fn parse<T: Copy + fmt::Display>(what: &str, text: &str, all: &[T]) -> anyhow::Result<T> {
    let found = all.iter().copied().find(|value| value.to_string() == text);
    Ok(found.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(ToString::to_string).collect();
        Failure::config(format!("{what} `{text}` is not known"))
            .hint(format!("the {what}s are {}", known.join(", ")))
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn family(name: &str) -> &'static Family {
        catalog().unwrap().family(name).unwrap()
    }

    #[test]
    fn counts_are_upstreams() {
        // family, groups, kernels, forward kernels, live on 9.0
        for (name, groups, kernels, forward, live) in [
            ("reference", 84, 84, 42, 84),
            // 9 (SM range, dtype) pairs x 14 masks x 12 shapes; backward has 44 shapes over those pairs
            ("fna", 252, 1512 + 616, 1512, 3 * 14 * (12 + 6)),
            // 9 (SM range, dtype) pairs x 12 shapes, and the 44 backward ones of fna
            ("fmha", 18, 108 + 44, 108, 3 * (12 + 6)),
            // 2 dtypes x (2 x 5 + 4 x 8 + 8 x 10) masks and tiles
            ("hopper_fna", 244, 244, 244, 244),
            ("hopper_fna_bwd", 292, 292, 0, 292),
            ("hopper_fmha", 10, 10, 10, 10),
            ("hopper_fmha_bwd", 10, 10, 0, 10),
            ("token_permute", 30, 90, 45, 54),
            ("compute_delta", 3, 3, 3, 3),
            ("merge", 6, 6, 3, 6),
            // dtypes x head dims x the sum over ranks of masks x tile shapes, forward also x schedules
            ("blackwell_fna", 1776, 4 * 3 * (2 + 4 * 4 + 8 * 7) * 2, 1776, 0),
            ("blackwell_fna_bwd", 540, 2 * 3 * (2 + 4 * 4 + 8 * 9), 0, 0),
            ("blackwell_fmha", 24, 4 * 3 * 2, 24, 0),
            ("blackwell_fmha_bwd", 6, 2 * 3, 0, 0),
        ] {
            let family = family(name);
            assert_eq!(family.groups.len(), groups, "{name}");
            assert_eq!(family.kernels().count(), kernels, "{name}");
            assert_eq!(
                family.kernels().filter(|k| k.direction == Direction::Forward).count(),
                forward,
                "{name}"
            );
            assert_eq!(family.kernels().filter(|k| k.live_on(90)).count(), live, "{name}");
        }
    }

    #[test]
    fn names_are_upstreams_and_in_its_order() {
        for (family_name, group, kernel, name) in [
            ("fna", 0, 0, "fna1d_32x128x32_sm50_float32_cm_0"),
            ("fna", 1, 11, "fna1d_64x64x65536_sm50_float32_cm_1"),
            ("fna", 125, 0, "fna3d_32x128x32_sm80_bfloat16_cm_1_1_1"),
            ("fna", 126, 0, "fna1d_backward_64x64x32_sm50_float32_cm_0"),
            ("fna", 251, 3, "fna3d_backward_128x128x128_sm80_bfloat16_cm_1_1_1"),
            ("fmha", 0, 0, "fmha_32x128x32_sm50_float32"),
            ("fmha", 17, 3, "fmha_backward_128x128x128_sm80_bfloat16"),
            ("hopper_fna", 0, 0, "hopper_fna1d_float16_64x128x32_Q64_KV128_causal0"),
            ("hopper_fna", 5, 0, "hopper_fna1d_float16_128x128x128_pp_Q128_KV128_causal0"),
            ("hopper_fna", 243, 0, "hopper_fna3d_bfloat16_128x64x256_coop_Q2x8x8_KV4x4x4_causal1x1x1"),
            ("hopper_fna_bwd", 1, 0, "hopper_fna1d_backward_float16_128x128x32_Q128_KV128_causal0"),
            (
                "hopper_fna_bwd",
                291,
                0,
                "hopper_fna3d_backward_bfloat16_64x128x128_Q1x8x8_KV2x8x8_causal1x1x1",
            ),
            ("hopper_fmha", 3, 0, "hopper_fmha_float16_128x128x128_pp"),
            ("hopper_fmha_bwd", 9, 0, "hopper_fmha_backward_bfloat16_64x128x128"),
            ("reference", 0, 0, "reference_fna1d_float32_causal0"),
            ("reference", 6, 0, "reference_fna1d_backward_float32_causal0"),
            ("reference", 83, 0, "reference_fna3d_backward_bfloat16_causal1x1x1"),
            ("token_permute", 0, 0, "token_permute1d_float32_align8"),
            ("token_permute", 11, 2, "token_unpermute3d_float16_align1"),
            ("compute_delta", 2, 0, "compute_delta_bfloat16"),
            ("merge", 1, 0, "merge_float16"),
            ("merge", 5, 0, "merge_backward_bfloat16"),
            ("blackwell_fna", 0, 0, "blackwell_fna1d_float16_256x128x32_Q256_KV128_causal0"),
            ("blackwell_fna", 1, 0, "blackwell_fna1d_float16_256x128x32_Q256_KV128_causal0_persistent"),
            ("blackwell_fna", 50, 0, "blackwell_fna2d_float16_256x128x32_Q16x16_KV8x16_causal0x0"),
            (
                "blackwell_fna",
                1775,
                0,
                "blackwell_fna3d_e5m2_256x128x128_Q4x8x8_KV2x8x8_causal1x1x1_persistent",
            ),
            (
                "blackwell_fna_bwd",
                12,
                0,
                "blackwell_fna2d_backward_float16_128x128x32_Q16x8_KV16x8_causal0x0",
            ),
            (
                "blackwell_fna_bwd",
                539,
                0,
                "blackwell_fna3d_backward_bfloat16_128x128x128_Q2x8x8_KV2x8x8_causal1x1x1",
            ),
            ("blackwell_fmha", 23, 0, "blackwell_fmha_e5m2_256x128x128_persistent"),
            ("blackwell_fmha_bwd", 5, 0, "blackwell_fmha_backward_bfloat16_128x128x128"),
        ] {
            assert_eq!(family(family_name).groups[group].kernels[kernel].name, name);
        }
    }

    #[test]
    fn no_two_kernels_share_a_name() {
        for family in &catalog().unwrap().families {
            let names: BTreeSet<_> = family.kernels().map(|k| &k.name).collect();
            assert_eq!(names.len(), family.kernels().count(), "{}", family.name);
        }
    }

    #[test]
    fn the_first_units_take_the_remainder_and_none_is_empty() {
        let sizes = |count| family("fna").units(count).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(64), [vec![4; 60], vec![3; 4]].concat());
        let unit_counts: Vec<_> = ["fmha", "hopper_fna", "hopper_fna_bwd", "hopper_fmha", "hopper_fmha_bwd"]
            .map(|name| family(name).splits)
            .map(|splits| [splits.default, splits.fine, splits.coarse])
            .into();
        assert_eq!(unit_counts, [[6, 12, 3], [8, 16, 4], [4, 8, 2], [5, 10, 1], [5, 10, 1]]);
        assert_eq!(sizes(0), [252]);
        assert_eq!(sizes(1000), [1; 252]);
        assert_eq!(family("fna").unit_name(11), "fna_011");
    }

    #[test]
    fn a_unit_of_token_permute_is_either_fp8_or_for_every_device() {
        let family = family("token_permute");
        for count in [family.splits.default, family.splits.fine, family.splits.coarse] {
            for unit in family.units(count) {
                let fp8: BTreeSet<_> =
                    unit.iter().flat_map(|g| &g.kernels).map(|k| k.section.is_some()).collect();
                assert_eq!(fp8.len(), 1, "{count} units");
            }
        }
    }

    #[test]
    fn kernels_are_live_in_their_half_open_range() {
        let kernel = &family("fna").groups[125].kernels[0];
        for (sm, live) in [(75, false), (79, false), (80, true), (90, true), (129, true), (130, false)] {
            assert_eq!(kernel.live_on(sm), live, "{sm}");
        }
    }

    #[test]
    fn a_hopper_kernels_gemm_is_its_tiles_and_head_dim() {
        for name in ["hopper_fna", "hopper_fna_bwd", "hopper_fmha", "hopper_fmha_bwd"] {
            for kernel in family(name).kernels() {
                let tiles = kernel.tiles.as_ref().unwrap();
                let [q, kv, dim] = tiles.gemm();
                assert!(kernel.name.contains(&format!("_{q}x{kv}x{dim}")), "{}", kernel.name);
                assert_eq!(tiles.schedule.is_some(), kernel.direction == Direction::Forward);
                assert_eq!(
                    (kernel.live_on(89), kernel.live_on(90), kernel.live_on(100)),
                    (false, true, false)
                );
            }
        }
    }

    #[test]
    fn unknown_words_list_the_known_ones() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.to_string().parse::<Dtype>().unwrap(), dtype);
        }
        let error = "half".parse::<Dtype>().unwrap_err();
        assert_eq!(error.to_string(), "dtype `half` is not known");
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert!(failure.hint.as_ref().unwrap().contains("float16, bfloat16"));
        assert!("fwd".parse::<Direction>().is_err());
    }
}
