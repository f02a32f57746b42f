//! `nattenc verify`: proves that an artifact is what its manifest says.

use crate::{report, verify};
use clap::Args;
use std::path::PathBuf;

/// Options of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the libraries of the artifact itself, and compares what is in them with what its manifest
claims. Needs no toolkit, no GPU, no checkout. `nattenc build` does the same at its end.

Exit code 0: all is as the manifest says. 8: something differs. 2: there is no artifact.

JSON: schema_version (1); variant; ok; checks, each with name, outcome (ok, warning, failed,
unchecked), summary and findings (what, expected, found); code, per section and capability:
elf_claimed, elf_found, ptx_claimed, ptx_found (units), kernels, bytes; with --kernels also kernels,
each with unit, kernel, capability, bytes and empty. Fields may be added.

Examples:
  nattenc verify dist/cu130
  nattenc verify dist/cu130 --json")]
pub struct VerifyArgs {
    /// The artifact, the directory that holds manifest.json
    #[arg(value_name = "DIR")]
    artifact: PathBuf,
    /// List the bytes of every kernel's machine code too
    #[arg(long)]
    kernels: bool,
    /// Print what was found as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let mut verdict = verify::verify(&args.artifact)?;
    if !args.kernels {
        verdict.kernels.clear();
    }
    if args.json {
        report::stdout(&serde_json::to_string_pretty(&verdict)?)?;
    } else {
        report::stdout(&verdict.text())?;
    }
    match verdict.failure(&args.artifact) {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}
