//! `nattenc regen`: the kernel tables against upstream.

use super::SupplyArgs;
use crate::pipeline::Project;
use crate::regen::oracle;
use crate::report::Transfers;
use crate::{fetch, fs, report, supply};
use clap::Args;
use std::path::PathBuf;

/// Options of `regen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nattenc regen --oracle                    compare with the sources that build.toml pins
  nattenc regen --oracle --natten 0.21.6    with another version's
  nattenc regen --oracle --sources DIR      with an unpacked source archive")]
pub struct RegenArgs {
    /// Run natten's own generators and compare every kernel with the tables; exit 8 where one differs
    #[arg(long, required = true)]
    oracle: bool,
    /// The natten version to compare with, instead of build.toml's
    #[arg(long, value_name = "VERSION")]
    natten: Option<String>,
    /// An unpacked source archive of natten to compare with; then nothing is fetched
    #[arg(long, value_name = "DIR", conflicts_with = "natten")]
    sources: Option<PathBuf>,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    supply: SupplyArgs,
}

pub(super) fn run(project: &Project, args: &RegenArgs) -> anyhow::Result<()> {
    let fetching = supply::fetch_options(&project.root, &args.supply.supply())?;
    let (version, sources) = match &args.sources {
        Some(directory) => (directory.display().to_string(), fs::real_path(directory)?),
        None => {
            let version = args.natten.as_ref().unwrap_or(&project.config.natten);
            let reporter = report::for_stderr();
            (version.clone(), fetch::natten(&fetching, version, &Transfers(reporter.as_ref()))?.root)
        }
    };
    let python = fetch::python(fetching.python.as_deref())?;
    let report = oracle::compare(&version, &sources, &python)?;
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&report)?)?;
    } else {
        report::stdout(&report.text())?;
    }
    report.check()
}
