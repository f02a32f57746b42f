//! `nattenc fetch`: bring in and pin what a build needs, so that it can run offline.

use super::SupplyArgs;
use crate::pipeline::Project;
use crate::report::Transfers;
use crate::{fetch, report};
use clap::Args;

/// Options of `fetch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nattenc fetch --variant cu130                     then `nattenc build --variant cu130 --offline`
  nattenc fetch --accept natten-0.21.7.tar.gz       pin the bytes that a pinned file has now")]
pub struct FetchArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    supply: SupplyArgs,
    /// Forget what nattenc.lock pins of this file, and pin what is there now
    #[arg(long, value_name = "FILE")]
    accept: Option<String>,
}

pub(super) fn run(project: &Project, args: &FetchArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let reporter = report::for_stderr();
    let options = args.supply.supply();
    let search = project.search(&variant, &options)?;
    let all = || {
        project.cutlass(&search.fetching, reporter.as_ref())?;
        let sources = fetch::natten(&search.fetching, &project.config.natten, &Transfers(reporter.as_ref()))?;
        Ok((sources, search.toolkit(reporter.as_ref())?))
    };
    let (sources, ready) = match &args.accept {
        Some(file) => fetch::accept(&search.fetching, file, all)?,
        None => all()?,
    };
    search.digests.save()?;
    let toolkit = &ready.toolkit;
    reporter.result(&format!("natten {}: {}", project.config.natten, sources.root.display()));
    reporter.result(&format!("cuda {} ({}): {}", toolkit.version, toolkit.origin, toolkit.home.display()));
    Ok(())
}
