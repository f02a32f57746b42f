//! `nattenc doctor`: which toolkits this machine has, and what a build would use.

use super::SupplyArgs;
use crate::failure::Failure;
use crate::pipeline::Project;
use crate::{fetch, report};
use clap::Args;

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Fetches nothing and asks no GPU or driver. Exits 3 where the variant has no usable toolkit.

Examples:
  nattenc doctor
  nattenc doctor --variant cu128 --json")]
pub struct DoctorArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    supply: SupplyArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &DoctorArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let reporter = report::for_stderr();
    let options = args.supply.supply();
    let search = project.search(&variant, &options)?;
    let mut doctor =
        search.doctor(reporter.as_ref(), &[("store", &search.fetching.home), ("build", &project.root)]);
    let (index, certificates) = fetch::index_and_certificates(&search.fetching);
    doctor.index = Some(index);
    doctor.certificates = Some(certificates);
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&doctor)?)?;
    } else {
        report::stdout(&doctor.to_string())?;
    }
    if doctor.healthy() {
        Ok(())
    } else {
        Err(Failure::toolchain(format!("variant {} cannot be built here as things are", variant.name))
            .hint("see the report above; `nattenc build` with this variant says how to get its toolkit")
            .into())
    }
}
