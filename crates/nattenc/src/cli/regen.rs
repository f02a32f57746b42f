//! `nattenc regen`: the canonical rendering of the kernel tables, and the tables against upstream.

use super::SupplyArgs;
use crate::pipeline::Project;
use crate::regen::canonical::POLICIES;
use crate::regen::{self, oracle};
use crate::report::Transfers;
use crate::{fetch, fs, report, supply};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of `regen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --check or --oracle it renders every kernel of every family, whatever a build would select, into
build/autogen/POLICY and records in autogen.lock what every policy renders and what the public interface
is. Needs no toolkit and fetches nothing.

Examples:
  nattenc regen                             the units of upstream's default split; renews autogen.lock
  nattenc regen --policy all                those of every split
  nattenc regen --check                     write nothing; exit 8 where autogen.lock is not up to date
  nattenc regen --oracle                    compare with the sources that build.toml pins
  nattenc regen --oracle --natten 0.21.6    with another version's
  nattenc regen --oracle --sources DIR      with an unpacked source archive")]
pub struct RegenArgs {
    /// Compare with autogen.lock and build/autogen and list what differs; exit 8 where anything does
    #[arg(long, group = "what")]
    check: bool,
    /// Run natten's own generators and compare every kernel with the tables; exit 8 where one differs
    #[arg(long, group = "what")]
    oracle: bool,
    /// Whose units to write; autogen.lock always has all
    #[arg(long, value_enum, default_value_t, conflicts_with = "what")]
    policy: Policies,
    /// Where to write the units instead of build/autogen/POLICY; with `--policy all` a folder for each
    #[arg(long, value_name = "DIR", conflicts_with = "what")]
    out: Option<PathBuf>,
    /// Overwrite files that were edited by hand
    #[arg(long, conflicts_with = "what")]
    force: bool,
    /// The natten version to compare with, instead of build.toml's
    #[arg(long, value_name = "VERSION", requires = "oracle")]
    natten: Option<String>,
    /// An unpacked source archive of natten to compare with; then nothing is fetched
    #[arg(long, value_name = "DIR", requires = "oracle", conflicts_with = "natten")]
    sources: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    supply: SupplyArgs,
}

/// The split policies whose units are written.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Policies {
    /// Upstream's default
    #[default]
    Default,
    /// Upstream's finer split
    Fine,
    /// Upstream's coarser split
    Coarse,
    /// Each of them
    All,
}

impl Policies {
    fn names(self) -> Vec<&'static str> {
        match self {
            Policies::Default => vec!["default"],
            Policies::Fine => vec!["fine"],
            Policies::Coarse => vec!["coarse"],
            Policies::All => POLICIES.to_vec(),
        }
    }
}

pub(super) fn run(project: &Project, args: &RegenArgs) -> anyhow::Result<()> {
    if args.check {
        let verdict = regen::check(&project.root, &project.config.natten)?;
        print(args, &verdict, || verdict.text())?;
        return verdict.result();
    }
    if args.oracle {
        return compare(project, args);
    }
    let written = regen::write(&regen::Request {
        root: project.root.clone(),
        natten: project.config.natten.clone(),
        policies: args.policy.names(),
        out: args.out.clone(),
        force: args.force,
    })?;
    print(args, &written, || written.text())
}

fn print<T: serde::Serialize>(args: &RegenArgs, value: &T, text: impl Fn() -> String) -> anyhow::Result<()> {
    report::stdout(&if args.json { serde_json::to_string_pretty(value)? } else { text() })
}

fn compare(project: &Project, args: &RegenArgs) -> anyhow::Result<()> {
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
    print(args, &report, || report.text())?;
    report.check()
}
