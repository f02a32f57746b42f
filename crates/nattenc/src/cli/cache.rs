//! `nattenc cache`: what is in the store of finished work, whether it is whole, what may go.

use super::amounts;
use crate::bounded::PATIENCE;
use crate::execute::upkeep::{Bounds, Upkeep};
use crate::failure::Failure;
use crate::{fetch, report};
use clap::{Args, Subcommand};
use serde::Serialize;

/// Options of `cache`.
#[derive(Debug, Args)]
#[command(after_help = "\
The cache lies in the store, NATTENC_HOME, and is shared by all checkouts. All of this but clear may be done
while builds run: a build that misses something runs its job again. Downloads (NATTENC_HOME/blobs, trees) are
not part of it.

JSON: schema_version (1), cache (the directory), and, each amount with count and bytes,
  stats: entries, blobs, without_bytes, bytes, kinds, ages, oldest_use_seconds, unreferenced, temporary, foreign, history
  gc: old, large, leftovers, kept, spared, stuck (count, first)
  verify: entries, blobs, damaged (path, why, stuck), foreign
  clear: removed, stuck
Fields may be added.

Examples:
  nattenc cache stats
  nattenc cache gc --max-size 20G --max-age 30d
  nattenc cache verify --json
  nattenc cache clear")]
pub struct CacheArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say what is in it: finished jobs by kind and by last use, bytes, what killed builds left
    #[command(after_help = "Example:\n  nattenc cache stats --json")]
    Stats(Output),
    /// Evict what was not of use for longest; at least one bound has to be given
    #[command(after_help = "\
Files whose last use is longer ago than --max-age go first, then by last use until all are within
--max-size; of those last used in the same hour the largest goes first. What jobs made goes before the
records of finished jobs: those are small, and spare a job as long as nobody reads what it made. While
builds run, what was of use in the last ten minutes stays. Temporary files that are older than a day go too.

Examples:
  nattenc cache gc --max-size 20G
  nattenc cache gc --max-age 30d --json")]
    Gc(GcArgs),
    /// Remove all finished work; refuses while a build uses it (exit code 7), and a directory that holds anything
    /// else. What jobs cost is still known
    #[command(after_help = "Example:\n  nattenc cache clear")]
    Clear(Output),
    /// Digest every file and read every record; what is damaged is removed, and is exit code 8. What was evicted
    /// is no damage
    #[command(after_help = "Example:\n  nattenc cache verify")]
    Verify(Output),
}

#[derive(Debug, Args)]
struct Output {
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct GcArgs {
    /// What all files may take together, as 20G
    #[arg(long, value_name = "SIZE", required_unless_present = "max_age")]
    max_size: Option<String>,
    /// How long ago the last use may be, as 30d
    #[arg(long, value_name = "TIME")]
    max_age: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &CacheArgs) -> anyhow::Result<()> {
    let bounds = match &args.what {
        What::Gc(gc) => Bounds {
            size: gc.max_size.as_deref().map(|text| amounts::size("--max-size", text)).transpose()?,
            age: gc.max_age.as_deref().map(|text| amounts::duration("--max-age", text)).transpose()?,
        },
        _ => Bounds::default(),
    };
    let home = fetch::store_home()?;
    match &args.what {
        What::Stats(output) => {
            let stats = Upkeep::within(&home, PATIENCE, Upkeep::stats)?;
            show(&stats, &stats.text(), output, None)
        }
        What::Gc(gc) => {
            let evicted = Upkeep::within(&home, PATIENCE, move |upkeep| upkeep.evict(bounds))?;
            show(&evicted, &evicted.text(), &gc.output, evicted.failure())
        }
        What::Clear(output) => {
            let cleared = Upkeep::within(&home, PATIENCE, Upkeep::clear)?;
            show(&cleared, &cleared.text(), output, cleared.failure())
        }
        What::Verify(output) => {
            let verdict = Upkeep::within(&home, PATIENCE, Upkeep::verify)?;
            show(&verdict, &verdict.text(), output, verdict.failure())
        }
    }
}

fn show(value: &impl Serialize, text: &str, output: &Output, failure: Option<Failure>) -> anyhow::Result<()> {
    if output.json {
        report::stdout(&serde_json::to_string_pretty(value)?)?;
    } else {
        report::stdout(text)?;
    }
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}
