//! The command line: what can be said, and each command's few lines of glue.

mod build;
mod clean;
mod doctor;
mod explain;
mod fetch;
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

Exit codes:
  0 done: everything planned exists and is verified
  1 a bug of nattenc       2 usage or configuration   3 toolchain    4 compile
  5 link                   6 memory or disk           7 locked       8 integrity
  9 deadline               130, 143 interrupted

Environment: NATTENC_HOME is the store of fetched and built things (else the XDG cache directory);
NATTENC_JOBS is as -j, NATTENC_MEMORY as --memory; NATTENC_PYTHON is the python3 whose pip knows the package index.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a variant's artifact into dist/VARIANT
    Build(build::BuildArgs),
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
    /// Render every unit, record it in autogen.lock, and compare with natten's own generators
    Regen(regen::RegenArgs),
}

/// Which part of build.toml.
#[derive(Debug, Clone, Default, Args)]
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
    /// Use no network: everything must be in the store already
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

/// How much memory jobs may take together, and who says so: --memory, else NATTENC_MEMORY, else what can be
/// used now less a reserve of a tenth, at least 2 GB.
pub fn memory(flag: Option<&str>) -> anyhow::Result<(u64, String)> {
    let given = match flag {
        Some(text) => Some(("--memory", text.to_owned())),
        None => env::text("NATTENC_MEMORY")?.map(|text| ("NATTENC_MEMORY", text)),
    };
    if let Some((from, text)) = given {
        let size = size(&text).filter(|bytes| *bytes > 0).ok_or_else(|| {
            Failure::config(format!("{from}: {text:?} is not a size"))
                .hint("write it as 12G or 800M; G and M are powers of 1024")
        })?;
        return Ok((size, from.to_owned()));
    }
    let available = machine::memory(Path::new("/")).available;
    let reserve = (available.value / 10).max(2 << 30);
    let budget = available.value.saturating_sub(reserve).max(1 << 30);
    Ok((budget, format!("{} less a reserve of {}", available.source, report::bytes(reserve))))
}

/// `12G`, `1.5G`, `800M` as bytes.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 1u64 << 30),
        None => (text.strip_suffix(['M', 'm'])?, 1 << 20),
    };
    let number: f64 = number.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0 && *n < 1e9)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Some((number * unit as f64) as u64)
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
        Command::Clean(args) => clean::run(&open()?, args),
        Command::Regen(args) => regen::run(&open()?, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [
            ("12G", Some(12 << 30)),
            ("1.5g", Some(3 << 29)),
            ("800M", Some(800 << 20)),
            ("12", None),
            ("G", None),
            ("-1G", None),
            ("infG", None),
            ("12GB", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
