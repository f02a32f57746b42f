//! The cost table: TOML beside the templates -> lines. `scripts/fit-costs.py` writes it, so this reader takes
//! exactly what that writes and no more.

use super::{Load, PHASES};
use crate::catalog::{Direction, Dtype, Kernel, Schedule};
use crate::config::FAMILIES;
use crate::graph::Kind;
use crate::plan::capability::Capability;
use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

const TEXT: &str = include_str!("../../../../templates/cuda/costs.toml");

/// The format that this reader knows.
const VERSION: u32 = 1;

/// Costs by family and phase.
#[derive(Debug)]
pub struct Table {
    /// What no unit accounts for.
    pub(super) artifact: Artifact,
    rows: BTreeMap<String, BTreeMap<Kind, Row>>,
}

/// One phase of one family.
#[derive(Debug)]
pub(super) struct Row {
    /// Seconds.
    pub(super) cpu: Line,
    /// The largest resident set, in units of 1 << 20 bytes.
    pub(super) memory: Line,
    /// Of ptxas the cubin, of fatbinary all images compressed, of the host compile the rest of the object.
    pub(super) bytes: Line,
}

/// A quantity that grows with the kernels.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Of the headers alone.
    pub(super) header: f64,
    /// Per kernel of weight 1.
    kernel: f64,
    /// Per kernel outside of its SM range.
    dead: f64,
    /// What sets kernels apart: the factors of all that fit are multiplied.
    weights: Vec<(Feature, f64)>,
    /// From this capability on, as 100, the kernels' part is this many times as much. Ascending.
    capabilities: Vec<(u16, f64)>,
}

impl Line {
    /// The quantity for all that a phase works on.
    pub(super) fn of(&self, load: &Load<'_>) -> f64 {
        let kernels: f64 = load.live.iter().map(|kernel| self.kernel(kernel)).sum();
        let from = |sm: u16| self.capabilities.iter().rfind(|(first, _)| *first <= sm);
        let factor = load.sm.and_then(from).map_or(1.0, |(_, factor)| *factor);
        self.header + kernels * factor + self.dead * load.dead as f64
    }

    /// What one kernel adds.
    pub(super) fn kernel(&self, kernel: &Kernel) -> f64 {
        let weights = self.weights.iter().filter(|(feature, _)| feature.fits(kernel));
        weights.fold(self.kernel, |product, (_, factor)| product * factor)
    }
}

/// Something that a kernel has or not.
#[derive(Debug, PartialEq)]
enum Feature {
    Direction(Direction),
    Rank(u8),
    Dtype(Dtype),
    /// The GEMM shape; of token permutation the vector width.
    Shape(Vec<u32>),
    HeadDim(u32),
    Schedule(Schedule),
    /// How many dimensions are causal.
    Causal(usize),
}

impl Feature {
    fn fits(&self, kernel: &Kernel) -> bool {
        let tiles = kernel.tiles.as_ref();
        match self {
            Feature::Direction(direction) => kernel.direction == *direction,
            Feature::Rank(rank) => kernel.rank == *rank,
            Feature::Dtype(dtype) => kernel.dtype == *dtype,
            Feature::Shape(shape) => tiles.map_or(kernel.shape == *shape, |t| t.gemm() == shape[..]),
            Feature::HeadDim(dim) => tiles.map_or(kernel.shape.get(2), |t| Some(&t.head_dim)) == Some(dim),
            Feature::Schedule(schedule) => tiles.and_then(|t| t.schedule) == Some(*schedule),
            Feature::Causal(count) => kernel.causal.iter().filter(|flag| **flag).count() == *count,
        }
    }
}

impl std::str::FromStr for Feature {
    type Err = anyhow::Error;

    /// `rank=3`, as the table's keys are written.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (key, value) = text.split_once('=').ok_or_else(|| anyhow!("weight `{text}` has no `=`"))?;
        Ok(match key {
            "direction" => Feature::Direction(value.parse()?),
            "rank" => Feature::Rank(value.parse()?),
            "dtype" => Feature::Dtype(value.parse()?),
            "shape" => Feature::Shape(value.split('x').map(str::parse).collect::<Result<_, _>>()?),
            "head-dim" => Feature::HeadDim(value.parse()?),
            "schedule" => Feature::Schedule(match value {
                "non-persistent" => Schedule::NonPersistent,
                "persistent" => Schedule::Persistent,
                "cooperative" => Schedule::Cooperative,
                "ping-pong" => Schedule::PingPong,
                _ => bail!("weight `{text}`: no schedule is called `{value}`"),
            }),
            "causal" => Feature::Causal(value.parse()?),
            _ => bail!("weight `{text}`: no kernel has a `{key}`"),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    artifact: Artifact,
    family: BTreeMap<String, BTreeMap<String, RowText>>,
}

/// What an artifact takes beside its units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Artifact {
    source: String,
    /// Seconds of compiling the host's sources.
    pub(super) host: f64,
    /// Seconds of the archive and the link.
    pub(super) link: f64,
    /// CUDA's runtime, host code, headers, licences.
    pub(super) bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowText {
    /// Where the numbers come from.
    source: String,
    cpu: LineText,
    memory: LineText,
    #[serde(default)]
    bytes: LineText,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LineText {
    header: f64,
    kernel: f64,
    dead: f64,
    weights: BTreeMap<String, f64>,
    capabilities: BTreeMap<String, f64>,
}

impl Table {
    /// The table that ships with nattenc.
    pub fn embedded() -> anyhow::Result<Table> {
        Table::parse(TEXT).context("templates/cuda/costs.toml")
    }

    /// Reads a table; it must hold every phase of every family.
    pub(super) fn parse(text: &str) -> anyhow::Result<Table> {
        let document: Document = toml::from_str(text)?;
        ensure!(document.version == VERSION, "version {} is not {VERSION}", document.version);
        ensure!(!document.artifact.source.is_empty(), "artifact: no source is named");
        let mut rows = BTreeMap::new();
        for (family, phases) in &document.family {
            ensure!(FAMILIES.contains(&family.as_str()), "no family is called `{family}`");
            let mut known = BTreeMap::new();
            for (word, row) in phases {
                let place = || format!("{family}.{word}");
                let phase = PHASES.into_iter().find(|phase| key(*phase) == word);
                let phase = phase.ok_or_else(|| anyhow!("{}: no phase is called that", place()))?;
                known.insert(phase, Row::read(row).with_context(place)?);
            }
            rows.insert(family.clone(), known);
        }
        for family in FAMILIES {
            for phase in PHASES {
                let row = rows.get(*family).and_then(|row: &BTreeMap<Kind, Row>| row.get(&phase));
                ensure!(row.is_some(), "{family}.{} is missing", key(phase));
            }
        }
        Ok(Table { artifact: document.artifact, rows })
    }

    pub(super) fn row(&self, family: &str, phase: Kind) -> &Row {
        &self.rows[family][&phase]
    }
}

/// The phase's name in the table: a bare key of TOML.
fn key(phase: Kind) -> &'static str {
    if phase == Kind::Cudafe { "cudafe" } else { phase.word() }
}

impl Row {
    fn read(text: &RowText) -> anyhow::Result<Row> {
        ensure!(!text.source.is_empty(), "no source is named");
        Ok(Row {
            cpu: Line::read(&text.cpu).context("cpu")?,
            memory: Line::read(&text.memory).context("memory")?,
            bytes: Line::read(&text.bytes).context("bytes")?,
        })
    }
}

impl Line {
    fn read(text: &LineText) -> anyhow::Result<Line> {
        let mut line = Line { header: text.header, kernel: text.kernel, dead: text.dead, ..Line::default() };
        for (feature, factor) in &text.weights {
            line.weights.push((feature.parse()?, *factor));
        }
        for (capability, factor) in &text.capabilities {
            let capability: Capability = capability.parse().map_err(anyhow::Error::msg)?;
            line.capabilities.push((capability.number(), *factor));
        }
        line.capabilities.sort_by_key(|(sm, _)| *sm);
        let numbers = [line.header, line.kernel, line.dead];
        let factors = line.weights.iter().map(|w| w.1).chain(line.capabilities.iter().map(|c| c.1));
        ensure!(
            numbers.iter().all(|n| n.is_finite() && *n >= 0.0)
                && factors.into_iter().all(|f| f.is_finite() && f > 0.0),
            "a number is negative or not finite"
        );
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    /// A whole table whose row of fna's cicc is `row`.
    fn with(row: &str) -> String {
        let mut text =
            "version = 1\nartifact = { source = \"s\", host = 1, link = 1, bytes = 1 }\n".to_owned();
        for family in FAMILIES {
            for phase in PHASES {
                let row = match (*family, phase) {
                    ("fna", Kind::Cicc) => row,
                    _ => "source = \"s\"\ncpu = { header = 1 }\nmemory = { header = 1 }",
                };
                text.extend(["[family.", family, ".", key(phase), "]\n", row, "\n"]);
            }
        }
        text
    }

    #[test]
    fn quantity_is_header_and_weighted_kernels_and_dead_ones() {
        let row = "source = \"s\"\nmemory = { header = 5 }\ncpu = { header = 2, kernel = 3, dead = 0.5, \
                   weights = { \"rank=2\" = 2, \"dtype=float16\" = 10, \"shape=64x64x32\" = 100, \"causal=2\" = 7 }, \
                   capabilities = { \"10.0\" = 1.5, \"12.0\" = 2 } }";
        let table = Table::parse(&with(row)).unwrap();
        let fna = catalog::catalog().unwrap().family("fna").unwrap();
        let kernel = |name: &str| fna.kernels().find(|k| k.name == name).unwrap();
        let plain = kernel("fna1d_64x128x32_sm80_bfloat16_cm_0");
        let rank2 = kernel("fna2d_64x64x32_sm80_float16_cm_0_0");
        let masked = kernel("fna2d_64x128x32_sm80_bfloat16_cm_1_1");
        for (live, dead, sm, seconds) in [
            (vec![], 0, None, 2.0),
            (vec![plain], 0, None, 2.0 + 3.0),
            (vec![plain, rank2], 0, Some(90), 2.0 + 3.0 + 3.0 * 2.0 * 10.0 * 100.0),
            (vec![masked], 0, Some(80), 2.0 + 3.0 * 2.0 * 7.0),
            // The kernels' part alone depends on the capability.
            (vec![plain], 4, Some(103), 2.0 + 3.0 * 1.5 + 4.0 * 0.5),
            (vec![plain], 0, Some(121), 2.0 + 3.0 * 2.0),
        ] {
            let cost = table.cost(Kind::Cicc, &Load { family: "fna", live, dead, sm });
            assert!((cost.cpu - seconds).abs() < 1e-9, "{} instead of {seconds}", cost.cpu);
            assert_eq!(cost.memory, 5 << 20);
        }
    }

    #[test]
    fn features_of_tiled_kernels_are_their_gemm_head_dim_and_schedule() {
        let hopper = catalog::catalog().unwrap().family("hopper_fna").unwrap();
        let kernel = hopper.kernels().find(|k| k.name.contains("128x128x128_pp")).unwrap();
        for (feature, fits) in [
            ("shape=128x128x128", true),
            ("shape=128x64x128", false),
            ("head-dim=128", true),
            ("schedule=ping-pong", true),
            ("schedule=cooperative", false),
            ("direction=forward", true),
            ("rank=1", true),
            ("causal=0", true),
        ] {
            assert_eq!(feature.parse::<Feature>().unwrap().fits(kernel), fits, "{feature}");
        }
    }

    #[test]
    fn broken_tables_are_refused_with_the_reason() {
        let good = "source = \"s\"\ncpu = { header = 1 }\nmemory = { header = 1 }";
        for (text, reason) in [
            (with(good).replace("version = 1", "version = 2"), "version 2 is not 1"),
            (with(good).replace("[family.fna.host]", "[family.fna.guest]"), "fna.guest: no phase"),
            (with(good).replace("[family.fna.host]", "[family.fnaa.host]"), "no family is called `fnaa`"),
            (with(good).replace(&format!("[family.fna.cicc]\n{good}"), ""), "fna.cicc is missing"),
            (with("source = \"\"\ncpu = {}\nmemory = {}"), "fna.cicc: no source"),
            (with("source = \"s\"\ncpu = { header = -1 }\nmemory = {}"), "negative"),
            (with("source = \"s\"\ncpu = { weights = { \"rank\" = 1 } }\nmemory = {}"), "no `=`"),
            (with("source = \"s\"\ncpu = { weights = { \"colour=1\" = 1 } }\nmemory = {}"), "a `colour`"),
            (with("source = \"s\"\ncpu = { weights = { \"rank=1\" = 0 } }\nmemory = {}"), "negative"),
            (with("source = \"s\"\ncpu = { capabilities = { \"90\" = 1 } }\nmemory = {}"), "\"90\""),
            (with("source = \"s\"\ncpu = { seconds = 1 }\nmemory = {}"), "unknown field"),
        ] {
            let error = format!("{:#}", Table::parse(&text).unwrap_err());
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn every_family_of_the_catalog_has_a_row_in_the_shipped_table() {
        let table = Table::embedded().unwrap();
        for family in &catalog::catalog().unwrap().families {
            for phase in PHASES {
                assert!(table.row(&family.name, phase).cpu.header > 0.0, "{} {phase:?}", family.name);
            }
        }
    }
}
