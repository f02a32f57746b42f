//! `nattenc plan`: what a build would hold, and what changes from one plan to another.

use super::SelectArgs;
use super::prediction::{self, MachineArgs};
use crate::config::{self, Config, Release, Variant};
use crate::failure::Failure;
use crate::graph::compile;
use crate::pipeline::Project;
use crate::plan::{self, Plan, diff};
use crate::{catalog, report};
use clap::Args;
use std::path::PathBuf;

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no toolkit and fetches nothing. The matrices tell, per capability, whether it is built, shared
(assembled from another capability's PTX) or skipped and why, and in how many units of each family:
25 are compiled, 25s are shared. What a build takes is predicted from the cost table that ships with
nattenc (templates/cuda/costs.toml), for a machine as fast as the one that the table was fitted on and with
nothing in the cache.

JSON: schema_version (2) and the fields that ARCHITECTURE.md lists; of --diff and --diff-config:
schema_version (1), before, after, capabilities and families (what, before, after), units (unit,
change, reason, capabilities, kernels_added, kernels_removed). Fields may be added.

Examples:
  nattenc plan --variant cu128
  nattenc plan --variant cu130 --preset starter --json
  nattenc plan --variant cu130 --policy balanced -j 64 --memory 240G
  nattenc plan --toolkit-release 12.8                  for a toolkit that no variant need define
  nattenc plan --family fna --commands                 the nvcc command of every unit
  nattenc plan --diff cu128 cu130                      what the newer toolkit changes, and why
  nattenc plan --diff-config /tmp/before/build.toml    what an edit of build.toml changes")]
pub struct PlanArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Plan for this release of CUDA, as 12.8, whatever the variant's own is
    #[arg(long, value_name = "RELEASE")]
    toolkit_release: Option<String>,
    /// From one variant to another instead: what is added, removed and decided otherwise
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["variant", "toolkit_release"])]
    diff: Vec<String>,
    /// From the plan of another build.toml to that of this one
    #[arg(long, value_name = "FILE", conflicts_with = "diff")]
    diff_config: Option<PathBuf>,
    /// The nvcc command of every unit too, as it runs in its scratch directory
    #[arg(long, conflicts_with_all = ["diff", "diff_config"])]
    commands: bool,
    /// Print the whole plan as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(super) fn run(project: &Project, args: &PlanArgs) -> anyhow::Result<()> {
    let planned = |config: &Config, variant: &Variant| -> anyhow::Result<Plan> {
        plan::plan(config, variant, None, &args.select.request()?, catalog::catalog()?)
    };
    if let [before, after] = args.diff.as_slice() {
        let of = |name: &str| planned(&project.config, &project.variant(Some(name))?);
        return show(&diff::diff((before, &of(before)?), (after, &of(after)?)), args.json);
    }
    let variant = variant(project, args)?;
    let plan = planned(&project.config, &variant)?;
    if let Some(file) = &args.diff_config {
        let other = planned(&config::load(file)?, &variant)?;
        let names = [file.display().to_string(), project.config.path.display().to_string()];
        return show(&diff::diff((&names[0], &other), (&names[1], &plan)), args.json);
    }
    let commands: Vec<String> = if args.commands {
        let compress = compile::compression(plan.release);
        plan.units
            .iter()
            .map(|unit| {
                let mut words = vec!["nvcc".to_owned()];
                words.extend(compile::nvcc_args(unit, &compress, "g++"));
                let quoted: Vec<String> = words
                    .iter()
                    .map(|w| shlex::try_quote(w).map_or_else(|_| w.clone(), Into::into))
                    .collect();
                quoted.join(" ")
            })
            .collect()
    } else {
        Vec::new()
    };
    let prediction = args.machine.predict(&plan)?;
    if args.json {
        let mut value = plan::describe::json(&plan);
        value["prediction"] = serde_json::to_value(&prediction)?;
        for (index, command) in commands.into_iter().enumerate() {
            value["units"][index]["command"] = command.into();
        }
        return report::stdout(&serde_json::to_string_pretty(&value)?);
    }
    let mut text = plan::describe::text(&plan) + &prediction::text(&plan, &prediction);
    for (unit, command) in plan.units.iter().zip(commands) {
        text.extend(["\n", &unit.label(), "\n  ", &command, "\n"]);
    }
    report::stdout(&text)
}

fn show(diff: &diff::Diff, json: bool) -> anyhow::Result<()> {
    report::stdout(&if json { serde_json::to_string_pretty(diff)? } else { diff.text() })
}

/// The variant that is planned: as it is defined, or with the release of `--toolkit-release`.
fn variant(project: &Project, args: &PlanArgs) -> anyhow::Result<Variant> {
    let Some(text) = &args.toolkit_release else { return project.variant(args.variant.as_deref()) };
    let release: Release = text
        .parse()
        .map_err(|why| Failure::config(format!("--toolkit-release: {why}")).hint("write it as 12.8"))?;
    if args.variant.is_none() {
        let defined = config::variants(&project.variants_dir())?;
        if let Some(variant) = defined.into_iter().find(|v| v.release == release) {
            return Ok(variant);
        }
    }
    Ok(Variant { name: release.variant(), release, ..project.variant(args.variant.as_deref())? })
}
