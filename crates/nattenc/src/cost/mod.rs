//! What compiling costs, before anything was compiled: CPU time, memory and bytes by phase, family, kernels
//! and capability, from the table that ships beside the templates. Pure.
//!
//! Everything that is decided or said from predictions takes them from here: the order of jobs that never
//! ran, the split policy `balanced`, the predictions of `nattenc plan`. The table's seconds are those of the
//! machine that it was fitted on; a ratio holds elsewhere, and what this machine's jobs took is in the
//! store's history ([`crate::execute::history`]).

pub mod memory;
pub mod predict;
pub mod simulate;
pub mod split;
mod table;

pub use table::Table;

use crate::catalog::Kernel;
use crate::graph::{Cost, Kind};
use crate::plan::UnitPlan;
use crate::plan::gencode::Gencode;
use std::sync::OnceLock;

/// The phases that a unit goes through, which the table has a row for in every family.
pub const PHASES: [Kind; 6] =
    [Kind::Preprocess, Kind::Cudafe, Kind::Cicc, Kind::Ptxas, Kind::Fatbinary, Kind::Host];

/// The shipped table, parsed once. An error is a defect of the embedded text.
pub fn table() -> anyhow::Result<&'static Table> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    if let Some(table) = TABLE.get() {
        return Ok(table);
    }
    let table = Table::embedded()?;
    Ok(TABLE.get_or_init(|| table))
}

/// What a phase works on.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// The family of the unit.
    pub family: &'a str,
    /// The kernels whose body is compiled.
    pub live: Vec<&'a Kernel>,
    /// Kernels that are in the text but outside of their SM range: they compile to an empty body.
    pub dead: usize,
    /// What code is made for, as 90; `None` in phases that make none for a device.
    pub sm: Option<u16>,
}

impl<'a> Load<'a> {
    /// The host's phases of a unit.
    pub fn host(unit: &'a UnitPlan) -> Self {
        Load { family: &unit.family, live: unit.kernels.clone(), dead: 0, sm: None }
    }

    /// fatbinary of a unit, which compresses the code for every capability.
    pub fn images(unit: &'a UnitPlan) -> Self {
        let images = unit.gencodes.iter().flat_map(|gencode| {
            let images = gencode.real.len() + usize::from(gencode.ptx);
            std::iter::repeat_n(Load::device(unit, gencode, None).live, images).flatten()
        });
        Load { family: &unit.family, live: images.collect(), dead: 0, sm: None }
    }

    /// cicc of a unit for a gencode, or with `real` the ptxas for one of the gencode's codes.
    pub fn device(unit: &'a UnitPlan, gencode: &Gencode, real: Option<u16>) -> Self {
        let live: Vec<&Kernel> =
            unit.kernels.iter().copied().filter(|k| k.live_on(gencode.virtual_arch.number())).collect();
        let dead = unit.kernels.len() - live.len();
        Load { family: &unit.family, live, dead, sm: Some(real.unwrap_or(gencode.virtual_arch.number())) }
    }
}

impl Table {
    /// What a phase takes on the machine that the table was fitted on.
    pub fn cost(&self, phase: Kind, load: &Load<'_>) -> Cost {
        let row = self.row(load.family, phase);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "megabytes, never negative"
        )]
        let memory = (row.memory.of(load) * f64::from(1 << 20)) as u64;
        Cost { cpu: row.cpu.of(load), memory }
    }

    /// The bytes of the cubin that ptxas makes.
    pub fn cubin(&self, load: &Load<'_>) -> u64 {
        bytes(self.row(load.family, Kind::Ptxas).bytes.of(load))
    }

    /// The bytes of a unit's object: its host code, and the code of `images` compressed.
    pub fn object(&self, host: &Load<'_>, images: &Load<'_>) -> u64 {
        let part = |phase, load| self.row(host.family, phase).bytes.of(load);
        bytes(part(Kind::Host, host) + part(Kind::Fatbinary, images))
    }
}

/// Sizes of objects are far below what a float holds exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size in bytes, never negative"
)]
fn bytes(size: f64) -> u64 {
    size.round() as u64
}
