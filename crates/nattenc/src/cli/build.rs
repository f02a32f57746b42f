//! `nattenc build`: everything for one variant.

use super::{SelectArgs, SupplyArgs, amounts};
use crate::config::Variant;
use crate::env;
use crate::execute::Limits;
use crate::pipeline::{self, Options, Part, Project, Summary};
use crate::report::{self, bytes, duration};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `build`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nattenc build --variant cu130 --preset starter
  nattenc build --variant cu130 --preset starter --capability 8.6
  nattenc build --family fna --select 'family=fna,dim=3,dtype=bfloat16' --capability 9.0
  nattenc build --variant cu128 --toolkit /usr/local/cuda-12.8 -j 8 --json
  nattenc build --keep-going --unit-timeout 30m --deadline 330m
  nattenc build --deadline \"$(date -Is -d 17:30)\" --cache-size 20G
  nattenc build --variant cu130 --shard 2/3        then `nattenc merge` of all three")]
pub struct BuildArgs {
    /// The variant, one of `nattenc variants`; build.toml names the default
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Compile only the i-th of n shards of the units, as 2/3, into dist/VARIANT.shard-2-of-3; `nattenc merge` makes
    /// the artifact of all n. Each unit is in one shard, and all are predicted to cost about the same
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    supply: SupplyArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// How compilers run, and where what they make goes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running")]
pub(super) struct RunArgs {
    /// Compiler processes at once; the default is the CPUs that this process may use
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// What they may take together, as 12G; the default is what can be used now less a reserve. A job that
    /// needs more than all of it runs alone
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// What is kept out of the default of --memory, as 4G, instead of a tenth and at least 2 GB
    #[arg(long, value_name = "SIZE", conflicts_with = "memory")]
    reserve: Option<String>,
    /// End a compiler process that runs for longer than this, as 20m, as hung; a failure like any other (exit
    /// code 4) that names the unit, without a second try
    #[arg(long, value_name = "TIME")]
    unit_timeout: Option<String>,
    /// Start nothing that is predicted to end later: so long from now, as 5h30m, or a moment, as
    /// 2026-12-01T17:30:00Z. What runs then still ends, what is done is kept, and where something is left that is
    /// exit code 9: the same command goes on
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// After a failure still build everything that does not need what failed
    #[arg(long)]
    keep_going: bool,
    /// Cut the store of finished work down to this at the end, as 20G, what was not of use for longest first;
    /// the default is NATTENC_CACHE_SIZE, else no limit
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<String>,
    /// Where to put what is built instead of dist/VARIANT
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(project: &Project, args: &BuildArgs) -> anyhow::Result<()> {
    let variant = project.variant(args.variant.as_deref())?;
    let part = match &args.shard {
        None => Part::Whole,
        Some(text) => Part::Shard { position: text.parse()?, selection: serde_json::to_value(&args.select)? },
    };
    build(project, &variant, &args.select, &args.supply, &args.run, part)
}

/// Builds, and says what came of it.
pub(super) fn build(
    project: &Project,
    variant: &Variant,
    select: &SelectArgs,
    supply: &SupplyArgs,
    args: &RunArgs,
    part: Part,
) -> anyhow::Result<()> {
    let (memory, memory_source) = super::memory(args.memory.as_deref(), args.reserve.as_deref())?;
    let limit = args.unit_timeout.as_deref();
    let options = Options {
        request: select.request()?,
        supply: supply.supply(),
        limits: Limits {
            jobs: super::jobs(args.jobs)?,
            memory,
            on_failure: super::on_failure(args.keep_going),
            unit_timeout: limit.map(|text| amounts::duration("--unit-timeout", text)).transpose()?,
            deadline: args.deadline.as_deref().map(|text| amounts::moment("--deadline", text)).transpose()?,
        },
        memory_source,
        dist: args.dist.clone(),
        part,
    };
    let cache_size = match &args.cache_size {
        Some(text) => Some(amounts::size("--cache-size", text)?),
        None => {
            let text = env::text("NATTENC_CACHE_SIZE")?;
            text.map(|text| amounts::size("NATTENC_CACHE_SIZE", &text)).transpose()?
        }
    };
    let reporter = report::for_stderr();
    let built = pipeline::build(project, variant, &options, reporter.as_ref());
    if let Some(size) = cache_size {
        pipeline::cut_cache(size, reporter.as_ref());
    }
    let summary = built?;
    reporter.result(&text(&summary));
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&summary)?)?;
    }
    Ok(())
}

fn text(s: &Summary) -> String {
    let state = if s.unchanged { "unchanged" } else { "written" };
    let peak = if s.ran == 0 {
        String::new()
    } else {
        let (together, largest) = (bytes(s.peak_memory), bytes(s.peak_job_memory));
        format!(", at most {together} together, largest job {largest} ({})", s.peak_job)
    };
    format!(
        "{}: {state}, {} kernels in {} units\n  {} jobs: {} ran, {} from the cache; {} wall, {} CPU{peak}",
        s.dist.display(),
        s.kernels,
        s.units,
        s.jobs,
        s.ran,
        s.cached,
        duration(Duration::from_secs_f64(s.wall)),
        duration(Duration::from_secs_f64(s.cpu)),
    )
}
