//! `nattenc plan`: what a build would hold.

use super::SelectArgs;
use crate::cost::predict::{self, Prediction};
use crate::pipeline::Project;
use crate::report::{bytes, duration};
use crate::{catalog, cost, plan, report};
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no toolkit and fetches nothing. What a build takes is predicted from the cost table that ships with
nattenc (templates/cuda/costs.toml), for a machine as fast as the one that the table was fitted on and with
nothing in the cache; -j and --memory are as for `nattenc build`.

Examples:
  nattenc plan --variant cu128
  nattenc plan --variant cu130 --policy balanced -j 64 --memory 240G
  nattenc plan --variant cu130 --preset starter --json")]
pub struct PlanArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    select: SelectArgs,
    /// Predict for this many compiler processes at once; the default is the CPUs that this process may use
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// Predict for what they may take together, as 12G; the default is what can be used now less a reserve
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Print the whole plan as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &PlanArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let plan = plan::plan(&project.config, &variant, None, &args.select.request()?, catalog::catalog()?)?;
    let jobs = super::jobs(args.jobs)?;
    let (memory, _) = super::memory(args.memory.as_deref())?;
    let prediction = predict::of(&plan, jobs, memory, cost::table()?);
    if args.json {
        let mut value = plan::describe::json(&plan);
        value["prediction"] = serde_json::to_value(&prediction)?;
        report::stdout(&serde_json::to_string_pretty(&value)?)?;
    } else {
        report::stdout(&(plan::describe::text(&plan) + &text(&plan, &prediction)))?;
    }
    Ok(())
}

/// The prediction as a person reads it.
fn text(plan: &plan::Plan, p: &Prediction) -> String {
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
