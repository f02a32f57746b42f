//! `nattenc plan`: what a build would hold.

use super::SelectArgs;
use super::prediction::{self, MachineArgs};
use crate::pipeline::Project;
use crate::{catalog, plan, report};
use clap::Args;

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no toolkit and fetches nothing. What a build takes is predicted from the cost table that ships with
nattenc (templates/cuda/costs.toml), for a machine as fast as the one that the table was fitted on and with
nothing in the cache.

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
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the whole plan as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &PlanArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let plan = plan::plan(&project.config, &variant, None, &args.select.request()?, catalog::catalog()?)?;
    let prediction = args.machine.predict(&plan)?;
    if args.json {
        let mut value = plan::describe::json(&plan);
        value["prediction"] = serde_json::to_value(&prediction)?;
        report::stdout(&serde_json::to_string_pretty(&value)?)?;
    } else {
        report::stdout(&(plan::describe::text(&plan) + &prediction::text(&plan, &prediction)))?;
    }
    Ok(())
}
