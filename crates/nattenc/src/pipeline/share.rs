//! The phases of `nattenc verify --share-ptx`: a sample of kernels compiled for a capability both ways,
//! through its own PTX and through another's, and compared.

use super::{
    Parts, Project, lay_out, lock, probe_toolkit, programs, unit_dry_run, unit_text, unusable, watch_signals,
};
use crate::config::share::Mode;
use crate::config::{Config, Place, Variant};
use crate::execute::cache::Cache;
use crate::execute::{self, Limits, Setting};
use crate::failure::Failure;
use crate::graph::{Graph, JobId, Kind, Source, compile};
use crate::plan::sample::{self, Pair, Question, Sample};
use crate::plan::{Request, Skip};
use crate::report::{self, Reporter};
use crate::verify::code::{self, Comparison};
use crate::{catalog, cost, cutlass, fetch, supply};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Raised when a field of the JSON changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Of so many kernels of a family and a pair the text shows no more.
const SHOWN: usize = 12;

/// What is compared.
pub struct ProofOptions {
    /// Sections, families and kernels.
    pub request: Request,
    /// Which pairs, by which kernels.
    pub question: Question,
    /// Toolkit and sources.
    pub supply: supply::Options,
    /// Within which limits it compiles.
    pub limits: Limits,
}

/// What came out for the kernels of one family and pair that one promise, or none, is made of.
#[derive(Debug, Clone, Serialize)]
pub struct ProofRow {
    /// The section.
    pub section: String,
    /// The family.
    pub family: String,
    /// What is assembled for.
    pub capability: String,
    /// Whose PTX is assembled.
    pub from: String,
    /// What build.toml says of the pair for these kernels.
    pub declared: Option<Mode>,
    /// Where it says so.
    #[serde(skip)]
    pub at: Option<Place>,
    /// Kernels compared.
    pub kernels: usize,
    /// Bytes of code of the capability's own cubins.
    pub code_bytes: u64,
    /// Lines of PTX that differ, `.target` apart.
    pub ptx_lines: usize,
    /// Bytes of the cubins outside of code and constants that differ; none where sizes differ.
    pub metadata_bytes: Option<u64>,
    /// Kernels whose code or constants differ, as the cubins name them.
    pub differing: Vec<String>,
    /// Whether code and constants of all are the same.
    pub identical: bool,
}

/// The table.
#[derive(Debug, Clone, Serialize)]
pub struct Proof {
    /// Raised when a field changes its meaning or goes away.
    pub schema_version: u32,
    /// The variant.
    pub variant: String,
    /// nvcc's full version.
    pub toolkit: String,
    /// Per family and pair.
    pub rows: Vec<ProofRow>,
    /// What was not compared.
    pub skips: Vec<SkippedPair>,
    /// Whether every pair that build.toml calls identical is.
    pub ok: bool,
    /// CPU seconds of what was compiled now.
    pub cpu: f64,
}

/// Something that could not be compared.
#[derive(Debug, Clone, Serialize)]
pub struct SkippedPair {
    /// Section and pair.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// Compiles the sample and compares.
pub fn prove_sharing(
    project: &Project,
    variant: &Variant,
    options: &ProofOptions,
    reporter: &dyn Reporter,
) -> anyhow::Result<Proof> {
    let catalog = catalog::catalog()?;
    let choose = |known: Option<&[_]>| {
        sample::samples(&project.config, variant, known, &options.request, &options.question, catalog)
    };
    // As for builds: what cannot be met must not fetch anything.
    choose(None)?;
    let search = project.search(variant, &options.supply)?;
    let cutlass = project.cutlass(&search.fetching, reporter)?;
    let ready = search.toolkit(reporter)?;
    let toolkit = &ready.toolkit;
    let sources = fetch::natten(&search.fetching, &project.config.natten, &report::Transfers(reporter))?;
    let chosen = choose(Some(&toolkit.capabilities))?;

    let build_dir = project.build_dir(&variant.name).join("share-ptx");
    let _lock = lock(&build_dir)?;
    // Compilers of a build that was killed may still run, and write where they were started.
    crate::fs::discard(&build_dir.join("scratch"))?;
    let sources = match &cutlass {
        None => sources,
        Some(other) => cutlass::laid_over(sources, other, &build_dir, &search.digests)?,
    };
    let cache = Cache::new(&search.fetching.home, &build_dir);
    let mut files = BTreeMap::new();
    let mut texts: Vec<Arc<str>> = Vec::new();
    for Sample { unit, .. } in &chosen.samples {
        let text: Arc<str> = Arc::from(unit_text(unit)?);
        let path = build_dir.join("src").join(&unit.family).join(format!("{}.cu", unit.name));
        files.insert(path, Arc::clone(&text));
        texts.push(text);
    }
    lay_out(&build_dir, files)?;
    let parts = Parts::new(&ready, &sources, &build_dir)?;
    let signal = watch_signals()?;
    let setting = Setting {
        home: search.fetching.home.clone(),
        scratch: build_dir.join("scratch"),
        logs: build_dir.join("logs"),
        cache: &cache,
        trees: parts.trees,
        tools: parts.tools,
        env: parts.env,
        digests: &search.digests,
        reporter,
        signal: &signal,
        has: &|_| false,
        may_run: &|_| true,
    };
    probe_toolkit(toolkit, &setting, &search.surroundings)?;

    let programs = programs(toolkit)?;
    let table = cost::table()?;
    let mut graph = Graph::default();
    let mut dry_runs = BTreeMap::new();
    let mut jobs: Vec<Vec<JobId>> = Vec::new();
    for (Sample { unit, .. }, text) in chosen.samples.iter().zip(&texts) {
        let dry = unit_dry_run(&mut dry_runs, unit, toolkit, &setting)?;
        jobs.push(
            compile::device(&mut graph, unit, text, dry, &programs, table)
                .map_err(|why| unusable(toolkit, unit, &why))?,
        );
    }
    reporter.phase(&format!(
        "comparing {} kernels in {} units, {} jobs; at most {} at once",
        chosen.samples.iter().map(|s| s.unit.kernels.len()).sum::<usize>(),
        chosen.samples.len(),
        graph.jobs().len(),
        options.limits.jobs
    ));
    let wanted: Vec<JobId> = (0..graph.jobs().len())
        .filter(|id| matches!(graph.jobs()[*id].kind, Kind::Cicc | Kind::Ptxas))
        .collect();
    let built = execute::run(&graph, &wanted, &setting, options.limits)?;
    let made: BTreeMap<JobId, &[u8]> =
        wanted.iter().copied().zip(built.wanted.iter().map(Vec::as_slice)).collect();
    if let Err(error) = search.digests.save() {
        reporter.warning(&format!("digests of tools are not remembered: {error}"));
    }

    let mut rows = Vec::new();
    for (sample, jobs) in chosen.samples.iter().zip(&jobs) {
        for pair in &sample.pairs {
            let ptx = [code(&graph, jobs, *pair, pair.capability), code(&graph, jobs, *pair, pair.from)]
                .map(|found| found.and_then(|(cicc, ptxas)| Some((*made.get(&cicc)?, *made.get(&ptxas)?))));
            let [Some(own), Some(other)] = ptx else {
                anyhow::bail!("{}: no code of {} in the graph", sample.unit.label(), pair.capability)
            };
            let found = code::compare([own.0, other.0], [own.1, other.1]).map_err(|why| {
                Failure::integrity(format!("{}: ptxas's output cannot be read: {why}", sample.unit.label()))
                    .hint("run the same command again with an empty NATTENC_HOME")
            })?;
            row(&mut rows, &project.config, sample, *pair).add(&found);
        }
    }
    let cpu = built.records.iter().filter(|r| r.how == execute::How::Ran).map(|r| r.cpu).sum();
    crate::fs::remove_dir(&setting.scratch)?;
    Ok(Proof {
        schema_version: SCHEMA_VERSION,
        variant: variant.name.clone(),
        toolkit: toolkit.version.clone(),
        ok: !rows.iter().any(ProofRow::refutes),
        rows,
        skips: chosen.skips.into_iter().map(|Skip { what, reason }| SkippedPair { what, reason }).collect(),
        cpu,
    })
}

/// The jobs that make PTX of `virtual_arch` and assemble it for the pair's capability.
fn code(
    graph: &Graph,
    jobs: &[JobId],
    pair: Pair,
    virtual_arch: crate::plan::capability::Capability,
) -> Option<(JobId, JobId)> {
    let made_for = |id: JobId, name: &str| graph.jobs()[id].label.ends_with(&format!("/{name}"));
    jobs.iter().find_map(|id| {
        let job = &graph.jobs()[*id];
        let Source::Output(cicc, _) = job.inputs.first()?.source else { return None };
        let found = job.kind == Kind::Ptxas
            && made_for(*id, &pair.capability.sm())
            && made_for(cicc, &virtual_arch.compute());
        found.then_some((cicc, *id))
    })
}

/// The row of a sample's family, that pair and what is promised of it, which may be there already.
fn row<'a>(rows: &'a mut Vec<ProofRow>, config: &Config, sample: &Sample, pair: Pair) -> &'a mut ProofRow {
    let (section, family) = (&sample.unit.section, &sample.unit.family);
    let (capability, from) = (pair.capability.to_string(), pair.from.to_string());
    let declared = config.section(section).and_then(|s| sample::declared(s, pair, &sample.unit));
    let same = |r: &ProofRow| {
        (&r.section, &r.family, &r.capability, &r.from) == (section, family, &capability, &from)
            && r.at.as_ref() == declared.map(|d| &d.at)
    };
    let index = rows.iter().position(same).unwrap_or_else(|| {
        rows.push(ProofRow {
            section: section.clone(),
            family: family.clone(),
            capability,
            from,
            declared: declared.map(|d| d.mode),
            at: declared.map(|d| d.at.clone()),
            kernels: 0,
            code_bytes: 0,
            ptx_lines: 0,
            metadata_bytes: Some(0),
            differing: Vec::new(),
            identical: true,
        });
        rows.len() - 1
    });
    &mut rows[index]
}

impl ProofRow {
    fn add(&mut self, found: &Comparison) {
        self.kernels += found.kernels;
        self.code_bytes += found.code_bytes;
        self.ptx_lines += found.ptx_lines;
        self.metadata_bytes = self.metadata_bytes.and_then(|sum| Some(sum + found.metadata_bytes?));
        self.differing
            .extend(found.functions.iter().filter(|(_, same)| !**same).map(|(name, _)| name.clone()));
        self.identical = self.differing.is_empty();
    }

    /// Whether build.toml calls the pair identical and it is not.
    fn refutes(&self) -> bool {
        self.declared == Some(Mode::Identical) && !self.identical
    }
}

impl Proof {
    /// The failure that a pair is which is called identical and is not.
    pub fn failure(&self) -> Option<Failure> {
        let refuted: Vec<String> = self
            .rows
            .iter()
            .filter(|row| row.refutes())
            .map(|row| {
                format!(
                    "{}: section {}: {} from {} is called identical, and is not: {} of {} kernels of {} have other code, first {}",
                    row.at.as_ref().map_or_else(String::new, ToString::to_string),
                    row.section,
                    row.capability,
                    row.from,
                    row.differing.len(),
                    row.kernels,
                    row.family,
                    row.differing[0]
                )
            })
            .collect();
        (!refuted.is_empty()).then(|| {
            Failure::integrity(refuted.join("\n"))
                .hint("write mode = \"valid\" for the pair, or take it out of `share` in build.toml")
        })
    }

    /// The table as a person reads it.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "variant {}: nvcc {}", self.variant, self.toolkit);
        let _ = writeln!(
            out,
            "\n{:<18} {:<18} {:<10} {:>7} {:>11} {:>9} {:>9}  code and constants",
            "family", "pair", "declared", "kernels", "code bytes", "PTX lines", "metadata"
        );
        for row in &self.rows {
            let verdict = match row.differing.len() {
                0 => "identical".to_owned(),
                count => format!("{count} of {} differ", row.kernels),
            };
            let _ = writeln!(
                out,
                "{:<18} {:<18} {:<10} {:>7} {:>11} {:>9} {:>9}  {verdict}",
                row.family,
                format!("{} from {}", row.capability, row.from),
                row.declared.map_or_else(|| "-".to_owned(), |m| m.to_string()),
                row.kernels,
                row.code_bytes,
                row.ptx_lines,
                row.metadata_bytes.map_or_else(|| "sizes".to_owned(), |b| b.to_string()),
            );
        }
        for row in self.rows.iter().filter(|r| !r.identical) {
            let _ = writeln!(out, "\nother code in {}, {} from {}:", row.family, row.capability, row.from);
            for name in row.differing.iter().take(SHOWN) {
                let _ = writeln!(out, "  {name}");
            }
            if row.differing.len() > SHOWN {
                let _ = writeln!(out, "  and {} more; --json has them all", row.differing.len() - SHOWN);
            }
        }
        for skip in &self.skips {
            let _ = writeln!(out, "not compared: {}: {}", skip.what, skip.reason);
        }
        let mut pairs: BTreeMap<(&str, &str), bool> = BTreeMap::new();
        for row in &self.rows {
            *pairs.entry((&row.capability, &row.from)).or_insert(true) &= row.identical;
        }
        let named = |identical: bool| {
            let list: Vec<String> = pairs
                .iter()
                .filter(|(_, i)| **i == identical)
                .map(|((c, f), _)| format!("{c} from {f}"))
                .collect();
            if list.is_empty() { "none".to_owned() } else { list.join(", ") }
        };
        let _ = write!(
            out,
            "\nidentical in this sample: {}\nvalid, with other code: {}\n{:.1} CPU s",
            named(true),
            named(false),
            self.cpu
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Class;

    fn row(family: &str, declared: Option<Mode>, differing: &[&str]) -> ProofRow {
        ProofRow {
            section: "core".to_owned(),
            family: family.to_owned(),
            capability: "12.0".to_owned(),
            from: "10.0".to_owned(),
            declared,
            at: None,
            kernels: 0,
            code_bytes: 0,
            ptx_lines: 0,
            metadata_bytes: Some(0),
            differing: differing.iter().map(|name| (*name).to_owned()).collect(),
            identical: differing.is_empty(),
        }
    }

    #[test]
    fn only_what_is_called_identical_must_be() {
        for (declared, differing, refuted) in [
            (Some(Mode::Identical), &[][..], false),
            (Some(Mode::Identical), &["_Z1fv"], true),
            (Some(Mode::Valid), &["_Z1fv"], false),
            (None, &["_Z1fv"], false),
        ] {
            let rows = vec![row("fna", declared, differing), row("fmha", declared, &[])];
            let proof = Proof {
                schema_version: SCHEMA_VERSION,
                variant: "cu130".to_owned(),
                toolkit: "13.0.88".to_owned(),
                ok: !rows.iter().any(ProofRow::refutes),
                rows,
                skips: Vec::new(),
                cpu: 0.0,
            };
            assert_eq!((proof.ok, proof.failure().is_some()), (!refuted, refuted), "{declared:?}");
            if let Some(failure) = proof.failure() {
                assert_eq!(failure.class, Class::Integrity);
                assert!(failure.message.contains("12.0 from 10.0 is called identical, and is not"));
            }
            // A pair is identical where it is for every family.
            let text = proof.text();
            let list = if differing.is_empty() {
                "identical in this sample: 12.0 from 10.0"
            } else {
                "valid, with other code: 12.0 from 10.0"
            };
            assert!(text.contains(list) && differing.iter().all(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn samples_of_one_family_add_up() {
        let mut sum = row("fna", None, &[]);
        let functions = |same| BTreeMap::from([("f".to_owned(), same)]);
        for (same, metadata_bytes) in [(true, Some(1)), (false, Some(2)), (true, None)] {
            sum.add(&Comparison {
                functions: functions(same),
                kernels: 1,
                code_bytes: 8,
                ptx_lines: 1,
                metadata_bytes,
            });
        }
        assert_eq!((sum.kernels, sum.code_bytes, sum.ptx_lines, sum.metadata_bytes), (3, 24, 3, None));
        assert!(!sum.identical && sum.differing == ["f"]);
    }
}
