//! `nattenc variants`: the variant definitions, one a line on stdout.

use crate::config;
use crate::pipeline::Project;
use crate::report;
use clap::Args;
use serde_json::json;

/// Options of `variants`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nattenc variants --json")]
pub struct VariantsArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &VariantsArgs) -> anyhow::Result<()> {
    let all = config::variants(&project.variants_dir())?;
    if args.json {
        let list: Vec<_> = all
            .iter()
            .map(|v| {
                json!({
                    "name": v.name,
                    "toolkit": v.release.to_string(),
                    "providers": v.providers.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "default": v.name == project.config.default_variant,
                    "artifact": project.dist(&v.name).join("manifest.json").is_file(),
                })
            })
            .collect();
        report::stdout(&serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    for v in &all {
        let providers: Vec<String> = v.providers.iter().map(ToString::to_string).collect();
        let default = if v.name == project.config.default_variant { " (default)" } else { "" };
        report::stdout(&format!("{}  cuda {}  from {}{default}", v.name, v.release, providers.join(", ")))?;
    }
    Ok(())
}
