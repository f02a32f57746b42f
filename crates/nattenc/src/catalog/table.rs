//! The instance tables: TOML beside the templates -> families. A table is a nest of loops over axes,
//! with the shapes innermost; everything a table can say is here.

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;

use super::{Direction, Dtype, Family, Group, Kernel, Schedule, Splits, Tiles};

/// Family name and table text, in upstream's order of families.
pub(super) const TABLES: &[(&str, &str)] = &[
    ("reference", include_str!("../../../../templates/cuda/reference/instances.toml")),
    ("fna", include_str!("../../../../templates/cuda/fna/instances.toml")),
    ("fmha", include_str!("../../../../templates/cuda/fmha/instances.toml")),
    ("hopper_fna", include_str!("../../../../templates/cuda/hopper_fna/instances.toml")),
    ("hopper_fna_bwd", include_str!("../../../../templates/cuda/hopper_fna_bwd/instances.toml")),
    ("hopper_fmha", include_str!("../../../../templates/cuda/hopper_fmha/instances.toml")),
    ("hopper_fmha_bwd", include_str!("../../../../templates/cuda/hopper_fmha_bwd/instances.toml")),
    ("blackwell_fna", include_str!("../../../../templates/cuda/blackwell_fna/instances.toml")),
    ("blackwell_fna_bwd", include_str!("../../../../templates/cuda/blackwell_fna_bwd/instances.toml")),
    ("blackwell_fmha", include_str!("../../../../templates/cuda/blackwell_fmha/instances.toml")),
    ("blackwell_fmha_bwd", include_str!("../../../../templates/cuda/blackwell_fmha_bwd/instances.toml")),
    ("token_permute", include_str!("../../../../templates/cuda/token_permute/instances.toml")),
    ("compute_delta", include_str!("../../../../templates/cuda/compute_delta/instances.toml")),
    ("merge", include_str!("../../../../templates/cuda/merge/instances.toml")),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    autogen: bool,
    splits: Splits,
    /// Kernel names, with `{placeholders}` that `name` fills in.
    name: String,
    /// Axes, outermost first.
    loops: Vec<Axis>,
    #[serde(default = "forward")]
    directions: Vec<Direction>,
    #[serde(default = "no_rank")]
    ranks: Vec<u8>,
    #[serde(default = "any_sm")]
    sm: Vec<[u16; 2]>,
    dtypes: Vec<DtypeRow>,
    /// Whether there is a kernel per causal mask.
    #[serde(default)]
    causal: bool,
    /// The first rule that matches gives a group's shapes; without rules it is one kernel.
    #[serde(default)]
    shapes: Vec<ShapeRule>,
    #[serde(default = "no_head_dim")]
    head_dims: Vec<u32>,
    /// Instead of shapes, where each kernel is a group of its own: the first rule that matches gives
    /// the tile shapes.
    #[serde(default)]
    tiles: Vec<TileRule>,
}

fn forward() -> Vec<Direction> {
    vec![Direction::Forward]
}

fn no_rank() -> Vec<u8> {
    vec![0]
}

fn any_sm() -> Vec<[u16; 2]> {
    vec![[0, u16::MAX]]
}

fn no_head_dim() -> Vec<u32> {
    vec![0]
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
enum Axis {
    Direction,
    Rank,
    Sm,
    Dtype,
    Causal,
    HeadDim,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DtypeRow {
    name: Dtype,
    /// SM ranges that start lower have no kernel of this dtype.
    #[serde(default)]
    sm_min: u16,
    /// Replaces the SM range.
    sm: Option<[u16; 2]>,
    section: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ShapeRule {
    direction: Option<Direction>,
    /// The start of an SM range.
    sm: Option<u16>,
    dtypes: Option<Vec<Dtype>>,
    list: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TileRule {
    rank: Option<u8>,
    head_dims: Option<Vec<u32>>,
    list: Vec<TileRow>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct TileRow {
    q: Vec<u32>,
    kv: Vec<u32>,
    schedule: Option<Schedule>,
}

/// One combination of the axes. Those that have no loop keep their only value.
#[derive(Clone)]
struct Point {
    direction: Direction,
    rank: u8,
    sm: [u16; 2],
    dtype: DtypeRow,
    causal: Vec<bool>,
    head_dim: u32,
}

/// Parses and expands one table.
pub(super) fn family(name: &str, text: &str) -> anyhow::Result<Family> {
    expand(name, text).with_context(|| format!("instance table of {name}"))
}

fn expand(name: &str, text: &str) -> anyhow::Result<Family> {
    let table: Table = toml::from_str(text)?;
    check(&table)?;
    let first = |what| anyhow!("no {what}");
    let mut points = vec![Point {
        direction: *table.directions.first().ok_or_else(|| first("direction"))?,
        rank: *table.ranks.first().ok_or_else(|| first("rank"))?,
        sm: *table.sm.first().ok_or_else(|| first("SM range"))?,
        dtype: table.dtypes.first().ok_or_else(|| first("dtype"))?.clone(),
        causal: Vec::new(),
        head_dim: *table.head_dims.first().ok_or_else(|| first("head dim"))?,
    }];
    for axis in &table.loops {
        points = points.iter().flat_map(|point| along(&table, *axis, point)).collect();
    }
    let groups = points
        .into_iter()
        .filter(|point| point.sm[0] >= point.dtype.sm_min)
        .map(|point| groups(&table, &point))
        .collect::<anyhow::Result<Vec<_>>>()?
        .concat();
    Ok(Family { name: name.to_owned(), autogen: table.autogen, splits: table.splits, groups })
}

/// An axis with several values must be looped over, each at most once, and masks inside of ranks.
fn check(table: &Table) -> anyhow::Result<()> {
    let place = |axis| table.loops.iter().position(|looped| *looped == axis);
    for (axis, values) in [
        (Axis::Direction, table.directions.len()),
        (Axis::Rank, table.ranks.len()),
        (Axis::Sm, table.sm.len()),
        (Axis::Dtype, table.dtypes.len()),
        (Axis::Causal, if table.causal { 2 } else { 1 }),
        (Axis::HeadDim, table.head_dims.len()),
    ] {
        if values > 1 && place(axis).is_none() {
            bail!("{axis:?} has {values} values and no loop");
        }
        if table.loops.iter().filter(|looped| **looped == axis).count() > 1 {
            bail!("two loops over {axis:?}");
        }
    }
    if table.causal && place(Axis::Causal) < place(Axis::Rank) {
        bail!("the loop over causal masks must be inside the one over ranks");
    }
    if !table.tiles.is_empty() && !table.shapes.is_empty() {
        bail!("a table has shapes or tiles, not both");
    }
    if table.splits.default.min(table.splits.fine).min(table.splits.coarse) == 0 {
        bail!("a split policy makes no unit");
    }
    if let Some([low, high]) = table.sm.iter().find(|[low, high]| low >= high) {
        bail!("SM range [{low}, {high}] is empty");
    }
    Ok(())
}

/// `point`, once per value of `axis`.
fn along(table: &Table, axis: Axis, point: &Point) -> Vec<Point> {
    let with = |change: &dyn Fn(&mut Point)| {
        let mut point = point.clone();
        change(&mut point);
        point
    };
    match axis {
        Axis::Direction => table.directions.iter().map(|v| with(&|p| p.direction = *v)).collect(),
        Axis::Rank => table.ranks.iter().map(|v| with(&|p| p.rank = *v)).collect(),
        Axis::Sm => table.sm.iter().map(|v| with(&|p| p.sm = *v)).collect(),
        Axis::Dtype => table.dtypes.iter().map(|v| with(&|p| p.dtype = v.clone())).collect(),
        Axis::Causal => masks(point.rank).into_iter().map(|v| with(&|p| p.causal.clone_from(&v))).collect(),
        Axis::HeadDim => table.head_dims.iter().map(|v| with(&|p| p.head_dim = *v)).collect(),
    }
}

/// Every mask of a rank; the last dimension varies fastest.
fn masks(rank: u8) -> Vec<Vec<bool>> {
    (0..1u32 << rank).map(|bits| (0..rank).rev().map(|bit| bits >> bit & 1 == 1).collect()).collect()
}

/// The groups of one combination: a single one of all shapes, or one per pair of tile shapes.
fn groups(table: &Table, point: &Point) -> anyhow::Result<Vec<Group>> {
    if !table.tiles.is_empty() {
        let group = |row| Ok(Group { kernels: vec![kernel(table, point, &[], Some(tiles(point, row)?))?] });
        return rows(table, point)?.iter().map(group).collect();
    }
    let matches = |rule: &&ShapeRule| {
        rule.direction.is_none_or(|direction| direction == point.direction)
            && rule.sm.is_none_or(|sm| sm == point.sm[0])
            && rule.dtypes.as_ref().is_none_or(|dtypes| dtypes.contains(&point.dtype.name))
    };
    let shapes = match table.shapes.iter().find(matches) {
        Some(rule) => rule.list.clone(),
        None if table.shapes.is_empty() => vec![Vec::new()],
        None => bail!("no shapes for {} {} on SM {}", point.direction, point.dtype.name, point.sm[0]),
    };
    let kernels = shapes.iter().map(|shape| kernel(table, point, shape, None));
    Ok(vec![Group { kernels: kernels.collect::<anyhow::Result<_>>()? }])
}

fn rows<'a>(table: &'a Table, point: &Point) -> anyhow::Result<&'a [TileRow]> {
    let matches = |rule: &&TileRule| {
        rule.rank.is_none_or(|rank| rank == point.rank)
            && rule.head_dims.as_ref().is_none_or(|dims| dims.contains(&point.head_dim))
    };
    let rule = table.tiles.iter().find(matches);
    Ok(&rule.ok_or_else(|| anyhow!("no tiles for {}-D, head dim {}", point.rank, point.head_dim))?.list)
}

fn tiles(point: &Point, row: &TileRow) -> anyhow::Result<Tiles> {
    let dimensions = usize::from(point.rank.max(1));
    if row.q.len() != dimensions || row.kv.len() != dimensions {
        bail!("tiles {:?} x {:?} are not for {} dimensions", row.q, row.kv, dimensions);
    }
    Ok(Tiles { query: row.q.clone(), key: row.kv.clone(), head_dim: point.head_dim, schedule: row.schedule })
}

fn kernel(table: &Table, point: &Point, shape: &[u32], tiles: Option<Tiles>) -> anyhow::Result<Kernel> {
    let [sm_min, sm_max] = point.dtype.sm.unwrap_or(point.sm);
    Ok(Kernel {
        name: name(&table.name, point, shape, tiles.as_ref())?,
        direction: point.direction,
        rank: point.rank,
        dtype: point.dtype.name,
        causal: point.causal.clone(),
        sm_min,
        sm_max,
        shape: shape.to_vec(),
        section: point.dtype.section.clone(),
        tiles,
    })
}

/// Fills in the placeholders of a name.
fn name(pattern: &str, point: &Point, shape: &[u32], tiles: Option<&Tiles>) -> anyhow::Result<String> {
    let tiled = |key: &str| tiles.ok_or_else(|| anyhow!("name `{pattern}`: `{key}` needs tiles"));
    let backward = point.direction == Direction::Backward;
    let mask = |separator| {
        point.causal.iter().map(|c| if *c { "1" } else { "0" }).collect::<Vec<_>>().join(separator)
    };
    let mut name = String::new();
    let mut rest = pattern;
    while let Some((before, tail)) = rest.split_once('{') {
        let (key, after) = tail.split_once('}').ok_or_else(|| anyhow!("name `{pattern}`: a `{{` is open"))?;
        name.push_str(before);
        name.push_str(&match key {
            "rank" => point.rank.to_string(),
            "sm" => point.sm[0].to_string(),
            "dtype" => point.dtype.name.to_string(),
            "dtype:short" => point.dtype.name.short().to_owned(),
            "shape" => by(shape),
            "gemm" => by(&tiled(key)?.gemm()),
            "q" => by(&tiled(key)?.query),
            "kv" => by(&tiled(key)?.key),
            "_schedule" => match tiled(key)?.schedule {
                None | Some(Schedule::NonPersistent) => "",
                Some(Schedule::Persistent) => "_persistent",
                Some(Schedule::Cooperative) => "_coop",
                Some(Schedule::PingPong) => "_pp",
            }
            .to_owned(),
            "causal:_" => mask("_"),
            "causal:x" => mask("x"),
            "_backward" => if backward { "_backward" } else { "" }.to_owned(),
            "un" => if backward { "un" } else { "" }.to_owned(),
            _ => bail!("name `{pattern}`: no placeholder is called `{key}`"),
        });
        rest = after;
    }
    name.push_str(rest);
    Ok(name)
}

fn by(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_tables_are_refused_with_the_reason() {
        let good = "autogen = false\nsplits = { default = 1, fine = 1, coarse = 1 }\n";
        for (rest, reason) in [
            ("name = \"k\"\nloops = []\ndtypes = []", "no dtype"),
            (
                "name = \"k\"\nloops = []\ndtypes = [{name = \"float32\"}, {name = \"float16\"}]",
                "Dtype has 2 values",
            ),
            ("name = \"{what}\"\nloops = []\ndtypes = [{name = \"float32\"}]", "called `what`"),
            ("name = \"{rank\"\nloops = []\ndtypes = [{name = \"float32\"}]", "is open"),
            ("name = \"k\"\nloops = [\"dtype\", \"dtype\"]\ndtypes = [{name = \"float32\"}]", "two loops"),
            (
                "name = \"k\"\nloops = [\"causal\", \"rank\"]\nranks = [1, 2]\ncausal = true\n\
                 dtypes = [{name = \"float32\"}]",
                "inside the one over ranks",
            ),
            (
                "name = \"k\"\nloops = []\nsm = [[80, 80]]\ndtypes = [{name = \"float32\"}]",
                "[80, 80] is empty",
            ),
            (
                "name = \"k\"\nloops = []\ndtypes = [{name = \"float32\"}]\n\
                 [[shapes]]\nsm = 80\nlist = [[1]]",
                "no shapes for forward float32 on SM 0",
            ),
            ("name = \"k\"\nloops = []\ndtypes = [{name = \"half\"}]", "unknown variant"),
            (
                "name = \"k\"\nloops = []\nhead-dims = [32, 64]\ndtypes = [{name = \"float16\"}]",
                "HeadDim has 2 values",
            ),
            ("name = \"{gemm}\"\nloops = []\ndtypes = [{name = \"float16\"}]", "`gemm` needs tiles"),
            (
                "name = \"k\"\nloops = []\nranks = [2]\ndtypes = [{name = \"float16\"}]\n\
                 [[tiles]]\nlist = [{ q = [8, 8], kv = [64] }]",
                "are not for 2 dimensions",
            ),
            (
                "name = \"k\"\nloops = []\ndtypes = [{name = \"float16\"}]\n\
                 [[tiles]]\nrank = 2\nlist = [{ q = [8, 8], kv = [8, 8] }]",
                "no tiles for 0-D, head dim 0",
            ),
            (
                "name = \"k\"\nloops = []\ndtypes = [{name = \"float16\"}]\n\
                 [[tiles]]\nlist = []\n[[shapes]]\nlist = []",
                "not both",
            ),
            ("name = \"k\"\nloop = []\ndtypes = []", "unknown field"),
        ] {
            let error = format!("{:#}", family("x", &format!("{good}{rest}")).unwrap_err());
            assert!(error.contains(reason), "{rest}: {error}");
        }
    }

    #[test]
    fn the_last_dimension_of_a_mask_varies_fastest() {
        assert_eq!(masks(2), [[false, false], [false, true], [true, false], [true, true]]);
        assert_eq!(masks(0), [Vec::<bool>::new()]);
    }
}
