//! `nattenc plan`: what a build would hold.

use super::SelectArgs;
use crate::pipeline::Project;
use crate::{catalog, plan, report};
use clap::Args;

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no toolkit and fetches nothing.

Examples:
  nattenc plan --variant cu128
  nattenc plan --variant cu130 --preset starter --json")]
pub struct PlanArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    select: SelectArgs,
    /// Print the whole plan as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &PlanArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let plan = plan::plan(&project.config, &variant, None, &args.select.request()?, catalog::catalog()?)?;
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&plan::describe::json(&plan))?)?;
    } else {
        report::stdout(&plan::describe::text(&plan))?;
    }
    Ok(())
}
