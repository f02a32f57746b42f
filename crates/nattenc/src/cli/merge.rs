//! `nattenc merge`: shards to an artifact.

use super::build::{self, RunArgs};
use super::{SelectArgs, SupplyArgs};
use crate::failure::Failure;
use crate::pipeline::{self, Part, Project};
use clap::Args;
use std::path::PathBuf;

/// Options of `merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Takes every shard of one build (`nattenc build --shard i/n`), wherever each was built, and links them into the
artifact that the same build without --shard gives, byte by byte. Of units nothing is compiled; what links needs the
toolkit, host compiler and system headers that the shards were built with. Which units those are is asked of the
shards: no selection is given again.

Exit code 2: a shard is missing or there twice, shards are of different builds, this checkout is not what they were
built from, another version of nattenc wrote them, or a directory is no shard. 8: a file of a shard was changed.
Nothing is written then.

Examples:
  nattenc merge dist/cu130.shard-*
  nattenc merge a/shard b/shard c/shard --dist dist/cu130 --json")]
pub struct MergeArgs {
    /// The directories of all shards
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<PathBuf>,
    #[command(flatten)]
    supply: SupplyArgs,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn run(project: &Project, args: &MergeArgs) -> anyhow::Result<()> {
    let shards: Vec<pipeline::Shard> =
        args.shards.iter().map(|dir| pipeline::read_shard(dir)).collect::<Result<_, _>>()?;
    pipeline::check_shards(&shards)?;
    let variant = project.variant(Some(shards[0].variant()))?;
    let select: SelectArgs = serde_json::from_value(shards[0].selection().clone()).map_err(|why| {
        Failure::config(format!("{}: its selection cannot be read: {why}", args.shards[0].display()))
            .hint("merge with the nattenc that built the shards")
    })?;
    build::build(project, &variant, &select, &args.supply, &args.run, Part::Merged(shards))
}
