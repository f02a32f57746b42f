//! What a build will take, for `nattenc plan`.

use crate::cost::{self, predict::Prediction};
use crate::plan::Plan;
use crate::report::{bytes, duration};
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The machine that a build is predicted for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prediction")]
pub(super) struct MachineArgs {
    /// For this many compiler processes at once; the default is the CPUs that this process may use
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// For processes that take this much together, as 12G; the default is what can be used now less a reserve
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
}

impl MachineArgs {
    /// The prediction for these.
    pub(super) fn predict(&self, plan: &Plan) -> anyhow::Result<Prediction> {
        let (memory, _) = super::memory(self.memory.as_deref(), None)?;
        Ok(cost::predict::of(plan, super::jobs(self.jobs)?, memory, cost::table()?))
    }
}

/// The prediction as a person reads it.
pub(super) fn text(plan: &Plan, p: &Prediction) -> String {
    let time = |seconds: f64| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let mut families: BTreeMap<&str, f64> = BTreeMap::new();
    for (unit, predicted) in plan.units.iter().zip(&p.units) {
        *families.entry(&unit.family).or_default() += predicted.cpu_seconds;
    }
    let mut families: Vec<(&str, f64)> = families.into_iter().collect();
    families.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    let families: Vec<String> = families.iter().map(|(name, cpu)| format!("{name} {}", time(*cpu))).collect();
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\npredicted: {} of CPU, {} with {} processes at once in {}\n  at most {} together, {} in one process ({}); an artifact of about {}\n  CPU by family: {}\n",
        time(p.cpu_seconds),
        time(p.wall_seconds),
        p.jobs,
        bytes(p.memory_budget),
        bytes(p.peak_memory),
        bytes(p.largest_job_memory),
        p.largest_job_unit,
        bytes(p.artifact_bytes),
        families.join(", ")
    );
    out
}
