//! `nattenc regen`: the canonical rendering of the kernel tables, and the tables against upstream.

use super::SupplyArgs;
use crate::pipeline::Project;
use crate::regen::canonical::POLICIES;
use crate::regen::{self, bump, oracle};
use crate::report::Transfers;
use crate::{fetch, fs, report, supply};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of `regen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --check, --oracle, --upstream or --interface it renders every kernel of every family, whatever a build would select, into
build/autogen/POLICY and records in autogen.lock what every policy renders and what the public interface
is. Needs no toolkit and fetches nothing.

Examples:
  nattenc regen                             the units of upstream's default split; renews autogen.lock
  nattenc regen --policy all                those of every split
  nattenc regen --check                     write nothing; exit 8 where autogen.lock is not up to date
  nattenc regen --oracle                    compare with the sources that build.toml pins
  nattenc regen --oracle --natten 0.21.6    with another version's
  nattenc regen --oracle --sources DIR      with an unpacked source archive
  nattenc regen --upstream 0.21.6           pin another version, if the tables cover it, and say what it changes
  nattenc regen --interface 0.21.6 0.21.7   operations and kernels that differ between two versions")]
pub struct RegenArgs {
    /// Compare with autogen.lock and build/autogen and list what differs; exit 8 where anything does
    #[arg(long, group = "what")]
    check: bool,
    /// Run natten's own generators and compare every kernel with the tables; exit 8 where one differs
    #[arg(long, group = "what")]
    oracle: bool,
    /// Pin this version of natten: report what differs, compare its kernels with the tables, and write build.toml,
    /// nattenc.lock and autogen.lock; exit 8, and nothing written, where the tables do not cover it
    #[arg(long, value_name = "VERSION", group = "what", conflicts_with = "locked")]
    upstream: Option<String>,
    /// Report the operations and kernels that differ between two versions of natten
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], group = "what")]
    interface: Option<Vec<String>>,
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
    if args.upstream.is_some() || args.interface.is_some() {
        return versions(project, args);
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
    let reporter = report::for_stderr();
    let progress = Transfers(reporter.as_ref());
    let (version, sources) = match (&args.sources, &args.natten) {
        (Some(directory), _) => (directory.display().to_string(), fs::real_path(directory)?),
        (None, Some(version)) if *version != project.config.natten => {
            (version.clone(), fetch::natten_apart(&fetching, version, &progress)?.root)
        }
        (None, _) => {
            let version = project.config.natten.clone();
            let root = fetch::natten(&fetching, &version, &progress)?.root;
            (version, root)
        }
    };
    let python = fetch::python(fetching.python.as_deref())?;
    let report = oracle::compare(&version, &sources, &python)?;
    print(args, &report, || report.text())?;
    report.check()
}

/// What concerns two versions of natten.
fn versions(project: &Project, args: &RegenArgs) -> anyhow::Result<()> {
    let fetching = supply::fetch_options(&project.root, &args.supply.supply())?;
    let reporter = report::for_stderr();
    let progress = Transfers(reporter.as_ref());
    let request = bump::Request {
        root: &project.root,
        config: &project.config,
        python: &fetch::python(fetching.python.as_deref())?,
        fetching: &fetching,
    };
    if let Some([old, new]) = args.interface.as_deref() {
        let report = bump::compare(&request, [old, new], &progress)?;
        let json = report.interface();
        return print(args, &json, || format!("natten {old} -> {new}\n{}", report.interface_text()));
    }
    let bump = bump::bump(&request, args.upstream.as_deref().unwrap_or_default(), &progress)?;
    print(args, &bump, || bump.text())?;
    bump.check()
}
