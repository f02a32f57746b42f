//! The command line: what can be said, and each command's few lines of glue.

mod amounts;
mod build;
mod cache;
mod ci;
mod clean;
mod doctor;
mod explain;
mod fetch;
mod merge;
mod plan;
mod prediction;
mod regen;
mod variants;
mod verify;

use crate::execute::OnFailure;
use crate::failure::Failure;
use crate::plan::Request;
use crate::plan::capability::CapabilityRequest;
use crate::plan::policy::Policy;
use crate::plan::share::Sharing;
use crate::toolkit::machine;
use crate::{config, env, report, supply};
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Builds NATTEN's CUDA kernels: plans, generates, compiles with nvcc, links, packages.
#[derive(Debug, Parser)]
#[command(name = "nattenc", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// build.toml to use, instead of the one in this directory or the nearest above it
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  nattenc build --variant cu130 --preset starter   a small library, in minutes
  nattenc build --variant cu130                    everything that build.toml lists
  nattenc plan --variant cu128                     what would be built, and what not, and why
  nattenc explain 10.3a --variant cu128            why this one is or is not
  nattenc ci matrix --event pr --diff origin/main  what CI compiles of a change, in which jobs

Exit codes:
  0 done: everything planned exists and is verified
  1 a bug of nattenc       2 usage or configuration   3 toolchain    4 compile
  5 link                   6 memory or disk           7 locked       8 integrity
  9 deadline               130, 143 interrupted

Environment: NATTENC_HOME is the store of fetched and built things (else the XDG cache directory);
NATTENC_JOBS is as -j, NATTENC_MEMORY as --memory, NATTENC_CACHE_SIZE as --cache-size of build; NATTENC_PYTHON is the python3 whose pip knows the package index.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a variant's artifact into dist/VARIANT
    Build(build::BuildArgs),
    /// Link the shards of a build into its artifact
    Merge(merge::MergeArgs),
    /// Show what a build would hold, and what it leaves out and why; touch nothing
    Plan(plan::PlanArgs),
    /// Say why a unit, capability, backend, family, section or kernel is built, shared or left out
    Explain(explain::ExplainArgs),
    /// Fetch and pin the toolkit and the sources of a variant
    Fetch(fetch::FetchArgs),
    /// List the variants that are defined
    Variants(variants::VariantsArgs),
    /// Show which toolkits this machine has, and what a build would use
    Doctor(doctor::DoctorArgs),
    /// Prove that an artifact is what its manifest says, without toolkit and GPU; or, with --share-ptx, that
    /// capabilities may share PTX
    Verify(verify::VerifyArgs),
    /// Remove what builds left: build/VARIANT and dist/VARIANT
    Clean(clean::CleanArgs),
    /// Look after the store of finished work: what is in it, whether it is whole, what may go
    Cache(cache::CacheArgs),
    /// Divide what continuous integration compiles into jobs, and write the workflows that run them
    Ci(ci::CiArgs),
    /// Render every unit, record it in autogen.lock, and compare with natten's own generators
    Regen(regen::RegenArgs),
}

/// Which part of build.toml.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Selection")]
pub struct SelectArgs {
    /// A bundle of selections that build.toml defines; the options below override its parts
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Only this section; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub section: Vec<String>,
    /// Only this family; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub family: Vec<String>,
    /// Build for this capability instead of those of build.toml, as 9.0, 9.0a or 12.0+PTX; may be repeated
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',')]
    pub capability: Vec<String>,
    /// Of the families that it names only kernels that match, as
    /// 'family=fna,dim=2,dtype=float16,direction=forward'; a family that no selector names is built whole;
    /// values may be joined by |; may be repeated, any match counts
    #[arg(long, value_name = "SELECTOR")]
    pub select: Vec<String>,
    /// Only this translation unit, as fna_011; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub unit: Vec<String>,
    /// How finely all families are split into translation units: as upstream does, or by cost (balanced);
    /// the policy table of build.toml has the default
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Which of build.toml's pairs of capabilities share PTX, one being assembled from the other's:
    /// none, those whose code is proven to be the same, or also those whose code may differ
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    pub share: Sharing,
    /// As --share none: every capability has a front end of its own
    #[arg(long, conflicts_with = "share")]
    pub no_share: bool,
    /// Compile every unit for every capability, as upstream does, although no device can run most of it:
    /// for measurements
    #[arg(long)]
    pub no_prune: bool,
}

impl SelectArgs {
    /// The request that these options make.
    pub fn request(&self) -> anyhow::Result<Request> {
        let some = |list: &[String]| Some(list.to_vec()).filter(|l| !l.is_empty());
        let mut problems = Vec::new();
        let mut capabilities: Vec<CapabilityRequest> = Vec::new();
        for text in &self.capability {
            match text.parse() {
                Ok(capability) => capabilities.push(capability),
                Err(why) => problems.push(format!("--capability: {why}")),
            }
        }
        let mut select: Vec<config::Selector> = Vec::new();
        for text in &self.select {
            match text.parse() {
                Ok(selector) => select.push(selector),
                Err(why) => problems.push(format!("--select: {why}")),
            }
        }
        if !problems.is_empty() {
            return Err(Failure::config(problems.join("\n"))
                .hint("see `nattenc build --help` for examples")
                .into());
        }
        Ok(Request {
            preset: self.preset.clone(),
            sections: some(&self.section),
            families: some(&self.family),
            capabilities: Some(capabilities).filter(|c| !c.is_empty()),
            select,
            units: self.unit.clone(),
            policy: self.policy,
            sharing: if self.no_share { Sharing::None } else { self.share },
            unpruned: self.no_prune,
        })
    }
}

/// What may be fetched and used.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Toolkit and sources")]
pub struct SupplyArgs {
    /// Use no network: everything must be in the store already, and pinned in nattenc.lock
    #[arg(long)]
    pub offline: bool,
    /// Fetch nothing that nattenc.lock does not pin
    #[arg(long)]
    pub locked: bool,
    /// An installed CUDA toolkit, before all others
    #[arg(long, value_name = "DIR")]
    pub toolkit: Option<PathBuf>,
}

impl SupplyArgs {
    /// As the pipeline takes it.
    pub fn supply(&self) -> supply::Options {
        supply::Options { offline: self.offline, locked: self.locked, toolkit: self.toolkit.clone() }
    }
}

/// How many compiler processes: -j, else NATTENC_JOBS, else the CPUs that this process may use.
pub fn jobs(flag: Option<usize>) -> anyhow::Result<usize> {
    let wrong = |from: &str, value: &str| {
        Failure::config(format!("{from}: {value:?} is not a number of jobs"))
            .hint("give a whole number of 1 or more: it is how many compiler processes run at once")
    };
    if let Some(jobs) = flag {
        return if jobs == 0 { Err(wrong("-j", "0").into()) } else { Ok(jobs) };
    }
    match env::text("NATTENC_JOBS")? {
        Some(text) => match text.parse() {
            Ok(jobs) if jobs > 0 => Ok(jobs),
            _ => Err(wrong("NATTENC_JOBS", &text).into()),
        },
        None => Ok(machine::cpus(Path::new("/")).available.value as usize),
    }
}

/// How much memory jobs may take together, and who says so: --memory, else with --reserve what can be used now
/// less that, else NATTENC_MEMORY, else what can be used now less a tenth, at least 2 GB.
pub fn memory(flag: Option<&str>, reserve: Option<&str>) -> anyhow::Result<(u64, String)> {
    let given = match flag {
        Some(text) => Some(("--memory", text.to_owned())),
        None if reserve.is_some() => None,
        None => env::text("NATTENC_MEMORY")?.map(|text| ("NATTENC_MEMORY", text)),
    };
    if let Some((from, text)) = given {
        return match amounts::size(from, &text)? {
            0 => Err(amounts::no_size(from, &text).into()),
            size => Ok((size, from.to_owned())),
        };
    }
    let reserve = reserve.map(|text| amounts::size("--reserve", text)).transpose()?;
    less_reserve(&machine::memory(Path::new("/")).available, reserve)
}

/// What a limit leaves beside the reserve that is asked for, else beside ours.
fn less_reserve(available: &machine::Limit<u64>, reserve: Option<u64>) -> anyhow::Result<(u64, String)> {
    let source = |reserve: u64| format!("{} less a reserve of {}", available.source, report::bytes(reserve));
    match reserve {
        None => {
            let budget = less_usual_reserve(available.value);
            Ok((budget, source(available.value.saturating_sub(budget))))
        }
        Some(reserve) if reserve < available.value => Ok((available.value - reserve, source(reserve))),
        Some(reserve) => Err(Failure::config(format!(
            "--reserve: {} leave nothing of the {} that can be used now ({})",
            report::bytes(reserve),
            report::bytes(available.value),
            available.source
        ))
        .hint("reserve less, or say with --memory what may be used")
        .into()),
    }
}

/// What jobs may take of so much memory where nobody says how much to reserve.
fn less_usual_reserve(memory: u64) -> u64 {
    memory.saturating_sub((memory / 10).max(2 << 30)).max(1 << 30)
}

/// The enum that `--keep-going` stands for.
pub fn on_failure(keep_going: bool) -> OnFailure {
    if keep_going { OnFailure::KeepGoing } else { OnFailure::Stop }
}

/// Runs a parsed command line.
pub fn run(cli: &Cli) -> anyhow::Result<()> {
    let open = || {
        let here = std::env::current_dir().map_err(|e| {
            Failure::config(format!("the current directory cannot be used: {e}"))
                .hint("change to one that exists")
        })?;
        crate::pipeline::Project::open(cli.config.as_deref(), &here)
    };
    match &cli.command {
        Command::Build(args) => build::run(&open()?, args),
        Command::Plan(args) => plan::run(&open()?, args),
        Command::Explain(args) => explain::run(&open()?, args),
        Command::Fetch(args) => fetch::run(&open()?, args),
        Command::Variants(args) => variants::run(&open()?, args),
        Command::Doctor(args) => doctor::run(&open()?, args),
        Command::Verify(args) => verify::run(open, args),
        Command::Merge(args) => merge::run(&open()?, args),
        Command::Clean(args) => clean::run(&open()?, args),
        Command::Cache(args) => cache::run(args),
        Command::Ci(args) => ci::run(&open()?, args),
        Command::Regen(args) => regen::run(&open()?, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_kept_and_told() {
        let available = machine::Limit { value: 64_000_000_000, source: "memory.max".to_owned() };
        for (reserve, budget, told) in [
            (None, 57_600_000_000, "memory.max less a reserve of 6.4 GB"),
            (Some(4_000_000_000), 60_000_000_000, "memory.max less a reserve of 4.0 GB"),
            (Some(0), 64_000_000_000, "memory.max less a reserve of 0 B"),
        ] {
            assert_eq!(less_reserve(&available, reserve).unwrap(), (budget, told.to_owned()));
        }
        let error = less_reserve(&available, Some(64_000_000_000)).unwrap_err().to_string();
        assert!(error.contains("--reserve: 64.0 GB leave nothing of the 64.0 GB"), "{error}");
    }
}
