//! `nattenc fetch`: bring in and pin what a build needs, so that it can run offline.

use super::SupplyArgs;
use crate::pipeline::{self, Project};
use crate::{fetch, report, toolkit};
use clap::Args;

/// Options of `fetch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nattenc fetch --variant cu130            then `nattenc build --variant cu130 --offline`
  nattenc fetch --accept natten-0.21.7     take the new bytes of a pinned file that changed upstream")]
pub struct FetchArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    supply: SupplyArgs,
    /// Forget what nattenc.lock pins of this name, and pin what is there now
    #[arg(long, value_name = "NAME")]
    accept: Option<String>,
}

pub(super) fn run(project: &Project, args: &FetchArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let reporter = report::for_stderr();
    let supply = args.supply.supply();
    let options = pipeline::fetch_options(project, &supply)?;
    if let Some(name) = &args.accept {
        fetch::accept(&options, name)?;
        reporter.result(&format!("{}: {name} is no longer pinned", options.lock_file.display()));
    }
    let sources = fetch::natten(&options, &project.config.natten, &report::Transfers(reporter.as_ref()))?;
    reporter.result(&format!("natten {}: {}", project.config.natten, sources.root.display()));
    let digests = toolkit::Memo::open(&options.home);
    let supplied =
        pipeline::supply_toolkit(project, &variant, &supply, &options, &digests, reporter.as_ref())?;
    digests.save();
    let toolkit = &supplied.toolkit;
    reporter.result(&format!("cuda {} ({}): {}", toolkit.version, toolkit.origin, toolkit.home.display()));
    Ok(())
}
