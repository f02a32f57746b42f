//! How much there is to compile: as planned, and as it would be without sharing or pruning.

use super::{Decision, Plan, UnitPlan};
use serde::Serialize;

/// Compile jobs by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Jobs {
    /// Host preprocessing: one per unit for its host part, one per gencode.
    pub preprocess: usize,
    /// cudafe++, one per unit.
    pub cudafe: usize,
    /// cicc, one per gencode.
    pub cicc: usize,
    /// ptxas, one per capability.
    pub ptxas: usize,
    /// fatbinary, one per unit.
    pub fatbinary: usize,
    /// Host compiles, one per unit.
    pub host: usize,
}

impl Jobs {
    fn of(units: usize, front_ends: usize, assemblies: usize) -> Self {
        Jobs {
            preprocess: units + front_ends,
            cudafe: units,
            cicc: front_ends,
            ptxas: assemblies,
            fatbinary: units,
            host: units,
        }
    }

    /// Those of one unit.
    pub fn of_unit(unit: &UnitPlan) -> Self {
        Jobs::of(1, unit.gencodes.len(), unit.gencodes.iter().map(|g| g.real.len()).sum())
    }

    /// All of them.
    pub fn sum(&self) -> usize {
        self.preprocess + self.cudafe + self.cicc + self.ptxas + self.fatbinary + self.host
    }
}

/// One way to build, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Units.
    pub units: usize,
    /// Jobs that compile them; the jobs of the link are not among them.
    pub jobs: Jobs,
    /// All of these jobs.
    pub compile_jobs: usize,
}

impl Amount {
    fn new(units: usize, jobs: Jobs) -> Self {
        Amount { units, jobs, compile_jobs: jobs.sum() }
    }
}

/// The plan beside what it saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// As planned.
    pub planned: Amount,
    /// The same without sharing: a front end per capability.
    pub unshared: Amount,
    /// Every unit of the families that are built, for every capability of their sections that is built:
    /// no sharing, no pruning, no selection.
    pub everything: Amount,
}

impl Totals {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        let units = plan.units.len();
        let counts = plan.counts;
        let front_ends = counts.pairs - counts.shared_pairs;
        Totals {
            planned: Amount::new(units, Jobs::of(units, front_ends, counts.pairs)),
            unshared: Amount::new(units, Jobs::of(units, counts.pairs, counts.pairs)),
            everything: Amount::new(
                counts.canonical_units,
                Jobs::of(counts.canonical_units, counts.canonical_pairs, counts.canonical_pairs),
            ),
        }
    }
}

/// How many units of a set hold code for a capability: compiled, and assembled from another's PTX.
pub fn holders<'a>(
    units: impl Iterator<Item = &'a UnitPlan>,
    request: super::capability::CapabilityRequest,
) -> (usize, usize) {
    units.flat_map(|u| &u.capabilities).filter(|c| c.request == request).fold((0, 0), |(own, shared), row| {
        match row.decision {
            Decision::Build => (own + 1, shared),
            Decision::Share { .. } => (own, shared + 1),
            Decision::Skip(_) => (own, shared),
        }
    })
}
