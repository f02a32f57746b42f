//! The canonical rendering: every kernel of every family, whatever a build would select, in the units
//! that a split policy makes. Text in memory; all of it or an error.

use crate::catalog::{Catalog, Family, Group};
use crate::generate::{self, Unit};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Upstream's split policies.
pub const POLICIES: [&str; 3] = ["default", "fine", "coarse"];

/// Every unit under one policy.
#[derive(Debug)]
pub struct Rendering {
    /// The policy.
    pub policy: &'static str,
    /// Families in the catalog's order, with the number of their units.
    pub units: Vec<Count>,
    /// `fna/fna_011.cu` and its text.
    pub files: Files,
}

/// A path, `/` between names, and the text of the file there.
pub type Files = BTreeMap<String, String>;

/// How many units a family has.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// The family.
    pub family: String,
    /// Whether upstream's scripts generate it.
    pub autogen: bool,
    /// Its units.
    pub units: usize,
}

impl Rendering {
    /// Units of the families that upstream's scripts generate, then those of the others.
    pub fn totals(&self) -> [usize; 2] {
        [true, false].map(|autogen| self.units.iter().filter(|c| c.autogen == autogen).map(|c| c.units).sum())
    }
}

/// How many units `policy` makes of a family.
pub(super) fn units(family: &Family, policy: &str) -> usize {
    match policy {
        "fine" => family.splits.fine,
        "coarse" => family.splits.coarse,
        _ => family.splits.default,
    }
}

/// Renders under one policy.
pub fn render(policy: &'static str, catalog: &Catalog) -> anyhow::Result<Rendering> {
    let mut counts = Vec::new();
    let mut all = Vec::new();
    for family in &catalog.families {
        let split = family.units(units(family, policy));
        counts.push(Count { family: family.name.clone(), autogen: family.autogen, units: split.len() });
        all.extend(split.into_iter().enumerate().map(|(index, groups)| unit(family, index, &groups)));
    }
    let one = |unit: &Unit<'_>| Ok((format!("{}/{}.cu", unit.family, unit.name), generate::unit(unit)?));
    // Of several errors the first unit's is told, whichever came first.
    let files = all.par_iter().map(one).collect::<Vec<_>>().into_iter().collect::<anyhow::Result<Files>>()?;
    Ok(Rendering { policy, units: counts, files })
}

/// A unit of these groups. What it is compiled for is no part of its text.
pub(super) fn unit<'a>(family: &'a Family, index: usize, groups: &[&'a Group]) -> Unit<'a> {
    Unit {
        name: family.unit_name(index),
        family: &family.name,
        kernels: groups.iter().flat_map(|group| &group.kernels).collect(),
        codes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn units_are_upstreams_144_and_every_policy_renders_every_kernel_once() {
        let catalog = catalog::catalog().unwrap();
        let kernels: usize = catalog.families.iter().map(|f| f.kernels().count()).sum();
        for (policy, totals) in POLICIES.into_iter().zip([[144, 7], [286, 17], [67, 7]]) {
            let rendering = render(policy, catalog).unwrap();
            assert_eq!(rendering.totals(), totals, "{policy}");
            assert_eq!(rendering.files.len(), totals.iter().sum::<usize>(), "{policy}");
            let entries: usize = rendering.files.values().map(|text| text.matches("_entry<").count()).sum();
            assert_eq!(entries, kernels, "{policy}");
        }
    }

    #[test]
    fn rendering_twice_gives_the_same_bytes() {
        let catalog = catalog::catalog().unwrap();
        assert!(render("coarse", catalog).unwrap().files == render("coarse", catalog).unwrap().files);
    }
}
