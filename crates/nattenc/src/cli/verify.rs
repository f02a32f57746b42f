//! `nattenc verify`: proves that an artifact is what its manifest says, or that capabilities may share PTX.

use super::{SelectArgs, SupplyArgs};
use crate::execute::{Limits, OnFailure};
use crate::failure::Failure;
use crate::pipeline::{self, Project, ProofOptions};
use crate::plan::sample::{Choice, Pair, Question};
use crate::{report, verify};
use clap::Args;
use std::path::PathBuf;

/// Options of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the libraries of the artifact itself, and compares what is in them with what its manifest
claims. Needs no toolkit, no GPU, no checkout. `nattenc build` does the same at its end.

With --share-ptx it compiles a sample of kernels for a capability both ways, from its own PTX and
from that of another capability, and compares PTX, code and constants byte by byte: whether a pair
of `share` in build.toml may be called identical. That needs a toolkit, and as long as compiling
the sample twice takes; what is in the store already is not compiled again.

Exit code 0: all is as the manifest says; every pair that build.toml calls identical is, in this
sample. 8: something differs. 2: there is no artifact, or nothing to compare.

JSON: schema_version (1); variant; ok; checks, each with name, outcome (ok, warning, failed,
unchecked), summary and findings (what, expected, found); code, per section and capability:
elf_claimed, elf_found, ptx_claimed, ptx_found (units), kernels, bytes; with --kernels also kernels,
each with unit, kernel, capability, bytes and empty. Fields may be added.

JSON of --share-ptx: schema_version (1); variant; toolkit; ok; cpu (seconds); rows, per family and
pair: section, family, capability, from, declared (mode in build.toml or null), kernels, code_bytes,
ptx_lines (that differ but for .target), metadata_bytes (that differ outside of code and constants,
null where sizes differ), differing (functions), identical; skips, each with what and reason.

Examples:
  nattenc verify dist/cu130
  nattenc verify dist/cu130 --json
  nattenc verify --share-ptx --variant cu130 --family fna
  nattenc verify --share-ptx --pairs 12.1=12.0,10.3=10.0 --sample 1 -j 16 --offline
  nattenc verify --share-ptx --pairs 9.0=8.0 --unit fna_011 --json")]
pub struct VerifyArgs {
    /// The artifact, the directory that holds manifest.json
    #[arg(value_name = "DIR", required_unless_present = "share_ptx", conflicts_with_all = ["ShareArgs", "SelectArgs", "SupplyArgs"])]
    artifact: Option<PathBuf>,
    /// List the bytes of every kernel's machine code too
    #[arg(long, conflicts_with = "share_ptx")]
    kernels: bool,
    /// Print what was found as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sharing: ShareArgs,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    supply: SupplyArgs,
}

/// Options of `verify --share-ptx`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
struct ShareArgs {
    /// Compare the code of capabilities through their own PTX and through another's
    #[arg(long)]
    share_ptx: bool,
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME", requires = "share_ptx")]
    variant: Option<String>,
    /// CAPABILITY=FROM, as 9.0=8.0, instead of the pairs of build.toml; may be repeated
    #[arg(long, value_name = "PAIR", value_delimiter = ',', requires = "share_ptx")]
    pairs: Vec<String>,
    /// Of each family, direction and element type so many kernels, spread evenly; with --unit all of its kernels
    #[arg(long, value_name = "N", default_value_t = 2, requires = "share_ptx", conflicts_with = "unit")]
    sample: usize,
    /// Compiler processes at once; the default is the CPUs that this process may use
    #[arg(short, long, value_name = "N", requires = "share_ptx")]
    jobs: Option<usize>,
    /// What they may take together, as 12G; the default is what can be used now less a reserve
    #[arg(long, value_name = "SIZE", requires = "share_ptx")]
    memory: Option<String>,
}

pub(super) fn run(open: impl FnOnce() -> anyhow::Result<Project>, args: &VerifyArgs) -> anyhow::Result<()> {
    match &args.artifact {
        Some(artifact) => of_artifact(artifact.as_path(), args),
        None => of_sharing(&open()?, args),
    }
}

fn of_artifact(artifact: &std::path::Path, args: &VerifyArgs) -> anyhow::Result<()> {
    let mut verdict = verify::verify(artifact)?;
    if !args.kernels {
        verdict.kernels.clear();
    }
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&verdict)?)?;
    } else {
        report::stdout(&verdict.text())?;
    }
    match verdict.failure(artifact) {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}

fn of_sharing(project: &Project, args: &VerifyArgs) -> anyhow::Result<()> {
    let sharing = &args.sharing;
    if sharing.sample == 0 {
        return Err(Failure::config("--sample: 0 kernels prove nothing").hint("give 1 or more").into());
    }
    if !args.select.capability.is_empty() {
        return Err(Failure::config("--capability: capabilities are compared in pairs")
            .hint("use --pairs, as in --pairs 9.0=8.0")
            .into());
    }
    let pairs = sharing.pairs.iter().map(|text| text.parse::<Pair>()).collect::<Result<Vec<_>, _>>();
    let pairs = pairs.map_err(|why| {
        Failure::config(format!("--pairs: {why}"))
            .hint("write it as 9.0=8.0: the capability, then the one whose PTX it is assembled from")
    })?;
    let variant = project.variant(sharing.variant.as_deref())?;
    let (memory, _) = super::memory(sharing.memory.as_deref(), None)?;
    let options = ProofOptions {
        request: args.select.request()?,
        question: Question {
            pairs,
            choice: match args.select.unit.as_slice() {
                [] => Choice::Few(sharing.sample),
                units => Choice::Units(units.to_vec()),
            },
        },
        supply: args.supply.supply(),
        limits: Limits {
            jobs: super::jobs(sharing.jobs)?,
            memory,
            on_failure: OnFailure::Stop,
            unit_timeout: None,
            deadline: None,
        },
    };
    let reporter = report::for_stderr();
    let proof = pipeline::prove_sharing(project, &variant, &options, reporter.as_ref())?;
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&proof)?)?;
    } else {
        report::stdout(&proof.text())?;
    }
    match proof.failure() {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}
