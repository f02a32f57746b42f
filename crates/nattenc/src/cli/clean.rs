//! `nattenc clean`: remove exactly what builds made, and keep the store.

use crate::pipeline::{self, Project};
use crate::report;
use clap::Args;

/// Options of `clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
The store of fetched and built things is kept, so the next build is quick.

Examples:
  nattenc clean --variant cu130
  nattenc clean --all")]
pub struct CleanArgs {
    /// The variant to clean; build.toml names the default
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    variant: Option<String>,
    /// Every variant that was built here
    #[arg(long)]
    all: bool,
}

pub(super) fn run(project: &Project, args: &CleanArgs) -> anyhow::Result<()> {
    let variants: Vec<String> = if args.all {
        pipeline::present(project)?.into_iter().collect()
    } else {
        vec![project.variant(args.variant.as_deref())?.name]
    };
    let removed = pipeline::clean(project, &variants)?;
    if removed.is_empty() {
        report::stdout("nothing to remove")?;
    }
    for path in removed {
        report::stdout(&format!("removed {}", path.display()))?;
    }
    Ok(())
}
