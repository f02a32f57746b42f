//! Compiles one tiny unit before any real one: an unusable host compiler or an unknown flag is then one
//! failure within seconds, not one per unit.

use super::surroundings::{Surroundings, first_lines};
use super::{Toolkit, host};
use crate::execute::process::{self, Finished};
use crate::failure::Failure;
use crate::fs;
use crate::plan::gencode::Gencode;
use std::path::Path;

fn compile(
    toolkit: &Toolkit,
    flags: &[String],
    scratch: &Path,
    surroundings: &Surroundings,
) -> anyhow::Result<(Finished, String)> {
    fs::write(&scratch.join("probe.cu"), b"__global__ void nattenc_probe(int *out) { *out = 1; }\n")?;
    fs::remove_file(&scratch.join("probe.o"))?;
    let mut argv = vec![toolkit.nvcc.display().to_string()];
    argv.extend(["-std=c++17", "-c", "probe.cu", "-o", "probe.o", "-gencode"].map(str::to_owned));
    // Never without a gencode: nvcc would choose one by itself.
    let capability = toolkit.capabilities.last().copied();
    let capability = capability.ok_or_else(|| Failure::toolchain("nvcc lists no capability"))?;
    argv.push(Gencode::sass(capability).to_string());
    if let Some(ccbin) = &toolkit.host.ccbin {
        argv.extend(["-ccbin".to_owned(), ccbin.clone()]);
    }
    argv.extend(flags.iter().cloned());
    let mut command = surroundings.command(argv, scratch);
    command.env.insert("TMPDIR".to_owned(), scratch.display().to_string());
    let line = command.to_string();
    Ok((process::capture(&command)?, line))
}

/// The first line of output that reads like an error, else its first line.
fn diagnostic(output: &str) -> String {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = output.lines().map(str::trim).find(|line| {
        let lower = line.to_ascii_lowercase();
        lower.contains("error") || lower.contains("fatal") || lower.contains("unsupported")
    });
    error.or_else(|| lines.next()).unwrap_or("no output").to_owned()
}

/// Compiles an almost empty unit in `scratch` with `toolkit` and its host compiler.
pub fn probe(toolkit: &Toolkit, scratch: &Path, surroundings: &Surroundings) -> anyhow::Result<()> {
    let (finished, line) = compile(toolkit, &[], scratch, surroundings)?;
    let lower = finished.output.to_ascii_lowercase();
    if lower.contains("unsupported gnu version") || lower.contains("unsupported clang version") {
        let failure = host::unsupported(&toolkit.host, toolkit.bound, &toolkit.version, surroundings);
        return Err(failure.diagnostic(diagnostic(&finished.output)).into());
    }
    let at_fault = format!("{} with {}", toolkit.nvcc.display(), toolkit.host.path.display());
    if !finished.success() {
        let end = match finished.code {
            Some(code) => format!("exit code {code}"),
            None => format!("signal {}", finished.signal.unwrap_or(0)),
        };
        return Err(Failure::toolchain(format!(
            "{at_fault} cannot compile an empty kernel ({end})\n  $ {line}"
        ))
        .diagnostic(diagnostic(&finished.output))
        .hint("run the command above by hand; check the toolkit and the host compiler")
        .into());
    }
    let object = fs::read_if_exists(&scratch.join("probe.o"))?.unwrap_or_default();
    if !object.starts_with(b"\x7fELF") {
        return Err(Failure::toolchain(format!(
            "{at_fault} ended with exit code 0 but wrote no object; it printed {}\n  $ {line}",
            first_lines(&finished.output)
        ))
        .hint("check whether nvcc is a wrapper that loses the exit code")
        .into());
    }
    Ok(())
}

/// Compiles the same unit with the `cuda-flags` of a section; refuses those that this nvcc does not take.
pub fn probe_flags(
    toolkit: &Toolkit,
    section: &str,
    flags: &[String],
    scratch: &Path,
    surroundings: &Surroundings,
) -> anyhow::Result<()> {
    if flags.is_empty() {
        return Ok(());
    }
    let (finished, line) = compile(toolkit, flags, scratch, surroundings)?;
    if finished.success() {
        return Ok(());
    }
    let diagnostic = diagnostic(&finished.output);
    // nvcc names one flag; it is the one of ours that its message holds.
    let named = flags.iter().find(|flag| {
        let name = flag.split('=').next().unwrap_or(flag);
        diagnostic.contains(&format!("'{flag}'")) || diagnostic.contains(&format!("'{name}'"))
    });
    let what = named.map_or_else(|| format!("{flags:?}"), |flag| format!("\"{flag}\""));
    Err(Failure::config(format!(
        "[section.{section}]: cuda-flags: {what} is not accepted by nvcc {}\n  $ {line}",
        toolkit.version
    ))
    .diagnostic(diagnostic)
    .hint(format!("remove {what} from cuda-flags, or build with a toolkit that knows it"))
    .into())
}
