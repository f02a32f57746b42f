//! `nattenc explain`: why something is built, shared, left out, stubbed or compiled again.

use super::{SelectArgs, SupplyArgs};
use crate::pipeline::{self, Project};
use crate::plan::{self, explain};
use crate::{catalog, report};
use clap::Args;
use serde_json::json;

/// Options of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
SUBJECT is a unit (fna_011), a capability (9.0), a backend, a family, a section or a kernel of the
plan; core/fna_011 and core/9.0 name the section too. Everything that has the name is explained.

For a unit it also says what the last build did for it and what it is compiled from that changed
since: texts, flags, headers, compilers. It compiles and fetches nothing.

JSON: schema_version (1), variant, and found: each with kind, name, decision (build, share, skip)
and lines. Fields may be added.

Examples:
  nattenc explain 10.3a --variant cu128
  nattenc explain fna_011
  nattenc explain hopper_fmha --preset starter --json")]
pub struct ExplainArgs {
    /// What to explain
    #[arg(value_name = "SUBJECT")]
    subject: String,
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Print what is to say as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    supply: SupplyArgs,
}

pub(super) fn run(project: &Project, args: &ExplainArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let (request, catalog) = (args.select.request()?, catalog::catalog()?);
    let plan = plan::plan(&project.config, &variant, None, &request, catalog)?;
    let mut found = explain::explain(&project.config, &plan, &request, catalog, &args.subject)?;
    let reporter = report::for_stderr();
    for item in found.iter_mut().filter(|item| item.kind == "unit") {
        if let Some(unit) = plan.units.iter().find(|u| u.label() == item.name) {
            let supply = args.supply.supply();
            item.lines.extend(pipeline::history(project, &variant, &plan, unit, &supply, reporter.as_ref())?);
        }
    }
    if args.json {
        let value = json!({ "schema_version": 1, "variant": variant.name, "found": found });
        return report::stdout(&serde_json::to_string_pretty(&value)?);
    }
    let paragraphs: Vec<String> = found
        .iter()
        .map(|item| format!("{} {}: {}\n  {}", item.kind, item.name, item.decision, item.lines.join("\n  ")))
        .collect();
    report::stdout(&paragraphs.join("\n\n"))
}
