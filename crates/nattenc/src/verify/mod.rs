//! Proves, without toolkit and GPU, that an artifact is what its manifest says.
//!
//! Reads the libraries themselves: archive, ELF, fatbins, the images inside of them. What is embedded is
//! compared with what the manifest claims; nothing of the plan or the build that made it is trusted.

mod archive;
mod checks;
mod claims;
pub mod code;
mod device;
mod fatbin;
mod object;
mod shared;
#[cfg(test)]
mod testing;
mod unit;

pub(crate) use shared::needs;

use crate::failure::Failure;
use crate::fs;
use crate::generate;
use crate::package::manifest::{FORMAT_VERSION, Recorded};
use crate::{link, report};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Raised when a field of the JSON changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All is as it should be.
    Ok,
    /// It is, but something deserves attention.
    Warning,
    /// Something differs.
    Failed,
    /// What it reads cannot be read; another check says why, and has failed.
    Unchecked,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The thing: a file, a unit, a kernel, a symbol.
    pub what: String,
    /// What it should be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name; stable.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// What was looked at, or how many things differ.
    pub summary: String,
    /// The differences.
    pub findings: Vec<Finding>,
}

/// How many units of a section hold code for a capability, claimed and found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The section; `-` for code of no unit.
    pub section: String,
    /// The capability.
    pub capability: String,
    /// Units with machine code, as the manifest claims.
    pub elf_claimed: usize,
    /// Units with machine code, found.
    pub elf_found: usize,
    /// Units with PTX, as the manifest claims.
    pub ptx_claimed: usize,
    /// Units with PTX, found.
    pub ptx_found: usize,
    /// Kernels with machine code, found.
    pub kernels: usize,
    /// Bytes of these images in a library.
    pub bytes: u64,
}

/// A kernel's machine code for one capability.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KernelCode {
    /// `core/fna_011`.
    pub unit: String,
    /// As the unit's table names it.
    pub kernel: String,
    /// The capability of the image.
    pub capability: String,
    /// Bytes of its code.
    pub bytes: u64,
    /// Whether that is no body: nothing, or the message of a kernel that is for other capabilities.
    pub empty: bool,
}

/// What was found out about an artifact.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The variant, where the manifest can be read.
    pub variant: String,
    /// Whether no check failed.
    pub ok: bool,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
    /// The code that is embedded.
    pub code: Vec<Row>,
    /// The machine code of every kernel, where it is asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelCode>,
}

/// Checks the artifact at `dist`. Fails with class configuration where there is none.
pub fn verify(dist: &Path) -> anyhow::Result<Verdict> {
    let no_artifact = |why: &str| {
        Failure::config(format!("{}: is no artifact of nattenc: {why}", dist.display()))
            .hint("name the directory that holds manifest.json, as dist/cu130")
    };
    let Some(text) = fs::read_if_exists(&dist.join("manifest.json"))? else {
        return Err(no_artifact("it has no manifest.json").into());
    };
    let (manifest, check) = match read_manifest(&text) {
        Manifest::Foreign => return Err(no_artifact("its manifest.json has no format_version").into()),
        Manifest::Unusable(finding) => (None, checks::conclude("manifest", String::new(), vec![finding])),
        Manifest::Usable(recorded) => {
            (Some(recorded), checks::conclude("manifest", format!("format version {FORMAT_VERSION}"), vec![]))
        }
    };
    let mut checks = vec![check];
    let (mut code, mut kernels) = (Vec::new(), Vec::new());
    if let Some(manifest) = &manifest {
        checks.push(checks::files(dist, manifest)?);
        let units: BTreeSet<&str> = manifest.units.iter().map(|u| u.name.as_str()).collect();
        let library = |name: &str| fs::read_if_exists(&dist.join("lib").join(name));
        // Read one after the other: each may have gigabytes.
        let archive = library(link::ARCHIVE)?.map(|bytes| archive::read(&bytes, &units));
        let shared = match library(link::SHARED)? {
            Some(bytes) => shared::read(&bytes),
            None => Err("the file is missing".to_owned()),
        };
        let mut headers = Vec::new();
        for (name, _) in generate::public_headers() {
            headers.extend(fs::read_if_exists(&dist.join("include").join(name))?.unwrap_or_default());
        }
        let exports = link::exports(&String::from_utf8_lossy(&headers));
        let found = checks::libraries(manifest, archive.as_ref(), &shared, &exports);
        checks.extend(found.checks);
        (code, kernels) = (found.code, found.kernels);
    }
    let ok = checks.iter().all(|c| matches!(c.outcome, Outcome::Ok | Outcome::Warning));
    let variant = manifest.map_or_else(String::new, |m| m.variant);
    Ok(Verdict { schema_version: SCHEMA_VERSION, variant, ok, checks, code, kernels })
}

enum Manifest {
    /// Somebody else's file.
    Foreign,
    /// Ours, and not one that can be checked against.
    Unusable(Finding),
    Usable(Recorded),
}

fn read_manifest(text: &[u8]) -> Manifest {
    let unusable = |what: &str, expected: String, found: String| {
        Manifest::Unusable(Finding { what: what.to_owned(), expected, found })
    };
    let value: serde_json::Value = match serde_json::from_slice(text) {
        Ok(value) => value,
        Err(error) => return unusable("manifest.json", "JSON".to_owned(), error.to_string()),
    };
    match value.get("format_version").and_then(serde_json::Value::as_u64) {
        None => return Manifest::Foreign,
        Some(version) if version != u64::from(FORMAT_VERSION) => {
            let expected = format!("{FORMAT_VERSION}, all that this nattenc knows");
            return unusable("format_version", expected, version.to_string());
        }
        Some(_) => {}
    }
    match serde_json::from_value(value) {
        Ok(recorded) => Manifest::Usable(recorded),
        Err(error) => unusable(
            "manifest.json",
            format!("the fields of format version {FORMAT_VERSION}"),
            error.to_string(),
        ),
    }
}

/// Of so many findings of one check the text shows no more.
const SHOWN: usize = 12;

impl Verdict {
    /// The failure that a verdict other than ok is.
    pub fn failure(&self, dist: &Path) -> Option<Failure> {
        let failed: Vec<&Check> =
            self.checks.iter().filter(|c| !matches!(c.outcome, Outcome::Ok | Outcome::Warning)).collect();
        let first = failed.first()?;
        let names: Vec<&str> = failed.iter().map(|c| c.name).collect();
        let failure = Failure::integrity(format!(
            "{}: is not what its manifest says: {} of {} checks failed: {}",
            dist.display(),
            failed.len(),
            self.checks.len(),
            names.join(", ")
        ));
        let failure = match first.findings.first() {
            Some(finding) => failure.diagnostic(finding.to_string()),
            None => failure,
        };
        Some(if first.findings.iter().any(|f| f.what == "format_version") {
            failure.hint("use a nattenc that is as new as the one that made it")
        } else {
            failure.hint("remove it and build it again, or get it again from where it came")
        })
    }

    /// The verdict as a person reads it.
    pub fn text(&self) -> String {
        // Writing to a String cannot fail.
        let mut out = String::new();
        for check in &self.checks {
            let word = match check.outcome {
                Outcome::Ok => "ok",
                Outcome::Warning => "warning",
                Outcome::Failed => "failed",
                Outcome::Unchecked => "unchecked",
            };
            let _ = writeln!(out, "{word:<10} {:<17} {}", check.name, check.summary);
            for finding in check.findings.iter().take(SHOWN) {
                let _ = writeln!(out, "             {finding}");
            }
            if check.findings.len() > SHOWN {
                let _ = writeln!(
                    out,
                    "             and {} more; --json has them all",
                    check.findings.len() - SHOWN
                );
            }
        }
        if !self.code.is_empty() {
            let _ = writeln!(
                out,
                "\n{:<12} {:<11} {:>11} {:>11} {:>8} {:>10}",
                "section", "capability", "elf units", "ptx units", "kernels", "size"
            );
        }
        for row in &self.code {
            let count = |found: usize, claimed: usize| {
                if found == claimed { found.to_string() } else { format!("{found} of {claimed}") }
            };
            let _ = writeln!(
                out,
                "{:<12} {:<11} {:>11} {:>11} {:>8} {:>10}",
                row.section,
                row.capability,
                count(row.elf_found, row.elf_claimed),
                count(row.ptx_found, row.ptx_claimed),
                row.kernels,
                report::bytes(row.bytes)
            );
        }
        for kernel in &self.kernels {
            let what = if kernel.empty { "  no body" } else { "" };
            let _ = writeln!(
                out,
                "{:<24} {:<6} {:>8} {}{what}",
                kernel.unit, kernel.capability, kernel.bytes, kernel.kernel
            );
        }
        out
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: expected {}, found {}", self.what, self.expected, self.found)
    }
}
